"""Tables, histograms and k-means against their definitions."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kvmm.cache.pages import PageStore
from kvmm.codecs import Site, build_codec
from kvmm.kernels.angle import kmeans, mix_histogram, nearest, reconstruct, scores_lut
from kvmm.policy import spec

RUNS, TOKENS, GROUPS, WORDS, SIZE, ROWS = 6, 40, 3, 16, 8, 5


def random_codes(sets=RUNS, seed=0):
    g = torch.Generator().manual_seed(seed)
    index = torch.randint(0, WORDS, (RUNS, TOKENS, GROUPS), generator=g).to(torch.uint8)
    book = torch.randn(sets, GROUPS, WORDS, SIZE, generator=g)
    radius = torch.rand(RUNS, TOKENS, GROUPS, generator=g)
    return index, book, radius, torch.randn(sets, ROWS, GROUPS * SIZE, generator=g)


def by_hand(index, book, radius, sets):
    rows = []
    for run in range(RUNS):
        words = book[int(sets[run])]
        rows.append(torch.cat([words[j][index[run, :, j].long()] * radius[run, :, j, None] for j in range(GROUPS)], -1))
    return torch.stack(rows)


def test_nearest_is_the_smallest_distance():
    g = torch.Generator().manual_seed(1)
    x, book = torch.randn(4, 3000, SIZE, generator=g), torch.randn(4, WORDS, SIZE, generator=g)
    assert torch.equal(nearest(x, book).long(), torch.cdist(x, book).argmin(-1))


@pytest.mark.parametrize("shared", [False, True])
def test_runs_and_sets(shared):
    """Each run meets the table and the codebook of its own set."""
    index, book, radius, query = random_codes(2 if shared else RUNS)
    sets = torch.tensor([1, 0, 0, 1, 1, 0]) if shared else None
    chosen = sets if shared else torch.arange(RUNS)
    vectors = by_hand(index, book, radius, chosen)
    torch.testing.assert_close(reconstruct(index, book, radius, sets), vectors)
    scores = scores_lut(query, index, book, radius, sets)
    torch.testing.assert_close(scores, query[chosen] @ vectors.transpose(-1, -2), atol=1e-4, rtol=1e-4)
    p = torch.rand(RUNS, ROWS, TOKENS)
    mixed = mix_histogram(p, index, book, radius, sets, 2 if shared else None)
    expected = p @ vectors
    if shared:
        expected = torch.stack([expected[chosen == s].sum(0) for s in range(2)])
    torch.testing.assert_close(mixed, expected, atol=1e-4, rtol=1e-4)


def test_one_codebook_for_all():
    index, book, radius, query = random_codes()
    one = book[:1, :1]
    full = one.expand(RUNS, GROUPS, -1, -1)
    torch.testing.assert_close(scores_lut(query, index, one, radius), scores_lut(query, index, full, radius))
    torch.testing.assert_close(reconstruct(index, one), reconstruct(index, full))
    p = torch.rand(RUNS, ROWS, TOKENS)
    torch.testing.assert_close(mix_histogram(p, index, one), mix_histogram(p, index, full))


def test_kmeans_finds_the_clusters():
    g = torch.Generator().manual_seed(2)
    centres = 5 * torch.randn(3, 8, SIZE, generator=g)
    which = torch.randint(0, 8, (3, 900), generator=g)
    x = centres.gather(1, which.unsqueeze(-1).expand(-1, -1, SIZE)) + 0.01 * torch.randn(3, 900, SIZE, generator=g)
    book = kmeans(x, 16)
    assert float((x - book.gather(1, nearest(x, book).long().unsqueeze(-1).expand_as(x))).norm(dim=-1).max()) < 0.2
    assert torch.equal(book, kmeans(x, 16))


def test_unit_codewords_weigh_by_length():
    """Spherical k-means: codewords of length 1, drawn to the long vectors."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(1, 500, SIZE, generator=g)
    book = kmeans(x, 8, unit=True)
    torch.testing.assert_close(book.norm(dim=-1), torch.ones(1, 8))
    long = x.clone()
    long[:, :50] *= 20
    drawn = kmeans(long, 8, unit=True)

    def cosine(codewords):
        return float(torch.nn.functional.normalize(x[0, :50], dim=-1).matmul(codewords[0].T).amax(-1).mean())

    assert cosine(drawn) > cosine(book) + 0.05


