"""``load_model``: a model and its processor from the embedded folder, a local folder or the Hugging Face hub."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from kvmm.cache.fuse import fuse_value_rotation
from kvmm.calibration.data import FORMAT as CALIBRATION_FORMAT
from kvmm.embedded import EMBEDDED_MODELS, OFFICE_MODEL, TINY_MODEL, assets_folder, models_in
from kvmm.errors import KVMMError
from kvmm.models.families import family_of
from kvmm.models.packaged import PACKAGED, packaged_folder
from kvmm.models.packed_weights import ELEMENTS, LOW, PACKED_FILE, SIDE_TENSORS, load_packed
from kvmm.models.patches import multiply_patches
from kvmm.models.processors import load_processor

DEFAULT_MODEL_ENV = "KVMM_DEFAULT_MODEL"
# Loading needs the weights once, plus buffers and activations.
MEMORY_HEADROOM = 1.15
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
_MALFORMED = (AttributeError, KeyError, TypeError)  # of values in a header
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_model(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    fuse_values: bool = False,
) -> tuple[PreTrainedModel, ProcessorMixin | PreTrainedTokenizerBase]:
    """Load a model, in evaluation mode, with its processor (the tokenizer for a text-only model).

    Args:
        name_or_path: a folder, a hub id such as "Qwen/Qwen2.5-VL-3B-Instruct", a model that a package carries
            (:data:`kvmm.models.packaged.PACKAGED`), or one of :func:`embedded_models`. None is what the
            environment variable ``KVMM_DEFAULT_MODEL`` names or, without it, the first of :func:`embedded_models`.
        device: torch device; default is the first CUDA GPU, else the CPU.
        dtype: torch dtype or its name; default is bfloat16 on a GPU and on a CPU that has instructions for it,
            else float32 when that fits in memory.
        fuse_values: fold OScaR's rotation of values into the weights (:func:`kvmm.cache.fuse.fuse_value_rotation`).

    Raises:
        KVMMError: the folder is missing or incomplete, the hub cannot be reached or does not know the id, the family
            is not supported, the weights do not fit in memory, or ``fuse_values`` does not suit the model.
    """
    folder = _resolve(name_or_path)
    device = _resolve_device(device)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise KVMMError(f"{folder} has no config.json that transformers can read: {_one_line(error)}") from error
    family = family_of(config)
    dtype = _resolve_dtype(dtype, folder, device)
    _check_memory(folder, device, dtype)
    try:
        processor = load_processor(folder, family, config)
        model = _build(getattr(transformers, family.model_class), folder, config, dtype).to(device).eval()
    except torch.OutOfMemoryError as error:
        raise KVMMError(
            f"{folder.name} does not fit in the memory of {device}: choose a smaller model or the CPU "
            "(--device cpu, device='cpu')."
        ) from error
    except (OSError, ValueError, ImportError) as error:
        raise KVMMError(f"{folder} cannot be loaded as a {config.model_type} model: {_one_line(error)}") from error
    multiply_patches(model)
    if fuse_values:
        fuse_value_rotation(model)
    return model, processor


def _build(model_class: type[PreTrainedModel], folder: Path, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model with the folder's weights, dequantised where they are stored in few bits."""
    if not (folder / PACKED_FILE).is_file():
        return model_class.from_pretrained(folder, dtype=dtype, use_safetensors=True)
    model = model_class.from_pretrained(None, config=config, state_dict=load_packed(folder, dtype), dtype=dtype)
    model.name_or_path = model.config.name_or_path = str(folder)  # where a calibration is looked for
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def embedded_models() -> list[str]:
    """Names of the models in ``assets``, the default first; a wheel has ``tiny-omni`` alone."""
    return models_in(assets_folder())


def default_model() -> Path:
    """The folder, absolute, of what ``KVMM_DEFAULT_MODEL`` names, or of the first embedded model; it may be missing."""
    named = os.environ.get(DEFAULT_MODEL_ENV)
    return embedded_folder(named or next(iter(embedded_models()), TINY_MODEL)).expanduser().resolve()


