"""Debian packages that widen the training assets: families of fonts and texts of natural English.

    mkdir -p .debs && cd .debs && apt-get download $(python -m training.assets --packages)

downloads them all, with those that `training.assets` takes single faces from, without installing anything.
"""

from __future__ import annotations

import gzip
import html
import re
import subprocess
import tempfile
from itertools import zip_longest
from pathlib import Path

from training.pages.canvas import CHARACTERS

MORE_FONTS = (
    "fonts-clear-sans fonts-adf-accanthis fonts-adf-baskervald fonts-adf-berenis fonts-adf-gillius fonts-adf-ikarius "
    "fonts-adf-libris fonts-adf-mekanus fonts-adf-romande fonts-adf-switzera fonts-adf-tribun fonts-adf-universalis "
    "fonts-adf-verana fonts-allerta fonts-anonymous-pro fonts-averia-gwf fonts-averia-sans-gwf fonts-averia-serif-gwf "
    "fonts-cabin fonts-cmu fonts-comfortaa fonts-dosis fonts-fantasque-sans fonts-fanwood fonts-go "
    "fonts-goudybookletter fonts-inconsolata fonts-junction fonts-jura fonts-league-mono fonts-league-spartan "
    "fonts-lemonada fonts-lindenhill fonts-lobster fonts-lobstertwo fonts-manrope fonts-millimetre fonts-monofur "
    "fonts-monoid fonts-mononoki fonts-national-park fonts-croscore fonts-ocr-b fonts-okolaks fonts-oldstandard "
    "fonts-opendin fonts-opendyslexic fonts-osifont fonts-paratype fonts-play fonts-prociono fonts-quattrocento "
    "fonts-roboto-slab fonts-routed-gothic fonts-sil-andika fonts-sil-charis fonts-sil-gentium fonts-sora fonts-stix "
    "fonts-texgyre fonts-tiresias fonts-tuffy fonts-yanone-kaffeesatz fonts-yrsa-rasa fonts-lmodern fonts-roadgeek "
    "fonts-cardo fonts-elstob fonts-smc-manjari fonts-essays1743"
).split()
MORE_HELD_FONTS = "fonts-b612 fonts-karla fonts-oxygen fonts-vollkorn fonts-sil-gentium-basic".split()
HAND_FONTS = (
    "fonts-dkg-handwriting fonts-breip fonts-dancingscript fonts-ecolier-court fonts-femkeklaver fonts-isabella "
    "fonts-kaushanscript fonts-kristi fonts-rufscript fonts-summersby fonts-tomsontalks fonts-sjfonts fonts-humor-sans"
).split()
# package: pattern of its files; public domain, CC-BY-SA or GPL
PROSE = {
    "jargon-text": "*jargon*", "debian-faq": "*.en.txt*", "debian-reference-en": "*.en.txt*",
    "debian-handbook": "*.html", "developers-reference": "*.html", "maint-guide": "*.en.txt*",
    "doc-debian": "*.txt*", "installation-guide-amd64": "*.html",
    "aptitude-doc-en": "*.html", "anarchism": "*.txt*",
}  # fmt: skip
EXAMPLES = "wordnet-base"  # WordNet 3.0; its licence permits any use that keeps the notice
FREQUENCIES = "python3-zxcvbn"  # lists of words by frequency; MIT
COMMON = 7000  # words that are common
PARAGRAPH = (120, 700)  # characters


def paragraphs_of(text: str) -> list[str]:
    """Paragraphs of plain sentences in a text or an HTML page."""
    if "</p>" in text:
        blocks = [html.unescape(re.sub("<[^>]+>", "", p)) for p in re.findall(r"<p[^>]*>(.*?)</p>", text, re.S)]
    else:
        blocks = re.split(r"\n\s*\n", text)
    out = []
    for block in blocks:
        line = " ".join(block.split()).replace("--", "\u2013")
        words = line.split()
        plain = sum(word.strip(".,;:!?()\"'\u2019").replace("-", "").isalpha() for word in words)
        if (
            PARAGRAPH[0] <= len(line) <= PARAGRAPH[1]
            and plain > 0.93 * len(words)
            and line[-1] in ".!?"
            and line[0].isupper()
        ):
            out.append(line)
    return out


