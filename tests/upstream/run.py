"""transformers' own model and generation tests, with :class:`kvmm.KVMMCache` in place of ``DynamicCache`` and without.

    python tests/upstream/run.py --source CHECKOUT                    # all families: about an hour on two cores
    python tests/upstream/run.py --source CHECKOUT --families llama --policies bf16
    python tests/upstream/run.py                                      # what the package index has: a sample, minutes

``--source`` (or ``KVMM_TRANSFORMERS_SOURCE``) is a checkout of transformers, whose wheel has no tests. Shared test
files come from the source distribution of the version that is installed; it holds those and no model's, so that
without a checkout the sample runs: the shared tests of a few tiny models (:mod:`shared_tests`).

Tests run with ``bf16`` and the model's own dtype first, and must pass wherever they pass without kvmm: those that fail
are run again without, and what passes then is a difference. The packed policies run the tests that make a cache, and
must not crash: other tokens are no error, an exception that is not an assertion of the test is. The exit code is 1 if
there is a difference or a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava"),
    *("llava_next", "llava_onevision", "internvl", "qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe"),
)
SAMPLE = "shared"
# what a test says when tokens or logits differ, which those of a packed policy do
_COMPARISONS = ("AssertionError", "Tensor-likes are not", "assert ", "Scalars are not")


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=os.environ.get("KVMM_TRANSFORMERS_SOURCE"))
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--policies", nargs="+", default=["bf16", "oscar2", "balanced"])
    parser.add_argument("--folder", type=Path, help="keeps outcomes, and takes those that it has")
    parser.add_argument("--output", type=Path, help="the summary as JSON")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of one family with one policy")
    options = parser.parse_args()
    source = None if options.source is None else Path(options.source)
    if source is not None and not (source / "tests" / "generation" / "test_utils.py").exists():
        parser.error(f"{source} is no checkout of transformers: it has no tests/generation/test_utils.py.")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        suite = Suite(prepare(folder, source), folder, options.timeout)
        names = options.families if source is not None else [SAMPLE]
        summary = {"versions": versions(suite.path), "command": command_of(options)}
        summary |= compare(suite, names, options.policies, options.processes)
    text = json.dumps(summary, indent=1) + "\n"
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    print(text)
    totals = summary["totals"]
    passed, bad = totals["passed"], totals["differences"] + totals["crashes"]
    print(f"{passed} passed, {bad} failed")
    return 1 if bad or not passed else 0


def command_of(options: argparse.Namespace) -> str:
    """What repeats the run on any machine."""
    words = ["python tests/upstream/run.py"]
    if options.source is not None:
        words += ["--source CHECKOUT --families", *options.families]
    return " ".join([*words, "--policies", *options.policies])


# -- the suite --------------------------------------------------------------------------------------------------------


def prepare(folder: Path, source: Path | None) -> Path:
    """Lay out a folder in which the tests run; returns it."""
    suite = folder / "suite"
    if (suite / "ready").exists():
        return suite
    shutil.rmtree(suite, ignore_errors=True)
    suite.mkdir(parents=True)
    packages = suite / "packages"
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", packages, "parameterized"], check=True)
    import transformers

    if source is None:
        (suite / "conftest.py").touch()
    else:
        for name in ("tests", "utils"):
            shutil.copytree(source / name, suite / name, symlinks=True)
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(source / name, suite / name)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = f"transformers=={transformers.__version__}"
        options = ["-q", "--no-deps", "--no-binary", "transformers", "-d", scratch]
        subprocess.run([*pip, "download", *options, wanted], check=True)
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            archive.extractall(scratch, filter="data")
        shutil.copytree(next(Path(scratch).glob("*/tests")), suite / "tests", dirs_exist_ok=True)
    if source is None:
        (suite / "tests" / "__init__.py").touch()
        shutil.copy(HERE / "shared_tests.py", suite / "tests" / "test_shared.py")
    (suite / "src").mkdir(exist_ok=True)
    (suite / "src" / "transformers").symlink_to(Path(transformers.__file__).parent)  # some tests read sources
    setup = "" if source is None else (source / "setup.py").read_text(encoding="utf-8")
    found = re.search(r"version=\"([^\"]+)\"", setup)
    (suite / "ready").write_text(found[1] if found else transformers.__version__, encoding="utf-8")
    return suite


class Suite:
    """Runs the tests of a family with a policy.

    Args:
        path: of :func:`prepare`.
        folder: outcomes go to ``folder / policy / family.json``.
        timeout: seconds of one run.
    """

    def __init__(self, path: Path, folder: Path, timeout: float):
        self.path, self.folder, self.timeout = path, folder, timeout

    def run(self, family: str, policy: str, only: Iterable[str] | None = None) -> dict[str, Any]:
        """The plug-in's report, with ``error`` where the run did not end by itself."""
        report = self.folder / policy / f"{family}.json"
        if report.exists():
            return json.loads(report.read_text(encoding="utf-8"))
        report.parent.mkdir(exist_ok=True)
        environment = os.environ | {
            "KVMM_UPSTREAM_POLICY": policy,
            "KVMM_UPSTREAM_REPORT": str(report),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(self.path / "packages"), str(ROOT)]),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTEST_ADDOPTS": "",
        }
        if only is not None:
            wanted = report.with_suffix(".only")
            wanted.write_text(json.dumps(sorted(only)), encoding="utf-8")
            environment["KVMM_UPSTREAM_ONLY"] = str(wanted)
        name = "tests/test_shared.py" if family == SAMPLE else f"tests/models/{family}/test_modeling_{family}.py"
        options = ["-p", "kvmm_in_place", "-p", "no:cacheprovider", "-q", "--timeout", "240", name]
        with report.with_suffix(".log").open("w", encoding="utf-8") as log:
            try:
                subprocess.run(
                    [sys.executable, "-m", "pytest", *options],
                    cwd=self.path,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=self.timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return {"tests": {}, "counts": {}, "refused": {}, "error": f"took over {self.timeout:.0f} s"}
        if not report.exists():
            return {"tests": {}, "counts": {}, "refused": {}, "error": f"no report; see {log.name}"}
        return json.loads(report.read_text(encoding="utf-8"))


# -- what it found ----------------------------------------------------------------------------------------------------


def compare(suite: Suite, families: list[str], policies: list[str], processes: int) -> dict[str, Any]:
    """Counts by policy and family, differences and crashes by name."""
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(processes) as pool:
        for found in pool.map(lambda family: _family(suite, family, policies), families):
            rows += found
            for row in found:
                print(json.dumps({k: v for k, v in row.items() if k != "refused"}), flush=True)
    count = {name: sum(row[name] for row in rows) for name in ("passed", "failed", "skipped", "subtests")}
    bad = {name: sum(len(row[name]) for row in rows) for name in ("differences", "crashes")}
    return {"totals": count | bad, "rows": rows}


def _family(suite: Suite, family: str, policies: list[str]) -> list[dict[str, Any]]:
    lossless = suite.run(family, "bf16")
    caching = [name for name, test in lossless["tests"].items() if test.get("caches")]
    rows = []
    for policy in policies:
        found = lossless if policy == "bf16" else suite.run(family, policy, caching)
        rows.append(_row(suite, family, policy, found))
    return rows


def _row(suite: Suite, family: str, policy: str, found: dict[str, Any]) -> dict[str, Any]:
    tests = found["tests"]
    outcomes = [test["outcome"] for test in tests.values()]
    row: dict[str, Any] = {"family": family, "policy": policy}
    row |= {name: outcomes.count(name) for name in ("passed", "failed", "skipped")}
    row["subtests"] = sum(test["subtests"] for test in tests.values())
    row |= found["counts"] | {"refused": found["refused"]}
    failed = {name: test["reason"] for name, test in tests.items() if test["outcome"] == "failed"}
    without = suite.run(family, "none", failed)["tests"] if failed else {}
    row["fail_without"] = {n: r for n, r in failed.items() if without.get(n, {}).get("outcome") == "failed"}
    rest = {name: reason for name, reason in failed.items() if name not in row["fail_without"]}
    lossless = policy == "bf16"
    row["differences"] = rest if lossless else {}
    row["crashes"] = {} if lossless else {n: r for n, r in rest.items() if not r.startswith(_COMPARISONS)}
    if "error" in found:
        row["crashes"]["the whole run"] = found["error"]
    return row


def versions(suite: Path) -> dict[str, str]:
    """Of what ran, and of the transformers that the tests are from."""
    import torch
    import transformers

    found = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    return found | {"tests": (suite / "ready").read_text(encoding="utf-8")}


if __name__ == "__main__":
    sys.exit(main())
