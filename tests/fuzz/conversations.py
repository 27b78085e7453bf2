"""Saved conversations, as the app opens them: shown, and asked once more."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file, save

from kvmm.cache import file as cache_file
from kvmm.media import Media, load_image
from kvmm.models import Conversation, load_model
from kvmm.ui.chat.talk_file import load_talk
from kvmm.ui.models import Models
from tests.fuzz.mutate import mutated_bytes, mutated_header, mutated_json
from tests.fuzz.samples import SAMPLES, tone
from tests.fuzz.tensors import mutated_tensors


class Fuzzer:
    """A conversation about a picture and a recording, under two policies, and one whose cache was dropped."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)
        self.folder, self.path = folder, folder / "talk.kvmm"
        self.model, self.processor = load_model(device="cpu", dtype=torch.float32)
        self.models = Models.of(self.model, self.processor)
        picture = load_image(SAMPLES / "receipt.png")
        picture.thumbnail((200, 200))
        image, audio = (
            Media("image", picture, "receipt.png"),
            Media("audio", tone()[:, 0].astype(np.float32), "memo.wav"),
        )
        self.seeds = []
        for policy, dropped in (("balanced", False), ("kivi2", False), ("kivi2", True)):
            talk = Conversation(self.model, self.processor, policy)
            for question, media in (("What is the total?", [image]), ("And this?", [audio])):
                for _ in talk.ask(question, media, max_new_tokens=4):
                    pass
            if dropped:
                talk.cache = None
            talk.save(self.path, self._notes(policy), [b"\x89PNG", b"RIFF"])
            self.seeds.append(self.path.read_bytes())

    @staticmethod
    def _notes(policy: str) -> dict:
        text = {"role": "assistant", "content": [{"type": "text", "text": "Total *42*"}]}
        note = {**text, "metadata": {"title": "KV 412 KiB", "status": "done"}}
        names = [[["receipt.png", 0]], [["memo.wav", 1], ["gone.pdf", None]]]
        exchanges = [
            {"question": "What?", "files": files, "tails": {"full": [text], "kvmm": [note, text]}, "answered": True,
             "stopped": False, "as_links": False} for files in names
        ]  # fmt: skip
        settings = {"model": None, "policy": policy, "num_sink_tokens": None}
        verdict = {"tokens": 4, "index": 2, "full": "a", "kvmm": "b", "word": 1}
        return {"title": "Receipt", "renamed": False, "settings": settings, "answered": 2, "exchanges": exchanges,
                "verdict": verdict}  # fmt: skip

    def originals(self) -> list[bytes]:
        """What is broken, whole."""
        return self.seeds

    def make(self, rng: random.Random, number: int) -> bytes:
        """The bytes of a file."""
        data, kind = rng.choice(self.seeds), rng.random()
        if kind < 0.06:
            return mutated_bytes(rng, data, tuple(self.seeds))
        if kind < 0.2:
            return self._signed(mutated_header(rng, data))
        self.path.write_bytes(data)
        tensors = load_file(self.path)
        with safe_open(self.path, "pt") as file:
            header = file.metadata()
        if kind < 0.6:
            own = {name: t for name, t in tensors.items() if name.startswith("metadata.")}
            rest = {name: t for name, t in tensors.items() if name not in own}
            tensors = rest | mutated_tensors(rng, own) if rng.random() < 0.8 else mutated_tensors(rng, tensors)
        if kind > 0.5:
            state = json.loads(header["state"])
            state["metadata"] = mutated_json(rng, state["metadata"])
            header["state"] = json.dumps(state)
        header["checksum"] = cache_file._checksum(header["state"], tensors)
        return save(tensors, header)

    def _signed(self, data: bytes) -> bytes:
        """The file with a checksum that fits, if it can be read at all."""
        self.path.write_bytes(data)
        try:
            tensors = load_bytes(data)
            with safe_open(self.path, "pt") as file:
                header = file.metadata()
            header["checksum"] = cache_file._checksum(header["state"], tensors)
            return save(tensors, header)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AttributeError):
            return data

    def run(self, data: bytes) -> None:
        """Open the file, show it, and ask a question more."""
        self.path.write_bytes(data)
        inside = self.folder / "session"
        inside.mkdir(exist_ok=True)
        talk, settings = load_talk(self.path, self.models, None, lambda: inside)
        replace(settings).label  # noqa: B018 - the sidebar shows it
        for exchange in talk.exchanges:
            for path in exchange.message.files:
                assert not Path(path).is_absolute() or Path(path).parent == inside
            for side in ("full", "kvmm"):
                for message in exchange.tails[side]:
                    assert all(block["type"] == "text" and "<" not in block["text"] for block in message["content"])
        if talk.verdict is not None:
            assert isinstance(talk.verdict.verdict, str)
        for _ in talk.conversation.ask("Why?", [], max_new_tokens=2):
            pass
