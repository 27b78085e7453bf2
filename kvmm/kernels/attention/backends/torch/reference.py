"""Decode attention over packed segments in torch: the definition, and what reads segments that no kernel does.

Nothing is dequantised for a few queries: scales are folded into the query (or the probabilities) once a group and the
product runs over bare codes,

    q . (c * s + z) = (q * s) . c + q . z          sum_t p_t (c_t s_t + z_t) = sum_t (p_t s_t) c_t + sum_t p_t z_t

(CalibQuant's post-scaling, arXiv 2502.14882, written for any group). For more query rows than a group has tokens the
folded query would be larger than the codes, so the page is expanded instead; both give the same result.

Shapes: queries ``[B, H, Q, D]`` with ``Q = R * q`` rows a KV head; key codes ``[B, H, P, N, D]`` of ``P`` pages of
``N`` tokens; value codes ``[B, H, D, S, P, N / S]`` with the tokens of a page in ``S`` planes, as they unpack best
(:func:`kvmm.kernels.quantize.unpack_values`); scores and probabilities ``[B, H, Q, P * N]``. All float32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from kvmm.kernels.attention.call import AttentionCall, KVSegment, Reader
from kvmm.kernels.attention.merge import AttentionState

MASKED = -1e30  # finite, so that a row without any visible key gives no NaN


def _by_page(parameter: torch.Tensor, page_group: torch.Tensor | None) -> torch.Tensor:
    return parameter if page_group is None else parameter.index_select(2, page_group)


def scores_per_channel(
    query: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    page_group: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """``q . k`` for keys with one scale a channel and group of tokens.

    Args:
        query: ``[B, H, Q, D]``, already multiplied by the softmax scale.
        codes: float ``[B, H, P, N, D]``.
        scale, zero_point: any float ``[B, H, G, D]``. ``G`` groups of equal length inside the pages, or, with
            ``page_group``, groups of whole pages; ``G = 1`` serves all pages. Without a zero point it is 0.
        page_group: integer ``[P]``, the group of each page, or None.
        norm: any float ``[B, H or 1, P, N]``, what multiplies a token, or None.

    Returns:
        ``[B, H, Q, P * N]``.
    """
    batch, heads, pages, tokens, dim = codes.shape
    rows, groups = query.shape[2], scale.shape[2]
    if groups == 1:
        folded = (query * scale).flatten(0, 1)
        keys = codes.reshape(batch * heads, pages * tokens, dim).transpose(1, 2)
        if zero_point is None:
            scores = torch.bmm(folded, keys)
        else:
            bias = torch.bmm(query.flatten(0, 1), zero_point.float().flatten(0, 1).transpose(1, 2))  # [B H, Q, 1]
            scores = torch.baddbmm(bias, folded, keys)
        scores = scores.view(batch, heads, rows, -1)
        return scores if norm is None else scores.mul_(norm.flatten(2).unsqueeze(2))
    scale = _by_page(scale, page_group)
    zero_point = None if zero_point is None else _by_page(zero_point, page_group).float()
    groups = scale.shape[2]
    count = pages * tokens // groups
    grouped = codes.reshape(batch, heads, groups, count, dim)
    if rows > count:
        keys = grouped * scale.unsqueeze(3)
        if zero_point is not None:
            keys += zero_point.unsqueeze(3)
        scores = query @ keys.flatten(2, 3).transpose(-1, -2)
        return scores if norm is None else scores.mul_(norm.flatten(2).unsqueeze(2))
    folded = (query.unsqueeze(2) * scale.unsqueeze(3)).flatten(0, 2)  # [B H G, Q, D]
    keys = grouped.flatten(0, 2).transpose(1, 2)
    if zero_point is None:
        scores = torch.bmm(folded, keys)
    else:
        bias = zero_point @ query.transpose(-1, -2)  # [B, H, G, Q]
        scores = torch.baddbmm(bias.flatten(0, 2).unsqueeze(2), folded, keys)
    scores = scores.view(batch, heads, groups, rows, count).transpose(2, 3).flatten(3)
    return scores if norm is None else scores.mul_(norm.flatten(2).unsqueeze(2))


def scores_second_plane(
    query: torch.Tensor,
    codes: torch.Tensor,
    index: torch.Tensor,
    scale: torch.Tensor,
    page_group: torch.Tensor | None = None,
    plane_weight: int = 4,
) -> torch.Tensor:
    """The second plane's part of the scores, for channels of two planes (:func:`scores_per_channel`).

    Args:
        query: ``[B, H, Q, D]``.
        codes: float ``[B, H, U, n, K]``, of the second plane, of ``K`` channels a unit of ``n`` tokens.
        index: int64 ``[B, H, G, K]``, which channels of each group.
        scale: ``[B, H, G, D]``.
        page_group: int64 ``[U]``, the group of each unit, or None if every unit is one.
        plane_weight: the step of the second plane in steps of the first.

    Returns:
        ``[B, H, Q, U * n]``.
    """
    rows = query.shape[2]
    scale = scale.float().gather(-1, index) * plane_weight  # [B, H, G, K]
    if index.shape[2] == 1:
        folded = query.gather(-1, index.expand(-1, -1, rows, -1)) * scale
        return folded @ codes.flatten(2, 3).transpose(-1, -2)
    index, scale = _by_page(index, page_group), _by_page(scale, page_group)
    units, channels = index.shape[2:]
    picked = query.unsqueeze(2).expand(-1, -1, units, -1, -1)
    picked = picked.gather(-1, index.unsqueeze(3).expand(-1, -1, -1, rows, channels)) * scale.unsqueeze(3)
    return (picked @ codes.transpose(-1, -2)).transpose(2, 3).flatten(3)  # from [B, H, U, Q, n]


def scores_per_token(
    query: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor
) -> torch.Tensor:
    """``q . k`` for keys with one scale a token and group of channels.

    Args:
        query: ``[B, H, Q, D]``.
        codes: float ``[B, H, P, N, D]``.
        scale, zero_point: ``[B, H, P, C, N]`` for ``C`` groups of channels.

    Returns:
        ``[B, H, Q, P * N]``.
    """
    groups = scale.shape[3]
    if groups == 1:
        scores = torch.bmm(query.flatten(0, 1), codes.flatten(2, 3).flatten(0, 1).transpose(1, 2)).view(
            *query.shape[:3], -1
        )
        scale, zero_point = (p.flatten(2).unsqueeze(2) for p in (scale, zero_point))
        return scores.mul_(scale).add_(query.sum(-1, keepdim=True) * zero_point)
    scale, zero_point = (p.float().transpose(2, 3).flatten(3).unsqueeze(3) for p in (scale, zero_point))
    split = query.unflatten(-1, (groups, -1)).transpose(2, 3)  # [B, H, C, Q, Dc]
    keys = codes.flatten(2, 3).unflatten(-1, (groups, -1)).transpose(2, 3)  # [B, H, C, T, Dc]
    return ((split @ keys.transpose(-1, -2)) * scale + split.sum(-1, keepdim=True) * zero_point).sum(2)


def weighted_values_per_token(
    probabilities: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor
) -> torch.Tensor:
    """``sum_t p_t v_t`` for values with one scale a token and group of channels.

    Args:
        probabilities: ``[B, H, Q, P * N]``.
        codes: float ``[B, H, D, S, P, N / S]``.
        scale, zero_point: any float ``[B, H, P, C, N]`` for ``C`` groups of channels.

    Returns:
        ``[B, H, Q, D]``.
    """
    batch, heads, dim, planes, pages, tokens = codes.shape
    rows, groups = probabilities.shape[2], scale.shape[3]
    paged = probabilities.view(batch, heads, 1, rows, pages, planes, tokens)
    by_token = scale.unflatten(-1, (planes, tokens)).transpose(2, 3).unsqueeze(3)  # [B, H, C, 1, P, S, n]
    folded = (paged * by_token).transpose(4, 5).reshape(batch * heads * groups, rows, -1)
    values = codes.reshape(batch * heads * groups, dim // groups, -1).transpose(1, 2)
    zero_point = zero_point.transpose(2, 3).float().reshape(batch * heads, groups, -1)
    offset = torch.bmm(probabilities.flatten(0, 1), zero_point.transpose(1, 2))  # [B H, Q, C]
    offset = offset.transpose(1, 2).reshape(-1, rows, 1)
    weighted = torch.baddbmm(offset, folded, values)  # [B H C, Q, D / C]
    return weighted.view(batch, heads, groups, rows, -1).transpose(2, 3).flatten(3)


def weighted_values_per_channel(
    probabilities: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    page_group: torch.Tensor | None = None,
) -> torch.Tensor:
    """``sum_t p_t v_t`` for values with one scale a channel and group of tokens.

    Args:
        probabilities: ``[B, H, Q, P * N]``.
        codes: float ``[B, H, D, S, P, N / S]``.
        scale, zero_point: any float ``[B, H, G, D]``, grouped as in :func:`scores_per_channel`.
        page_group: integer ``[P]``, the group of each page, or None.

    Returns:
        ``[B, H, Q, D]``.
    """
    batch, heads, dim, planes, pages, tokens = codes.shape
    rows, groups = probabilities.shape[2], scale.shape[2]
    if groups == 1:
        paged = probabilities.view(batch * heads, rows, pages, planes, tokens)
        values = codes.reshape(batch * heads, dim, -1).transpose(1, 2)
        weighted = torch.bmm(paged.transpose(2, 3).reshape(batch * heads, rows, -1), values)
        weighted = weighted.view(batch, heads, rows, dim).mul_(scale)
        return weighted if zero_point is None else weighted.add_(probabilities.sum(-1, keepdim=True) * zero_point)
    scale = _by_page(scale, page_group)
    groups = scale.shape[2]
    grouped = probabilities.unflatten(-1, (groups, -1))  # [B, H, Q, G, n]
    values = codes.permute(0, 1, 4, 2, 3, 5).flatten(4)  # [B, H, P, D, N]
    values = values.unflatten(-1, (groups // pages, -1)).transpose(3, 4).flatten(2, 3)  # [B, H, G, D, n]
    weighted = ((grouped.transpose(2, 3) @ values.transpose(-1, -2)) * scale.unsqueeze(3)).sum(2)
    if zero_point is not None:
        weighted += grouped.sum(-1) @ _by_page(zero_point, page_group).float()
    return weighted


def _mask_beyond(capacity: int, used: torch.Tensor) -> torch.Tensor:
    """float32 ``[capacity]``, a bias that masks all but the first ``used`` (integer ``[1]``) slots."""
    slot = torch.arange(capacity, device=used.device)
    return torch.where(slot < used, 0.0, MASKED)


def attend(call: AttentionCall, segments: Sequence[KVSegment]) -> torch.Tensor:
    """Attention over packed segments and the residual tokens; see :func:`kvmm.kernels.attention.dispatch.attend`.

    Returns:
        ``[B, H_q, q, D]`` (the values' ``D``) in the query's dtype.
    """
    query, grouped = call.query, _grouped(call)
    scores = _scores(call, segments, grouped)
    probabilities = _logits(call, scores).softmax(-1)
    start = 0
    for segment, segment_scores in zip(segments, scores, strict=False):
        end = start + segment_scores.shape[-1]
        if segment.key.observes:
            segment.key.observe(grouped, probabilities, start, end)
        start = end
    output = _weighted_values(call, segments, probabilities.split([x.shape[-1] for x in scores], -1))
    return output.reshape(*query.shape[:3], -1).to(query.dtype)


def partial(call: AttentionCall, segments: Sequence[KVSegment]) -> AttentionState:
    """:func:`attend` over some of a layer's slots, to be merged with the rest of them."""
    grouped = _grouped(call)
    scores = _scores(call, segments, grouped)
    logits = _logits(call, scores)
    pieces = logits.split([x.shape[-1] for x in scores], -1)
    observers = []
    for segment, segment_scores in zip(segments, pieces, strict=False):
        if segment.key.observes:
            observers.append(functools.partial(_observe, segment.key, grouped, segment_scores))
    lse = logits.logsumexp(-1)
    probabilities = (logits - lse.unsqueeze(-1)).exp()
    output = _weighted_values(call, segments, probabilities.split([x.shape[-1] for x in scores], -1))
    return AttentionState(output, lse, tuple(observers))


def _observe(key: Reader, query: torch.Tensor, scores: torch.Tensor, lse: torch.Tensor) -> None:
    key.observe(query, (scores - lse.unsqueeze(-1)).exp(), 0, scores.shape[-1])


def _grouped(call: AttentionCall) -> torch.Tensor:
    """Scaled queries float32 ``[B, H_kv, rows, D]``."""
    batch, dim = call.query.shape[0], call.query.shape[-1]
    return call.query.float().mul(call.scaling).reshape(batch, call.num_kv_heads, call.rows, dim)


def _bias_by_row(call: AttentionCall) -> torch.Tensor | None:
    bias, ratio = call.bias, call.query.shape[1] // call.num_kv_heads
    return bias if bias is None or bias.shape[2] == 1 else bias.repeat(1, 1, ratio, 1)


def _scores(call: AttentionCall, segments: Sequence[KVSegment], grouped: torch.Tensor) -> list[torch.Tensor]:
    """The scores ``[B, H_kv, rows, slots]`` of every segment, and of the residual tokens, without the bias."""
    rows, bias = call.rows, _bias_by_row(call)
    # of three or seven rows BLAS makes more work than of four or eight
    padded_query = torch.nn.functional.pad(grouped, (0, 0, 0, 1)) if rows in (3, 7) else grouped
    transformed: dict = {}  # one transform of the query serves all stores of a codec
    scores, start = [], 0
    for segment in segments:
        key, transform_id = segment.key, segment.key.transform_id
        if transform_id not in transformed:
            transformed[transform_id] = key.transform_query(padded_query)
        segment_scores = key.scores(transformed[transform_id])[:, :, :rows]
        end = start + segment_scores.shape[-1]
        segment_bias = None if bias is None else bias[..., start:end]
        pages = key.pages_in_use
        if pages is not None:
            mask_beyond = _mask_beyond(end - start, pages * key.packed.page_size)
            segment_bias = mask_beyond if segment_bias is None else segment_bias + mask_beyond
        if key.calibrates_logits:
            segment_scores = key.calibrate_logits(segment_scores, segment_bias)
        scores.append(segment_scores if pages is None else segment_scores + mask_beyond)
        start = end
    keys = call.residual_key.float().flatten(0, 1).transpose(1, 2)
    residual = torch.bmm(grouped.flatten(0, 1), keys).view(*grouped.shape[:3], -1)
    if call.residual_length is not None:
        residual = residual + _mask_beyond(call.residual_key.shape[2], call.residual_length)
    return [*scores, residual]


def _logits(call: AttentionCall, scores: list[torch.Tensor]) -> torch.Tensor:
    logits = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
    bias = _bias_by_row(call)
    return logits if bias is None else logits.add_(bias)


def _weighted_values(
    call: AttentionCall, segments: Sequence[KVSegment], pieces: Sequence[torch.Tensor]
) -> torch.Tensor:
    """``sum_t p_t v_t`` over all segments and the residual tokens, float32 ``[B, H_kv, rows, D_v]``."""
    residual = pieces[-1]
    output = torch.bmm(residual.flatten(0, 1), call.residual_value.float().flatten(0, 1)).view(*residual.shape[:3], -1)
    weighted: dict = {}  # weighted values by transform
    for segment, piece in zip(segments, pieces[:-1], strict=True):
        value, transform_id = segment.value, segment.value.transform_id
        result = value.weighted_values(piece)
        weighted[transform_id] = (
            (value, weighted[transform_id][1] + result) if transform_id in weighted else (value, result)
        )
    for value, result in weighted.values():
        output = output + value.restore_output(result)
    return output
