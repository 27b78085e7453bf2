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


def expanded(q8, qw, qz):
    """The query by digit ``[B, H, G, R, J]`` and what zero points add ``[B, H, G, R]``, float64."""
    if not isinstance(q8, Query):
        lanes = (254 * q8[..., 0::2, :].double() + q8[..., 1::2, :].double()) * qw.double()[..., None]
        return lanes, qz.double()
    z = q8.rows.double().unflatten(0, q8.scale.shape[:2]).unsqueeze(2) * q8.scaling
    scale, zero = q8.scale.double(), q8.zero_point.double()
    channels = z[..., : zero.shape[-1]]
    if q8.offset is not None:
        zero = zero + q8.offset.double()[:, None]
    if q8.lane_channel is None:
        lanes = z[..., : scale.shape[-1]]
    else:
        lanes = z[..., q8.lane_channel.long()]
        scale = scale[..., q8.lane_channel.long()] * q8.plane_weight.double()
    return lanes * scale.unsqueeze(3), (channels * zero.unsqueeze(3)).sum(-1)


def reference(q8, qw, qz, keys, values, pages, splits, bias=None):
    """``split_kernel`` in float64: ``m``, ``l``, ``acc`` and ``z`` of each split."""
    query, constant = expanded(q8, qw, qz)
    batch, heads, groups, rows, _ = query.shape
    page = keys.page_size

    def flat(codes, bits, dim):  # [B, H, tokens, J], padded to a multiple of 32
        x = unpack_planes(codes[:, :, :pages].contiguous(), bits, dim).double()
        x = x if dim == -2 else x.transpose(-1, -2)
        x = x.flatten(2, 3)
        return torch.nn.functional.pad(x, (0, -x.shape[-1] % 32))

    def group_of(group, count):
        if isinstance(group, str):
            return torch.arange(pages) if group == "page" and count > 1 else torch.zeros(pages, dtype=torch.long)
        return group[:pages].long().cpu() % count

    def per_token(x):
        return x[:, :, :pages].double().reshape(*x.shape[:2], 1, pages * page)

    key_codes = torch.cat([flat(codes, bits, -2) for codes, bits in keys.planes], -1)
    value_codes = torch.cat([flat(codes, bits, -1) for codes, bits in values.planes], -1)
    by_token = group_of(keys.group, groups).repeat_interleave(page).to(query.device)
    x = torch.einsum("bhtrj,bhtj->bhrt", query[:, :, by_token], key_codes) + constant[:, :, by_token].transpose(-1, -2)
    if keys.norm is not None:
        x = x * per_token(keys.norm)
    if bias is not None:
        x = x + bias[:, None, None, : pages * page].double() * LOG2_E
    weight = torch.ones(1, 1, 1, 1, dtype=torch.float64, device=query.device)
    if values.norm is not None:
        weight = per_token(values.norm)
    if values.axis == "token":
        weight = per_token(values.scale)
    zero_codes = None
    if values.scale is not None and values.axis == "channel" and values.scale.shape[2] > 1:
        group = group_of(values.group, values.scale.shape[2]).repeat_interleave(page).to(query.device)
        value_codes = value_codes * values.scale.double()[:, :, group]
        zero_codes = values.zero_point.double()[:, :, group]
    m = x.new_full((batch, heads, splits, rows), float("-inf"))
    l, z = torch.zeros_like(m), torch.zeros_like(m)
    acc = x.new_zeros(batch, heads, splits, rows, value_codes.shape[-1])
    if zero_codes is not None:
        z = x.new_zeros(batch, heads, splits, rows, zero_codes.shape[-1])

    def weight_of(tokens):
        return weight.expand(*weight.shape[:3], pages * page)[..., tokens]

    for s in range(splits):  # pages go to the splits in turn
        tokens = (torch.arange(pages * page, device=query.device) // page % splits == s).nonzero()[:, 0]
        if not len(tokens):
            continue
        part = x[..., tokens]
        m[:, :, s] = part.amax(-1)
        p = (part - m[:, :, s, :, None]).exp2()
        l[:, :, s] = p.sum(-1)
        acc[:, :, s] = (p * weight_of(tokens)) @ value_codes[:, :, tokens]
        if values.axis == "token":
            z[:, :, s] = (p * per_token(values.zero_point)[..., tokens]).sum(-1)
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


def has_zero(values):
    """Whether the kernel writes sums for the zero points."""
    return values.axis == "token" or values.norm is not None or values.scale is not None
