"""A pytest plug-in: transformers' own tests with :class:`kvmm.KVMMCache` wherever a model gets a ``DynamicCache``.

``KVMM_UPSTREAM_POLICY`` names the policy, or ``none`` (transformers as it is), ``KVMM_UPSTREAM_ONLY`` a JSON list of
the tests to run (without it all), ``KVMM_UPSTREAM_REPORT`` the JSON file for the outcomes. :mod:`run` starts it.
"""

from __future__ import annotations

import collections
import functools
import importlib.abc
import importlib.util
import json
import os
import re
import sys
import types
from typing import Any
from unittest import mock

import pytest

POLICY = os.environ.get("KVMM_UPSTREAM_POLICY", "none")
# nothing is left exact that may be packed, so that these short prompts are packed at all
FIELDS = {"residual_length": 0, "flush_length": 32, "num_sink_tokens": 1, "exact_dtype": "model"}

counts: collections.Counter[str] = collections.Counter()
refused: collections.Counter[str] = collections.Counter()
outcomes: dict[str, dict[str, Any]] = {}
caches: dict[str, int] = {}  # made in each test


@functools.cache
def _anything(name: str) -> Any:
    """Stands for a name of a module that is absent: classes that tests derive from are empty."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {}) if name.endswith("Mixin") else mock.MagicMock(name=name)


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Helper modules that shared test files import where they are not: for several GPUs, exporters, generation."""

    names = ("distributed_testing_utils", "exporters", "exporters.test_export", "generation", "generation.test_utils")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        known = name.removeprefix("tests.") in self.names and name.startswith("tests.")
        return importlib.util.spec_from_loader(name, self, is_package="." not in name[6:]) if known else None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _anything
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _fields() -> dict[str, Any]:
    return {**FIELDS, "policy": POLICY}


def _replace_caches() -> None:
    """Have ``generate`` and the models themselves make :class:`KVMMCache` where they make a ``DynamicCache``."""
    from transformers import DynamicCache, GenerationMixin

    from kvmm import KVMMCache, KVMMError
    from kvmm.cache.layer import KVMMLayer

    own = GenerationMixin._prepare_cache_for_generation

    @functools.wraps(own)
    def prepare(self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        given = model_kwargs.get("past_key_values")
        result = own(self, generation_config, model_kwargs, *args, **kwargs)
        made = model_kwargs.get("past_key_values")
        if given is None and type(made) is DynamicCache and not made.offloading:
            try:
                cache = KVMMCache.for_model(self, **_fields())
            except KVMMError as error:
                refused[str(error)] += 1
                return result
            if generation_config.is_assistant:
                cache.activate_past_recording()
            model_kwargs["past_key_values"] = cache
            counts["caches"] += 1
        return result

    GenerationMixin._prepare_cache_for_generation = prepare

    class Either(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (DynamicCache, KVMMCache))

        def __call__(cls, *args: Any, config: Any = None, **kwargs: Any) -> Any:
            if args or kwargs or config is None:
                return DynamicCache(*args, config=config, **kwargs)
            try:
                cache = KVMMCache(config, **_fields())
            except KVMMError as error:
                refused[str(error)] += 1
                return DynamicCache(config=config)
            counts["caches of forward"] += 1
            return cache

    class Made(metaclass=Either):
        pass

    seen = KVMMLayer.attend

    @functools.wraps(seen)
    def attend(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts["packed reads"] += 1
        counts["packed reads of pages"] += bool(self.parts)
        return seen(self, *args, **kwargs)

    KVMMLayer.attend = attend
    _in_models(DynamicCache, Made)


def _in_models(own: type, other: type) -> None:
    class Finder(importlib.abc.MetaPathFinder):
        """Replaces the name in a model's module right after it is imported."""

        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            # the shared generation tests ask whether a model's default cache is a DynamicCache
            if not re.fullmatch(r"transformers\.models\.\w+\.modeling_\w+|tests\.generation\.test_utils", name):
                return None
            sys.meta_path.remove(self)
            try:
                spec = importlib.util.find_spec(name)
            finally:
                sys.meta_path.insert(0, self)
            run = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                if getattr(module, "DynamicCache", None) is own:
                    module.DynamicCache = other

            spec.loader.exec_module = exec_module
            return spec

    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and module.__dict__.get("DynamicCache") is own:
            module.DynamicCache = other
    sys.meta_path.insert(0, Finder())


def pytest_configure(config: pytest.Config) -> None:
    sys.meta_path.append(_Absent())
    if POLICY != "none":
        _replace_caches()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    before = counts["caches"] + counts["caches of forward"]
    try:
        return (yield)
    finally:
        caches[item.nodeid] = counts["caches"] + counts["caches of forward"] - before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if path := os.environ.get("KVMM_UPSTREAM_ONLY"):
        with open(path, encoding="utf-8") as file:
            wanted = set(json.load(file))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    found = outcomes.setdefault(report.nodeid, {"outcome": "passed", "subtests": 0})
    if hasattr(report, "context"):  # a subtest
        found["subtests"] += 1
    if report.failed:
        found["outcome"] = "failed"
        found.setdefault("reason", _last_line(report))
    elif report.skipped and found["outcome"] != "failed" and not hasattr(report, "context"):
        found["outcome"] = "skipped"


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else f"{crash.message}".splitlines()[0]
    where = "" if crash is None else f" ({os.path.basename(crash.path)}:{crash.lineno})"
    return text[:300] + where


def pytest_sessionfinish(session: pytest.Session) -> None:
    if path := os.environ.get("KVMM_UPSTREAM_REPORT"):
        for name, count in caches.items():
            outcomes[name]["caches"] = count
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"tests": outcomes, "counts": dict(counts), "refused": dict(refused)}, file)
