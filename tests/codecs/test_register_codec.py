"""Codecs of other packages."""

import pytest

from kvmm import KVMMError, get_policy, register_codec
from kvmm.codecs import Codec, build_codec, codec_class, codec_names, registry
from kvmm.codecs.kivi import KIVI
from kvmm.policy import KVPolicy, KVSpec, spec


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    monkeypatch.setattr(registry, "_CODECS", dict(registry._CODECS))


def make(name: str = "mine", base: type = KIVI, module: str = __name__) -> type:
    return type("Mine", (base,), {"name": name, "__module__": module})


def test_a_registered_codec_is_known_by_name():
    assert "mine" not in codec_names()
    mine = make()
    assert register_codec(mine) is mine
    assert codec_class("mine") is mine and type(build_codec(spec("mine", 2, 32), "key")) is mine
    kv = KVSpec(spec("mine", 2, 32), spec("mine", 4, 32))
    assert get_policy(KVPolicy("test", image=kv)).image.key.codec == "mine"
    with pytest.raises(KVMMError, match="Codec mine stores 1, 2, 4 or 8 bits"):
        get_policy(KVPolicy("test", image=KVSpec(spec("mine", 3, 32), spec("mine", 4, 32))))


def test_a_class_that_is_defined_again_replaces_the_older_one():
    register_codec(make())
    again = register_codec(make())
    assert codec_class("mine") is again
    with pytest.raises(KVMMError, match="There is a codec 'mine' already"):
        register_codec(make(module="another"))
    with pytest.raises(KVMMError, match="There is a codec 'kivi' already"):
        register_codec(make("kivi"))
    assert codec_class("mine") is again and codec_class("kivi") is KIVI


class Nameless(KIVI):
    pass


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (KIVI(spec("kivi", 2, 32), "key"), "subclass"),
        (dict, "subclass"),
        (Nameless, "needs a name of its own, such as name = 'nameless'"),
        (make(""), "needs a name"),
        (make("My Codec"), "needs a name"),
        (make("abstract", Codec), "does not define decode, encode"),
    ],
)
def test_errors_are_one_line(codec, says):
    before = codec_names()
    with pytest.raises(KVMMError, match=says) as error:
        register_codec(codec)
    assert "\n" not in str(error.value) and codec_names() == before
