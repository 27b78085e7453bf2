"""The token table: which token lies in which slot. One a cache, shared by its layers.

Attention does not depend on the order of keys after RoPE, so tokens may be gathered by modality. The table keeps, for
each slot of each store, the position of its token in the sequence (-1: no token), which is all that masks need.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_mask

from kvmm.cache.capacity import StaticCapacity
from kvmm.cache.plan import Cut, Move, Plan, fill, pick, run, used
from kvmm.cache.tokens import growth, stored_as
from kvmm.codecs.base import page_size_for
from kvmm.errors import KVMMError
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT, VIDEO
from kvmm.policy import KVPolicy

MASKED = -1e30  # finite, so that a row without any visible key gives no NaN


class TokenTable:
    """Positions and modalities of all tokens a cache holds.

    ``opens_pages`` says whether all codecs of text can add tokens to a page that is not full.

    With ``static`` buffers the table's tensors lie in host memory, so that a step is planned without asking a device,
    and ``static`` says how large the buffers are and how much of them is in use.
    """

    def __init__(self, policy: KVPolicy, static: StaticCapacity | None = None):
        self.policy = policy
        self.static = static
        self.opens_pages = False
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.length = 0  # tokens seen, padding included
        self.modality: torch.Tensor | None = None  # int8 [B, capacity], PADDING where there is no token
        self.dense: torch.Tensor | None = None  # int32 [B, n]: position of each residual token
        self.stores: dict[int, torch.Tensor] = {}  # modality -> int32 [B, slots]
        self.page_sizes: dict[int, int] = {}
        self.num_sinks = 0
        self.packed = False
        self.appends: dict[int, list[int]] = {}  # modality -> slots after each append to its pages
        self.text_slots = 0  # slots of text's pages that have been filled
        self._next_check = 0
        self.clear_bias()
        if self.static is not None:
            self.static.clear()

    def device(self, key_states: torch.Tensor) -> torch.device:
        """Where the table's tensors lie: beside static buffers in host memory, else with the keys."""
        return key_states.device if self.static is None else torch.device("cpu")

    def to_host(self, static: StaticCapacity) -> None:
        """Go on in host memory, beside static buffers that are still to be allocated."""
        self.static = static
        if self.modality is not None:
            self.modality, self.dense = self.modality.cpu(), self.dense.cpu()
        self.stores = {modality: positions.cpu() for modality, positions in self.stores.items()}
        self.clear_bias()

    # -- new tokens ---------------------------------------------------------------------------------------------

    def append(self, modality: torch.Tensor) -> None:
        """Add new tokens at the end: ``modality`` int8 ``[B, q]``, ``PADDING`` where there is none."""
        batch, count = modality.shape
        start, end = self.length, self.length + count
        if self.modality is None:
            self.modality = modality.clone()
        else:
            if end > self.modality.shape[1]:
                capacity = max(end, start + growth(start))
                self.modality = torch.nn.functional.pad(
                    self.modality, (0, capacity - self.modality.shape[1]), value=PADDING
                )
            self.modality[:, start:end] = modality
        positions = torch.arange(start, end, dtype=torch.int32, device=modality.device).expand(batch, -1)
        positions = positions.masked_fill(modality == PADDING, -1)
        self.dense = positions if self.dense is None else torch.cat((self.dense, positions), 1)
        self.length = end
        self.clear_bias()
        if count > 1:
            self._next_check = 0

    # -- packing ------------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """Decide what to pack now, or None if there is nothing to do.

        Sinks stay, images, video and audio go entirely; text goes ``flush_length`` tokens at a time, oldest first, as
        far as ``residual_length`` newest text tokens remain. With ``mixed_modalities`` all tokens go like text.
        """
        if self.dense is None or self.dense.shape[1] < self._next_check:
            return None
        policy, dense = self.policy, self.dense
        valid = dense >= 0
        modality = stored_as(self.modality.gather(1, dense.clamp_min(0).long()), policy)
        if self.packed:
            sink = valid & (torch.arange(dense.shape[1], device=dense.device) < self.num_sinks)
        else:
            sink = valid & (valid.cumsum(1) <= policy.num_sink_tokens)
        rest = valid & ~sink
        moves = []

        text = rest & (modality == TEXT)
        surplus = (text.sum(1, keepdim=True) - policy.residual_length).clamp_min(0)
        most = int(surplus.max())
        page, unit = self.text_page()
        # the sequence with most text fills whole pages; the others give what they have, and from then on keep step
        flush = text & (text.cumsum(1) <= surplus.clamp_max(most // unit * unit))
        if most >= unit:
            moves.append(self._move(TEXT, flush, page, self.filled))
        for kind in (IMAGE, VIDEO, AUDIO):
            selected = rest & (modality == kind)
            count = int(selected.sum(1).max())
            if count:
                size = self.page_sizes.get(kind) or self._entry_tokens or page_size_for(count)
                moves.append(self._move(kind, selected, size))
        stay, stay_valid = pick(sink | (text & ~flush))
        # tokens to wait for before it is worth looking again
        self._next_check = stay.shape[1] + max(1, unit - most % unit)
        if not moves and self.packed:
            return None
        num_sinks = self.num_sinks if self.packed else int(sink.sum(1).max())
        return Plan(moves, stay, fill(dense.gather(1, stay), stay_valid, 0), num_sinks)

    @property
    def _entry_tokens(self) -> int | None:
        """Tokens of an entry under a budget, None without one."""
        return None if self.policy.budget is None else self.policy.retention.entry_tokens

    def text_page(self) -> tuple[int, int]:
        """The size of a page of text, and how many tokens are packed at a time."""
        if self._entry_tokens:
            page = self.page_sizes.get(TEXT) or self._entry_tokens
            return page, page
        page, unit = self.policy.text_page(self.opens_pages)
        page = self.page_sizes.get(TEXT, page)  # files of earlier versions may have others
        return page, unit if self.adds_tokens else max(page, unit)

    @property
    def adds_tokens(self) -> bool:
        """Whether tokens are added to a page of text that is not full."""
        page, unit = self.policy.text_page(self.opens_pages)
        return unit < page and not self._entry_tokens

    @property
    def filled(self) -> int:
        """Slots in use of the last page of text, if tokens can be added to it; else 0."""
        return self.text_slots % self.page_sizes[TEXT] if self.adds_tokens and TEXT in self.stores else 0

    def tokens_before_packing(self) -> int:
        """How many tokens of text one call may add so that, added one by one, none of them would have been packed
        before the last; at least 1. For one sequence that is packed as far as it may be.
        """
        dense = self.dense[0]
        is_text = (dense >= 0) & (self.modality[0].gather(0, dense.clamp_min(0).long()) == TEXT)
        surplus = int(is_text[self.num_sinks :].sum()) - self.policy.residual_length
        return max(1, self.text_page()[1] - surplus)

    def _move(self, modality: int, selected: torch.Tensor, page_size: int, filled: int = 0) -> Move:
        index, valid = pick(selected)
        slots = -(-(filled + index.shape[1]) // page_size) * page_size - filled
        positions = fill(self.dense.gather(1, index), valid, slots)
        return Move(modality, index, valid, positions, page_size, run(index), filled)

    def commit(self, plan: Plan) -> None:
        """Record that every layer has carried out ``plan``."""
        for move in plan.moves:
            old = self.stores.get(move.modality)
            held = 0 if old is None else old.shape[1]
            if move.filled:
                old = old[:, : held - move.page_size + move.filled]
            if move.modality == TEXT:
                self.text_slots = (0 if old is None else old.shape[1]) + move.index.shape[1]
            self.stores[move.modality] = move.positions if old is None else torch.cat((old, move.positions), 1)
            self.page_sizes[move.modality] = move.page_size
            if (slots := self.stores[move.modality].shape[1]) > held:
                self.appends.setdefault(move.modality, []).append(slots)
        self.dense = plan.stay_positions
        self.num_sinks = plan.num_sinks
        self.packed = True
        self.clear_bias()

    # -- masks --------------------------------------------------------------------------------------------------

    def slots(self) -> torch.Tensor:
        """int32 ``[B, N]``: the position in every slot in use, stores in order of modality, then the residual."""
        return torch.cat([self.stores[m] for m in sorted(self.stores)] + [self.dense], 1)

    def bias(self, mask: Any, queries: int, device: torch.device | None = None) -> torch.Tensor | None:
        """What to add to the scores of all slots in use.

        Args:
            mask: what the model's attention got: None, bool ``[B, T]`` (padding; causal beside that), bool or float
                ``[B, 1, q, T]`` over all ``T`` positions, or flex attention's ``BlockMask`` of the same; integers are
                bools. A ``BlockMask`` is written out once a call of the model, which makes flex the slow way to read
                packed pages.
            queries: number of new tokens ``q``, the last ones of the sequence.
            device: where it is needed; the table's own if None.

        Returns:
            float32 ``[B, 1, q or 1, N]``, or None if nothing is masked. All layers of a step and device share it.

        Raises:
            KVMMError: if the mask has another length than the cache, or one a head.
        """
        device = device or self.dense.device
        known = self._bias.get(device)
        if known is not None and known[0] is mask and known[1] == queries:
            return known[2]
        bias = self._make_bias(mask, queries)
        bias = None if bias is None else bias.to(device)
        self._bias[device] = (mask, queries, bias)
        return bias

    def beyond_padding(self, mask: Any, queries: int) -> Any:
        """The mask of :meth:`bias`, or None where it hides nothing from one new token that is not padding anyway.

        Eager attention makes such a mask in every step. One look serves all layers of a step; where the table lies in
        host memory and the mask does not, it waits for the device, as SDPA's own look for padding does.
        """
        if queries != 1 or mask is None:
            return mask
        if self._seen_mask is None or self._seen_mask[0] is not mask:
            tensor = self._as_tensor(mask)
            self._seen_mask = mask, tensor if self._hides_tokens(tensor) else None
        return self._seen_mask[1]

    def _as_tensor(self, mask: Any) -> torch.Tensor:
        """A mask of :meth:`bias` that is a ``BlockMask`` written out, bool ``[B, 1, q, T]``."""
        if isinstance(mask, torch.Tensor):
            return mask
        return create_mask(mask.mask_mod, self.dense.shape[0], 1, *mask.seq_lengths, device=mask.kv_indices.device)

    def _hides_tokens(self, mask: torch.Tensor) -> bool:
        """Whether a mask of one query, bool or float ``[B, T]`` or ``[B, 1, 1, T]``, changes the score of a token.

        True for a mask of another form, which :meth:`bias` refuses.
        """
        if mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1:
            mask = mask[:, 0, 0]
        if mask.dim() != 2 or mask.shape[1] != self.length:
            return True
        # without padding one look suffices; on a GPU a second one would wait for the device again
        if not mask.is_cuda and not (bool(mask.any()) if mask.is_floating_point() else not bool(mask.all())):
            return False
        visible = mask == 0 if mask.is_floating_point() else mask.bool()
        padding = self.modality[:, : self.length] == PADDING
        return not bool((visible.to(padding.device) | padding).all())

    def clear_bias(self) -> None:
        """Drop what is known of the last step's mask, which is workspace and not part of the cache."""
        self._bias: dict[torch.device, tuple] = {}  # what was added to its scores
        self._seen_mask: tuple[Any, torch.Tensor | None] | None = None  # and what it was beyond padding

    def _make_bias(self, mask: Any, queries: int) -> torch.Tensor | None:
        slots = self.slots()
        visible = (slots >= 0).unsqueeze(1)  # [B, 1, N]
        index = slots.clamp_min(0).long()
        added = None
        mask = None if mask is None else self._as_tensor(mask)
        if queries > 1 and (mask is None or mask.dim() == 2):
            last = torch.arange(self.length - queries, self.length, device=slots.device)
            visible = visible & (slots.unsqueeze(1) <= last.view(1, -1, 1))
        if mask is not None:
            if mask.shape[-1] != self.length:
                raise KVMMError(
                    f"The attention mask covers {mask.shape[-1]} tokens but the cache holds {self.length}; pass the "
                    "mask of the whole sequence."
                )
            if mask.dim() == 4:
                if mask.shape[1] != 1:
                    raise KVMMError("A packed cache takes one attention mask for all heads.")
                mask = mask[:, 0]
            else:
                mask = mask.unsqueeze(1)
            mask = mask.to(slots.device)
            mask = mask.expand(slots.shape[0], -1, -1)
            mask = mask.gather(2, index.unsqueeze(1).expand(-1, mask.shape[1], -1))
            if mask.is_floating_point():
                added = mask.float().clamp_min(MASKED)
            else:
                visible = visible & mask.bool()
        if added is not None:
            return added.masked_fill(~visible, MASKED).unsqueeze(1)
        if bool(visible.all()):
            return None
        return torch.where(visible, 0.0, MASKED).unsqueeze(1)

    # -- batch and length ---------------------------------------------------------------------------------------

    def index_batch(self, index: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences: ``index`` is int64 ``[B_new]``."""
        self.modality = self.modality.index_select(0, index)
        self.dense = self.dense.index_select(0, index)
        self.stores = {m: positions.index_select(0, index) for m, positions in self.stores.items()}
        self.clear_bias()

    def crop(self, count: int, truncates: bool = True) -> Cut:
        """Forget the last ``count`` tokens, which must not be all.

        A slot of a page that loses its token stays empty. Appends that lose all their tokens are taken back, from the
        last one on, where the stores can do that (``truncates``).
        """
        end = self.length - count
        self.dense = self.dense.masked_fill(self.dense >= end, -1)
        cut = Cut(end)  # before packing a place is a position, padding or not
        if self.packed:
            kept = (self.dense >= 0).any(0).nonzero()
            cut.width = int(kept[-1]) + 1 if kept.numel() else 0
        self.dense = self.dense[:, : cut.width]
        for modality, positions in list(self.stores.items()):
            positions = positions.masked_fill(positions >= end, -1)
            slots = used(positions)
            sizes = self.appends[modality]
            remain = sum(before < slots for before in [0, *sizes[:-1]])
            if remain and not truncates:
                remain = len(sizes)
            cut.appends[modality] = remain
            if remain:
                self.appends[modality] = sizes[:remain]
                self.stores[modality] = positions[:, : sizes[remain - 1]]
                if modality == TEXT:
                    self.count_text()
            else:
                del self.stores[modality], self.appends[modality], self.page_sizes[modality]
        self.modality[:, end:] = PADDING
        self.length = end
        self.num_sinks = min(self.num_sinks, cut.width)
        self._next_check = 0
        self.clear_bias()
        return cut

    def count_text(self) -> None:
        """Find the slots of text that have been filled, by the tokens that are in them."""
        self.text_slots = 0
        if TEXT in self.stores:
            unit = self.text_page()[1]
            self.text_slots = min(-(-used(self.stores[TEXT]) // unit) * unit, self.stores[TEXT].shape[1])

    def fork(self) -> TokenTable:
        """A table of its own with the same tokens."""
        twin = copy.copy(self)
        twin.stores, twin.page_sizes = dict(self.stores), dict(self.page_sizes)
        twin.appends = {modality: list(sizes) for modality, sizes in self.appends.items()}
        if self.modality is not None:
            twin.modality = self.modality.clone()  # the only tensor that is written in place
        twin.static = None if self.static is None else self.static.fork()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: not the mask of the call that runs now."""
        return vars(self) | {"_bias": {}, "_seen_mask": None}

    def counts(self, positions: torch.Tensor) -> dict[int, int]:
        """Tokens by modality among slots ``positions`` int32 ``[B, n]``."""
        modality = self.modality.gather(1, positions.clamp_min(0).long())[positions >= 0]
        return {m: int((modality == m).sum()) for m in (TEXT, IMAGE, VIDEO, AUDIO)}

    def nbytes(self) -> int:
        """Bytes of the table's tensors, the lengths on devices included."""
        tensors = [self.modality, self.dense, *self.stores.values()]
        own = sum(t.untyped_storage().nbytes() for t in tensors if t is not None)
        return own + (0 if self.static is None else self.static.nbytes())

    def slack_nbytes(self) -> int:
        """The part of :meth:`nbytes` that the table has grown to and not filled yet, or no longer uses."""
        used = [self.modality[:, : self.length], self.dense, *self.stores.values()]
        return sum(t.untyped_storage().nbytes() - t.nbytes for t in used)
