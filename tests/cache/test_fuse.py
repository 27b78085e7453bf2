"""The rotation of values folded into the weights: the same model, and the same attention output from packed values."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from kvmm import KVMMCache, get_policy
from kvmm.cache.fuse import fuse_value_rotation, is_fused, unfuse_value_rotation
from kvmm.calibration import model_fingerprint
from kvmm.cli import main
from kvmm.errors import KVMMError
from kvmm.kernels.hadamard import rotate
from kvmm.modality import TEXT
from kvmm.models import load_model
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.tiny_models import FAMILIES, build

INVOICE = Path(__file__).parents[2] / "assets/samples/invoice.png"


def oscar(value_rotation: str) -> KVPolicy:
    kv = KVSpec(spec("oscar", 2, 32), spec("oscar", 2, 32, value_rotation=value_rotation))
    return KVPolicy(
        "oscar", text=kv, image=kv, video=kv, audio=kv, residual_length=0, flush_length=32, num_sink_tokens=2
    )


def fresh(family: str) -> nn.Module:
    """A copy, as fusing changes the model; with value biases that are not zero where there are any."""
    model = copy.deepcopy(build(family))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("v_proj.bias"):
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


def prompt() -> dict[str, torch.Tensor]:
    """Two texts, the second padded on the left."""
    ids = torch.randint(3, 110, (2, 80), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, :15] = 0
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def logits(model: nn.Module, arguments: dict, cache: KVMMCache | None = None) -> torch.Tensor:
    return model(**arguments, use_cache=cache is not None, past_key_values=cache).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_computes_the_same(family):
    model, arguments = fresh(family), prompt()
    before = logits(model, arguments)
    weights = {name: p.clone() for name, p in model.named_parameters()}
    fuse_value_rotation(model)
    assert is_fused(model.config)
    changed = {n.rsplit(".", 2)[-2] for n, p in model.named_parameters() if not torch.equal(p, weights[n])}
    assert changed == {"v_proj", "o_proj"}
    torch.testing.assert_close(logits(model, arguments), before, atol=1e-4, rtol=1e-4)

    once = model.get_decoder().state_dict()["layers.0.self_attn.v_proj.weight"].clone()
    fuse_value_rotation(model)  # a second call does nothing
    assert torch.equal(model.get_decoder().state_dict()["layers.0.self_attn.v_proj.weight"], once)
    unfuse_value_rotation(model)
    assert not is_fused(model.config)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, weights[name], atol=1e-6, rtol=1e-6)


def test_values_are_rotated():
    model, arguments = fresh("qwen2_5_vl"), prompt()
    caches = []
    for _ in range(2):
        cache = KVMMCache.for_model(model, KVPolicy("exact"))
        logits(model, arguments, cache)
        caches.append(cache)
        fuse_value_rotation(model)
    for plain, fused in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close(fused.values, rotate(plain.values), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(fused.keys, plain.keys, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "qwen3"])
def test_packed_fused_values_give_what_packed_online_ones_do(family):
    model, arguments = fresh(family), prompt()
    step = {"input_ids": torch.tensor([[5], [9]]), "attention_mask": torch.ones(2, 1, dtype=torch.long)}
    step["attention_mask"] = torch.cat((arguments["attention_mask"], step["attention_mask"]), 1)
    results, exact = [], None
    for value_rotation in ("online", "fused"):
        if value_rotation == "fused":
            fuse_value_rotation(model)
        cache = KVMMCache.for_model(model, oscar(value_rotation), exact_dtype="model")
        logits(model, arguments, cache)
        cache.pack()
        results.append(logits(model, step, cache))
        if exact is None:
            cache = KVMMCache.for_model(model, "bf16", exact_dtype="model")
            logits(model, arguments, cache)
            exact = logits(model, step, cache)
    torch.testing.assert_close(results[1], results[0], atol=2e-3, rtol=2e-3)
    assert float((results[0] - exact).abs().max()) > 0.05  # 2 bits are far from exact, so the two could differ


def test_a_policy_and_a_model_that_do_not_fit_are_refused():
    model = fresh("qwen3")
    with pytest.raises(KVMMError, match="fuse_value_rotation"):
        KVMMCache.for_model(model, oscar("fused"))
    fuse_value_rotation(model)
    KVMMCache.for_model(model, oscar("fused"))
    KVMMCache.for_model(model, "kivi2")
    for policy in (oscar("online"), "quarot2"):
        with pytest.raises(KVMMError, match="already"):
            KVMMCache.for_model(model, policy)


def test_a_calibration_of_the_unfused_model_is_for_another_one():
    model = fresh("llama")
    before = model_fingerprint(model)
    fuse_value_rotation(model)
    assert model_fingerprint(model) != before


def test_half_precision_returns_up_to_rounding():
    model = fresh("llama").to(torch.bfloat16)
    before = {name: p.clone() for name, p in model.named_parameters()}
    fuse_value_rotation(model)
    unfuse_value_rotation(model)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        scale = float(before[name].detach().abs().max())
        assert float((parameter - before[name]).detach().abs().max()) <= scale / 64


class _Normed(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj
        self.head_dim, self.v_norm = inner.head_dim, nn.LayerNorm(inner.head_dim)


def test_other_attention_is_refused_and_left_alone():
    model = fresh("llama")
    first, attention = (layer.self_attn for layer in model.model.layers)
    before = first.v_proj.weight.clone()

    model.model.layers[1].self_attn = _Normed(attention)
    with pytest.raises(KVMMError, match="more with its values"):
        fuse_value_rotation(model)
    model.model.layers[1].self_attn = attention
    query = attention.q_proj
    attention.q_proj = nn.Linear(query.in_features, 2 * query.out_features)  # half of it a gate of the output
    with pytest.raises(KVMMError, match="more with its values"):
        fuse_value_rotation(model)
    attention.q_proj = query
    attention.v_proj = nn.Sequential(attention.v_proj)
    with pytest.raises(KVMMError, match="separate linear"):
        fuse_value_rotation(model)
    model.model.layers = nn.ModuleList()
    with pytest.raises(KVMMError, match="no attention layers"):
        fuse_value_rotation(model)
    assert torch.equal(first.v_proj.weight, before)
    assert not is_fused(model.config)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_policy_that_leaves_the_rotation_open_follows_the_model(family):
    """A preset on a fused model stores the bytes that an unfused one rotates itself."""
    model, arguments = fresh(family), prompt()
    decoded = []
    for _ in range(2):
        cache = KVMMCache.for_model(model, "oscar2", residual_length=0, flush_length=32, num_sink_tokens=2)
        logits(model, arguments, cache)
        cache.pack()
        decoded.append(cache.layers[0].parts[TEXT].value)
        fuse_value_rotation(model)
    assert cache.policy.text.value.option("value_rotation") == "fused"
    assert cache.policy.text.key == get_policy("oscar2").text.key
    online, fused = decoded
    assert (online.codec.rotation, fused.codec.rotation) == (True, False)
    difference = (fused.decode() - rotate(online.decode())).abs()
    assert float((difference > 1e-2).float().mean()) < 0.01  # a value on a rounding edge may fall on the other side


def test_the_default_policy_runs_on_a_fused_model():
    model = fresh("qwen3")
    fuse_value_rotation(model)
    assert KVMMCache.for_model(model, "balanced").policy.text.value.option("value_rotation") == "fused"


@pytest.mark.filterwarnings("ignore:.*was fitted to another model")
def test_load_model_fuses():
    model, _ = load_model(device="cpu", dtype="float32", fuse_values=True)
    assert is_fused(model.config)
    with pytest.raises(KVMMError, match=r"rotate its values already.*--fuse-values"):
        KVMMCache.for_model(model, "quarot2")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("kvmm.models", ["ask", "--image", str(INVOICE), "--fuse-values", "What is the total?"]),
        ("kvmm.models", ["drift", "--image", str(INVOICE), "--fuse-values"]),
        ("kvmm.eval.run.launch", ["eval", "docvqa", "--data", "mini", "--limit", "1", "--fuse-values"]),
        ("kvmm.models", ["calibrate", "--out", "x.safetensors", "--fuse-values"]),
    ],
)
def test_commands_pass_it_on(module, arguments, monkeypatch, capsys, tmp_path):
    """Every command that asks a model can ask a fused one, and says in one line why it cannot be fused."""
    monkeypatch.chdir(tmp_path)
    given = []

    def load(name=None, **options):
        given.append(options)
        model = fresh("llama")
        model.model.layers[0].self_attn.v_proj = nn.Sequential(model.model.layers[0].self_attn.v_proj)
        fuse_value_rotation(model)

    importlib.import_module(module)
    monkeypatch.setattr(f"{module}.load_model", load)
    monkeypatch.setattr(sys, "argv", ["kvmm", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert given and given[0]["fuse_values"] is True
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("kvmm: The rotation of values cannot be folded") and "separate linear" in line


def test_the_app_passes_it_on(monkeypatch):
    given = []
    monkeypatch.setattr("kvmm.commands.app.serve", lambda models, loading, *_, **__: given.append(loading))
    monkeypatch.setattr(sys, "argv", ["kvmm", "app", "--fuse-values", "--device", "cpu"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (0, None)
    assert given == [{"device": "cpu", "dtype": None, "fuse_values": True}]
