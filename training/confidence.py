"""Fits how sure the model is to whether it is right on half of the held-out pages, and measures it on the other half.

    python -m training.confidence --model assets/tiny-omni --data runs/heldout \\
        --out assets/tiny-omni/kvmm_confidence.json --report benchmarks/results/confidence/heldout.json

Needs kvmm's own requirements. Questions are answered by :class:`kvmm.models.Conversation`, greedily, so the
log-probabilities are those that a user's answer has. Pages, documents and recordings are divided by a hash of their
names: all questions about one are in the same half. Answers are kept in ``--rows``, where an interrupted run goes on.
``--part 0 12`` answers the full-precision questions of every twelfth document, from the first on, and ends: several
processes then share the work, and the command without it finds their answers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import transformers

from kvmm.calibration import model_fingerprint
from kvmm.eval.metrics import anls, cer
from kvmm.eval.metrics.reliability import calibration_figures
from kvmm.media import Media, load_audio, load_image
from kvmm.models import Conversation, Sampling, load_model
from kvmm.models.confidence import FEATURES, ConfidenceMap, answer_features
from training.evaluate import ANSWER_TOKENS, TRANSCRIPTION_TOKENS, file_hash, is_transcription

FULL = "bf16"  # pages without loss: the map is fitted to these answers
RIGHT = "ANLS of at least .5; of a transcription a character error rate of at most .1"
RIDGE = 1.0  # penalty on squared weights of features in units of their deviation
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(6, 20))  # .30 to .95


def is_right(turn: dict, prediction: str) -> bool:
    """Whether a turn of the held-out set is answered."""
    if is_transcription(turn):
        return cer(prediction, turn["answers"][0]) <= 0.1
    return anls(prediction, turn["answers"]) >= 0.5


def half_of(line: dict) -> str:
    """ "fit" or "test", the same for all questions about a page, a document or a recording."""
    shown = "\n".join(line["images"] or [line["audio"]])
    return ("fit", "test")[hashlib.sha256(shown.encode()).digest()[0] % 2]


def by_document(lines: Sequence[dict]) -> list[list[dict]]:
    """Conversations in groups that show the same pages, or the same recording."""

    def shown(line: dict) -> tuple[tuple[str, ...], str]:
        return tuple(line["images"]), line["audio"] or ""

    return [list(group) for _, group in groupby(sorted(lines, key=shown), shown)]


def every(lines: Sequence[dict], step: int, first: int = 0) -> list[dict]:
    """All conversations about every ``step``-th page, document or recording, from ``first`` on."""
    return [line for group in by_document(lines)[first::step] for line in group]


def answer(talk: Conversation, group: Sequence[dict], root: Path) -> Iterator[dict]:
    """A row per turn of some conversations about the same pages, which are read once."""
    first = group[0]
    media = [Media("image", load_image(root / name), name) for name in first["images"]]
    if first["audio"]:
        media.append(Media("audio", load_audio(root / first["audio"]), first["audio"]))
    for line in group:
        talk.truncate(0)
        for number, turn in enumerate(line["turns"]):
            limit = TRANSCRIPTION_TOKENS if is_transcription(turn) else ANSWER_TOKENS
            shown = () if number else media
            *_, final = talk.ask(turn["question"], shown, max_new_tokens=limit, sampling=Sampling(logprobs=0))
            yield {
                "id": line["id"],
                "turn": number,
                "set": line["set"],
                "half": half_of(line),
                "right": is_right(turn, final.text),
                "logprobs": [round(choice.logprob, 6) for choice in final.choices],
            }


def collect(model: object, processor: object, policy: str, lines: Sequence[dict], root: Path, path: Path) -> list[dict]:
    """All rows of a policy; ``path`` holds those of an earlier run with the same model, and gets the new ones."""
    head = {"fingerprint": model_fingerprint(model), "dtype": str(model.dtype), "policy": policy}
    head["data_sha256"] = file_hash(root / "heldout.jsonl")
    rows = rows_of(path, head)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = sorted(path.parent.glob(f"{policy}.*jsonl"))  # of all, and of parts
    others = [row for file in beside if file != path for row in rows_of(file, head)]
    done = {row["id"] for row in (*rows, *others)}
    talk = Conversation(model, processor, policy, graph=False)
    begin, new = time.time(), 0
    with path.open("a" if rows else "w", encoding="utf-8") as file:
        if not rows:
            file.write(json.dumps(head) + "\n")
        for group in by_document([line for line in lines if line["id"] not in done]):
            answered = list(answer(talk, group, root))
            file.write("".join(json.dumps(row) + "\n" for row in answered))
            file.flush()
            rows += answered
            new += len(answered)
            print(f"{policy}: {len(rows)} answers, {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    wanted = {line["id"] for line in lines}
    found = {(row["id"], row["turn"]): row for row in (*others, *rows)}
    return [row for row in found.values() if row["id"] in wanted]


def rows_of(path: Path, head: dict) -> list[dict]:
    """The rows of a file that begins with ``head``; none of one that is not there, or of another model or set."""
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    return written[1:] if written[:1] == [head] else []


def fit(features: np.ndarray, right: np.ndarray) -> tuple[float, np.ndarray]:
    """Intercept and weights of a logistic regression with a ridge, no weight negative.

    Newton's steps; the feature of the most negative weight is left out until none is.

    Args:
        features: float ``[n, k]``.
        right: bool ``[n]``.
    """
    centre, spread = features.mean(0), features.std(0) + 1e-9
    units, outcomes = (features - centre) / spread, right.astype(float)
    kept = list(range(features.shape[1]))
    while True:
        design = np.column_stack([np.ones(len(units)), units[:, kept]])
        penalty = np.diag([1e-9, *[RIDGE] * len(kept)])
        found = np.zeros(design.shape[1])
        for _ in range(100):
            chance = 1 / (1 + np.exp(-design @ found))
            slope = design.T @ (chance - outcomes) + penalty @ found
            curve = (design * (chance * (1 - chance))[:, None]).T @ design + penalty
            step = np.linalg.solve(curve, slope)
            found -= step
            if np.abs(step).max() < 1e-10:
                break
        if not kept or found[1:].min() >= 0:
            break
        kept.pop(int(found[1:].argmin()))
    weights = np.zeros(features.shape[1])
    weights[kept] = found[1:] / spread[kept]
    return float(found[0] - weights @ centre), weights


def choose_threshold(probabilities: np.ndarray, right: np.ndarray) -> float:
    """The threshold of ``THRESHOLDS`` below which wrong answers are marked best by F1; the lowest of equals."""

    def f1(threshold: float) -> float:
        marked = probabilities < threshold
        return 2 * (marked & ~right).sum() / max(marked.sum() + (~right).sum(), 1)

    return max(THRESHOLDS, key=f1)


def figures(fitted: ConfidenceMap, rows: Sequence[dict]) -> dict:
    """Calibration of some answers: ECE over 15 bins of equal mass, AUROC, the table, and what the mark says."""
    chances = [fitted.probability(answer_features(row["logprobs"])) for row in rows]
    return calibration_figures(chances, [row["right"] for row in rows], fitted.unsure_below)


def report(fitted: ConfidenceMap, rows: Sequence[dict]) -> dict:
    """Figures of all answers, and of every set without its table."""
    out = figures(fitted, rows)
    names = dict.fromkeys(row["set"] for row in rows)
    out["sets"] = {name: figures(fitted, [row for row in rows if row["set"] == name]) for name in names}
    for part in out["sets"].values():
        del part["table"], part["ece"]  # of too few answers to mean anything
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.confidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("assets/tiny-omni"))
    parser.add_argument("--data", type=Path, default=Path("runs/heldout"), help="folder made by training.heldout")
    parser.add_argument("--out", type=Path, default=Path("assets/tiny-omni/kvmm_confidence.json"))
    parser.add_argument("--report", type=Path, default=Path("benchmarks/results/confidence/heldout.json"))
    parser.add_argument("--policies", nargs="*", default=["balanced", "small"], help="whose test half is measured, too")
    parser.add_argument("--rows", type=Path, default=Path("runs/confidence"), help="folder for the answers' numbers")
    parser.add_argument("--sets", nargs="+", help="only these sets")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--part", type=int, nargs=2, metavar=("INDEX", "COUNT"), help="answer one part of the set")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth page, document or recording")
    args = parser.parse_args()
    if args.every < 1:
        parser.error("--every N: 1 or more")
    if args.part and not 0 <= args.part[0] < args.part[1]:
        parser.error("--part INDEX COUNT: the index is from 0 to COUNT - 1")

    source = args.data / "heldout.jsonl"
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if not args.sets or line["set"] in args.sets]
    if not lines:
        parser.error(f"{args.data} has no such sets")
    lines = every(lines, args.every)
    torch.backends.cuda.matmul.allow_tf32 = False
    model, processor = load_model(args.model, device=args.device, dtype=args.dtype)
    if args.part:
        index, count = args.part
        collect(model, processor, FULL, every(lines, count, index), args.data, args.rows / f"{FULL}.{index}.jsonl")
        return
    rows = collect(model, processor, FULL, lines, args.data, args.rows / f"{FULL}.jsonl")
    half = [row for row in rows if row["half"] == "fit"]
    features = np.array([list(answer_features(row["logprobs"]).values()) for row in half])
    right = np.array([row["right"] for row in half])
    intercept, weights = fit(features, right)
    chances = 1 / (1 + np.exp(-(intercept + features @ weights)))
    fitted = ConfidenceMap(
        intercept=intercept,
        weights=dict(zip(FEATURES, weights.tolist(), strict=True)),
        unsure_below=choose_threshold(chances, right),
        fingerprint=model_fingerprint(model),
        metadata={
            "model": args.model.name,
            "right": RIGHT,
            "answers": len(half),
            "answers_right": int(right.sum()),
            "data_sha256": file_hash(source),
        },
    )
    fitted.save(args.out)
    test = {FULL: report(fitted, [row for row in rows if row["half"] == "test"])}
    tested = [line for line in lines if half_of(line) == "test"]
    for policy in args.policies:
        path = args.rows / f"{policy}.jsonl"
        test[policy] = report(fitted, collect(model, processor, policy, tested, args.data, path))
    result = {
        "right": RIGHT,
        "fit": figures(fitted, half),
        "test": test,
        "unsure_below": fitted.unsure_below,
        "weights": {"intercept": intercept, **fitted.weights},
        "fingerprint": fitted.fingerprint,
        "data_sha256": file_hash(source),
        "command": "python -m training.confidence " + " ".join(sys.argv[1:]),
        "decoding": f"greedy, {args.dtype}",
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "cpu",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for policy, found in test.items():
        print(policy, {name: value for name, value in found.items() if name not in ("table", "sets")})


if __name__ == "__main__":
    main()
