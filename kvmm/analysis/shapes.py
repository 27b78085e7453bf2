"""Shapes of decoders: what the size of a KV cache depends on, read from a configuration or from a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError

_OF_HUB = "text configuration (config.json) of "


@dataclass(frozen=True)
class ModelShape:
    """What of a model's decoder the size and the work of its KV cache depend on.

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

    @property
    def total_layers(self) -> int:
        """Layers with keys and values, sliding ones included."""
        return self.num_layers + self.num_sliding_layers

    @property
    def layer_indices(self) -> tuple[int, ...]:
        """Index of every full-attention layer in the decoder."""
        return self.full_layers or tuple(range(self.num_layers))

    @property
    def hub_id(self) -> str:
        """The hub id of a shape of the table; empty for any other."""
        return self.source.removeprefix(_OF_HUB) if self.source.startswith(_OF_HUB) else ""

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

    config = getattr(config, "thinker_config", None) or config
    text = config.get_text_config(decoder=True)
    if not getattr(text, "num_attention_heads", None) or hasattr(text, "v_head_dim"):
        raise KVMMError(
            f"A plan needs a decoder whose keys and values have one length: {type(config).__name__} is none."
        )
    layers = DynamicCache(config=text).layers
    full = tuple(i for i, layer in enumerate(layers) if type(layer) is DynamicLayer)
    sliding = [layer for layer in layers if type(layer) is DynamicSlidingWindowLayer]
    if not full or len(full) + len(sliding) != len(layers):
        raise KVMMError(f"A plan counts layers of full and sliding attention only: {type(config).__name__} has others.")
    heads = text.num_attention_heads
    return ModelShape(
        name or getattr(config, "model_type", "") or type(config).__name__,
        len(full),
        heads,
        getattr(text, "num_key_value_heads", None) or heads,
        getattr(text, "head_dim", None) or text.hidden_size // heads,
        text.hidden_size,
        len(sliding),
        sliding[0].sliding_window if sliding else 0,
        full if sliding else (),
        source,
    )


def _table(*rows: tuple[str, int, int, int, int, int]) -> dict[str, ModelShape]:
    shapes = {}
    for hub_id, layers, heads, kv_heads, head_dim, hidden in rows:
        name = hub_id.partition("/")[2]
        source = f"{_OF_HUB}{hub_id}"
        shapes[name] = ModelShape(name, layers, heads, kv_heads, head_dim, hidden, source=source)
    return shapes


def _gemma3(hub_id: str, layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> ModelShape:
    """Every sixth layer has full attention, the others a window of 1024 tokens."""
    full = tuple(range(5, layers, 6))
    (shape,) = _table((hub_id, len(full), heads, kv_heads, head_dim, hidden)).values()
    sliding = layers - len(full)
    return ModelShape(**{**asdict(shape), "num_sliding_layers": sliding, "sliding_window": 1024, "full_layers": full})


_GEMMA3 = _gemma3("google/gemma-3-12b-it", 48, 16, 8, 256, 3840)

# layers, query heads, KV heads, head_dim, hidden_size; Omni: of the thinker
SHAPES: dict[str, ModelShape] = {
    **_table(
        ("Qwen/Qwen2.5-VL-3B-Instruct", 36, 16, 2, 128, 2048),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 28, 28, 4, 128, 3584),
        ("Qwen/Qwen2.5-VL-32B-Instruct", 64, 40, 8, 128, 5120),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 80, 64, 8, 128, 8192),
        ("Qwen/Qwen3-VL-2B-Instruct", 28, 16, 8, 128, 2048),
        ("Qwen/Qwen3-VL-4B-Instruct", 36, 32, 8, 128, 2560),
        ("Qwen/Qwen3-VL-8B-Instruct", 36, 32, 8, 128, 4096),
        ("Qwen/Qwen3-VL-32B-Instruct", 64, 64, 8, 128, 5120),
        ("Qwen/Qwen2.5-Omni-3B", 36, 16, 2, 128, 2048),
        ("Qwen/Qwen2.5-Omni-7B", 28, 28, 4, 128, 3584),
        ("Qwen/Qwen3-8B", 36, 32, 8, 128, 4096),
        ("meta-llama/Llama-3.1-8B-Instruct", 32, 32, 8, 128, 4096),
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf", 28, 28, 4, 128, 3584),
        ("OpenGVLab/InternVL3-8B-hf", 28, 28, 4, 128, 3584),
    ),
    _GEMMA3.name: _GEMMA3,
}


def find_shape(model: str | Path) -> ModelShape:
    """The shape of a folder with a ``config.json``, or of a model of the table.

    Args:
        model: a folder, or a name of :data:`SHAPES`: with or without its owner, ``-Instruct``, ``-it`` or ``-hf``; case
            does not matter.

    Raises:
        KVMMError: for a folder without a configuration, or an unknown name.
    """
    path = Path(model)
    if path.is_dir():
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise KVMMError(f"{path} has no configuration that transformers reads: {reason}") from None
        return shape_of(config, path.resolve().name, f"configuration in {path}")
    wanted = _plain(str(model))
    for name, shape in SHAPES.items():
        if _plain(name) == wanted:
            return shape
    known = ", ".join(SHAPES)
    raise KVMMError(f"No folder and no built-in model {str(model)!r}: name a folder with config.json, or {known}.")


def _plain(name: str) -> str:
    name = name.rpartition("/")[2].lower()
    for ending in ("-hf", "-it", "-instruct"):
        name = name.removesuffix(ending)
    return name
