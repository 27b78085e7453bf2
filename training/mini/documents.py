"""mini-DocVQA, documents of several pages and recordings: conversations of the held-out set in DocVQA's JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from training.mini.files import Folder
from training.pages import Rng

NOT_STATED = "absent"  # the key of questions that the page does not answer
JSON_NAME = "val_v1.0_withQT.json"

# set of the held-out set: (groups of questions about the same media, the most questions of a group)
DOCVQA = {"fonts": (20, 4), "wordings": (16, 4), "tables": (14, 5), "layouts": (18, 5), "scans": (10, 4)}
MULTIPAGE = {"pages2-8": (14, 6)}
AUDIO = {"speech": (44, 3), "speech-wordings": (12, 3), "spoken": (40, 1)}

LONGEST = 50  # characters of an answer in mini-DocVQA, whose task allows 32 tokens

# The kinds of pages in the words of DocVQA.
QUESTION_TYPES = {
    "invoice": ["form", "layout"],
    "receipt": ["form", "layout"],
    "form": ["form"],
    "letter": ["free_text"],
    "text": ["free_text"],
    "table": ["table/list"],
}

Groups = list[list[dict]]


def read_heldout(folder: Path) -> list[dict]:
    """The held-out set's conversations of one question."""
    path = folder / "heldout.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: run python -m training.heldout --out {folder}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def media(line: dict) -> tuple[str, ...]:
    """The files that a conversation shows or plays."""
    return (*line["images"], *([line["audio"]] if line["audio"] else []))


def groups_of(lines: Sequence[dict], name: str, *, absent: bool) -> Groups:
    """Questions about the same media, in the held-out set's order; ``absent`` keeps those without an answer."""
    groups: dict[tuple[str, ...], list[dict]] = {}
    for line in lines:
        if line["set"] == name and (absent or line["turns"][0]["key"] != NOT_STATED):
            groups.setdefault(media(line), []).append(line)
    return list(groups.values())


def draw(r: Rng, groups: Groups, count: int, most: int) -> Groups:
    """``count`` groups at random, of each up to ``most`` questions, all in the order of the held-out set."""
    chosen = [groups[index] for index in sorted(r.sample(range(len(groups)), min(count, len(groups))))]
    return [[group[i] for i in sorted(r.sample(range(len(group)), min(most, len(group))))] for group in chosen]


def row(number: int, line: dict, document: int, types: list[str], **media_fields: object) -> dict:
    """One entry of DocVQA's ``data``."""
    turn = line["turns"][0]
    return {
        "questionId": number,
        "question": turn["question"],
        "question_types": types,
        **media_fields,
        "docId": document,
        "ucsf_document_id": f"kvmm{document:04d}",
        "ucsf_document_page_no": "1",
        "answers": turn["answers"],
        "data_split": "val",
    }


def save(folder: Folder, name: str, rows: list[dict]) -> None:
    """Write the file that holds the questions."""
    head = {"dataset_name": name, "dataset_version": "1.0", "dataset_split": "val"}
    folder.save(JSON_NAME, {**head, "data": rows})


def docvqa(folder: Folder, source: Path, lines: Sequence[dict], seed: int) -> tuple[list[dict], set[str]]:
    """One page a question, several questions a page. Returns the rows and the held-out pages used."""
    r = Rng(seed)
    rows, used = [], set()
    for name, (count, most) in DOCVQA.items():
        for group in draw(r, groups_of(lines, name, absent=False), count, most):
            page = group[0]["images"][0]
            used.add(page)
            document = len(used)
            path = folder.page(f"documents/kvmm{document:04d}_1", source / page)
            for line in group:
                if len(line["turns"][0]["answers"][0]) > LONGEST:
                    continue
                types = ["layout"] if name in ("layouts", "scans") else QUESTION_TYPES.get(line["kind"], ["others"])
                extra = {"kvmm_set": name, "kvmm_key": line["turns"][0]["key"]}
                rows.append({**row(len(rows) + 1, line, document, types, image=path), **extra})
    save(folder, "kvmm mini-DocVQA", rows)
    return rows, used


def multipage(folder: Folder, source: Path, lines: Sequence[dict], seed: int) -> list[dict]:
    """Documents of 2 to 8 pages."""
    r = Rng(seed)
    rows: list[dict] = []
    for name, (count, most) in MULTIPAGE.items():
        for document, group in enumerate(draw(r, groups_of(lines, name, absent=True), count, most), 1):
            pages = enumerate(group[0]["images"], 1)
            paths = [folder.page(f"documents/kvmm{document:04d}_{i}", source / page) for i, page in pages]
            for line in group:
                rows.append(row(len(rows) + 1, line, document, [f"{len(paths)} pages"], images=paths))
    save(folder, "kvmm mini-multipage", rows)
    return rows


def audio(folder: Folder, source: Path, lines: Sequence[dict], seed: int) -> list[dict]:
    """Questions about recordings, and spoken questions about pages (their ``question`` is empty)."""
    r = Rng(seed)
    rows: list[dict] = []
    pages: dict[str, str] = {}
    document = 0
    for name, (count, most) in AUDIO.items():
        for group in draw(r, groups_of(lines, name, absent=True), count, most):
            document += 1
            fields: dict[str, object] = {}
            for page in group[0]["images"]:
                pages.setdefault(page, f"documents/page{len(pages) + 1:04d}")
                fields["images"] = [folder.page(pages[page], source / page)]
            fields["audio"] = folder.recording(f"audio/kvmm{document:04d}", source / group[0]["audio"])
            for line in group:
                kind = "spoken question" if name == "spoken" else "speech"
                types = ["unanswerable" if line["turns"][0]["key"] == NOT_STATED else kind]
                if name == "spoken":
                    fields["spoken"] = line["turns"][0]["spoken"]
                rows.append(row(len(rows) + 1, line, document, types, **fields))
    save(folder, "kvmm mini-audio", rows)
    return rows
