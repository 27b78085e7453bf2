"""Operations as OScaR's paper counts them (arXiv 2605.19660, Tables 3 and 4, Fig. 9), beside those of kvmm's policies.

The paper counts one layer of ``d`` channels per token, all heads together, of ``h`` channels each. An addition, a
product and a comparison are one operation each, a look-up in a table is five. With ``L`` tokens cached:

===========  ===========================  ====================
method       packing a token              reading it in a step
===========  ===========================  ====================
KIVI         ``5 d``                      ``2 d``
QuaRot       ``5 d + 2 d log2 h``         ``2 d``
OScaR        ``8 d + 2 d log2 h``         ``3 d``
TurboQuant+  ``5.25 d + 4 d h``           ``6 d``
TurboQuant   ``14.5 d + 6 d h``           ``6 d``
===========  ===========================  ====================

The prompt costs ``L`` times the first column; a step packs the token that it decodes, and reads ``L``. ``2 d log2 h``
are two fast Hadamard transforms, ``d h`` is a dense rotation, ``3 d`` of OScaR's packing are its token norm, and one of
its ``3 d`` per cached token multiplies by that norm; ``5 d`` of TurboQuant's ``6 d`` are look-ups. TurboQuant+ is the
authors' variant without the residual sketch.

Its figures for 10,000 tokens of 4096 channels in heads of 128 are cited after public notes on the paper, as the parts
that are named above are; the remaining multiples of ``d`` and ``d h`` were fitted to the
figures, all ten of which follow from them to the last digit. The authors' repository draws three of them (KIVI,
TurboQuant+, OScaR, per step) in a picture that can be read to half a million.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from kvmm.analysis.cost.model import CostModel
from kvmm.analysis.cost.operations import decode_operations, pack_operations
from kvmm.analysis.cost.shapes import ModelShape

TOKENS, CHANNELS, HEAD_DIM = 10_000, 4096, 128
"""What the paper's figures are for."""


@dataclass(frozen=True)
class PaperOperations:
    """A method's operations per token and layer, by the terms they grow with.

    Attributes:
        channels: of packing, multiples of ``d``.
        hadamard: of packing, multiples of ``d log2 h``.
        dense: of packing, multiples of ``d h``.
        read: of reading a cached token, multiples of ``d``.
        policy: kvmm's preset of the method, "" where it has none.
    """

    channels: float
    hadamard: int
    dense: int
    read: int
    policy: str

    def packing(self, channels: int = CHANNELS, head_dim: int = HEAD_DIM) -> float:
        """Operations of packing one token of ``channels`` in heads of ``head_dim``."""
        return channels * (self.channels + self.hadamard * log2(head_dim) + self.dense * head_dim)

    def prefill(self, tokens: int = TOKENS, channels: int = CHANNELS, head_dim: int = HEAD_DIM) -> float:
        """Operations of packing a prompt of ``tokens`` tokens."""
        return tokens * self.packing(channels, head_dim)

    def step(self, tokens: int = TOKENS, channels: int = CHANNELS, head_dim: int = HEAD_DIM) -> float:
        """Operations of decoding one token over ``tokens`` cached ones."""
        return self.packing(channels, head_dim) + tokens * channels * self.read


PAPER_OPERATIONS: dict[str, PaperOperations] = {
    "KIVI": PaperOperations(5, 0, 0, 2, "paper-kivi2"),
    "QuaRot": PaperOperations(5, 2, 0, 2, "paper-quarot2"),
    "OScaR": PaperOperations(8, 2, 0, 3, "paper-oscar2"),
    "TurboQuant+": PaperOperations(5.25, 0, 4, 6, "turboquant2.5"),
    "TurboQuant": PaperOperations(14.5, 0, 6, 6, ""),
}
"""The methods of the paper's Tables 3 and 4."""


def policy_operations(policy: str, tokens: int = TOKENS) -> tuple[int, int, int]:
    """kvmm's operations in a layer of the paper's shape, every head with keys and values of its own.

    Returns:
        Packing ``tokens`` tokens; one step over them without the products with keys and values; and these products,
        which are the same for all policies.
    """
    heads = CHANNELS // HEAD_DIM
    model = CostModel(ModelShape("a layer", 1, heads, heads, HEAD_DIM, CHANNELS), policy)
    decoded, packed = decode_operations(model, {"text": tokens}), pack_operations(model)
    products = decoded.qk + decoded.pv
    return tokens * packed.total, decoded.total - products, products


__all__ = ["CHANNELS", "HEAD_DIM", "PAPER_OPERATIONS", "TOKENS", "PaperOperations", "policy_operations"]
