"""Collecting, fitting, writing and reading a calibration, on tiny random models."""

import copy
import warnings
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import DynamicCache

from kvmm import KVMMCache, KVMMError, get_policy
from kvmm.calibration import FILE_NAME, Calibration, model_fingerprint, read_calibration
from kvmm.calibration.choose import without_gradients
from kvmm.calibration.collect import Collector, output_moment
from kvmm.calibration.fit import fit_codecs
from kvmm.codecs import Site, build_codec
from kvmm.codecs.calibquant import TAU
from kvmm.modality import AUDIO, IMAGE, TEXT, modality_of_ids
from kvmm.models.documents import Document
from kvmm.policy import KVPolicy, KVSpec, spec
from kvmm.policy.calibrated import load_calibration
from tests.cache.harness import Harness, layout
from tests.tiny_models import build, generate, inputs

ANSWER = torch.tensor([5, 9, 4, 11, 3])


@pytest.fixture(scope="module")
def collected():
    model = build("qwen2_5_omni")
    collector = Collector(model)
    for seed in range(3):
        collector.add(inputs("qwen2_5_omni", 1, seed=seed), ANSWER)
    return model, collector


def test_samples_are_the_moments_of_what_the_model_computes(collected):
    model, collector = collected
    samples = collector.samples()
    config = model.config.get_text_config()
    layers = range(config.num_hidden_layers)
    assert set(samples) == {(i, s, m) for i in layers for s in ("key", "value") for m in (TEXT, IMAGE, AUDIO)}
    keys = []
    for seed in range(3):
        arguments = inputs("qwen2_5_omni", 1, seed=seed)
        cache = DynamicCache(config=config)
        with torch.no_grad():
            model(**arguments, past_key_values=cache, use_cache=True)
        image = modality_of_ids(arguments["input_ids"], model.config)[0] == IMAGE
        keys.append(cache.layers[1].keys[0][:, image])
    expected = torch.cat(keys, 1)
    site = samples[1, "key", IMAGE]
    torch.testing.assert_close(site.mean, expected.mean(1), atol=1e-4, rtol=1e-4)
    covariance = torch.stack([torch.cov(x.T, correction=0) for x in expected])
    torch.testing.assert_close(site.covariance, covariance, atol=1e-3, rtol=1e-3)
    known = {tuple(v.round(decimals=3).tolist()) for v in expected[0]}
    assert all(tuple(v.round(decimals=3).tolist()) in known for v in site.vectors[0])
    for found in samples.values():
        for moment in (found.importance, found.query_moment):
            assert torch.isfinite(moment).all()
            assert (torch.linalg.eigvalsh(moment) > -1e-4 * moment.abs().amax()).all()
    # the last layer's values are read, so errors there cost something
    assert float(samples[layers[-1], "value", IMAGE].importance.abs().sum()) > 0


def test_importance_predicts_what_an_error_does_to_the_loss():
    """Gradients are those of the loss with respect to the keys the cache holds: checked by finite differences."""
    from transformers.cache_utils import Cache

    from kvmm.attention import install_attention
    from kvmm.calibration.collect import _Probe
    from kvmm.models.caches import DYNAMIC
    from kvmm.models.documents import read_on

    install_attention()
    model = copy.deepcopy(build("qwen2_5_omni")).double()
    arguments = {n: t.double() if t.is_floating_point() else t for n, t in inputs("qwen2_5_omni", 1).items()}
    with torch.no_grad():
        document = Document(model, arguments)

    def loss(shift: torch.Tensor | None) -> tuple[torch.Tensor, list]:
        cache = document.cache(DYNAMIC)
        probes = [_Probe(layer) for layer in cache.layers]
        if shift is not None:
            with torch.no_grad():
                probes[1].leaves[0][0].add_(shift)
        logits = read_on(model, arguments, Cache(layers=probes), ANSWER[None, :-1], gradients=True)
        target = logits[-len(ANSWER) :].log_softmax(-1).gather(1, ANSWER[:, None]).sum()
        return target, probes

    value, probes = loss(None)
    (gradient,) = torch.autograd.grad(value, [probes[1].leaves[0][0]])
    step = torch.randn(gradient.shape, dtype=torch.double, generator=torch.Generator().manual_seed(0)) * 1e-4
    moved = loss(step)[0] - loss(-step)[0]
    torch.testing.assert_close(moved, 2 * (gradient * step).sum(), rtol=1e-3, atol=1e-12)


def test_without_gradients(collected):
    model, _ = collected
    collector = Collector(model, gradients=False)
    collector.add(inputs("qwen2_5_omni", 1), ANSWER)
    samples = collector.samples()
    assert all(site.importance is None for site in samples.values())
    assert all(site.query_moment is not None for site in samples.values())
    assert any(name.startswith("rd.") for name in fit_codecs(samples, ["rd"]))
    assert all(p.requires_grad for p in model.parameters())


def test_samples_move_as_a_whole(collected):
    """Codecs fit themselves where the model is: nothing may stay behind."""
    _, collector = collected
    for site in collector.samples().values():
        there = site.to("meta")
        tensors = [getattr(there, f.name) for f in fields(there) if f.name != "side"]
        assert there.side == site.side and {t.device.type for t in tensors} == {"meta"}
        assert without_gradients({0: site})[0].to("meta").importance is None


