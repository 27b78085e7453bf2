"""The contract of the CUDA split kernel in float64."""

import math

import torch

from kvmm.kernels.attention.backends.cuda.inputs import (
    Query,
)
from kvmm.kernels.quantize.reference import unpack_planes

LOG2_E = 1.0 / math.log(2)


def check_residual(residual, out):
    """The splits of residual tokens, joined, against float64."""
    columns = int(residual.length)
    key, value = (x[:, :, :columns].double().flatten(0, 1) for x in (residual.key, residual.value))
    x = residual.query.double() @ key.transpose(1, 2) * residual.scaling
    if residual.bias is not None:
        heads = residual.key.shape[1]
        x = x + residual.bias[:, :columns].double().repeat_interleave(heads, 0)[:, None] * LOG2_E
    live = x > -1e20
    m = torch.where(live, x, float("-inf")).amax(-1) if columns else x.new_full(x.shape[:2], float("-inf"))
    p = torch.where(live, x - m.clamp_min(-1e20)[..., None], float("-inf")).exp2()
    assert (out.m == float("-inf")).logical_or(out.l > 0).all() and out.l.isfinite().all()
    found = out.m.double().amax(1)
    torch.testing.assert_close(found, m, rtol=1e-5, atol=1e-5)
    weight = torch.where(out.l > 0, out.m.double() - m.clamp_min(-1e20)[:, None], float("-inf")).exp2()
    torch.testing.assert_close((out.l * weight).sum(1), p.sum(-1), rtol=1e-5, atol=1e-6)
    acc = (out.acc.double()[..., : value.shape[-1]] * weight[..., None]).sum(1)
    torch.testing.assert_close(acc, p @ value, rtol=1e-4, atol=2e-4)


def expanded(q8, qw, qz, heads, parts=1, together=1):
    """The query by digit ``[B, H, G, R, J]`` and what zero points add ``[B, H, G, R]``, float64; ``parts``: groups of a
    page, of which ``G`` counts every one."""
    if not isinstance(q8, Query):
        lanes = (254 * q8[..., 0::2, :].double() + q8[..., 1::2, :].double()) * qw.double()[..., None]
        return lanes, qz.double()
    z = q8.rows.double().unflatten(0, (-1, heads)).unsqueeze(2) * q8.scaling
    if q8.scale is None:
        if q8.lane_order is not None:
            order = q8.lane_order.long().flatten(1).unflatten(1, (-1, z.shape[-1])).repeat_interleave(together, 1)
            z = z.gather(-1, order[:, :, None, None].expand_as(z))
        return z, z.sum(-1)
    scale, zero = (x.double().unflatten(-1, (parts, -1)).flatten(2, 3) for x in (q8.scale, q8.zero_point))
    channels = z[..., : zero.shape[-1]]
    if q8.offset is not None:
        zero = zero + q8.offset.double()[:, None]
    if q8.group_channel is not None:  # higher bits of two
        index = q8.group_channel.long()
        second = (
            4
            * scale.gather(-1, index).unsqueeze(3)
            * z.expand(-1, -1, index.shape[2], -1, -1).gather(-1, index.unsqueeze(3).expand(-1, -1, -1, z.shape[3], -1))
        )
        lanes = torch.cat(
            (z * scale.unsqueeze(3), second, second.new_zeros(*second.shape[:-1], -second.shape[-1] % 32)), -1
        )
        return lanes, (channels * zero.unsqueeze(3)).sum(-1)
    if q8.lane_channel is None:
        lanes = z[..., : scale.shape[-1]]
    else:
        lanes = z[..., q8.lane_channel.long()]
        scale = scale[..., q8.lane_channel.long()] * q8.plane_weight.double()
    lanes = torch.nn.functional.pad(lanes * scale.unsqueeze(3), (0, -lanes.shape[-1] % 32))
    return lanes, (channels * zero.unsqueeze(3)).sum(-1)


def bits_of(codes, counts):
    """The lanes of codes ``[..., J]`` of several planes whose bits are lanes: ``counts`` says what bit ``i`` counts."""
    first, *more = (x.long() for x in codes)
    lanes = [(first >> bit & 1) * counts(bit) for bit in range(2)]
    for highest in more:
        low = first[..., : highest.shape[-1]]
        lanes += [highest, (low ^ low >> 1 ^ highest) & 1]
    return [x.double() for x in lanes]


def flat(codes, bits, dim, pages):
    """Codes of so many pages ``[B, H, tokens, J]``, padded to a multiple of 32."""
    x = unpack_planes(codes[:, :, :pages].contiguous(), bits, dim).double()
    x = x if dim == -2 else x.transpose(-1, -2)
    x = x.flatten(2, 3)
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % 32))


def group_of(group, count, pages):
    """The group of every page."""
    if isinstance(group, str):
        return torch.arange(pages) if group == "page" and count > 1 else torch.zeros(pages, dtype=torch.long)
    return group[:pages].long().cpu() % count


