"""Scores a checkpoint on the held-out set: greedy decoding, float32 by default, nothing but transformers' ``generate``.

    python -m training.evaluate --model assets/tiny-omni --data runs/heldout --out assets/tiny-omni/evaluation.json

Questions with prompts of similar length are answered in one left-padded batch. Later turns of a conversation see the
model's own earlier answers. Needs torch, transformers, numpy and Pillow, no processor class.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import sys
import time
import wave
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2_5OmniThinkerForConditionalGeneration

from kvmm.eval.metrics import anls, cer, exact_match
from kvmm.models.packed_weights import PACKED_FILE, load_packed
from training.speech import LONGEST, MEL_BINS, SAMPLE_RATE, log_mel, resample

ANSWER_TOKENS = 128  # the longest answer that is not a transcription: all values of a chart
TRANSCRIPTION_TOKENS = 900
BATCH_TOKENS = 40_000  # prompt tokens of a batch on a GPU; on a CPU batches only add padding


@dataclass
class Item:
    """One line of the set, and where its conversation stands."""

    line: dict
    messages: list[dict] = field(default_factory=list)
    predictions: list[str] = field(default_factory=list)

    @property
    def turns(self) -> list[dict]:
        return self.line["turns"]


def read_wav(path: Path) -> np.ndarray:
    """A 16-bit mono WAV file as float32 ``[n]`` at 16 kHz."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2 or file.getnchannels() != 1:
            raise ValueError(f"{path} is not 16-bit mono")
        raw = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return resample(raw.astype(np.float32) / 32768, file.getframerate(), SAMPLE_RATE)


def read_model(folder: Path, dtype: torch.dtype) -> Qwen2_5OmniThinkerForConditionalGeneration:
    """The model of a checkpoint folder, with weights stored in bf16 or in few bits."""
    kind = Qwen2_5OmniThinkerForConditionalGeneration
    if not (folder / PACKED_FILE).is_file():
        return kind.from_pretrained(folder, dtype=dtype)
    config = kind.config_class.from_pretrained(folder)
    model = kind.from_pretrained(None, config=config, state_dict=load_packed(folder, dtype), dtype=dtype)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