def test_output_moment_is_of_the_heads_that_read(collected):
    model, _ = collected
    config = model.config.get_text_config()
    heads, dim = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    moment = output_moment(model, 0, heads, dim)
    decoder = model.get_decoder()
    weight = getattr(decoder, "language_model", decoder).layers[0].self_attn.o_proj.weight
    v = torch.randn(dim)
    ratio = config.num_attention_heads // heads
    for head in range(heads):
        columns = [weight[:, (head * ratio + r) * dim : (head * ratio + r + 1) * dim] for r in range(ratio)]
        expected = sum((c @ v).square().sum() for c in columns)
        torch.testing.assert_close(v @ moment[head] @ v, expected, rtol=1e-4, atol=1e-5)


def test_a_file_serves_its_model_and_no_other(collected, tmp_path):
    model, collector = collected
    path = tmp_path / FILE_NAME
    made = Calibration(model_fingerprint(model), fit_codecs(collector.samples(), ["rd"]), {"importance": "gradient"})
    made.save(path)
    policy = get_policy("rd2", calibration=path)
    read = load_calibration(model, policy)
    assert set(read.tensors) == set(made.tensors)
    assert read_calibration(path) is read  # read once
    cache = KVMMCache.for_model(model, policy)
    assert cache.layers[0].codecs[IMAGE][0].site.calibration is read
    assert copy.deepcopy(cache).layers[0].codecs[IMAGE][0].site.calibration is read
    tokens = generate(model, inputs("qwen2_5_omni", 2), past_key_values=cache)
    assert tokens.shape[0] == 2
    other = build("qwen2_5_vl")
    with pytest.raises(KVMMError, match="another model"):
        KVMMCache.for_model(other, policy)
    # found beside weights that have changed since: said, but not an error for who did not ask for it
    other.name_or_path = str(tmp_path)
    try:
        with pytest.warns(UserWarning, match="another model"):
            assert load_calibration(other, get_policy("kivi2")) is None
    finally:
        other.name_or_path = ""


def test_fingerprint_ignores_dtype_and_sees_weights():
    model = build("llama")
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert model_fingerprint(half) == model_fingerprint(copy.deepcopy(model).to(torch.bfloat16).float())
    changed = copy.deepcopy(model)
    with torch.no_grad():
        next(p for n, p in changed.named_parameters() if n.endswith("k_proj.weight")).mul_(1.5)
    assert model_fingerprint(changed) != model_fingerprint(copy.deepcopy(model))


