"""kvmm's serde beside LMCache's own, in LMCache: bytes, speed, and what a model makes of what comes back.

    python -m benchmarks.lmcache_serde [--rounds 5] [--output benchmarks/results/lmcache_serde.json]

Needs LMCache (``pip install "kvmm[lmcache]"``). The sample's pages are read in full precision; whole chunks of 256
tokens go through a serde, in bfloat16, and come back. ``ratio`` is bytes before over bytes that LMCache stores. ``kl``
is of the answer's tokens over what came back, with the rest of the prompt as it was, from those over what was there;
``same_answers`` counts the samples whose answer is the same word for word. Speeds are of the keys and values by CPU
time, medians over the rounds. A serde that does not run here says why; what it would store is asked of it all the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from transformers import DynamicCache

import kvmm.lmcache
from benchmarks.report import Report, add_common_options, table
from kvmm.media import load_media
from kvmm.models import load_model
from kvmm.models.loading import TINY_MODEL, assets_folder
from kvmm.models.prompting import encode_question
from kvmm.samples import load_samples

CHUNK = 256  # tokens, LMCache's default
KINDS = ("pdf", "image")
MAX_ANSWER = 32  # tokens
RATIOS = (4, 6, 8, 10, 12, 16)


def serdes(calibration: str, head_dim: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> LMCache's type and its options."""
    own = {"calibration": calibration, "modality": "image"}
    found = {f"kvmm_rd {ratio}x": (kvmm.lmcache.SERDE, own | {"ratio": ratio}) for ratio in RATIOS}
    found |= {f"kvmm_rd {bits} bits": (kvmm.lmcache.SERDE, own | {"bits": bits}) for bits in (1, 2, 3)}
    found |= {"fp8": ("fp8", {}), "fp8_e5m2": ("fp8", {"fp8_dtype": "float8_e5m2"})}
    for preset in ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_3bit_nc"):
        found[preset] = ("turboquant", {"preset": preset, "head_dim": head_dim})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    add_common_options(parser, "lmcache_serde")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    options.rounds = 1 if options.smoke else options.rounds
    torch.set_num_threads(options.threads)
    report = Report("lmcache_serde", given, options)
    report.run["versions"]["lmcache"] = version("lmcache")
    model, processor = load_model(TINY_MODEL, device="cpu")
    samples = [one for one in load_samples() if one.kind in KINDS][: 1 if options.smoke else None]
    documents = [Document(model, processor, sample) for sample in samples]
    documents = [one for one in documents if one.chunks]
    report.run["documents"] = [
        {"tokens": one.tokens, "chunks": len(one.chunks), "answer": one.answer.shape[1]} for one in documents
    ]
    calibration = str(assets_folder() / TINY_MODEL / "kvmm_calibration.safetensors")
    for name, (kind, values) in serdes(calibration, documents[0].head_dim).items():
        row: dict[str, Any] = {"name": name}
        try:
            measure(documents, create_serde_processor(SerdeConfig(kind, values)), options.rounds, row)
        except RuntimeError as error:  # LMCache's, of kernels for other devices
            row["not_run"] = str(error)
        report.add(row)
    columns = ("ratio", "bits", "kl", "same_answers", "serialize_mb_s", "deserialize_mb_s")
    table(("serde", *columns), [[row["name"], *(row.get(name) for name in columns)] for row in report.rows])
    report.finish()


