"""Shapes of decoders: what the size of a KV cache depends on, read from a configuration or from a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError

_OF_HUB = "text configuration (config.json) of "


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a decoder that determine the size of its KV cache and the work of its attention.

    Attributes:
        name: for tables.
        num_layers: decoder layers with full attention, whose keys and values a policy packs.
        num_attention_heads, num_key_value_heads: query heads and KV heads of a layer.
        head_dim: channels of a head.
        hidden_size: channels of the residual stream.
        num_sliding_layers: further layers with a window, which are left as they are.
        sliding_window: tokens of that window; 0 without such layers.
        full_layers: indices of the full-attention layers; empty if they are all layers.
        source: where the numbers come from.
        parameters: of the whole model (of the thinker, for Omni models), towers included; 0 if nobody counted.
        window: the most tokens the model reads (``max_position_embeddings``); 0 if unknown.
        sliding_key_value_heads, sliding_head_dim: of the layers with a window; 0 where they are as in the others.
    """

    name: str
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_size: int
    num_sliding_layers: int = 0
    sliding_window: int = 0
    full_layers: tuple[int, ...] = ()
    source: str = ""
    parameters: int = 0
    window: int = 0
    sliding_key_value_heads: int = 0
    sliding_head_dim: int = 0

    @property
    def total_layers(self) -> int:
        """Layers with keys and values, sliding ones included."""
        return self.num_layers + self.num_sliding_layers

    @property
    def layer_indices(self) -> tuple[int, ...]:
        """Index of every full-attention layer in the decoder."""
        return self.full_layers or tuple(range(self.num_layers))

    @property
    def sliding_heads(self) -> tuple[int, int]:
        """KV heads and channels of a head in the layers with a window."""
        return self.sliding_key_value_heads or self.num_key_value_heads, self.sliding_head_dim or self.head_dim

    @property
    def hub_id(self) -> str:
        """The hub id of a shape of the table; empty for any other."""
        return self.source.removeprefix(_OF_HUB) if self.source.startswith(_OF_HUB) else ""

    @property
    def weight_nbytes(self) -> int:
        """Bytes of the weights in 16 bits."""
        return 2 * self.parameters

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def shape_of(config: Any, name: str = "", source: str = "configuration") -> ModelShape:
    """The shape of a transformers configuration (of the thinker, for Omni models).

    Raises:
        KVMMError: if the model has no full-attention layer, layers of another kind than full or sliding attention, or
            keys and values of different length.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    from kvmm.calibration.heads import HeadShape, configured_heads  # reads torch

    config = getattr(config, "thinker_config", None) or config
    text = config.get_text_config(decoder=True)
    if not getattr(text, "num_attention_heads", None) or hasattr(text, "v_head_dim"):
        raise KVMMError(
            f"A plan needs a decoder whose keys and values have one length: {type(config).__name__} is none."
        )
    layers = DynamicCache(config=text).layers
    full = tuple(i for i, layer in enumerate(layers) if type(layer) is DynamicLayer)
    sliding = [layer for layer in layers if type(layer) is DynamicSlidingWindowLayer]
    # some versions of transformers leave layers out that read the keys and values of others, but not their operations
    if not full or len(full) + len(sliding) != text.num_hidden_layers:
        raise KVMMError(f"A plan counts layers of full and sliding attention only: {type(config).__name__} has others.")
    shapes = configured_heads(text)
    packed, windows = {shapes[i] for i in full}, {shapes[i] for i in range(len(layers)) if i not in full}
    if len(packed) > 1 or len(windows) > 1:
        raise KVMMError(
            f"A plan needs heads of one shape in all full-attention layers, and one in all layers with a sliding "
            f"window: those of {type(config).__name__} differ."
        )
    (shape,), other = packed, next(iter(windows - packed), HeadShape(0, 0, 0))
    return ModelShape(
        name or getattr(config, "model_type", "") or type(config).__name__,
        len(full),
        text.num_attention_heads,
        shape.heads,
        shape.key_dim,
        text.hidden_size,
        len(sliding),
        sliding[0].sliding_window if sliding else 0,
        full if sliding else (),
        source,
        window=getattr(text, "max_position_embeddings", None) or 0,
        sliding_key_value_heads=other.heads,
        sliding_head_dim=other.key_dim,
    )


def count_parameters(config: Any) -> int:
    """Parameters of the model that a configuration describes (the thinker, for Omni models), tied ones once.

    The model is made on the meta device: no weights are needed or allocated.

    Raises:
        KVMMError: for a family that kvmm does not know.
    """
    import torch
    import transformers

    from kvmm.models.families import family_of  # kvmm.models imports the analysis's callers

    config = getattr(config, "thinker_config", None) or config
    model_class = getattr(transformers, family_of(config).model_class)
    with torch.device("meta"):
        make = getattr(model_class, "from_config", None) or model_class._from_config
        model = make(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def _table(*rows: tuple[str, int, int, int, int, int, int, int]) -> dict[str, ModelShape]:
    shapes = {}
    for hub_id, layers, heads, kv_heads, head_dim, hidden, parameters, window in rows:
        name = hub_id.partition("/")[2]
        shape = ModelShape(name, layers, heads, kv_heads, head_dim, hidden, source=f"{_OF_HUB}{hub_id}")
        shapes[name] = replace(shape, parameters=parameters, window=window)
    return shapes


def _gemma3(hub_id: str, layers: int, *numbers: int) -> ModelShape:
    """Every sixth layer has full attention, the others a window of 1024 tokens."""
    full = tuple(range(5, layers, 6))
    (shape,) = _table((hub_id, len(full), *numbers)).values()
    return replace(shape, num_sliding_layers=layers - len(full), sliding_window=1024, full_layers=full)


_GEMMA3 = _gemma3("google/gemma-3-12b-it", 48, 16, 8, 256, 3840, 12_187_325_040, 131072)

# layers, query heads, KV heads, head_dim, hidden_size, parameters, window; Omni: of the thinker
SHAPES: dict[str, ModelShape] = {
    **_table(
        ("Qwen/Qwen2.5-VL-3B-Instruct", 36, 16, 2, 128, 2048, 3_754_622_976, 128000),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 28, 28, 4, 128, 3584, 8_292_166_656, 128000),
        ("Qwen/Qwen2.5-VL-32B-Instruct", 64, 40, 8, 128, 5120, 33_452_718_336, 128000),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 80, 64, 8, 128, 8192, 73_410_777_344, 128000),
        ("Qwen/Qwen3-VL-2B-Instruct", 28, 16, 8, 128, 2048, 2_127_532_032, 262144),
        ("Qwen/Qwen3-VL-4B-Instruct", 36, 32, 8, 128, 2560, 4_437_815_808, 262144),
        ("Qwen/Qwen3-VL-8B-Instruct", 36, 32, 8, 128, 4096, 8_767_123_696, 262144),
        ("Qwen/Qwen3-VL-32B-Instruct", 64, 64, 8, 128, 5120, 33_357_390_064, 262144),
        ("Qwen/Qwen2.5-Omni-3B", 36, 16, 2, 128, 2048, 4_703_464_448, 32768),
        ("Qwen/Qwen2.5-Omni-7B", 28, 28, 4, 128, 3584, 8_931_813_888, 32768),
        ("Qwen/Qwen3-8B", 36, 32, 8, 128, 4096, 8_190_735_360, 40960),
        ("meta-llama/Llama-3.1-8B-Instruct", 32, 32, 8, 128, 4096, 8_030_261_248, 131072),
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf", 28, 28, 4, 128, 3584, 8_030_348_832, 32768),
        ("OpenGVLab/InternVL3-8B-hf", 28, 28, 4, 128, 3584, 7_944_373_760, 32768),
    ),
    _GEMMA3.name: _GEMMA3,
}


def find_shape(model: str | Path) -> ModelShape:
    """The shape of a folder with a ``config.json``, or of a model of the table.

    Args:
        model: a folder, an embedded model's name, or a name of :data:`SHAPES`, with or without owner, ``-Instruct``,
            ``-it`` or ``-hf``; case does not matter.

    Raises:
        KVMMError: for a folder without a configuration, or an unknown name.
    """
    path = Path(model)
    if not path.is_dir():
        wanted = _plain(str(model))
        for name, shape in SHAPES.items():
            if _plain(name) == wanted:
                return shape
        from kvmm.models.loading import embedded_folder  # imports torch

        path = embedded_folder(model)
    if path.is_dir():
        return _shape_in(path)
    model_names = ", ".join(SHAPES)
    raise KVMMError(
        f"No folder and no built-in model {str(model)!r}: name a folder with config.json, or {model_names}."
    )


def _shape_in(path: Path) -> ModelShape:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise KVMMError(f"{path} has no configuration that transformers reads: {reason}") from None
    model_shape = shape_of(config, path.resolve().name, f"configuration in {path}")
    try:
        return replace(model_shape, parameters=count_parameters(config))
    except KVMMError:  # a family that kvmm cannot run can still be planned for
        return model_shape


def _plain(name: str) -> str:
    name = name.rpartition("/")[2].lower()
    for ending in ("-hf", "-it", "-instruct"):
        name = name.removesuffix(ending)
    return name