def test_damaged_files(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(KVMMError, match="kvmm calibrate"):
        read_calibration(path)
    path.write_bytes(b"nothing of the sort")
    with pytest.raises(KVMMError, match="not a complete"):
        read_calibration(path)
    other = tmp_path / "b.safetensors"
    save_file({"x": torch.zeros(1)}, other)
    with pytest.raises(KVMMError, match="not a calibration file"):
        read_calibration(other)
    old = tmp_path / "c.safetensors"
    save_file({"x": torch.zeros(1)}, old, {"format": "kvmm-calibration", "format_version": "0", "fingerprint": ""})
    with pytest.raises(KVMMError, match="format 0"):
        read_calibration(old)


def test_no_warning_for_a_model_without_a_file():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_calibration(build("llama"), get_policy("rd2")) is None


def test_modalities_without_a_fit_are_stored_by_the_other_preset(collected):
    """``balanced`` and ``small`` must be good on a model that nobody has calibrated, and on one half calibrated."""
    model, collector = collected
    samples = {site: found for site, found in collector.samples().items() if site[2] != AUDIO}
    fitted = Calibration(model_fingerprint(model), fit_codecs(samples, ["rd"]), {"importance": "gradient"})
    config = model.config
    for name in ("balanced", "small"):
        policy = get_policy(name)
        plain = KVMMCache(config, policy).policy
        other = get_policy(policy.uncalibrated)
        assert [plain.specs(m) for m in (TEXT, IMAGE, AUDIO)] == [other.specs(m) for m in (TEXT, IMAGE, AUDIO)]
        assert plain.name == name
        half = KVMMCache(config, policy, calibration=fitted).policy
        assert (half.text, half.image, half.video, half.audio) == (policy.text, policy.image, policy.video, other.audio)
    assert KVMMCache(config, "rd2").policy.image.key.codec == "rd"  # who asks for rd gets rd


SEARCHED = {"paper-1": [0, 3], "code-1": [1, 0], "mean-1": [2, 1], "paper-2": [0, 1], "mean-2": [0, 0]}


def tau_of(metadata: dict, bits: int, levels: str):
    """The shifts that keys of these bits and levels take from a calibration file, and whether logits are shifted."""
    kv = spec("calibquant", bits, levels=levels, calibration="file")
    codec = build_codec(kv, "key", Site(0, IMAGE, Calibration("x", {}, metadata)))
    return codec.tau, codec.calibrates_logits


def test_calibquant_reads_its_grid_search_from_the_file():
    for bits, levels, tau in ((1, "paper", (0, 3)), (1, "code", (1, 0)), (1, "mean", (2, 1)), (2, "paper", (0, 1))):
        assert tau_of({TAU: SEARCHED}, bits, levels) == (tau, True)
    assert tau_of({TAU: SEARCHED}, 2, "code") == ((0, 1), True)  # ranges are shrunk at one bit only
    for site in (Site(0, IMAGE, Calibration("x", {}, {})), Site()):
        codec = build_codec(spec("calibquant", 1, levels="mean", calibration="file"), "key", site)
        assert codec.tau is None and not codec.calibrates_logits
    with pytest.raises(KVMMError, match="'file' or"):
        build_codec(spec("calibquant", 1, calibration="disk"), "key")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("levels", ["paper", "code", "mean"])
def test_shifts_count_only_for_the_levels_and_bits_that_they_were_searched_for(bits, levels):
    assert tau_of({TAU: SEARCHED}, bits, levels) == (None, False)
    assert tau_of({TAU: {"paper-1": [0, 3]}}, bits, levels) == (None, False)
    assert tau_of({TAU: {"paper-1": [0, 3]}}, 1, "mean") == (None, False)


def test_a_file_of_before_bits_were_searched_apart_counts_at_one_bit():
    old = {TAU: {"paper": [0, 3], "mean": [2, 1]}}
    assert tau_of(old, 1, "paper") == ((0, 3), True) and tau_of(old, 1, "mean") == ((2, 1), True)
    assert tau_of(old, 1, "code") == tau_of(old, 2, "paper") == tau_of(old, 4, "mean") == (None, False)


def test_no_shift_costs_no_second_pass():
    """Shifts of (0, 0) map logits onto themselves."""
    assert tau_of({TAU: SEARCHED}, 2, "mean") == ((0, 0), False)


def test_calibrated_two_bit_keys_are_read_as_the_formula_says():
    """Attention at 2 bits with the searched shifts equals softmax over logits that are mapped by hand."""
    kv = KVSpec(spec("calibquant", 2, calibration="file"), spec("calibquant", 2, calibration="file"))
    policy = KVPolicy("test", image=kv, residual_length=64, flush_length=32)
    h = Harness(policy, ratio=1)
    h.cache = KVMMCache(h.config, policy, calibration=Calibration("x", {}, {TAU: {"paper-2": [1, 2]}}))
    h.layer = h.cache.layers[0]
    h.feed([layout((TEXT, 8), (IMAGE, 128), (TEXT, 9))])
    h.feed([[TEXT]])
    query = 6 * h.random(1, 2, 1, 64)
    key, value = h.layer.dense()
    scores = query @ key.transpose(-1, -2) / 8
    image = scores[..., 8:136]
    gamma, delta = image.amin(-1, keepdim=True), image.amax(-1, keepdim=True)
    assert ((delta - gamma) > 1).all()
    scores[..., 8:136] = (image - gamma) / (delta - gamma) * ((delta - 2) - (gamma - 1)) + gamma - 1
    torch.testing.assert_close(h.layer.attend(query, None, 1 / 8), scores.softmax(-1) @ value, atol=1e-4, rtol=1e-4)


def test_the_grid_search_finds_what_drifts_least(monkeypatch):
    """Drifts made up for every pair: the search must return the least, for each kind of levels and bits."""
    from kvmm.calibration import fit

    seen = set()

    class Text:
        def __init__(self, *arguments):
            pass

        def measure(self, policy):
            options = dict(policy.image.key.options)
            pair, levels, bits = options["calibration"], options["levels"], policy.image.key.bits
            assert policy.image.value.option("calibration") is None and policy.image.value.bits == bits
            seen.add((levels, bits, pair))
            wanted = SEARCHED[f"{levels}-{bits}"]
            return SimpleNamespace(kl=torch.tensor([abs(pair[0] - wanted[0]) + abs(pair[1] - wanted[1]) + 0.5] * 2))

    monkeypatch.setattr(fit, "ForcedText", Text)
    monkeypatch.setattr(fit, "Document", lambda *arguments: None)
    monkeypatch.setattr(fit, "_encoded", lambda *arguments: ({}, torch.arange(4), None))
    found = fit.search_tau(None, None, [fit.Example("q", images=("a.png",), answer="b")] * 3)
    assert found == SEARCHED and len(seen) == 16 * len(SEARCHED)
    assert fit.search_tau(None, None, [fit.Example("only text", text=True)]) == {}


def test_sinks_are_left_out(collected):
    """They are kept exact, and a language model's first token would move every mean."""
    model, collector = collected
    ids = [inputs("qwen2_5_omni", 1, seed=seed)["input_ids"] for seed in range(3)]
    ids = [torch.cat((own[0], ANSWER[:-1])) for own in ids]
    after = [modality_of_ids(own[None], model.config)[0][KVPolicy.num_sink_tokens :] for own in ids]
    for modality in (TEXT, IMAGE, AUDIO):
        assert collector.sums[0, "key", modality].count == sum(int((own == modality).sum()) for own in after)
