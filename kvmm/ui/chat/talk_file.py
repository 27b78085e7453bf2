"""Conversations of the app in files: the messages and the sent files, beside the packed cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvmm.cache.file import OtherModelError
from kvmm.errors import KVMMError
from kvmm.models.conversation import Conversation
from kvmm.models.difference import Difference
from kvmm.models.progress import Progress
from kvmm.models.prompting import text_of
from kvmm.ui.chat.talk import TITLE_LENGTH, Exchange, Talk, UserMessage, shown_files
from kvmm.ui.models import Models
from kvmm.ui.parts.bubbles import NOT_ASKED, bubble, note
from kvmm.ui.parts.compare import MARK
from kvmm.ui.parts.markdown import safe_markdown
from kvmm.ui.server.uploads import file_name
from kvmm.ui.settings import Settings

_KEPT = ("\ue000", "\ue001")  # the app's own marks while a text is read


def save_talk(talk: Talk, path: str | Path) -> None:
    """Write all that ``talk`` shows and holds: questions, answers of both sides, notes, errors, files, packed cache.

    Raises:
        KVMMError: nothing has been asked yet, an answer is being written, or a video was shown.
    """
    if talk.is_empty:
        raise KVMMError("There is nothing to save yet: ask a question first.")
    settings = talk.settings or Settings(model=None)
    conversation = talk.conversation
    if conversation is None:  # nothing but errors and stopped answers
        conversation = talk.models.converse(settings.model, settings.kv_policy())
    if len(conversation.messages) != 2 * talk.answered:
        conversation = conversation.fork()
        conversation.truncate(talk.answered)
    paths = shown_files(talk.exchanges)
    contents = {path: _content(path) for path in paths}
    there = [path for path in paths if contents[path] is not None]
    exchanges = [
        {
            "question": each.message.question,
            "files": [[Path(p).name, there.index(p) if p in there else None] for p in each.message.files],
            "tails": each.tails,
            "answered": each.answered,
            "stopped": each.stopped,
            "as_links": each.as_links,
        }
        for each in talk.exchanges
    ]
    notes = {
        "title": talk.title,
        "renamed": talk.renamed,
        "settings": asdict(settings),
        "answered": talk.answered,
        "exchanges": exchanges,
        "verdict": None if talk.verdict is None else asdict(talk.verdict),
    }
    conversation.save(path, notes, [contents[p] for p in there])


def load_talk(
    path: str | Path, models: Models, model: str | None, folder: Callable[[], Path] | None = None, **options: Any
) -> tuple[Talk, Settings]:
    """The talk that :func:`save_talk` wrote with one of ``models``, and the settings to go on with, its model included.

    Args:
        path: the file.
        models, options: as for a new talk.
        model: the name of the model that is tried first; the others follow where the file is not of it.
        folder: makes a folder for the files that were sent; without it only their names are shown.

    Raises:
        KVMMError: the file is damaged, belongs to none of the models, or was not written by :func:`save_talk`.
    """
    conversation, model = _conversation_of(path, models, model)
    try:
        notes = conversation.notes
        settings = Settings(**notes["settings"])
        settings = replace(settings, model=model, compare=False, stop=tuple(settings.stop))
        settings.kv_policy()
        settings.sampling()
        talk = Talk(models, **options)
        if settings.max_tokens is not None and settings.max_tokens > talk.max_new_tokens:
            settings = replace(settings, max_tokens=None)  # more than this app allows
        settings.answer_tokens(talk.max_new_tokens)
        talk.title, talk.renamed = str(notes["title"])[: 2 * TITLE_LENGTH], bool(notes.get("renamed"))
        if "exchanges" in notes:
            talk.exchanges = _exchanges(notes["exchanges"], conversation, folder)
        else:  # a file of the version before
            talk.exchanges = _replayed(conversation)
        if notes.get("verdict"):
            talk.verdict = _verdict(notes["verdict"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{Path(path).name} was not saved by this app; save the conversation again.") from None
    talk.settings = settings
    talk._conversations["kvmm"] = conversation
    talk._keys["kvmm"] = settings.cache_key("kvmm", models.default)
    if conversation.messages:
        text = text_of(conversation.messages[-1])
        talk.answered_by = settings.answered_by(models.default)
        talk.last = {"kvmm": Progress(text, 0, 0.0, None, 0.0, conversation.memory(), done=True, stopped=False)}
    return talk, settings


def _conversation_of(path: str | Path, models: Models, first: str | None) -> tuple[Conversation, str | None]:
    """The conversation in a file, and which model it is of; those that are loaded are tried before the others."""
    others = [name for name in models.names if name != (first or models.default)]
    for name in (first, *sorted(others, key=lambda one: not models.is_loaded(one))):
        try:
            return Conversation.load(path, *models.get(name)), name
        except OtherModelError:
            continue
    raise KVMMError(f"{Path(path).name} was saved with another model than this app has: start the app with that one.")


def _verdict(values: dict[str, Any]) -> Difference:
    verdict = Difference(**values)
    numbers = (verdict.tokens, verdict.index or 0, verdict.word or 0)
    if not all(type(x) is int for x in numbers) or not all(isinstance(x, str) for x in (verdict.full, verdict.kvmm)):
        raise TypeError("a verdict is numbers and words")
    return verdict


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def _exchanges(
    entries: list[dict[str, Any]], conversation: Conversation, folder: Callable[[], Path] | None
) -> list[Exchange]:
    """Exchanges as they were shown, their files written again."""
    written: dict[int, str] = {}
    names = {id(entry): [_name(*file, len(conversation.files)) for file in entry["files"]] for entry in entries}
    if folder is not None:
        for index, name in {index: name for paths in names.values() for name, index in paths}.items():
            if index is None:
                continue
            target = folder() / name
            target.write_bytes(conversation.files[index])
            written[index] = str(target)
    if sum(bool(entry["answered"]) for entry in entries) != len(conversation._turns):
        raise ValueError("other questions than the conversation")
    exchanges, turns = [], iter(conversation._turns)
    for entry in entries:
        files = names[id(entry)]
        paths = [written.get(index, name) for name, index in files]
        as_links = bool(entry["as_links"]) or not all(index in written for _, index in files)
        tails = {side: [_safe(message) for message in entry["tails"][side]] for side in ("full", "kvmm")}
        answered = bool(entry["answered"])
        media = next(turns).media if answered else ()
        message = UserMessage(str(entry["question"]), tuple(paths))
        exchanges.append(Exchange(message, tails, answered, bool(entry["stopped"]), as_links, media))
    return exchanges


def _name(name: Any, index: Any, count: int) -> tuple[str, int | None]:
    """A file's own name, without folders, and which of the ``count`` saved files it is."""
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count):
        raise ValueError("no such file")
    if not isinstance(name, str):
        raise TypeError("a name is text")
    name = file_name(name).encode(errors="replace").decode()
    stem, suffix = Path(name).stem[:60], Path(name).suffix[:20]
    return ("file" if name in ("", ".", "..") else f"{stem}{suffix}"), index


