"""Pages that are open say so every few seconds, and count as heard of."""

from __future__ import annotations

from typing import Any

from kvmm.ui.middleware import API, path_of

PATH = f"{API}/heartbeat/"


class Heartbeats:
    """ASGI middleware: what Gradio sends on a page's heartbeat connection tells the visitors that the page is there.

    A page whose connection was interrupted is open again with the next one.
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
