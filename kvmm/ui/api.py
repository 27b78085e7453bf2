"""The documented endpoints, for gradio_client and MCP: ``ask``, ``compare``, ``analyze_norms``. All else is private.

What they are documented with (``view_api``, the page "Use via API", MCP) comes from their signatures and docstrings.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import gradio as gr
from gradio.components.api_component import Api
from gradio.context import LocalContext
from gradio.utils import get_function_description
from gradio_client import Client, handle_file
from gradio_client.utils import python_type_to_json_schema

from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES
from kvmm.models.progress import Progress
from kvmm.policy import policies
from kvmm.ui.chat.session import Session, UserMessage, check_size
from kvmm.ui.server import running
from kvmm.ui.server.middleware import JSON_BYTES
from kvmm.ui.server.visitors import Visitors
from kvmm.ui.settings import Settings

# The model answers one question at a time; files are read beside it.
LIMITS: dict[str, Any] = {"concurrency_id": "endpoints", "concurrency_limit": 4}
DATA_URL_BYTES = JSON_BYTES * 3 // 4  # of the file in one: base64 is a third longer, and a request is bounded
_EXAMPLE = "https://raw.githubusercontent.com/gradio-app/gradio/main/test/test_files/sample_file.pdf"
_NO_DEFAULT = inspect.Parameter.empty


def _described(name: str, kind: str, schema: dict[str, Any], description: str, value: Any, example: Any) -> Api:
    """One argument or result of an endpoint; it is documented and never drawn.

    Args:
        name: as the endpoint's function calls it.
        kind: the component that the documentation says it is.
        schema: its JSON schema.
        description: its line of the docstring.
        value: its default value, None without one.
        example: what the documentation shows.
    """
    description = description[:1].upper() + description[1:]
    one = Api(value, {**schema, "description": description, "additional_description": description}, label=name)
    # Attributes, not a subclass: for that Gradio would write a .pyi file beside this one.
    one.visible = False
    one.get_block_class = lambda: kind
    one.example_payload = one.example_value = lambda: example
    return one


def _publish(function: Callable[..., dict], schemas: Mapping[str, tuple[str, dict[str, Any], Any]]) -> None:
    """Make an endpoint of a function, documented by its docstring.

    Args:
        schemas: by parameter: the component it is like, its JSON schema, an example.
    """
    _, lines, returns = get_function_description(function)
    inputs = [
        _described(name, kind, schema, lines[name], None if one.default is _NO_DEFAULT else one.default, example)
        for name, one in inspect.signature(function).parameters.items()
        for kind, schema, example in (schemas[name],)
    ]
    output = _described("result", "json", {"type": "object"}, " ".join(returns), None, {})
    gr.on(
        [], function, inputs, output, api_name=function.__name__, preprocess=False, postprocess=False,
        show_progress="hidden", **LIMITS,
    )  # fmt: skip


@contextlib.contextmanager
def _answered(visitors: Visitors, files: list[Any], question: str, settings: Settings) -> Iterator[Session]:
    """A session of its own with one answered question; it and its caches go at the end, whatever happens.

    Raises:
        gr.Error: for a ``KVMMError`` of the question, or of what is done with the answer.
    """
    session = visitors.session()
    try:
        check_size(question, files or ())
        paths = tuple(str(_path_of(visitors, session, file)) for file in files or ())
        for _ in session.ask(UserMessage(question.strip(), paths), settings):
            pass
        if running.ending():  # the answer was stopped on its way
            raise KVMMError("The server is being stopped: ask again later.")
        visitors.keep_budget()
        yield session
    except KVMMError as error:
        raise gr.Error(str(error), print_exception=False) from error
    finally:
        visitors.leave(session)


def _path_of(visitors: Visitors, session: Session, file: Any) -> Path:
    """Where a file lies that a caller sent. Only uploads are read: callers write the paths themselves.

    gradio_client sends objects with a path. MCP sends texts: an upload's address or path, or a data URL.

    Raises:
        KVMMError: it is no upload, or a data URL that is larger than an upload or than fits into a request
            (:data:`DATA_URL_BYTES`).
    """
    name = file.get("path") if isinstance(file, dict) else getattr(file, "path", file)
    if not isinstance(name, str):
        raise KVMMError("A file is given as an upload, or as a data URL.")
    if name.startswith("data:"):
        app, encoded = LocalContext.blocks.get(None), name.partition("base64,")[2]
        limit = min(DATA_URL_BYTES, (None if app is None else app.max_file_size) or DATA_URL_BYTES)
        if len(encoded) // 4 * 3 - encoded[-2:].count("=") > limit:
            raise KVMMError(f"A data URL may hold {limit / 2**20:.1f} MiB: upload larger files.")
        try:
            data = base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise KVMMError("A data URL holds base64: data:image/png;base64,...") from error
        path = visitors.folder(session) / "file"
        path.write_bytes(data)
        return path
    if name.startswith(("http://", "https://")):
        _, separator, path = name.partition("/file=")
        if not separator:
            raise KVMMError("Addresses elsewhere are not fetched: upload the file, or send it as a data URL.")
        name = unquote(path)
    return visitors.uploaded(name)


def _result(progress: Progress) -> dict[str, Any]:
    return {
        "answer": progress.text,
        "memory": None if progress.memory is None else progress.memory.to_dict(),
        "tokens": progress.tokens,
        "tokens_per_second": progress.tokens_per_second,
        "ttft": progress.ttft,
        "first_step": progress.first_step,
        **({} if progress.confidence is None else {"confidence": progress.confidence.to_dict()}),
        **({} if progress.nearest_text is None else {"nearest_text": progress.nearest_text}),
        **({} if progress.usage is None else {"usage": asdict(progress.usage)}),
    }


def build_api(visitors: Visitors, models: Sequence[str], default_policy: str, *, remote: bool = False) -> None:
    """Publish the endpoints of the current Blocks.

    Args:
        visitors: of the app.
        models: the names that the app offers, its default first.
        default_policy: of the caches.
        remote: a server has the models: questions can be asked, and nothing else.
    """

    def ask(files: list[gr.FileData], question: str, policy: str = default_policy, model: str = models[0]) -> dict:
        """Ask a question about images, PDFs and recordings, with a KV cache of one to two bits per value.

        Args:
            files: images, PDF documents or recordings: uploads, or data URLs with base64, together below 6 MiB.
            question: the question; empty when a recording asks it.
            policy: name of a cache policy, such as "balanced" or "small".
            model: name of one of the app's models.

        Returns:
            answer, policy, memory (what the KV cache measured: bytes, ratio, bits_per_value, by_modality), tokens,
            tokens_per_second, ttft (seconds to the first token), first_step (seconds to the next one, for which what
            was read is packed; the rate is that of later steps) and, where the model says how sure it is, confidence
            (probability, unsure, and supported: whether the text of PDF pages has the answer's numbers and names).
            nearest_text is the passage of that text which an answer without them misses by a few characters.
        """
        with _answered(visitors, files, question, Settings(model or None, policy)) as session:
            return {"policy": policy, **_result(session.last)}

    def compare(files: list[gr.FileData], question: str, policy: str = default_policy, model: str = models[0]) -> dict:
        """Answer a question twice, with a full-precision KV cache and with a quantised one, and say where they part.

        Args:
            files: images, PDF documents or recordings: uploads, or data URLs with base64, together below 6 MiB.
            question: the question; empty when a recording asks it.
            policy: name of the cache policy to compare with full precision.
            model: name of one of the app's models.

        Returns:
            full_precision and kvmm, each with answer, memory, tokens, tokens_per_second, ttft and first_step;
            identical; and for answers that differ first_difference: token and word (their numbers, from 1),
            full_precision and kvmm (the texts of that token, empty where an answer ends).
        """
        with _answered(visitors, files, question, Settings(model or None, policy, compare=True)) as session:
            difference, last = session.talk.verdict, session.talk.last
            return {
                "policy": policy,
                "full_precision": _result(last["full"]),
                "kvmm": _result(last["kvmm"]),
                **difference.to_dict(),
            }

    def analyze_norms(files: list[gr.FileData], question: str, model: str = models[0]) -> dict:
        """Measure how uneven the key, value and query norms of a prompt's tokens are, by layer and modality.

        Args:
            files: images, PDF documents or recordings: uploads, or data URLs with base64, together below 6 MiB.
            question: the question that goes with them; empty when a recording asks it.
            model: name of one of the app's models.

        Returns:
            The measured report: layers, tokens by modality, and for keys, values and queries the coefficient of
            variation, the gap between modalities and the outlier tokens, layer by layer.
        """
        with _answered(visitors, files, question, Settings(model or None, "bf16")) as session:
            return norms_result(session.measure_norms())

    schemas = {
        "files": ("file", python_type_to_json_schema(list[gr.FileData]), [handle_file(_EXAMPLE)]),
        "question": ("textbox", {"type": "string"}, "What is the total?"),
        "policy": ("dropdown", {"type": "string", "enum": list(policies())}, default_policy),
        "model": ("dropdown", {"type": "string", "enum": list(models)}, models[0]),
    }
    for function in (ask,) if remote else (ask, compare, analyze_norms):
        _publish(function, schemas)


def connect_tools(app: Any) -> None:
    """Let the MCP tools of an app that is being started call its endpoints, which they do by HTTP.

    Gradio would take the address from the first caller's headers, and could not log in.
    """
    blocks = app.get_blocks()
    server = blocks.mcp_server_obj
    if server is None:
        return
    token = secrets.token_urlsafe(32)
    app.tokens[token] = ":mcp"  # the user of these calls; no account has a colon in its name
    cookies = {f"access-token-unsecure-{app.cookie_id}": token}
    making = threading.Lock()

    def client() -> Client:
        with making:
            if server._client_instance is None:
                server._client_instance = Client(
                    blocks.local_url,
                    download_files=False,
                    verbose=False,
                    analytics_enabled=False,
                    ssl_verify=False,
                    _skip_components=False,
                    headers={"x-gradio-user": "mcp"},
                    httpx_kwargs={"cookies": cookies},
                )
            return server._client_instance

    server._get_or_create_client = client


def norms_result(report: Any) -> dict[str, Any]:
    """The result of ``analyze_norms``: plain numbers, without the norm of every token."""
    modality = report.modality
    names = report.modalities()
    return {
        "layers": [int(layer) for layer in report.layers],
        "tokens": {name: int((modality == MODALITY_NAMES.index(name)).sum()) for name in names},
        **{
            kind: {
                "coefficient_of_variation": report.coefficient_of_variation(kind).mean(axis=1).tolist(),
                "modality_gap": report.modality_gap(kind).tolist() if len(names) > 1 else None,
                "outliers": [report.outliers(kind, row) for row in range(len(report.layers))],
            }
            for kind in ("key", "value", "query")
        },
    }


__all__ = ["build_api", "connect_tools", "norms_result"]
