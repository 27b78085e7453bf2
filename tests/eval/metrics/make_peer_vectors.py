"""Writes tests/data/vectors/{captions,longbench,ptb}.json: what the public packages score, to be agreed with.

Not a test and not run in CI. It needs pycocoevalcap and a Java runtime for its tokenizer, rouge, and fuzzywuzzy with
python-Levenshtein; LongBench's other metrics are arithmetic and are tested by hand.

    python tests/eval/metrics/make_peer_vectors.py
"""

from __future__ import annotations

import json
import random
from importlib.metadata import version
from pathlib import Path

WORDS = (
    "a the man woman dog cat on in with of riding bike street sitting table red white two people standing near "
    "water train board and holding phone n't 's black-and-white 3 -lrb-"
).split()
VECTORS = Path(__file__).parents[2] / "data" / "vectors"


def caption(r: random.Random, base: list[str] | None = None) -> list[str]:
    """A caption of 1 to 14 words, or a variation of another one."""
    if base is None:
        return r.choices(WORDS, k=r.randint(1, 14))
    return [r.choice(WORDS) if r.random() < 0.25 else word for word in base if r.random() < 0.9] or [r.choice(WORDS)]


def captions(r: random.Random) -> list[dict]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    corpora = []
    for images, empty in ((1, False), (2, False), (6, True), (12, False)):
        references, predictions = [], []
        for _ in range(images):
            base = caption(r)
            references.append([" ".join(base)] + [" ".join(caption(r, base)) for _ in range(r.randint(0, 4))])
            predictions.append(" ".join(caption(r, base if r.random() < 0.8 else None)))
        if empty:
            predictions[0] = ""
        gts, res = dict(enumerate(references)), {i: [text] for i, text in enumerate(predictions)}
        corpora.append(
            {
                "references": references,
                "predictions": predictions,
                "bleu": [float(x) for x in Bleu(4).compute_score(gts, res, verbose=0)[0]],
                "rouge_l": [float(x) for x in Rouge().compute_score(gts, res)[1]],
                "cider": [float(x) for x in Cider().compute_score(gts, res)[1]],
            }
        )
    return corpora


def summaries(r: random.Random) -> list[dict]:
    from rouge import Rouge

    rows = []
    for _ in range(60):
        base = [caption(r) for _ in range(r.randint(1, 4))]
        answer = ". ".join(" ".join(words) for words in base) + "."
        prediction = ". ".join(" ".join(caption(r, words)) for words in base if r.random() < 0.8)
        prediction = r.choice([prediction, prediction + "." * r.randint(0, 3), prediction.replace(" ", "  ")])
        try:
            score = Rouge().get_scores([prediction], [answer], avg=True)["rouge-l"]["f"]
        except ValueError:  # LongBench's script scores 0
            score = 0.0
        rows.append({"prediction": prediction, "answer": answer, "rouge": score})
    return rows


def code(r: random.Random) -> list[dict]:
    from fuzzywuzzy import fuzz

    rows = []
    for _ in range(60):
        answer = "    return self.{}({}, {})".format(*r.choices(WORDS, k=3))
        line = "".join(c for c in answer if r.random() < r.choice([0.5, 0.9, 1.0]))
        rows.append({"prediction": line, "answer": answer, "ratio": fuzz.ratio(line, answer) / 100})
    return rows


def tokens(sentences: list[str]) -> list[dict]:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    words = PTBTokenizer().tokenize({number: [{"caption": text}] for number, text in enumerate(sentences)})
    return [{"caption": text, "words": words[number][0].split()} for number, text in enumerate(sentences)]


def main() -> None:
    r = random.Random(20)
    packages = {name: version(name) for name in ("pycocoevalcap", "rouge", "fuzzywuzzy", "python-Levenshtein")}
    for name, content in {
        "captions": {"corpora": captions(r)},
        "longbench": {"summaries": summaries(r), "code": code(r)},
        "ptb": {"rows": tokens([row["caption"] for row in json.loads((VECTORS / "ptb.json").read_text())["rows"]])},
    }.items():
        text = json.dumps({"packages": packages, **content}, ensure_ascii=False, indent=1)
        (VECTORS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
