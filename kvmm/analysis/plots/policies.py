"""Colours, dashes and markers that tell policies and methods apart."""

from __future__ import annotations

from kvmm.policy.policy import PRESETS

# Okabe-Ito without black, then two darker ones: on a light and on a dark page alike
POLICY_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A200", "#8C6BB1")
_DASHES = ("solid", "dash", "dot", "dashdot")
_FAMILIES = ("rd", "oscar", "kivi", "calibquant", "kitty", "turboquant", "spherical", "quarot", "rotatekv", "ott")
_OTHER = "#7a8190"


def policy_line(index: int, width: float = 2) -> dict:
    """Colour and dash of the ``index``-th of several policies."""
    count = len(POLICY_COLORS)
    return {"color": POLICY_COLORS[index % count], "dash": _DASHES[index // count % len(_DASHES)], "width": width}


def _families() -> tuple[str, ...]:
    """The methods in the order of their colours: those of kvmm's presets, then codecs of presets that were added."""
    added = (one.codec for policy in PRESETS.values() for one in policy.all_specs() if not one.is_lossless)
    return tuple(dict.fromkeys((*_FAMILIES, *added)))


def family_of(policy: str, stored_as: str | None = None) -> str:
    """The method a preset belongs to, or "other": ``oscar4-2`` is ``oscar``; ``balanced`` and ``small`` are of rd."""
    name = stored_as or policy
    name = {"balanced": "rd", "small": "rd"}.get(name, name)
    known = next((family for family in _FAMILIES if name.startswith(family)), None)
    if known is not None or name not in PRESETS:
        return known or "other"
    return next((one.codec for one in PRESETS[name].all_specs() if not one.is_lossless), "other")


def family_color(family: str) -> str:
    """The colour of a method; there are more methods than colours, see :func:`family_symbol`."""
    families = _families()
    return POLICY_COLORS[families.index(family) % len(POLICY_COLORS)] if family in families else _OTHER


def family_symbol(family: str) -> str:
    """The marker of a method, so that two of one colour can be told apart."""
    families = _families()
    later = family in families and families.index(family) >= len(POLICY_COLORS)
    return "diamond" if later else "square" if family == "other" else "circle"


__all__ = ["POLICY_COLORS", "family_color", "family_of", "family_symbol", "policy_line"]
