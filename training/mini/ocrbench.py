"""mini-OCRBench: items of the ten types, as far as a model that reads printed ASCII pages can answer them."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from pathlib import Path

from training import wordings
from training.mini.documents import draw, groups_of
from training.mini.files import Folder
from training.mini.lettering import HANDWRITING, crop, held_fonts, package_fonts
from training.mini.scenes import PHOTOGRAPHS, scene
from training.pages import Rng, make_page
from training.pages import values as v

JSON_NAME = "OCRBench.json"
READ = ("What is written here?", "Read the text in the image.", "What text is in the image?", "Transcribe this.")
SIGN_SHAPES = ((448, 420), (420, 476), (392, 448))
CAPTIONED = "kvmm-mini"
FORMULAS = "HME100k"  # names the rule of scoring: case and symbols count, spaces do not

# type: how many items
COUNTS = {
    "Regular Text Recognition": 24,
    "Irregular Text Recognition": 24,
    "Artistic Text Recognition": 20,
    "Handwriting Recognition": 20,
    "Digit String Recognition": 24,
    "Non-Semantic Text Recognition": 24,
    "Scene Text-centric VQA": 36,
    "Doc-oriented VQA": 32,
    "Key Information Extraction": 32,
    "Handwritten Mathematical Expression Recognition": 20,
}
PAGE_SETS = {"Key Information Extraction": ("fonts", "wordings"), "Doc-oriented VQA": ("fonts", "layouts")}
UNFIT = re.compile(
    "clit|fann|pimp|jihad|sex|screw|flatul|genit|nud|breast|bosom|buttock|crotch|groin|condom|drug|addict|kill|murder"
    "|suicid|terror|corpse|bomb|gun|slav|lesb|gay|erot|orgas|fart|urin|feces|poop|vomit|puk|lynch|gyps|squaw|cripp"
    "|idiot|moron|bigot|racis|damn|hell|bastard|thong|vagra|pugil|devil|drunk|whip"
)
KEY_INFORMATION = ("receipt", "invoice", "form")


def word(r: Rng) -> str:
    """One word of the list that nobody minds on a picture."""
    while UNFIT.search(text := v.word(r)):
        pass
    return text


def words(r: Rng) -> str:
    """One to three words in one of the usual cases."""
    text = " ".join(word(r) for _ in range(r.randint(1, 3)))
    return r.pick((text, text.title(), text.upper(), text.capitalize()))


def capitalised(r: Rng) -> str:
    """One capitalised word."""
    return word(r).capitalize()


def digits(r: Rng) -> str:
    """4 to 12 digits, at times grouped."""
    text = "".join(r.pick(string.digits) for _ in range(r.randint(4, 12)))
    return f"{text[:3]}-{text[3:]}" if r.chance(0.25) else text


def nonsense(r: Rng) -> str:
    """Letters, at times with digits, that are no word."""
    letters = string.ascii_uppercase if r.chance(0.5) else string.ascii_lowercase
    if r.chance(0.3):
        letters += string.digits
    return "".join(r.pick(letters) for _ in range(r.randint(4, 9)))


def formula(r: Rng) -> str:
    """A sum of two to four numbers."""
    text = str(r.randint(2, 999))
    for _ in range(r.randint(1, 3)):
        text += f" {r.pick('+-')} {r.randint(2, 999)}"
    return text


class Items:
    """The rows, numbered as they come."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.rows: list[dict] = []

    def add(self, kind: str, path: str, question: str, answers: str | list[str], dataset: str = CAPTIONED) -> None:
        """A string for one answer and a list for several, as the official file has them."""
        if isinstance(answers, list) and len(answers) == 1:
            answers = answers[0]
        number = len(self.rows)
        head = {"dataset_name": dataset, "id": number, "image_path": path}
        self.rows.append({**head, "question": question, "answers": answers, "type": kind})


def recognition(items: Items, seed: int, font_roots: list[Path]) -> None:
    """The six types of recognition, and formulas."""
    held = held_fonts()
    hands = package_fonts(HANDWRITING, font_roots)
    hands = [hands[0], hands[1], hands[0], hands[2]]  # the first is the one that the model reads best
    makers = {
        "Regular Text Recognition": (words, held, {}),
        "Irregular Text Recognition": (words, held, {"irregular": True}),
        "Artistic Text Recognition": (words, held, {"artistic": True}),
        "Handwriting Recognition": (capitalised, hands, {}),
        "Digit String Recognition": (digits, held, {}),
        "Non-Semantic Text Recognition": (nonsense, held, {}),
        "Handwritten Mathematical Expression Recognition": (formula, held, {}),
    }
    for offset, (kind, (make, fonts, style)) in enumerate(makers.items()):
        r = Rng(seed + offset)
        for number in range(COUNTS[kind]):
            text = make(r)
            picture = crop(r, text, fonts[number % len(fonts)], **style)
            path = items.folder.picture(f"images/{kind.lower().replace(' ', '-')}-{number:03d}", picture)
            dataset = FORMULAS if kind.startswith("Handwritten Math") else CAPTIONED
            items.add(kind, path, r.pick(READ), text, dataset)


def scenes(items: Items, seed: int) -> None:
    """Questions about signs in front of photographs."""
    kind, r, number = "Scene Text-centric VQA", Rng(seed), 0
    backgrounds = list(PHOTOGRAPHS)
    while (left := COUNTS[kind] - sum(row["type"] == kind for row in items.rows)) > 0:
        height, width = r.pick(SIGN_SHAPES)
        sign = make_page(r.getrandbits(48), height, width, held_fonts=True, kind="sign")
        facts = [f for f in sign.facts if f.key not in ("line_start", "numbered_line", "first_line", "last_line")]
        if len(facts) < 3 or int(sign.shade[0]) < 215:
            continue
        picture = scene(r, sign, backgrounds[number % len(backgrounds)])
        path = items.folder.photograph(f"images/scene-{number:03d}", picture)
        number += 1
        for fact in r.sample(facts, min(3, left)):
            question, answer = wordings.ask(r, fact, False, None)
            items.add(kind, path, question, answer)


def pages(items: Items, source: Path, lines: Sequence[dict], seed: int, used: set[str]) -> None:
    """Questions about documents, on pages that mini-DocVQA does not show."""
    r = Rng(seed)
    free = [line for line in lines if not used & set(line["images"])]
    for kind, sets in {
        "Key Information Extraction": ("fonts", "wordings"),
        "Doc-oriented VQA": ("fonts", "layouts"),
    }.items():
        keys = kind == "Key Information Extraction"
        for name in sets:
            groups = groups_of(free, name, absent=False)
            groups = [g for g in groups if (g[0]["kind"] in KEY_INFORMATION) == keys]
            left = COUNTS[kind] // 2 if name == sets[0] else COUNTS[kind] - sum(x["type"] == kind for x in items.rows)
            for group in draw(r, groups, len(groups), 4):
                page = group[0]["images"][0]
                if left <= 0:
                    break
                path = items.folder.page(f"images/{Path(page).stem}", source / page)
                for line in group[:left]:
                    items.add(kind, path, line["turns"][0]["question"], line["turns"][0]["answers"])
                left -= len(group)


def ocrbench(
    folder: Folder, source: Path, lines: Sequence[dict], seed: int, used: set[str], font_roots: list[Path]
) -> list[dict]:
    """All types. ``used`` are the held-out pages that other sets show. Returns the rows."""
    items = Items(folder)
    recognition(items, seed, font_roots)
    scenes(items, seed + 100)
    pages(items, source, lines, seed + 200, used)
    folder.save(JSON_NAME, items.rows)
    return items.rows
