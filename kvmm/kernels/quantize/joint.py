"""Pages of several heads' vectors side by side, rotated by one Hadamard matrix, on a GPU: read a tile at a time."""

from __future__ import annotations

import copy

import torch
import triton

from kvmm.kernels.hadamard.reference import hadamard_matrix
from kvmm.kernels.hadamard.triton import PARTS, block_sizes, signs
from kvmm.kernels.quantize import joint_kernels as kernels
from kvmm.kernels.quantize.chain import VectorChain, as_bytes, strides
from kvmm.kernels.quantize.joint_kernels import JointSource

_CHANNELS, _MOST = 128, 256  # rotated channels that a program had better hold, and that it can
_TILE = 64 * 128  # elements that a program holds at once
_RUN = 512  # slots whose sums a program takes


class JointPages:
    """Vectors ``[B, H / heads, P, N, heads * D]``; see :class:`~kvmm.kernels.quantize.dense.DensePages` for the
    methods.

    Args:
        pages: of single heads, not rotated, transformed or divided.
        heads: rotated together.
    """

    def __init__(self, pages: VectorChain, heads: int):
        if pages.rotated or pages.matrix is not None or pages.norm is not None or pages.every > 1:
            raise ValueError("pages of several heads are rotated together before anything else")
        batch, all_heads, count, size, dim = pages.shape
        self.pages, self.heads = pages, heads
        self.shape = torch.Size((batch, all_heads // heads, count, size, heads * dim))
        self.page_size, self.device = size, pages.device
        self.order: torch.Tensor | None = None  # int64 [B, H / heads, heads * D]

    @staticmethod
    def takes(channels: int, channel_groups: int) -> bool:
        """Whether a program can hold what vectors of so many channels are cut into."""
        size = channels // channel_groups
        return size <= _MOST and (channel_groups == 1 or size & (size - 1) == 0)

    def sort_channels(self, order: torch.Tensor) -> JointPages:
        twin = copy.copy(self)
        twin.order = order
        return twin

    # -- launching ----------------------------------------------------------------------------------------------------

    def _source(self) -> JointSource:
        """What the kernels read."""
        batch, groups, count, size, width = self.shape
        matrix = signs(width, False, self.device)[None, None]
        if self.order is not None:
            matrix = matrix[0, 0][self.order]
        offset, substitute = self.pages.offset, self.pages.substitute
        if substitute is not None:
            substitute = substitute if offset is None else substitute + offset.unsqueeze(2)
            substitute = self._each(substitute.expand(-1, -1, count, -1))
        return JointSource(
            self.pages.x,
            count * size,
            groups,
            *self.pages.x.stride(),
            matrix,
            *strides(matrix, batch, groups),
            width**-0.5,
            None if offset is None else self._together(offset),
            as_bytes(self.pages.keep),
            substitute,
        )

    def _sorted(self, rotated: torch.Tensor) -> torch.Tensor:
        """Rotated channels ``[B, H / heads, n, W]`` in their order."""
        return rotated if self.order is None else rotated.gather(-1, self.order.unsqueeze(2).expand_as(rotated))

    def _together(self, offset: torch.Tensor) -> torch.Tensor:
        """Float32 ``[B, H / heads, W]``: the rotated offsets ``[B or 1, H or 1, D]`` of the heads of a group."""
        batch, groups, *_, width = self.shape
        wide = offset.expand(batch, groups * self.heads, -1).reshape(batch, groups, 1, width)
        return self._sorted(wide @ hadamard_matrix(width, self.device).T)

    def _each(self, vectors: torch.Tensor) -> torch.Tensor:
        """Float32 ``[B, H, P, W]``: what vectors ``[B, H, P, D]`` of every head add to the rotated channels."""
        batch, groups, count, _, width = self.shape
        matrix = hadamard_matrix(width, self.device).T.reshape(self.heads, -1, width)
        rotated = vectors.float().unflatten(1, (groups, self.heads)) @ matrix  # [B, H / heads, heads, P, W]
        return self._sorted(rotated.flatten(2, 3)).reshape(batch, groups * self.heads, count, width)

    def _constants(self, channels: int, rows: int, tiles: int = 1) -> dict[str, int]:
        dim, dtype = self.pages.shape[-1], self.pages.x.dtype
        sizes = block_sizes(channels, rows, tiles)
        inner = block_sizes(dim, rows)["BLOCK_K"]
        return sizes | {
            "D": dim,
            "N": self.page_size,
            "HEADS": self.heads,
            "CHANNELS": channels,
            "BLOCK_K": min(inner, 8192 // sizes["BLOCK_D"]),
            "PARTS": PARTS[dtype],
            "num_stages": 3,
        }

    @staticmethod
    def _rows(channels: int) -> int:
        """Vectors that a program holds at once."""
        return _TILE // max(128, triton.next_power_of_2(channels))

    @staticmethod
    def _share(groups: int, size: int) -> int:
        """How many groups of ``size`` channels a program takes."""
        fitting = [n for n in range(1, groups + 1) if groups % n == 0 and n * size <= _CHANNELS]
        return max(fitting, default=1)

    # -- statistics and codes -----------------------------------------------------------------------------------------

    def channel_sums(self) -> tuple[torch.Tensor | float, torch.Tensor, torch.Tensor]:
        batch, groups, count, size, width = self.shape
        channels = self._share(width, 1)
        rows = min(self._rows(channels), _RUN)
        runs = -(-count * size // _RUN)
        total = torch.empty(2, batch, groups, runs, width, device=self.device)
        kernels.joint_sums_kernel[runs * (width // channels), batch * groups](
            self._source(),
            self.pages.x.shape[2],
            as_bytes(self.pages.valid),
            total[0],
            total[1],
            runs,
            CHUNKS=_RUN // rows,
            ROWS=rows,
            **self._constants(channels, rows, 2),
        )
        valid = self.pages.valid
        number = float(self.pages.x.shape[2]) if valid is None else valid.sum(1)[:, None, None]
        return number, *total.sum(3)

    def token_range_codes(
        self, channel_groups: int, bits: int, dtype: torch.dtype, transposed: bool, integer_zero: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, groups, count, size, width = self.shape
        share = self._share(channel_groups, width // channel_groups)
        channels, plane = share * (width // channel_groups), size * bits // 8
        shape = batch, groups, count, channel_groups, size
        scale, zero_point = (torch.empty(shape, dtype=dtype, device=self.device) for _ in range(2))
        page = (width, plane) if transposed else (plane, width)
        out = torch.empty(batch, groups, count, *page, dtype=torch.uint8, device=self.device)
        pages = max(1, self._rows(channels) // plane)
        constants = self._constants(channels, pages * plane, 2)
        grid = -(-count // pages) * (width // channels), batch * groups
        kernels.joint_token_kernel[grid](
            self._source(),
            self.pages.x.shape[2],
            scale,
            zero_point,
            out,
            count,
            torch.finfo(dtype).max,
            PAGES=pages,
            GROUPS=share,
            GROUP=constants["BLOCK_D"] if share == 1 else channels // share,
            BITS=bits,
            INTEGER=integer_zero,
            TRANSPOSED=transposed,
            **constants,
        )
        return out, scale, zero_point