def collect_prose(out: Path, debs: Path) -> int:
    """Write paragraphs of natural English, one a line, of characters that pages can show. Returns how many."""
    allowed, seen = set(CHARACTERS), {}
    for package, pattern in PROSE.items():
        for deb in sorted(debs.glob(f"{package}_*.deb"))[:1]:
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run(["dpkg", "-x", str(deb), folder], check=True)
                for path in sorted(Path(folder).rglob(pattern)):
                    if (
                        not path.is_file()
                        or path.is_symlink()
                        or re.search(r"\.(?!en)[a-z]{2}(-[a-z]{2})?\.html$", path.name)
                    ):
                        continue
                    data = path.read_bytes()
                    data = gzip.decompress(data) if path.suffix == ".gz" else data
                    for line in paragraphs_of(data.decode("utf-8", errors="ignore")):
                        if set(line) <= allowed and " the " in line:
                            seen[line] = None
    out.write_text("\n".join(seen) + "\n", encoding="utf-8")
    return len(seen)


def examples_of(text: str) -> list[str]:
    """The quoted examples in a data file of WordNet that are written as they are said, three words or more.

    Args:
        text: lines of ``wndb(5WN)``: a synset, ``|``, its gloss; the examples stand in quotation marks in the gloss.
    """
    found = []
    for line in text.splitlines():
        synset, bar, gloss = line.partition(" | ")
        if bar and not synset.startswith(" "):  # lines that begin with a space are the licence
            found += re.findall(r'"([^"]+)"', gloss)
    kept = (" ".join(example.split()).rstrip(" .;,") for example in found)
    return [e for e in kept if re.fullmatch(r"[A-Za-z][A-Za-z',; -]*[A-Za-z][!?]?", e) and e.count(" ") > 1]


def collect_examples(out: Path, debs: Path, unwanted: re.Pattern) -> int:
    """Write short sentences and phrases around single words, one a line. Returns how many.

    Args:
        unwanted: matches lower-case words that no example may hold.
    """
    seen: dict[str, None] = {}
    for deb in sorted(debs.glob(f"{EXAMPLES}_*.deb"))[:1]:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg", "-x", str(deb), folder], check=True)
            for path in sorted(Path(folder).rglob("data.*")):
                for example in examples_of(path.read_text(encoding="latin-1")):
                    if not any(unwanted.search(word) for word in re.findall("[a-z]+", example.lower())):
                        seen[example] = None
    out.write_text("\n".join(seen) + "\n", encoding="utf-8")
    return len(seen)


def common_of(text: str, known: set[str]) -> list[str]:
    """The :data:`COMMON` most frequent words, alternately of the lists of films and of an encyclopedia.

    Args:
        text: ``zxcvbn/frequency_lists.py``. A word stands only in the list that it is most frequent in.
        known: lower-case words and contractions to keep; the lists also have names and abbreviations of the web.
    """
    names = ("us_tv_and_film", "english_wikipedia")
    lists = dict(re.findall(r'"(\w+)": "([^"]*)"\.split', text))
    ranked = zip_longest(*(lists[name].split(",") for name in names), fillvalue="")
    return [word for words in ranked for word in words if word in known][:COMMON]


def collect_common(out: Path, debs: Path, known: set[str]) -> int:
    """Write common words, about the most frequent first, one a line. Returns how many."""
    words: list[str] = []
    for deb in sorted(debs.glob(f"{FREQUENCIES}_*.deb"))[:1]:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg", "-x", str(deb), folder], check=True)
            for path in sorted(Path(folder).rglob("frequency_lists.py")):
                words = common_of(path.read_text(encoding="utf-8"), known)
    out.write_text("\n".join(words) + "\n", encoding="ascii")
    return len(words)
