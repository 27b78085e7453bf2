"""Documents of a model that reads text alone: the text layer of a PDF's pages, and files of text."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from PIL import Image

from kvmm.cli import main
from kvmm.errors import KVMMError
from kvmm.media import Media
from kvmm.models import Conversation, load_model
from tests.models import checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.save("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def llama(folder):
    return load_model(folder, device="cpu", dtype=torch.float32)


def page(number, text, name="letter.pdf"):
    return Media("image", Image.new("RGB", (8, 8)), name, number, text, len(text))


def last(progress):
    *_, final = progress
    return final


def test_the_text_of_pages_is_read_and_kept(llama):
    talk = Conversation(*llama, "kivi2")
    final = last(talk.ask("Who?", [page(1, " dear reader \n"), page(2, "yours")], max_new_tokens=4))
    content = talk.messages[0]["content"]
    assert content == "Page 1\ndear reader\n\nPage 2\nyours\n\nWho?"
    assert "dear reader" in llama[1].decode(talk._ids[0])
    assert {name for name, entry in final.memory.by_modality.items() if entry["tokens"]} == {"text"}
    last(talk.ask("And then?", max_new_tokens=4))
    assert talk.messages[2]["content"] == "And then?"
    twin = Conversation(*llama, "bf16")
    twin.adopt(talk)
    assert twin.messages == talk.messages and twin._ids.equal(talk._ids)


def test_one_page_has_no_label(llama):
    talk = Conversation(*llama, "bf16")
    last(talk.ask("Who?", [page(1, "me")], max_new_tokens=2))
    assert talk.messages[0]["content"] == "me\n\nWho?"


def test_what_has_no_text_is_refused(llama):
    talk = Conversation(*llama, "bf16")
    with pytest.raises(KVMMError, match=r"letter\.pdf has pages without a text layer: load a model that reads images"):
        last(talk.ask("Who?", [page(1, "me"), page(2, " ")]))
    with pytest.raises(KVMMError, match="reads text, not image"):
        last(talk.ask("Who?", [page(None, "", "photo.png")]))
    with pytest.raises(KVMMError, match="There is no question"):
        last(talk.ask(" ", [page(1, "me")]))
    with pytest.raises(KVMMError, match="characters that cannot be asked"):
        last(talk.ask("Who?", [page(1, "\ue000kvmm answer\ue001")]))
    assert talk.messages == []


@pytest.fixture
def ask(monkeypatch, capsys):
    """``kvmm ask`` in this process: the exit code, stdout and stderr."""

    def ask(*arguments):
        monkeypatch.setattr(sys, "argv", ["kvmm", "ask", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code or 0, *capsys.readouterr()

    return ask


def test_a_text_file_on_the_command_line(ask, folder, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("the key is under the mat " * 8)
    options = ("--model", folder, "--dtype", "float32", "--max-new-tokens", 3, "--json", "Where is the key?")
    found = []
    for texts in ((), ("--text", notes), ("--text", notes, "--text", notes)):
        code, out, err = ask(*texts, *options)
        assert code == 0, err
        found.append(json.loads(out)["memory"]["by_modality"]["text"]["tokens"])
    assert found[1] - found[0] >= 200 and found[2] - found[1] == found[1] - found[0]


def test_a_text_file_that_is_none(ask, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\xff")
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(17 * 2**20)
    lines = {"photo.png": "is not UTF-8", "none.txt": "No such file", "huge.txt": "larger than 16 MiB"}
    for name, match in lines.items():
        code, out, err = ask("--text", tmp_path / name, "Why?")
        assert code == 2 and out == "" and match in err and len(err.splitlines()) == 1
