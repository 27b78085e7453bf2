"""What is looked at, and how often, before a calibration file is used for a model."""

from dataclasses import replace

import pytest
import torch

from kvmm import KVMMCache
from kvmm.calibration import Calibration, model_fingerprint
from kvmm.calibration.heads import head_shapes
from kvmm.codecs.common import transform
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import get_policy
from kvmm.policy.calibrated import fit_digest, load_calibration
from tests.fuzz.calibrations import fitted
from tests.tiny_models import build


def saved(model, tensors, path):
    """A policy with a calibration of ``model`` that holds ``tensors``."""
    Calibration(model_fingerprint(model), tensors, {"model": "tiny"}).save(path)
    return get_policy("rd2", calibration=str(path))


def without_values(model, layer):
    """The layer's values are its keys, as in the global layers of Gemma 4."""
    model.model.layers[layer].self_attn.v_proj = None
    return model


def test_layers_that_are_not_described_may_be_fitted(tmp_path):
    """Of any heads, as long as one site agrees with itself; layers behind the last one stay refused."""
    model = build.__wrapped__("llama")
    tensors = dict(fitted(model).tensors)
    assert sorted(head_shapes(model)) == [0, 1]
    without_values(model, 1)
    assert sorted(head_shapes(model)) == [0]
    assert load_calibration(model, saved(model, tensors, tmp_path / "whole")).sites("rd", 0)

    odd = {name: torch.cat((t, t)) if name.startswith("rd.1.") and t.dim() > 1 else t for name, t in tensors.items()}
    assert load_calibration(model, saved(model, odd, tmp_path / "heads")).sites("rd", 0)

    for change, match in (
        ({"rd.1.key.text.mean": tensors["rd.1.key.text.mean"][:1]}, "mean: has shape"),
        ({n.replace("rd.1.", "rd.2."): t.clone() for n, t in tensors.items() if "rd.1." in n}, "no such layer"),
    ):
        with pytest.raises(KVMMError, match=match):
            load_calibration(model, saved(model, tensors | change, tmp_path / "other"))


def test_layers_that_are_described_have_to_fit(tmp_path):
    model = without_values(build.__wrapped__("llama"), 1)
    tensors = {n: torch.cat((t, t)) if t.dim() > 1 else t for n, t in fitted(model).tensors.items()}
    with pytest.raises(KVMMError, match="does not fit the model"):
        load_calibration(model, saved(model, tensors, tmp_path / "heads"))


def test_what_tells_a_fit_from_another_one(tmp_path):
    """Its tensors and its metadata; nothing does for a policy that reads no calibration."""
    model = build.__wrapped__("llama")
    whole = fitted(model)
    policy = saved(model, whole.tensors, tmp_path / "one")
    digest = fit_digest(policy, load_calibration(model, policy))
    again = saved(model, whole.tensors, tmp_path / "again")
    assert fit_digest(again, load_calibration(model, again)) == digest
    name = "rd.1.key.text.mean"
    moved = saved(model, dict(whole.tensors) | {name: whole.tensors[name] + 1}, tmp_path / "moved")
    told = replace(whole, metadata={**whole.metadata, "importance": "query"})
    assert len({digest, fit_digest(moved, load_calibration(model, moved)), fit_digest(policy, told)}) == 3
    fitting, others = ["balanced", "spherical-high", "calibquant1"], ["kivi2", "bf16", "oscar4-2"]
    assert [name for name in fitting + others if fit_digest(get_policy(name), whole)] == fitting
    assert not any(fit_digest(get_policy(name), None) for name in fitting)


def test_every_transform_is_checked_once(tmp_path, monkeypatch):
    """When the file is read; not again for the model, nor for the next cache."""
    model = build.__wrapped__("llama")
    tensors = dict(fitted(model).tensors)
    inverted, own = [], torch.linalg.inv_ex

    def counted(x):
        inverted.append(x.shape)
        return own(x)

    monkeypatch.setattr(transform.torch.linalg, "inv_ex", counted)
    policy = saved(model, tensors, tmp_path / "fit")
    for _ in range(2):
        load_calibration(model, policy)
    assert len(inverted) == sum(name.endswith(".transform") for name in tensors) > 0


@pytest.mark.parametrize("policy", ["rd2", "balanced"])
def test_every_transform_is_inverted_once(tmp_path, monkeypatch, policy):
    """By the check that it can be; the codecs take what that found, bit for bit, and nothing keeps it for them."""
    model = build.__wrapped__("llama")
    tensors = dict(fitted(model).tensors)
    saved(model, tensors, tmp_path / "fits")
    policy = get_policy(policy, calibration=str(tmp_path / "fits"), residual_length=0, flush_length=32)
    inverted, own, given = [], torch.linalg.inv, torch.randint(3, 110, (1, 300))
    monkeypatch.setattr(torch.linalg, "inv", lambda x: inverted.append(x) or own(x))
    expected = {n: own(t.float()) for n, t in tensors.items() if n.endswith("text.transform")}
    for times in (1, 2):
        transform._offline_transforms.clear()
        cache = KVMMCache.for_model(model, policy)
        with torch.no_grad():
            model(given, past_key_values=cache)
        cache.pack()
        fits = [x for x in inverted if x.shape[0] == 2]  # of KV heads; rotations have none
        assert len(fits) == (0 if times == 1 else len(expected)) or not cache.calibration.sites("rd", 0)
        for (_, layer, side, modality, _), one in transform._offline_transforms[cache.calibration].items():
            if one is not None:
                name = f"rd.{layer}.{side}.{MODALITY_NAMES[modality]}.transform"
                assert torch.equal(one.inverse, expected[name])
