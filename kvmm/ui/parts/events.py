"""Options of Gradio events: who may call them, whether they queue, and with which others they take turns."""

from __future__ import annotations

from typing import Any

PRIVATE: dict[str, Any] = {"api_visibility": "private"}
HIDDEN: dict[str, Any] = {**PRIVATE, "show_progress": "hidden"}
AT_ONCE: dict[str, Any] = {**HIDDEN, "queue": False}
ON_MODEL: dict[str, Any] = {**PRIVATE, "concurrency_id": "model", "concurrency_limit": 1}
# Figures of what has been measured are drawn beside an answer that holds the model.
DRAWING: dict[str, Any] = {**PRIVATE, "concurrency_id": "figures", "concurrency_limit": 2}
# Long work takes the model's lock a step at a time, so that other visitors' questions are answered in between.
LONG: dict[str, Any] = {**HIDDEN, "concurrency_id": "long", "concurrency_limit": 2}

__all__ = ["AT_ONCE", "DRAWING", "HIDDEN", "LONG", "ON_MODEL", "PRIVATE"]
