"""Codewords against a query, the reference and the CPU path.

A vector is cut into ``J`` sub-vectors of ``g`` channels, each stored as the index of a codeword and, for angle codes, a
length: ``k_j ~ r_j c[idx_j]``. The logit (Spherical KV) is then

    (1 / sqrt(D)) sum_j ||q_j|| r_j <q_j / ||q_j||, c[idx_j]> = (1 / sqrt(D)) sum_j r_j LUT[j, idx_j],
    LUT[j, i] = <q_j, c_i>

The paper's appendix leaves ``||q_j||`` out, which weighs all sub-vectors alike whatever the query says; the table keeps
it. A query meets ``K`` codewords a sub-vector once, and a key costs ``J`` look-ups: no key is ever rebuilt. Values go
the other way: probabilities are summed by codeword, and the sums meet the codewords once.

Shapes: queries, tables and codebooks come in ``S`` sets (one a sequence and KV head, say); codes in ``E`` runs of ``n``
tokens (all tokens of a head, or one page of it), each of which belongs to a set. All floats are float32.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_TABLE = 1 << 22  # scores that one step of a search holds


def nearest(x: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
    """The codeword nearest to every vector.

    Args:
        x: ``[M, n, g]``.
        codebook: ``[M, K, g]``, ``K`` at most 256. Among unit codewords the nearest one has the largest cosine, so
            vectors need not be divided by their lengths.

    Returns:
        uint8 ``[M, n]``; the first of equally near ones.
    """
    bias = codebook.square().sum(-1).unsqueeze(1).mul(-0.5)
    words = codebook.transpose(-1, -2)
    step = max(256, _TABLE // (codebook.shape[0] * codebook.shape[1]))
    found = [torch.baddbmm(bias, piece, words).argmax(-1).to(torch.uint8) for piece in x.split(step, 1)]
    return torch.cat(found, 1) if len(found) > 1 else found[0]


def reconstruct(
    index: torch.Tensor,
    codebook: torch.Tensor,
    radius: torch.Tensor | None = None,
    sets: torch.Tensor | None = None,
) -> torch.Tensor:
    """The vectors the codes stand for.

    Args:
        index: uint8 ``[E, n, J]``, ``E`` runs of ``n`` tokens.
        codebook: ``[S or 1, J or 1, K, g]``.
        radius: ``[E, n, J]``, or None if codewords have lengths of their own.
        sets: int64 ``[E]``, the set of every run; None if run ``e`` takes set ``e``.

    Returns:
        ``[E, n, J * g]``.
    """
    count = index.shape[0] if sets is None else codebook.shape[0]
    codebook = codebook.expand(count, index.shape[2], -1, -1)
    sets = sets if codebook.shape[0] > 1 or sets is None else torch.zeros_like(sets)
    vectors = functional.embedding(_rows(index, codebook.shape[2], sets), codebook.flatten(0, 2))
    if radius is not None:
        vectors = vectors * radius.unsqueeze(-1)
    return vectors.flatten(-2)


def scores_lut(
    query: torch.Tensor,
    index: torch.Tensor,
    codebook: torch.Tensor,
    radius: torch.Tensor | None = None,
    sets: torch.Tensor | None = None,
) -> torch.Tensor:
    """``q . k`` by table.

    Args:
        query: ``[S, Q, J * g]``, already multiplied by the softmax scale.
        index, codebook, radius, sets: as in :func:`reconstruct`.

    Returns:
        ``[E, Q, n]``.
    """
    groups, words, size = index.shape[2], *codebook.shape[2:]
    split = query.unflatten(-1, (groups, size)).transpose(1, 2)  # [S, J, Q, g]
    table = (codebook @ split.transpose(-1, -2)).flatten(0, 2)  # [S * J * K, Q]
    rows = _rows(index, words, sets).flatten(0, 1)
    weights = None if radius is None else radius.flatten(0, 1)
    scores = functional.embedding_bag(rows, table, mode="sum", per_sample_weights=weights)
    return scores.unflatten(0, index.shape[:2]).transpose(-1, -2)


def mix_histogram(
    probabilities: torch.Tensor,
    index: torch.Tensor,
    codebook: torch.Tensor,
    radius: torch.Tensor | None = None,
    sets: torch.Tensor | None = None,
    num_sets: int | None = None,
) -> torch.Tensor:
    """``sum_t p_t v_t`` by codeword: ``sum_i (sum of p_t r_t over the tokens with codeword i) c_i``.

    Args:
        probabilities: ``[E, Q, n]``.
        index, codebook, radius, sets: as in :func:`reconstruct`.
        num_sets: ``S``; None for ``E``.

    Returns:
        ``[S, Q, J * g]``, the runs of a set added up.
    """
    num_sets = index.shape[0] if num_sets is None else num_sets
    groups, words = index.shape[2], codebook.shape[2]
    weights = probabilities.transpose(-1, -2).unsqueeze(2)  # [E, n, 1, Q]
    if radius is not None:
        weights = weights * radius.unsqueeze(-1)
    weights = weights.expand(-1, -1, groups, -1).flatten(0, 2)
    bins = weights.new_zeros(num_sets * groups * words, weights.shape[-1])
    bins.index_add_(0, _rows(index, words, sets).flatten(), weights)
    mixed = bins.view(num_sets, groups, words, -1).transpose(-1, -2) @ codebook  # [S, J, Q, g]
    return mixed.transpose(1, 2).flatten(2)


def _rows(index: torch.Tensor, words: int, sets: torch.Tensor | None) -> torch.Tensor:
    """Rows int32 ``[E, n, J]`` of the codebooks (or their tables) laid end to end."""
    runs, _, groups = index.shape
    group = torch.arange(groups, dtype=torch.int32, device=index.device)
    sets = torch.arange(runs, dtype=torch.int32, device=index.device) if sets is None else sets.to(torch.int32)
    return index + (sets.view(-1, 1, 1) * groups + group).mul_(words)


def kmeans(
    x: torch.Tensor,
    words: int,
    *,
    weight: torch.Tensor | None = None,
    unit: bool = False,
    iterations: int = 20,
    seed: int = 0,
) -> torch.Tensor:
    """Codebooks by k-means, several at once; on a CPU the same result on every run (a GPU adds in any order).

    Args:
        x: float ``[M, n, g]``, the vectors of ``M`` codebooks.
        words: codewords ``K`` of each, at most 256.
        weight: ``[M, n]``, what an error of each vector costs; None for 1.
        unit: codewords of length 1 and the cosine as nearness (spherical k-means); ``x`` need not have length 1, its
            length then counts as weight.
        iterations: rounds at most.
        seed: of the first codewords, which are vectors of the sample.

    Returns:
        ``[M, K, g]`` in the dtype of ``x``.
    """
    problems, count, size = x.shape
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=generator)
    first = order[torch.arange(words) % count].to(x.device)
    book = x[:, first].clone()
    if count < words:  # too few vectors: no two equal codewords to begin with
        book += 1e-3 * x.std() * torch.randn(words, size, generator=generator, dtype=x.dtype).to(x.device)
    if unit:
        book = functional.normalize(book, dim=-1)
    weight = x.new_ones(problems, count) if weight is None else weight.to(x.dtype)
    before = None
    for _ in range(iterations):
        index = nearest(x, book).long()
        if before is not None and torch.equal(index, before):
            break
        before = index
        rows = index + torch.arange(problems, device=x.device).unsqueeze(1) * words
        flat = (x * weight.unsqueeze(-1)).flatten(0, 1)
        total = x.new_zeros(problems * words, size).index_add_(0, rows.flatten(), flat).view_as(book)
        mass = x.new_zeros(problems * words).index_add_(0, rows.flatten(), weight.flatten()).view(problems, words)
        chosen = book.gather(1, index.unsqueeze(-1).expand(-1, -1, size))
        if unit:
            fitted = functional.normalize(total, dim=-1)
            error = (torch.linalg.vector_norm(x, dim=-1) - (x * chosen).sum(-1)) * weight
        else:
            fitted = total / mass.clamp_min(1e-12).unsqueeze(-1)
            error = (x - chosen).square().sum(-1) * weight
        # a codeword that nobody chose moves to where the error is largest
        empty = mass <= 0
        worst = error.topk(min(words, count), dim=1).indices
        rank = (empty.cumsum(1) - 1).clamp(0, worst.shape[1] - 1)
        spare = x.gather(1, worst.gather(1, rank).unsqueeze(-1).expand(-1, -1, size))
        spare = functional.normalize(spare, dim=-1) if unit else spare
        book = torch.where(empty.unsqueeze(-1), spare, fitted)
    return book


__all__ = ["kmeans", "mix_histogram", "nearest", "reconstruct", "scores_lut"]
