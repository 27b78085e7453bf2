"""``kvmm policies``: the names a cache policy can have."""

from __future__ import annotations

import typer

from kvmm.policy import policies


def command() -> None:
    """List the cache policies, one line each."""
    presets = policies()
    width = max(map(len, presets))
    for name, line in presets.items():
        typer.echo(f"{name:<{width}}  {line}")