def _safe(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a file as text alone, whatever blocks it has; answers of earlier versions are kept as written."""
    text = "".join(block["text"] for block in message["content"])
    for mark, kept in zip(MARK, _KEPT, strict=True):
        text = text.replace(mark, kept)
    text = safe_markdown(text)
    for mark, kept in zip(MARK, _KEPT, strict=True):
        text = text.replace(kept, mark)
    if "metadata" not in message:
        return bubble(text)
    title, status = (str(message["metadata"][name]) for name in ("title", "status"))
    return note(title.replace("<", "‹").replace("&", "＆")[:200], text, pending=status == "pending")


def _replayed(conversation: Conversation) -> list[Exchange]:
    """Exchanges from what the model knows, where nothing else was saved."""
    exchanges = []
    for turn, message, answer in zip(
        conversation._turns, conversation.messages[::2], conversation.messages[1::2], strict=True
    ):
        tails = {"full": [bubble(NOT_ASKED)], "kvmm": [bubble(safe_markdown(text_of(answer)))]}
        question = text_of(message)
        if turn.media:
            line = "*1 file, see below*" if len(turn.media) == 1 else f"*{len(turn.media)} pages or files, see below*"
            tails = {side: [bubble(line), *tail] for side, tail in tails.items()}
        exchanges.append(Exchange(UserMessage(question), tails, answered=True, media=turn.media))
    return exchanges


__all__ = ["load_talk", "save_talk"]