def per_token(x, pages):
    """What tokens have ``[B, H, P, N]`` (or with a dimension of one before the last) as ``[B, H, 1, tokens]``."""
    return x[:, :, :pages].double().reshape(*x.shape[:2], 1, -1)


def logits(q8, qw, qz, keys, pages):
    """All logits ``[B, H, R, tokens]`` without bias, -inf at slots that are left out."""
    parts, together, chunks, page = keys.groups_in_page, keys.heads_together, keys.chunks, keys.page_size
    query, constant = expanded(q8, qw, qz, keys.planes[0][0].shape[1] * together, parts, together)
    batch, heads, groups, rows, _ = query.shape
    codes = [flat(codes, bits, -2, pages) for codes, bits in keys.planes]
    codes = torch.cat(bits_of(codes, lambda bit: 2**bit) if keys.bit_lanes else codes, -1).repeat_interleave(
        together, 1
    )
    by_token = group_of(keys.group, groups // parts, pages).repeat_interleave(page).to(query.device)
    by_token = by_token * parts + torch.arange(page, device=query.device).repeat(pages) * parts // page
    if keys.high_norm is not None:  # of the second plane's channels, and of the others
        dim, count = q8.scale.shape[-1], keys.planes[1][0].shape[-1]
        channel = q8.lane_channel.long()
        high = (channel < count).to(query.device)
        z = (
            q8.rows.double().unflatten(0, (batch, heads))[..., :dim]
            * q8.scaling
            * q8.zero_point.double()[:, :, 0, None]
        )
        parts_of = ((high, keys.high_norm, z[..., :count]), (~high, keys.norm, z[..., count:]))
        x = 0.0
        for lanes, norm, points in parts_of:
            part = torch.einsum("bhtrj,bhtj->bhrt", query[:, :, by_token] * lanes, codes) + points.sum(-1)[..., None]
            x = x + part * per_token(norm, pages)
    elif keys.point is None:
        x = torch.einsum("bhtrj,bhtj->bhrt", query[:, :, by_token], codes)
        x = x + constant[:, :, by_token].transpose(-1, -2)
        x = x if keys.norm is None else x * per_token(keys.norm, pages)
    else:  # scales and zero points of groups of channels
        x = 0.0
        for chunk, (q, c) in enumerate(zip(query.chunk(chunks, -1), codes.chunk(chunks, -1), strict=True)):
            s, z = (
                p.unflatten(-1, (chunks, page))[:, :, :, chunk].repeat_interleave(together, 1)
                for p in (keys.norm, keys.point)
            )
            product = torch.einsum("bhtrj,bhtj->bhrt", q[:, :, by_token], c)
            x = x + product * per_token(s, pages) + q.sum(-1)[:, :, 0].unsqueeze(-1) * per_token(z, pages)
    mean = q8.mean if isinstance(q8, Query) else None
    if mean is not None:
        channels = q8.rows.double().unflatten(0, (batch, heads))[..., : mean.shape[-1]] * q8.scaling
        group = group_of(keys.group, mean.shape[2], pages).repeat_interleave(page).to(query.device)
        x = x + (channels @ mean.double().transpose(-1, -2))[..., group]
    if keys.kept_slot is not None:
        index = keys.kept_slot.long().unsqueeze(2).expand(-1, -1, rows, -1)
        x = x.scatter(-1, index, float("-inf"))
    return x


def vectors(keys, values, pages, page):
    """Values ``[B, H, tokens, J]`` without what belongs to tokens, its weight, and the zero points of groups."""
    codes = [flat(codes, bits, -1, pages) for codes, bits in values.planes]
    if values.bit_weights is None:
        codes = torch.cat(codes, -1)
    else:
        lanes, longer = bits_of(codes, lambda bit: 1), sum(x.shape[-2] for x, _ in values.planes[1:])
        codes = torch.zeros_like(lanes[0])
        for weights, channels in (
            (values.bit_weights[0], slice(longer)),
            (values.bit_weights[-1], slice(longer, None)),
        ):
            for lane, weight in zip(lanes, weights, strict=False):
                codes[..., channels] += lane[..., channels] * weight
    weight = torch.ones(1, 1, 1, 1, dtype=torch.float64, device=codes.device)
    if values.norm is not None:
        weight = per_token(values.norm, pages)
    zeros = None
    if values.high_norm is not None:  # the kernel adds scales and zero points itself
        count = values.planes[1][0].shape[-2]
        high = per_token(values.high_norm, pages).squeeze(2).unsqueeze(-1)
        norm = weight.squeeze(2).unsqueeze(-1)
        padding = (0, codes.shape[-1] - values.scale.shape[-1])
        scale, zero_point = (torch.nn.functional.pad(x.double(), padding) for x in (values.scale, values.zero_point))
        codes = codes * scale + zero_point
        codes = torch.cat((codes[..., :count] * high, codes[..., count:] * norm), -1)
        weight = torch.ones_like(weight)
    elif adds_zero_points(keys, values):
        lanes = values.planes[0][0].shape[-2]
        padding = (0, codes.shape[-1] - lanes)

        def spread(x):
            by_token = x[:, :, :pages].double().transpose(3, 4).flatten(2, 3)
            return torch.nn.functional.pad(by_token.repeat_interleave(lanes // x.shape[3], -1), padding)

        codes = codes * spread(values.scale) + spread(values.zero_point)
    elif values.axis == "token":
        weight = per_token(values.scale, pages)
    elif values.scale is not None and values.scale.shape[2] > 1:
        group = group_of(values.group, values.scale.shape[2], pages).repeat_interleave(page).to(codes.device)
        codes = codes * values.scale.double()[:, :, group]
        zeros = values.zero_point.double()[:, :, group]
    return codes, weight, zeros


def adds_zero_points(keys, values):
    """Whether the kernel adds the zero points of tokens to its sums: where scales differ inside of a page."""
    return values.axis == "token" and (keys.groups_in_page > 1 or values.scale.shape[3] > 1)


def reference(q8, qw, qz, keys, values, pages, splits, bias=None):
    """``split_kernel`` in float64: ``m``, ``l``, ``acc`` and ``z`` of each split."""
    page = keys.page_size
    x = logits(q8, qw, qz, keys, pages)
    batch, heads, rows, _ = x.shape
    if bias is not None:
        x = x + bias[:, None, None, : pages * page].double() * LOG2_E
    value_codes, weight, zero_codes = vectors(keys, values, pages, page)
    m = x.new_full((batch, heads, splits, rows), float("-inf"))
    l, z = torch.zeros_like(m), torch.zeros_like(m)
    acc = x.new_zeros(batch, heads, splits, rows, value_codes.shape[-1])
    if zero_codes is not None:
        z = x.new_zeros(batch, heads, splits, rows, zero_codes.shape[-1])

    def weight_of(tokens):
        return weight.expand(*weight.shape[:3], pages * page)[..., tokens]

    for s in range(splits):  # pages go to the splits in turn
        tokens = (torch.arange(pages * page, device=x.device) // page % splits == s).nonzero()[:, 0]
        if not len(tokens):
            continue
        part = x[..., tokens]
        m[:, :, s] = part.amax(-1)
        p = (part - m[:, :, s, :, None]).exp2()
        l[:, :, s] = p.sum(-1)
        acc[:, :, s] = (p * weight_of(tokens)) @ value_codes[:, :, tokens]
        if values.axis == "token" and not adds_zero_points(keys, values):
            z[:, :, s] = (p * per_token(values.zero_point, pages)[..., tokens]).sum(-1)
        elif zero_codes is not None:
            z[:, :, s] = (p * weight_of(tokens)) @ zero_codes[:, :, tokens]
        else:
            z[:, :, s] = (p * weight_of(tokens)).sum(-1)
    return [t.flatten(0, 1) for t in (m, l, acc, z)]


def check(outputs, expected, zero, folded=False):
    """``folded``: the kernel splits the query, in steps of 2 ** -15 of its largest number."""
    loose = 20 if folded else 1
    m, l, acc, z = (x.double() for x in expected)
    out_m, out_l, out_acc, out_z = (x.double() for x in outputs)
    empty = m < -1e20  # no pages, or only slots without a token
    l, acc, z = (
        l.masked_fill(empty, 0),
        acc.masked_fill(empty[..., None], 0),
        z.masked_fill(empty.reshape(*empty.shape, *[1] * (z.dim() - 3)), 0),
    )
    assert torch.equal(out_m == float("-inf"), empty)
    assert (out_l[empty] == 0).all() and (out_acc[empty] == 0).all()
    # relative to 2 ** m: an error of the largest logit is one of all sums
    torch.testing.assert_close(out_m[~empty], m[~empty], rtol=2e-6 * loose, atol=2e-5 * loose)
    torch.testing.assert_close(out_l, l, rtol=1e-4 * loose, atol=1e-5 * loose)
    assert ((out_acc - acc).norm() <= 5e-5 * loose * acc.norm()).item()
    torch.testing.assert_close(out_acc, acc, rtol=1e-3 * loose, atol=1e-4 * loose * acc.abs().max().item())
    if zero:
        torch.testing.assert_close(out_z, z, rtol=1e-4 * loose, atol=1e-4 * loose * z.abs().max().item())


def has_zero(keys, values):
    """Whether the kernel writes sums for the zero points."""
    if adds_zero_points(keys, values) or values.high_norm is not None:
        return False
    return values.axis == "token" or values.norm is not None or values.scale is not None