@pytest.mark.parametrize("unit", [False, True])
def test_kmeans_with_too_few_or_equal_vectors(unit):
    for x in (torch.randn(2, 3, SIZE), torch.ones(2, 50, SIZE), torch.zeros(2, 50, SIZE)):
        assert torch.isfinite(kmeans(x, 16, unit=unit)).all()


@pytest.mark.parametrize("radius", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (RUNS, 1), (1, GROUPS), (RUNS, GROUPS)])
def test_triton_reads_the_table(shape, radius):
    """Under the interpreter, or on a GPU: codebooks shared by heads or sub-vectors, with and without lengths."""
    from kvmm.kernels.angle import reference, triton

    index, _, lengths, _ = random_codes()
    g = torch.Generator().manual_seed(3)
    book = torch.randn(*shape, WORDS, SIZE, generator=g)
    for sets, count in ((None, RUNS), (torch.tensor([1, 0, 0, 1, 1, 0]), 2)):
        query = torch.randn(count, 21, GROUPS * SIZE, generator=g)
        own = book[:count]
        arguments = [query, index, own, lengths if radius else None, sets]
        expected = reference.scores_lut(*arguments)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        arguments = [a if a is None else a.to(device) for a in arguments]
        torch.testing.assert_close(triton.scores_lut(*arguments).cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [0.875, 0.75, 0.34375])
@pytest.mark.parametrize("rows", [4, 21])
def test_pages_are_read_as_they_are_packed(bits, rows):
    """Under the interpreter, or on a GPU, against the codec's own way; two spans, in a store with room."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    codec = build_codec(spec("spherical", bits), "key", Site())
    store, g = PageStore.for_codec(codec, 64), torch.Generator().manual_seed(4)
    for count in (200, 130):
        store.append(torch.randn(2, 3, count, 64, generator=g).to(device) + count / 100)
    query = torch.randn(2, 3, rows, 64, generator=g).to(device)
    expected = query.cpu() @ codec.decode(store.packed).cpu().transpose(-1, -2)
    found = codec._scores_in_place(query, store.packed).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert float((found[0, 0, 0, :200] - found[0, 0, 0, :200].mean()).abs().max()) > 1


@pytest.mark.parametrize(
    ("bits", "dim", "page_size"), [(0.875, 64, 32), (0.75, 80, 64), (0.34375, 128, 32), (2, 64, 32)]
)
def test_pages_are_coded_by_a_kernel(bits, dim, page_size, monkeypatch):
    """Under the interpreter, or on a GPU, against float32 pages; by codebooks of heads and groups, a second span, a
    sequence that is shorter than the other one and a page whose keys are all alike. Other codes some pages at a time.
    """
    from kvmm.kernels.angle import encode
    from kvmm.kernels.quantize import DensePages, chain
    from kvmm.kernels.quantize.tiles import TilePages

    device = "cuda" if torch.cuda.is_available() else "cpu"
    g, calls, plain = torch.Generator().manual_seed(5), [], encode.encode_pages
    monkeypatch.setattr(encode, "encode_pages", lambda *args: calls.append(args) or plain(*args))
    monkeypatch.setattr(chain, "_PART", 1)
    codec = build_codec(spec("spherical", bits), "key", Site())
    book = codec.codewords(dim, torch.device(device))
    book = book + 0.2 * torch.randn(2, dim // book.shape[-1], *book.shape[2:], generator=g).to(device)
    monkeypatch.setattr(codec, "codewords", lambda dim, device: book)
    x = torch.randn(2, 150, 2, dim, generator=g).to(device, torch.bfloat16).transpose(1, 2) * 2 + 100
    x[:, :, 64:128] = 100
    valid = torch.ones(2, 150, dtype=torch.bool, device=device)
    valid[1, 70:] = False
    stores = []
    for cut in (DensePages.cut, TilePages):
        monkeypatch.setattr("kvmm.codecs.spherical.codec.cut_pages", cut)
        store = PageStore.for_codec(codec, page_size)
        store.append(x, valid)
        store.append(x[:, :, :70] - 20)
        stores.append(store.packed)
    expected, found = stores
    assert len(calls) == (2 if codec.rate.radius else 0)
    assert found.tensors.keys() == expected.tensors.keys() and torch.equal(found.page_group, expected.page_group)
    for name, tensor in expected.tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        if tensor.dtype == torch.uint8:
            assert float((found[name] != tensor).float().mean()) < 2e-3, name
        else:
            torch.testing.assert_close(found[name], tensor, rtol=2e-3, atol=2e-3, msg=name)
