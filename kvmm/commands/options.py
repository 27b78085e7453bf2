"""Options that several commands have, each defined once, and what a shell completes for them.

Nothing here imports torch: help and completion are answered while somebody waits at a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvmm.analysis.cost.shapes import SHAPES, ModelShape
from kvmm.embedded import assets_folder, models_in
from kvmm.policy import policies
from kvmm.policy.files import is_policy_file


def complete_policy(incomplete: str) -> Iterator[tuple[str, str]]:
    """Presets with their lines, then YAML files and folders."""
    yield from ((name, line) for name, line in policies().items() if name.startswith(incomplete))
    yield from _paths(incomplete, lambda path: is_policy_file(path.name))


def complete_model(incomplete: str) -> Iterator[tuple[str, str]]:
    """Embedded models and hub ids of common ones, then folders."""
    yield from ((name, "bundled") for name in models_in(assets_folder()) if name.startswith(incomplete))
    yield from ((shape.hub_id, _line(shape)) for shape in SHAPES.values() if shape.hub_id.startswith(incomplete))
    yield from _paths(incomplete, lambda path: False)


def complete_shape(incomplete: str) -> Iterator[tuple[str, str]]:
    """Names of common models, then what :func:`complete_model` offers."""
    yield from ((name, _line(shape)) for name, shape in SHAPES.items() if name.startswith(incomplete))
    yield from complete_model(incomplete)


def _line(shape: ModelShape) -> str:
    return f"{shape.num_layers} layers, {shape.num_key_value_heads} KV heads of {shape.head_dim}"


def _paths(incomplete: str, wanted: Callable[[Path], bool]) -> Iterator[tuple[str, str]]:
    """Folders, and the files that ``wanted`` says so, that begin as the word does."""
    folder, name = incomplete.rpartition("/")[::2]
    try:
        paths = sorted(Path(f"{folder}/" if "/" in incomplete else ".").iterdir())
    except OSError:
        return
    for path in paths:
        if path.name.startswith(name) and not path.name.startswith(".") and (path.is_dir() or wanted(path)):
            yield f"{folder}/{path.name}" if "/" in incomplete else path.name, "folder" if path.is_dir() else "file"


# -- the model -------------------------------------------------------------------------------------------------------

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Folder, hub id, or a model that comes along, such as tiny-omni (docs/models.md, also on the default).",
        autocompletion=complete_model,
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Folder or hub id; repeat to offer several; default is those that come along.",
        autocompletion=complete_model,
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1 ...; default is the first GPU, else the CPU.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float32, bfloat16 or float16; default is chosen for the device.")
]
FuseValues = Annotated[
    bool,
    typer.Option("--fuse-values", help="Fold OScaR's rotation of values into the model's weights."),
]

# -- policies --------------------------------------------------------------------------------------------------------

Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Cache policy: one that `kvmm policies` lists, or a .yaml file.",
        autocompletion=complete_policy,
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="Preset or YAML file; repeat for several.", autocompletion=complete_policy),
]

# -- media -----------------------------------------------------------------------------------------------------------

Images = Annotated[list[Path] | None, typer.Option("--image", help="An image; repeat for several pages.")]
Pdfs = Annotated[list[Path] | None, typer.Option("--pdf", help="A PDF, every page of it; repeat for several.")]
Audio = Annotated[Path | None, typer.Option("--audio", help="A recording.")]
Text = Annotated[Path | None, typer.Option("--text", help="A text file, instead of media.")]
Question = Annotated[str | None, typer.Option("--question", help="Asked about the media; default: what they say.")]

# -- answers and output ----------------------------------------------------------------------------------------------

Temperature = Annotated[
    float,
    typer.Option("--temperature", min=0, max=2, help="0 takes the most likely token; above, tokens are drawn."),
]
TopP = Annotated[
    float, typer.Option("--top-p", min=0, max=1, help="Draw from the smallest set of tokens of this probability.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed draws the same answer.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="A text that ends the answer; repeat for several.")]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        min=0,
        max=20,
        metavar="N",
        help="With --json: the log-probability of each token, and of the N most likely.",
    ),
]
Speculative = Annotated[
    str | None,
    typer.Option(
        "--speculative",
        metavar="lookup|MODEL",
        help="Check several drafted tokens in one step, with the same answer: drafts from the text itself (lookup), or "
        "by a smaller model of the same vocabulary.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer, in tokens.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress on stderr.")]