class Reader:
    """A checkpoint with the preparation of its inputs."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype = torch.float32) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.model = read_model(folder, dtype).to(device).eval()
        self.device, self.dtype = torch.device(device), dtype
        self.merge = self.model.config.vision_config.spatial_merge_size**2

    def first_message(self, item: Item) -> dict:
        """The user's first turn: pages, labelled when there are several, the recording, the question."""
        content: list[dict] = []
        pages = item.line.get("images") or []
        for number, _ in enumerate(pages, 1):
            if len(pages) > 1:
                content.append({"type": "text", "text": f"Page {number}\n"})
            content.append({"type": "image"})
        if item.line.get("audio"):
            content.append({"type": "audio"})
        content.append({"type": "text", "text": item.turns[0]["question"]})
        return {"role": "user", "content": content}

    def media(self, item: Item, root: Path) -> dict[str, torch.Tensor]:
        """Pixels ``[patches, 1176]`` with their grid ``[images, 3]``, mel ``[1, 128, frames]``."""
        out: dict[str, torch.Tensor] = {}
        pages = item.line.get("images") or []
        if pages:
            pictures = [Image.open(root / name).convert("RGB") for name in pages]
            encoded = self.images(images=pictures, return_tensors="pt")
            out["pixel_values"], out["image_grid_thw"] = encoded["pixel_values"], encoded["image_grid_thw"]
        if item.line.get("audio"):
            recording = read_wav(root / item.line["audio"])[:LONGEST]
            out["mel"] = torch.from_numpy(log_mel(recording).T.copy())[None]
        return out

    def prompt(self, messages: list[dict], media: dict[str, torch.Tensor]) -> list[int]:
        """Token ids with every image and recording expanded to its tokens."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        pieces, grids = text.split("<|IMAGE|>"), media.get("image_grid_thw", torch.zeros(0, 3)).long()
        if len(pieces) != len(grids) + 1:
            raise ValueError(f"the chat template shows {len(pieces) - 1} images of {len(grids)}")
        text = pieces[0]
        for grid, piece in zip(grids, pieces[1:], strict=True):
            text += "<|IMAGE|>" * int(grid.prod() // self.merge) + piece
        if "mel" in media:
            frames = (media["mel"].shape[-1] - 1) // 2 + 1
            text = text.replace("<|AUDIO|>", "<|AUDIO|>" * ((frames - 2) // 2 + 1))
        return self.tokenizer.encode(text, add_special_tokens=False)

    @torch.inference_mode()
    def answer(self, prompts: list[list[int]], media: list[dict[str, torch.Tensor]], max_new_tokens: int) -> list[str]:
        """Greedy answers of one left-padded batch."""
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        inputs: dict[str, torch.Tensor] = {"input_ids": ids, "attention_mask": mask}
        for name in ("pixel_values", "image_grid_thw"):
            values = [m[name] for m in media if name in m]
            if values:
                inputs[name] = torch.cat(values)
        mels = [m["mel"][0] for m in media if "mel" in m]
        if mels:
            frames = max(mel.shape[-1] for mel in mels)
            features = torch.zeros(len(mels), MEL_BINS, frames)
            heard = torch.zeros(len(mels), frames, dtype=torch.long)
            for row, mel in enumerate(mels):
                features[row, :, : mel.shape[-1]] = mel
                heard[row, : mel.shape[-1]] = 1
            inputs |= {"input_features": features, "feature_attention_mask": heard}
        inputs = {k: v.to(self.device, self.dtype if v.is_floating_point() else None) for k, v in inputs.items()}
        out = self.model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=0)
        return [text.strip() for text in self.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)]


def batches(sized: list[tuple[int, int]], budget: int) -> Iterator[list[int]]:
    """Indices of items of similar length; ``sized`` holds (prompt tokens, index)."""
    batch: list[int] = []
    for length, index in sorted(sized):
        if batch and length * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def run(reader: Reader, items: list[Item], root: Path, budget: int, log=print) -> None:
    """Fill every item's ``predictions``, turn by turn."""
    for turn in range(max(len(item.turns) for item in items)):
        for kind in ("answers", "transcriptions"):
            open_items = [
                i for i in items if len(i.turns) > turn and (kind == "answers") != is_transcription(i.turns[turn])
            ]
            sized = []
            for index, item in enumerate(open_items):
                if turn:
                    content = [{"type": "text", "text": item.predictions[-1]}]
                    question = [{"type": "text", "text": item.turns[turn]["question"]}]
                    item.messages += [{"role": "assistant", "content": content}, {"role": "user", "content": question}]
                else:
                    item.messages = [reader.first_message(item)]
                sized.append((len(reader.prompt(item.messages, reader.media(item, root))), index))
            started, done = time.time(), 0
            for batch in batches(sized, budget):
                chosen = [open_items[index] for index in batch]
                media = [reader.media(item, root) for item in chosen]
                prompts = [reader.prompt(item.messages, m) for item, m in zip(chosen, media, strict=True)]
                limit = ANSWER_TOKENS if kind == "answers" else TRANSCRIPTION_TOKENS
                for item, text in zip(chosen, reader.answer(prompts, media, limit), strict=True):
                    item.predictions.append(text)
                done += len(batch)
                log(f"turn {turn + 1} {kind}: {done}/{len(open_items)}, {time.time() - started:.0f} s")


def is_transcription(turn: dict) -> bool:
    return turn.get("metric") == "cer"


