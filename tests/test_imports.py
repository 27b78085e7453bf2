"""The layers of the package, read from its imports: nothing imports upward, no files import each other in a circle."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# from the ground up; a file belongs to the row with the longest prefix of its name
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        *("errors", "modality", "modality_codes", "media", "pdf", "decoding"),
        *("lazy", "paced", "fields", "memory_text", "markdown_text", "bounded_json", "bounded_yaml", "tensor_file"),
        *("generating_model", "embedded"),
    ),
    ("kernels",),
    ("calibration.data",),
    ("codecs",),
    ("calibration",),
    ("policy",),
    # a cache owns the graphs of its steps and calls them; they know it by what they ask of it
    ("attention", "cuda_graphs"),
    ("cache",),
    ("models", "samples"),
    tuple(f"calibration.{name}" for name in ("collect", "refine", "choose", "fit")),
    ("analysis", "eval"),
    ("ui", "serve", "lmcache", "vllm", "commands", "cli", "__main__", ""),
)

# What is still wrong. A line goes when its cause goes; a new one must not come.
CIRCLES: set[tuple[str, ...]] = set()
UPWARD: set[tuple[str, str]] = set()
INSIDE_FUNCTIONS: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Import:
    """One import of one file.

    Attributes:
        source: the importing module.
        target: the imported module; of a name that a package hands on when it is first used, the module it is from.
        name: the imported name, "" for a whole module.
        kind: ``module`` (when the file is imported), ``optional`` (then, unless it is missing), ``typing`` (under
            ``TYPE_CHECKING``) or ``function`` (when a function is called).
        line: where.
    """

    source: str
    target: str
    name: str
    kind: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} -> {self.target} ({self.kind})"


class Imports:
    """All imports of a package.

    Args:
        folder: the package's folder; its name is the package's name.
    """

    def __init__(self, folder: Path):
        self.package = folder.name
        self.files = {_module_name(path, folder.parent): path for path in sorted(folder.rglob("*.py"))}
        self._handed_on: dict[tuple[str, str], str] = {}
        trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.files.items()}
        read = {name: list(self._read(name, tree)) for name, tree in trees.items()}
        lazy = {name for name, found in read.items() if any(i.name == "lazy_names" for i in found)}
        for name in lazy - {f"{self.package}.lazy"}:
            self._handed_on |= {(name, i.name): i.target for i in read[name] if i.kind == "typing"}
            read[name] = [i for i in read[name] if i.kind != "typing"]
        self.all = [self._resolved(i) for found in read.values() for i in found]
        self.own = [i for i in self.all if i.target in self.files and i.target != i.source]
        self._on_import: dict[str, set[str]] = {}
        for one in self.all:
            if one.kind == "module":
                self._on_import.setdefault(one.source, set()).add(one.target)

    def _read(self, module: str, tree: ast.Module) -> Iterator[Import]:
        def visit(node: ast.AST, kind: str) -> Iterator[Import]:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Import):
                    for alias in child.names:
                        yield Import(module, alias.name, "", kind, child.lineno)
                elif isinstance(child, ast.ImportFrom):
                    base = self._base(module, child)
                    for alias in child.names:
                        whole = f"{base}.{alias.name}"
                        target, name = (whole, "") if whole in self.files else (base, alias.name)
                        yield Import(module, target, name, kind, child.lineno)
                elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    for inner in child.body:
                        yield from visit(ast.Module([inner], []), "typing")
                    for inner in child.orelse:
                        yield from visit(ast.Module([inner], []), kind)
                elif isinstance(child, ast.Try) and kind == "module":
                    yield from visit(child, "optional")
                elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                    yield from visit(child, "function")
                else:
                    yield from visit(child, kind)

        return visit(tree, "module")

    def _base(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".") if self.files[module].name == "__init__.py" else module.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts)

    def _resolved(self, one: Import) -> Import:
        home = self._handed_on.get((one.target, one.name))
        return one if home is None else Import(one.source, home, one.name, one.kind, one.line)

    def circles(self) -> set[tuple[str, ...]]:
        """Files that import each other in a loop, by whatever kind of import."""
        arrows = {name: sorted({i.target for i in self.own if i.source == name}) for name in self.files}
        return {tuple(sorted(group)) for group in _strongly_connected(arrows) if len(group) > 1}

    def upward(self, layers: tuple[tuple[str, ...], ...]) -> list[Import]:
        """Imports from a layer above the importing file's own."""
        row = {name: self.row(name, layers) for name in self.files}
        return [i for i in self.own if row[i.target] > row[i.source]]

    def row(self, module: str, layers: tuple[tuple[str, ...], ...]) -> int:
        """The layer of a module, counted from the ground."""
        inner = module.removeprefix(self.package).removeprefix(".")
        found = [
            (len(prefix), number)
            for number, prefixes in enumerate(layers)
            for prefix in prefixes
            if inner == prefix or (prefix and inner.startswith(f"{prefix}."))
        ]
        if not found:
            raise KeyError(f"{module} stands in no layer; name its place in LAYERS.")
        return max(found)[1]

    def needless(self) -> list[Import]:
        """Imports inside functions that keep no library out: all that they load is loaded with the file anyway."""
        found = []
        for one in self.all:
            if one.kind == "function":
                loaded = self._libraries(one.source)
                wanted = self._libraries(one.target) if one.target in self.files else _outside(one.target)
                if not wanted - loaded:
                    found.append(one)
        return found

    def _libraries(self, module: str) -> set[str]:
        """Modules from outside the package and the standard library that are loaded when ``module`` is imported."""
        seen, waiting, found = set(), [module], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if "." in name:
                waiting.append(name.rpartition(".")[0])  # importing a module imports its package first
            for target in self._on_import.get(name, ()):
                if target in self.files:
                    waiting.append(target)
                else:
                    found |= _outside(target)
        return found


