"""WorldSense: multiple choice about videos with their sound (Hong et al. 2025, arXiv 2502.04326)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from kvmm.eval.metrics.choice import LETTERS
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.options import switch
from kvmm.eval.tasks.rows import BadItem, Row, media_key
from kvmm.eval.tasks.sources import open_rows
from kvmm.media import FPS, MAX_FRAMES

# The benchmark's own instruction; other words give other scores.
PROMPT = (
    "These are the frames of a video{sound}. Select the best answer to the following multiple-choice question based on "
    "the video. Respond with only the letter (A, B, C, or D) of the correct option.\nQuestion: {question}\nAnswer: "
)
PARTS = ("duration", "domain", "task_domain", "task_type")
_PREFIXES = ("The best answer is", "The correct answer is", "The answer is", "The answer", "Answer:", "Option:")
_LETTER = re.compile("[ABCD]")


def first_letter(text: str) -> str:
    """The option that a prediction names, as VLMEvalKit's ``utils/worldsense.py`` reads it: the first capital of A to D
    after the usual phrases are taken away; empty without one.
    """
    for prefix in _PREFIXES:
        text = text.replace(prefix, "")
    found = _LETTER.search(text)
    return found[0] if found else ""


def items_by_video(content: Any) -> Any:
    """Items of one question each from the official ``{video: {..., "task0": {...}}}``; other content as it is."""
    if not isinstance(content, dict) or not all(isinstance(value, dict) for value in content.values()):
        return content
    shared = ("duration", "domain", "sub_category", "audio_class")
    return [
        {"id": f"{video}-{name}", "video": video, **{key: value.get(key) for key in shared}, **task}
        for video, value in content.items()
        for name, task in value.items()
        if "task" in name and isinstance(task, dict)
    ]


class WorldSense(Task):
    """The official ``worldsense_qa.json`` with the videos beside it in ``videos/{video}.mp4``.

    Args:
        frames: at most so many of a video.
        fps: frames of a second of a video.
        audio: also play ``audios/{video}.wav`` where it is; models that do not hear cannot be asked then.
    """

    name = "worldsense"
    metric: ClassVar[str] = "accuracy"
    max_new_tokens: ClassVar[int] = 16
    options: ClassVar[Any] = {"frames": int, "fps": float, "audio": switch}

    def __init__(self, frames: int = MAX_FRAMES, fps: float = FPS, audio: bool = False):
        self.frames, self.fps, self.audio = frames, fps, audio

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        required = (("question",), ("candidates", "options"), ("answer",), ("video", "video_path"))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required, arrange=items_by_video)
        return collect(self.name, name, rows, lambda row: row_id(row, "id", "index"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        choices, answer = row.texts("candidates", "options"), row.text("answer").strip()
        if not 2 <= len(choices) <= 4 or answer not in LETTERS[: len(choices)]:
            raise BadItem(f"wrong choices: {len(choices)}, and the answer is {answer[:20]}")
        video, audio = row.video("video", "video_path", ending=".mp4"), self._recording(row)
        question = "\n".join((row.text("question"), *choices))
        sound = " and the corresponding audio" if audio is not None else ""
        return Sample(
            doc_id=doc_id,
            question=PROMPT.format(sound=sound, question=question),
            answers=(answer,),
            audio=audio,
            video=video,
            sampling={"fps": self.fps, "max_frames": self.frames},
            group=media_key(video, *([] if audio is None else [audio])),
            metadata={name: row.get(name) for name in PARTS} | {"audio_class": row.texts("audio_class")},
        )

    def _recording(self, row: Row) -> Any:
        if not self.audio:
            return None
        with contextlib.suppress(BadItem):
            name = os.path.splitext(os.path.basename(str(row.get("video", "video_path", default=""))))[0]
            return Row({"audio": f"audios/{name}.wav"}, row.number, {}, row.folder).audio("audio")
        return None

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """1 when the first letter is the answer's."""
        return {"accuracy": float(first_letter(prediction) == sample.answers[0])}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """The share that is right: of all, and by the video's length, domain, task and kind of sound."""
        result = {"accuracy": mean(scores["accuracy"] for _, scores, _ in scored)}
        for part in PARTS:
            result |= mean_by(scored, "accuracy", lambda sample, part=part: sample.metadata[part])
        for kind in sorted({kind for sample, _, _ in scored for kind in sample.metadata["audio_class"]}):
            part = [one for one in scored if kind in one.sample.metadata["audio_class"]]
            result |= mean_by(part, "accuracy", lambda _, kind=kind: f"sound: {kind}")
        return result


__all__ = ["WorldSense", "first_letter", "items_by_video"]