def summary(scored: list[dict]) -> dict:
    """n, exact match and ANLS of answers; median CER of transcriptions."""
    answers = [row for row in scored if "anls" in row]
    pages = [row["cer"] for row in scored if "cer" in row]
    out: dict = {"n": len(scored)}
    if answers:
        out["exact_match"] = round(sum(row["exact_match"] for row in answers) / len(answers), 4)
        out["anls"] = round(sum(row["anls"] for row in answers) / len(answers), 4)
    if pages:
        out["cer_median"] = round(statistics.median(pages), 4)
        out["cer_mean"] = round(sum(pages) / len(pages), 4)
    return out


def score(items: list[Item]) -> list[dict]:
    """One row an answer: set, key, turn, question, prediction and its scores."""
    rows = []
    for item in items:
        for number, (turn, prediction) in enumerate(zip(item.turns, item.predictions, strict=True), 1):
            row = {"id": item.line["id"], "set": item.line["set"], "turn": number, "key": turn.get("key", "")}
            row |= {"kind": item.line.get("kind", ""), "question": turn["question"], "prediction": prediction}
            row["answers"] = turn["answers"]
            if is_transcription(turn):
                row["cer"] = cer(prediction, turn["answers"][0])
            else:
                row["exact_match"] = int(exact_match(prediction, turn["answers"]))
                row["anls"] = anls(prediction, turn["answers"])
            rows.append(row)
    return rows


def report(rows: list[dict]) -> dict:
    """Scores by set, and within each by kind of page or utterance, by kind of fact and by turn."""
    out = {}
    for name in dict.fromkeys(row["set"] for row in rows):
        own = [row for row in rows if row["set"] == name]
        out[name] = summary(own)
        for column in ("kind", "key", "turn"):
            groups: dict[str, list[dict]] = defaultdict(list)
            for row in own:
                groups[str(row[column])].append(row)
            if len(groups) > 1:
                out[name][f"by_{column}"] = {key: summary(groups[key]) for key in sorted(groups)}
    return out


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("assets/tiny-omni"))
    parser.add_argument("--data", type=Path, default=Path("runs/heldout"), help="folder made by training.heldout")
    parser.add_argument("--out", type=Path, required=True, help="JSON report")
    parser.add_argument("--sets", nargs="+", help="only these sets")
    parser.add_argument("--limit", type=int, help="only the first N conversations of each set")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--answers", type=Path, help="where every answer is written; default is no such file")
    args = parser.parse_args()

    lines = [json.loads(line) for line in (args.data / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    if args.sets:
        lines = [line for line in lines if line["set"] in args.sets]
    if args.limit:
        counts: dict[str, int] = defaultdict(int)
        kept = []
        for line in lines:
            counts[line["set"]] += 1
            if counts[line["set"]] <= args.limit:
                kept.append(line)
        lines = kept
    if not lines:
        parser.error(f"{args.data} has no such sets")
    torch.backends.cuda.matmul.allow_tf32 = False
    started = time.time()
    reader = Reader(args.model, args.device, getattr(torch, args.dtype))
    items = [Item(line) for line in lines]
    budget = BATCH_TOKENS if reader.device.type == "cuda" else 1
    run(reader, items, args.data, budget, lambda text: print(text, file=sys.stderr, flush=True))
    rows = score(items)
    stored = args.model / PACKED_FILE
    result = {
        "sets": report(rows),
        "model_sha256": file_hash(stored if stored.is_file() else args.model / "model.safetensors"),
        "data_sha256": file_hash(args.data / "heldout.jsonl"),
        "command": "python -m training.evaluate " + " ".join(sys.argv[1:]),
        "decoding": f"greedy, {args.dtype}, transformers generate",
        "device": torch.cuda.get_device_name() if reader.device.type == "cuda" else "cpu",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
        "seconds": round(time.time() - started, 1),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.answers:
        args.answers.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, scores in result["sets"].items():
        print(name, {key: value for key, value in scores.items() if not key.startswith("by_")})


if __name__ == "__main__":
    main()
