"""Heartbeats: open pages send one every few seconds, and count as open while they do."""

from __future__ import annotations

from typing import Any

from kvmm.ui.server.middleware import API, path_of

PATH = f"{API}/heartbeat/"


class Heartbeats:
    """ASGI middleware that reports a page as open whenever Gradio sends on its heartbeat connection.

    After an interrupted connection, the next heartbeat opens the page again.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = path_of(scope)
        if scope["type"] != "http" or not path.startswith(PATH):
            await self.app(scope, receive, send)
            return
        visitors, key = scope["app"].get_blocks().visitors, path.removeprefix(PATH)

        async def send_and_note(message: dict[str, Any]) -> None:
            await send(message)
            if message.get("body"):
                visitors.heard(key)

        await self.app(scope, receive, send_and_note)


__all__ = ["Heartbeats"]