def _outside(module: str) -> set[str]:
    """A module with the packages it is in; empty for the standard library."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names:
        return set()
    return {".".join(parts[:n]) for n in range(1, len(parts) + 1)}


def _module_name(path: Path, above: Path) -> str:
    parts = path.relative_to(above).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _strongly_connected(arrows: Mapping[str, list[str]]) -> list[list[str]]:
    """Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in arrows[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            cut = stack.index(node)
            found.append(stack[cut:])
            del stack[cut:]

    for node in arrows:
        if node not in index:
            visit(node)
    return found


@pytest.fixture(scope="module")
def imports() -> Imports:
    return Imports(ROOT / "kvmm")


def test_no_files_import_each_other_in_a_circle(imports: Imports) -> None:
    assert imports.circles() == CIRCLES


def test_nothing_imports_upward(imports: Imports) -> None:
    found = imports.upward(LAYERS)
    assert {(i.source, i.target) for i in found} == UPWARD, [str(i) for i in found]


def test_imports_inside_functions_keep_libraries_out(imports: Imports) -> None:
    found = imports.needless()
    assert {(i.source, i.target) for i in found} == INSIDE_FUNCTIONS, [str(i) for i in found]


def test_training_has_no_circle() -> None:
    assert Imports(ROOT / "training").circles() == set()


def test_every_file_stands_in_a_layer(imports: Imports) -> None:
    used = {imports.row(name, LAYERS) for name in imports.files}
    assert used == set(range(len(LAYERS)))


@pytest.fixture
def house(tmp_path: Path) -> Imports:
    """A package with one of every fault."""
    folder = tmp_path / "house"
    files = {
        "__init__.py": "",
        "lazy.py": "def lazy_names(*_): ...",
        "ground/__init__.py": "",
        "ground/stone.py": "import torch\nfrom house.roof import tile",
        "ground/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.roof.tile import T",
        "ground/late.py": "import torch\ndef f():\n    from house.ground import sand\n    import json\n    import yaml",
        "ground/sand.py": "import torch",
        "roof/__init__.py": "from house.lazy import lazy_names\nif TYPE_CHECKING:\n    from house.roof.tile import T",
        "roof/tile.py": "from ..ground.stone import S",
        "roof/user.py": "from house.roof import T",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Imports(folder)


def test_the_reader_finds_every_fault(house: Imports) -> None:
    layers = (("ground", "lazy"), ("roof", ""))
    assert house.circles() == {("house.ground.stone", "house.roof.tile")}
    assert {(i.source, i.target, i.kind) for i in house.upward(layers)} == {
        ("house.ground.stone", "house.roof.tile", "module"),
        ("house.ground.typed", "house.roof.tile", "typing"),
    }
    # yaml is loaded late for a reason, json and a file that needs only torch are not
    assert {i.target for i in house.needless()} == {"house.ground.sand", "json"}
    # a package that hands a name on stands for the file that the name is from
    assert [i.target for i in house.own if i.source == "house.roof.user"] == ["house.roof.tile"]
    with pytest.raises(KeyError, match="stands in no layer"):
        house.row("house.roof.tile", (("ground",),))
