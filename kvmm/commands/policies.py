"""``kvmm policies``: the names a cache policy can have."""

from __future__ import annotations

import typer

from kvmm.policy import policies
from kvmm.policy.costs import measured_on, plain_cost
from kvmm.policy.presets import policy_groups


def command() -> None:
    """List the cache policies by tier, one line each: name, what it costs, what it is."""
    groups, lines = policy_groups(), policies()
    costs = {name: plain_cost(name) for name in lines}
    widths = [max(map(len, texts)) for texts in (costs, costs.values())]
    tier = ""
    for group in groups:
        if group.tier != tier:
            typer.echo(f"\n{group.tier}" if tier else group.tier)
        tier = group.tier
        if group.source:
            typer.echo(f" {group.source}")
        for name in group.names:
            typer.echo(f"  {name:<{widths[0]}}  {costs[name]:<{widths[1]}}  {lines[name]}")
    typer.echo(f"\n{measured_on()}")