def embedded_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of an embedded model by its name, unless there is one of that name here; else ``name`` as a path."""
    path = Path(name)
    return assets_folder() / path if os.fspath(name) in EMBEDDED_MODELS and not path.is_dir() else path


def _resolve(name_or_path: str | os.PathLike[str] | None) -> Path:
    """The folder that holds the model, downloaded when it is a hub id."""
    if name_or_path is None:
        name_or_path = default_model()
        if not (Path(name_or_path) / "config.json").is_file():
            mend = "clone the whole repository, or name a folder or a hub id"
            if os.environ.get(DEFAULT_MODEL_ENV):
                mend = f"let {DEFAULT_MODEL_ENV} name a model's folder, or unset it"
            raise KVMMError(f"The default model is not at {name_or_path}: {mend}.")
    folder = embedded_folder(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    name = os.fspath(name_or_path)
    if name in PACKAGED:
        return packaged_folder(name)
    if name == OFFICE_MODEL:
        raise KVMMError(f"{name} is in a checkout of the repository only: clone it, or name a folder or a hub id.")
    if name in EMBEDDED_MODELS:
        raise KVMMError(f"{name} is not in {assets_folder()}: clone the whole repository, or name a folder or hub id.")
    # A hub id is "name" or "owner/name"; anything else was meant as a folder.
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1 or folder.exists():
        raise KVMMError(f"There is no model folder {name}: check the path, or give a hub id such as owner/name.")
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except GatedRepoError as error:
        raise KVMMError(
            f"The hub wants you to accept the terms of {name}: do so there, then `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise KVMMError(f"There is no folder and no hub model called {name}: check the name.") from error
    except Exception as error:  # the hub client raises errors of several HTTP libraries
        raise KVMMError(
            f"{name} is neither a folder nor in the local hub cache, and the hub cannot be reached: "
            "connect to the network or give a local folder."
        ) from error


def _resolve_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise KVMMError(f"'{device}' is not a device: use cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise KVMMError("There is no CUDA GPU that torch can use here: use the CPU (--device cpu, device='cpu').")
    return device


def _resolve_dtype(dtype: str | torch.dtype | None, folder: Path, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is not None:
        if dtype not in _DTYPES:
            raise KVMMError(f"'{dtype}' is not a dtype kvmm runs in: use {', '.join(_DTYPES)}.")
        return _DTYPES[dtype]
    if device.type != "cpu":
        return torch.bfloat16
    if cpu_multiplies_bfloat16():
        return torch.bfloat16
    # Emulated bfloat16 is slow, so float32 wherever it fits.
    needed = _parameters(folder) * torch.float32.itemsize * MEMORY_HEADROOM
    return torch.float32 if needed <= free_bytes(device) else torch.bfloat16


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions; without them it is emulated, and slower than float32."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)


def _check_memory(folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    needed, free = _parameters(folder) * dtype.itemsize * MEMORY_HEADROOM, free_bytes(device)
    if needed > free:
        raise KVMMError(
            f"{folder.name} needs about {needed / 2**30:.1f} GiB in {str(dtype).removeprefix('torch.')} and "
            f"{free / 2**30:.1f} GiB are free on {device}: choose a smaller model or another device."
        )


def _parameters(folder: Path) -> int:
    """Number of stored parameters, read from the headers of the safetensors files; 0 if there are none."""
    return sum(_safetensors_elements(path) for path in folder.glob("*.safetensors"))


def _safetensors_elements(path: Path) -> int:
    """Weights in one file: none in a calibration."""
    try:
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        metadata = header.pop("__metadata__", None) or {}
        if metadata.get("format") == CALIBRATION_FORMAT:
            return 0
        shapes = {name: entry["shape"] for name, entry in header.items()}
        if any(type(size) is not int or size < 0 for shape in shapes.values() for size in shape):
            raise ValueError("a shape is no list of sizes")
        size = path.stat().st_size
    except (OSError, ValueError, MemoryError, OverflowError, RecursionError, *_MALFORMED) as error:
        raise KVMMError(f"{path} is not a complete safetensors file: copy or download it again.") from error
    if path.name != PACKED_FILE:
        return sum(map(math.prod, shapes.values()))
    # two levels a byte
    counted = sum(
        (2 if name.endswith(LOW) else 1) * math.prod(shape)
        for name, shape in shapes.items()
        if not name.endswith(SIDE_TENSORS)
    )
    return _stated_elements(metadata.get(ELEMENTS), size) or counted


def _stated_elements(stated: Any, size: int) -> int | None:
    """The number of weights that a file of ``size`` bytes says it holds, where it is one that it can hold."""
    if not (isinstance(stated, str) and stated.isascii() and stated.isdecimal() and len(stated) <= len(str(8 * size))):
        return None
    return int(stated) if int(stated) <= 8 * size else None  # a weight has a bit at least


def free_bytes(device: torch.device) -> int:
    """Memory that loading may use: free on the GPU, available (free and reclaimable) on the host."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        import psutil  # a dependency of accelerate

        return psutil.virtual_memory().available
    except ImportError:
        return 1 << 62


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
