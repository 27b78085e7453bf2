"""Messages that appear over the page for some seconds. Gradio shows them as HTML; here they are text."""

from __future__ import annotations

import html

import gradio as gr


def warn(message: object, seconds: float = 6) -> None:
    """Show a warning to the visitor of the running event."""
    gr.Warning(html.escape(str(message), quote=False), duration=seconds)


def failure(error: Exception) -> gr.Error:
    """An exception that ends an event and shows its reason to the visitor."""
    return gr.Error(html.escape(str(error), quote=False), duration=6, print_exception=False)


__all__ = ["failure", "warn"]
