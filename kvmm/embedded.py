"""The models that come along: their names, and the folder they are in. Nothing here imports torch."""

from __future__ import annotations

import sysconfig
from pathlib import Path

# In assets, by name, the first of those that are there is the default: one for documents as people have them, and the
# one that tests and committed figures rest on, small enough for a wheel.
OFFICE_MODEL, TINY_MODEL = EMBEDDED_MODELS = ("office-omni", "tiny-omni")


def assets_folder() -> Path:
    """The folder with the embedded models and the samples: in a checkout, else where the wheel installed it."""
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file():
        return root / "assets"
    return Path(sysconfig.get_path("data")) / "share" / "kvmm" / "assets"


def models_in(assets: Path) -> list[str]:
    """Names of the bundled models in a folder of assets, the default first."""
    return [name for name in EMBEDDED_MODELS if (assets / name / "config.json").is_file()]


__all__ = ["EMBEDDED_MODELS", "OFFICE_MODEL", "TINY_MODEL", "assets_folder", "models_in"]