class Document:
    """The pages of a sample, read in full precision, and the answer.

    Attributes:
        chunks: bfloat16 ``[2, L, 256, H * D]`` each.
        answer: tokens int64 ``[1, n]``, which the model wrote over full precision.
    """

    def __init__(self, model: Any, processor: Any, sample: Any):
        self.model = model
        media = [medium.data for file in sample.files for medium in load_media(file)]
        inputs = encode_question(model, processor, sample.question, media, None)
        self.tokens, cache = inputs["input_ids"].shape[1], DynamicCache()
        with torch.no_grad():
            ids = model.generate(**inputs, past_key_values=cache, max_new_tokens=MAX_ANSWER, do_sample=False)
        self.answer = ids[:, self.tokens :]
        self.deltas = _place(model).rope_deltas  # of positions, which the model remembers of its last prompt
        layers = cache.layers
        sides = [torch.stack([getattr(layer, name)[0] for layer in layers]) for name in ("keys", "values")]
        kv = torch.stack(sides)[:, :, :, : self.tokens - 1]  # [2, L, H, T, D]; the last token is read again
        self.heads, self.head_dim, self.dtype = kv.shape[2], kv.shape[4], kv.dtype
        self.last = inputs["input_ids"][:, -1:]
        flat = kv.transpose(2, 3).flatten(3)
        whole = (self.tokens - 1) // CHUNK * CHUNK
        self.chunks = list(flat[:, :, :whole].bfloat16().split(CHUNK, 2))
        self.rest = flat[:, :, whole:]
        self.expected = self.predicted(flat[:, :, :whole].split(CHUNK, 2))

    def predicted(self, chunks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Log-probabilities float32 ``[n, V]`` of the answer's tokens over chunks and the rest as it was."""
        cache = DynamicCache()
        kv = torch.cat([*(chunk.to(self.dtype) for chunk in chunks), self.rest], 2)
        kv = kv.unflatten(3, (self.heads, self.head_dim)).transpose(2, 3)
        for index in range(kv.shape[1]):
            cache.update(kv[0, index][None].contiguous(), kv[1, index][None].contiguous(), index)
        ids = torch.cat((self.last, self.answer[:, :-1]), 1)
        _place(self.model).rope_deltas = self.deltas
        with torch.no_grad():
            out = self.model(input_ids=ids, past_key_values=cache)
        return out.logits[0].float().log_softmax(-1)


def measure(documents: Sequence[Document], serde: Any, rounds: int, row: dict[str, Any]) -> None:
    """Put bytes, speeds and drift of one serde into a row.

    Raises:
        RuntimeError: LMCache cannot run it on this device.
    """
    chunks = [chunk for document in documents for chunk in document.chunks]
    raw, nbytes, key = sum(chunk.nbytes for chunk in chunks), 0, ObjectKey(bytes(32), "model", 0)
    size = serde.estimate_serialized_size(MemoryLayoutDesc([chunks[0].shape], [torch.bfloat16]))
    row |= {"estimated_ratio": chunks[0].nbytes / size}
    writing, reading, back = [], [], []
    for _ in range(rounds):
        stored = [_memory(torch.zeros(size, dtype=torch.uint8)) for _ in chunks]
        pairs = [(_memory(chunk), out) for chunk, out in zip(chunks, stored, strict=True)]
        began = time.process_time()
        nbytes = sum(serde._serializer.serialize(chunk, out, key) for chunk, out in pairs)
        writing.append(time.process_time() - began)
        back = [torch.empty_like(chunk) for chunk in chunks]
        pairs = [(data, _memory(chunk)) for data, chunk in zip(stored, back, strict=True)]
        began = time.process_time()
        for data, chunk in pairs:
            serde._deserializer.deserialize(data, chunk, key)
        reading.append(time.process_time() - began)
    kl, same = [], []
    for document in documents:
        own, back = back[: len(document.chunks)], back[len(document.chunks) :]
        found = document.predicted(own)
        kl += (document.expected.exp() * (document.expected - found)).sum(-1).tolist()
        same.append(bool((found.argmax(-1) == document.answer[0]).all()))
    row |= {"ratio": raw / nbytes, "bits": 16 * nbytes / raw}
    row |= {"kl": statistics.fmean(kl), "same_answers": sum(same)}
    row |= {"serialize_mb_s": raw / statistics.median(writing) / 1e6}
    row |= {"deserialize_mb_s": raw / statistics.median(reading) / 1e6}


def _place(model: Any) -> Any:
    """The module that holds ``rope_deltas``."""
    return next(module for module in model.modules() if hasattr(module, "rope_deltas"))


def _memory(tensor: torch.Tensor) -> TensorMemoryObj:
    """A memory object of LMCache over a tensor."""
    flat, shape, dtype = tensor.contiguous(), tensor.shape, tensor.dtype
    form = MemoryFormat.KV_2LTD if dtype != torch.uint8 else MemoryFormat.BINARY_BUFFER
    metadata = MemoryObjMetadata(shape, dtype, 0, flat.nbytes, 1, fmt=form, shapes=[shape], dtypes=[dtype])
    return TensorMemoryObj(flat.view(-1).view(torch.uint8), metadata, None)


if __name__ == "__main__":
    main()
