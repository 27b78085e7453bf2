"""Gather what training needs from a Debian machine into one small folder: fonts, words and the speech synthesiser.

``python -m training.assets --out .train-assets`` writes

    fonts/train/*, fonts/held/*   faces reduced to what pages are written in, families disjoint between the two folders
    fonts/hand/*                  faces that look written by hand, for the entries of forms
    fonts/latin.txt               faces that hold every character of ``training.pages.canvas.CHARACTERS``
    prose.txt                     English prose, a paragraph a line
    examples.txt                  short English sentences and phrases, one a line
    common.txt                    words of these in lower case, the most frequent first
    words.txt                     lower-case English words of 3-11 letters
    names/*.txt                   names of people and towns, professions; where the package Faker is installed
    espeak/                       libespeak-ng, its two libraries and the English part of its data
    flite/                        libflite, its English and four voices made from recordings
    LICENSES.md                   every package taken from, with its licences

Packages that are not installed are taken from ``--debs``, a folder of downloaded packages (``--packages``
names them all: ``apt-get download $(python -m training.assets --packages)``), without installing anything.

The folder can be carried to a machine that has none of these packages. Training reads it from the environment variable
``KVMM_TRAIN_ASSETS`` (default ``./.train-assets``); nothing of it ships with kvmm.
"""

from __future__ import annotations

import argparse
import codecs
import logging
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from PIL import ImageFont

from training.asset_names import available, collect_names
from training.asset_packages import (
    EXAMPLES,
    FREQUENCIES,
    HAND_FONTS,
    MORE_FONTS,
    MORE_HELD_FONTS,
    PROSE,
    collect_common,
    collect_examples,
    collect_prose,
)
from training.asset_speech import FLITE, collect_espeak, collect_flite
from training.pages.canvas import CHARACTERS

FONT_ROOT = "usr/share/fonts"
WORD_LIST = "usr/share/dict/american-english"
FACES = 7  # taken of one further package

# package: (folder below FONT_ROOT, suffix, faces)
TRAIN_FONTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "fonts-dejavu-core": (
        "truetype/dejavu",
        "ttf",
        ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold"),
    ),
    "fonts-dejavu-extra": (
        "truetype/dejavu",
        "ttf",
        ("DejaVuSans-Oblique", "DejaVuSansCondensed", "DejaVuSansCondensed-Bold", "DejaVuSerifCondensed"),
    ),
    "fonts-liberation": (
        "truetype/liberation",
        "ttf",
        (
            *(f"LiberationSans-{face}" for face in ("Regular", "Bold", "Italic", "BoldItalic")),
            *(f"LiberationSerif-{face}" for face in ("Regular", "Bold", "Italic")),
            *(f"LiberationMono-{face}" for face in ("Regular", "Bold")),
            *(f"LiberationSansNarrow-{face}" for face in ("Regular", "Bold")),
        ),
    ),
    "fonts-lato": (
        "truetype/lato",
        "ttf",
        tuple(f"Lato-{f}" for f in ("Regular", "Medium", "Bold", "Light", "Italic")),
    ),
    "fonts-noto-core": (
        "truetype/noto",
        "ttf",
        (
            *(f"NotoSans-{face}" for face in ("Regular", "Bold", "Italic")),
            *(f"NotoSerif-{face}" for face in ("Regular", "Bold", "Italic")),
            "NotoSansDisplay-Regular",
        ),
    ),
    "fonts-open-sans": (
        "truetype/open-sans",
        "ttf",
        tuple(f"OpenSans-{f}" for f in ("Regular", "Light", "Semibold", "Italic", "CondLight", "CondBold")),
    ),
    "fonts-crosextra-carlito": (
        "truetype/crosextra",
        "ttf",
        tuple(f"Carlito-{face}" for face in ("Regular", "Bold", "Italic")),
    ),
    "fonts-crosextra-caladea": (
        "truetype/crosextra",
        "ttf",
        tuple(f"Caladea-{face}" for face in ("Regular", "Bold", "Italic")),
    ),
    "fonts-inter": (
        "opentype/inter",
        "otf",
        ("Inter-Regular", "Inter-Medium", "Inter-Bold", "Inter-Light", "Inter-Italic", "InterDisplay-SemiBold"),
    ),
    "fonts-cantarell": ("opentype/cantarell", "otf", ("Cantarell-Regular", "Cantarell-Bold", "Cantarell-Light")),
    "fonts-freefont-ttf": (
        "truetype/freefont",
        "ttf",
        ("FreeSans", "FreeSansBold", "FreeSerif", "FreeSerifBold", "FreeSerifItalic", "FreeMono", "FreeMonoBold"),
    ),
    "fonts-hack": ("truetype/hack", "ttf", ("Hack-Regular", "Hack-Bold")),
    "fonts-firacode": ("truetype/firacode", "ttf", ("FiraCode-Regular", "FiraCode-Light", "FiraCode-SemiBold")),
    "fonts-linuxlibertine": (
        "opentype/linux-libertine",
        "otf",
        ("LinLibertine_R", "LinLibertine_RB", "LinLibertine_RI", "LinBiolinum_R", "LinBiolinum_RB"),
    ),
    "fonts-comic-neue": ("opentype/comic-neue", "otf", ("ComicNeue-Regular", "ComicNeue-Bold")),
    "fonts-ebgaramond": (
        "opentype/ebgaramond",
        "otf",
        ("EBGaramond12-Regular", "EBGaramond12-Bold", "EBGaramond12-Italic"),
    ),
    "fonts-courier-prime": ("opentype/courier-prime", "otf", ("Courier Prime", "Courier Prime Bold")),
    "fonts-quicksand": ("truetype/quicksand", "ttf", ("Quicksand-Regular", "Quicksand-Medium", "Quicksand-Bold")),
    "fonts-urw-base35": (
        "opentype/urw-base35",
        "otf",
        (
            *(f"NimbusSans-{face}" for face in ("Regular", "Bold")),
            *(f"NimbusRoman-{face}" for face in ("Regular", "Bold")),
            *(f"NimbusMonoPS-{face}" for face in ("Regular", "Bold")),
            "NimbusSansNarrow-Regular",
            *(f"C059-{face}" for face in ("Roman", "Bold")),
            *(f"P052-{face}" for face in ("Roman", "Bold")),
            *(f"URWBookman-{face}" for face in ("Light", "Demi")),
        ),
    ),
}
HELD_FONTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "fonts-roboto-unhinted": (
        "truetype/roboto/unhinted",
        "ttf",
        (
            *(f"RobotoTTF/Roboto-{face}" for face in ("Regular", "Medium", "Bold", "Light", "Italic")),
            "RobotoCondensed-Regular",
            "RobotoCondensed-Bold",
        ),
    ),
    "fonts-junicode": (
        "opentype/junicode",
        "otf",
        ("JunicodeTwoBeta-Regular", "JunicodeTwoBeta-Bold", "JunicodeTwoBeta-Italic"),
    ),
    "fonts-gfs-didot": ("opentype/didot", "otf", ("GFSDidot", "GFSDidotBold")),
    "fonts-urw-base35": ("opentype/urw-base35", "otf", ("URWGothic-Book", "URWGothic-Demi")),
    "fonts-jetbrains-mono": ("truetype/jetbrains-mono", "ttf", ("JetBrainsMono-Regular", "JetBrainsMono-Bold")),
}

# Licences of the packages whose copyright file is free text.
FREE_TEXT_LICENCES = {
    "fonts-liberation": "GPL-2 with font exceptions (Liberation Fonts licence)",
    "fonts-gfs-didot": "OFL-1.1",
    "wamerican": "SCOWL: public domain sources and a permissive notice",
    "libespeak-ng1": "GPL-3+",
    "libsonic0": "Apache-2.0",
    "libflite1": "CMU Flite licence (permissive, keeps its notice)",
}

# The word list of the package holds slurs and vulgar words; stems, in ROT13.
_UNWANTED = re.compile(
    codecs.decode(
        "avtt|snttb|snttvat|snttl|(^|onf)gneqf?$|ovgpu|phag|shpx|fuvg|juber|fyhg|xvxr|fcvpf?$|puvax|jbt|obyybpx"
        "|encr|encvfg|cbea|anmv|qlxr|gvgf?$|nff(ubyr)?f?$|qvyqb|crqbcu|zbybgfgre|ergneq|pbpxf?$|cvff|jnax|ohttre|fcrez|intvan"
        "|cravf|nahf|pebgpu|zbyrfg|oybjwbo|ubzbf?$",
        "rot13",
    )
)


def reduce_font(source: Path, out: Path) -> bool:
    """Write a face reduced to the characters of pages; returns whether it has all of them.

    Raises:
        ValueError: it lacks printable ASCII, or fontTools cannot read it.
    """
    from fontTools import subset  # training/requirements.txt
    from fontTools.ttLib import TTLibError

    options = subset.Options(layout_features=["kern", "liga"], name_IDs=[0, 1, 2, 4, 6, 13, 14], notdef_outline=True)
    options.drop_tables += ["FFTM", "TTFA"]  # notes of font editors
    try:
        font = subset.load_font(str(source), options)
        known = set(font.getBestCmap() or ())
        if not known >= set(range(32, 127)):
            raise ValueError(f"{source.name} lacks printable ASCII")
        reducer = subset.Subsetter(options)
        reducer.populate(unicodes=map(ord, CHARACTERS))
        reducer.subset(font)
        subset.save_font(font, str(out), options)
    except (TTLibError, subset.Subsetter.SubsettingError, KeyError, AssertionError, AttributeError) as error:
        raise ValueError(f"{source.name} cannot be reduced: {error}") from error
    return known >= set(map(ord, CHARACTERS)) - {0xAD}


def has_lower_case(file: Path) -> bool:
    """Whether a face draws small letters of their own: a page in capitals could not be transcribed."""
    font = ImageFont.truetype(str(file), 40)
    capital, small = (-font.getbbox(c, anchor="ls")[1] for c in "Xx")
    return small < 0.93 * capital and bytes(font.getmask("e")) != bytes(font.getmask("E"))


def collect_fonts(out: Path, fonts: dict[str, tuple[str, str, tuple[str, ...]]], root: Path) -> list[str]:
    """Write every face of ``fonts`` into ``out``. Returns the names of those that hold all characters of pages."""
    out.mkdir(parents=True, exist_ok=True)
    complete = []
    for folder, suffix, faces in fonts.values():
        for face in faces:
            name = f"{Path(face).name.replace(' ', '')}.{suffix}"
            if reduce_font(root / FONT_ROOT / folder / f"{face}.{suffix}", out / name):
                complete.append(name)
    return complete


def collect_families(
    out: Path, packages: Iterable[str], debs: Path, ascii_suffices: bool = False
) -> tuple[list[str], list[str]]:
    """Up to ``FACES`` faces of each package in ``debs`` that hold all characters of pages.

    Args:
        ascii_suffices: also keep faces without accents, as most handwriting is.

    Returns:
        The names of the faces that hold all characters, and the rows of ``LICENSES.md``.
    """
    out.mkdir(parents=True, exist_ok=True)
    names, rows = [], []
    for package in packages:
        for deb in sorted(debs.glob(f"{package}_*.deb"))[:1]:
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run(["dpkg", "-x", str(deb), folder], check=True)
                taken = []
                for path in sorted(Path(folder).rglob("*.[to]tf"), key=lambda p: (len(p.stem), p.stem)):
                    name = path.name.replace(" ", "")
                    if path.is_symlink() or len(taken) == FACES or (out / name).exists():
                        continue
                    try:
                        complete = reduce_font(path, out / name)
                        kept = (complete or ascii_suffices) and has_lower_case(out / name)
                    except (ValueError, OSError):
                        complete = kept = False
                    if kept:
                        taken.append(name)
                        names += [name] if complete else []
                    else:
                        (out / name).unlink(missing_ok=True)
                rows.append(f"| {package} | fonts/{out.name}: {', '.join(taken)} | {licences(package, Path(folder))} |")
    return names, rows


def collect_words(out: Path, root: Path) -> int:
    """Write the lower-case ASCII words of 3-11 letters, one a line. Returns how many there are."""
    words = (line.strip() for line in (root / WORD_LIST).read_text(encoding="utf-8").splitlines())
    kept = [w for w in words if re.fullmatch("[a-z]{3,11}", w) and not _UNWANTED.search(w)]
    out.write_text("\n".join(kept) + "\n", encoding="ascii")
    return len(kept)


def licences(package: str, root: Path) -> str:
    """The licence names in a Debian package's copyright file, those of the packaging itself left out."""
    file = root / f"usr/share/doc/{package}/copyright"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    names: list[str] = []
    for stanza in re.split(r"\n\s*\n", text):
        files = re.search(r"^Files:\s*(.*)$", stanza, re.M)
        name = re.search(r"^License:[ \t]*(\S.*)$", stanza, re.M)
        if files and name and not files.group(1).startswith(("debian", "./debian")):
            names.append(name.group(1).strip())
    return ", ".join(dict.fromkeys(names)) or FREE_TEXT_LICENCES.get(package, "see the package")


def write_licences(out: Path, rows: list[str], root: Path) -> None:
    """``LICENSES.md``: package, what was taken, licences; ``rows`` are those of further packages."""
    for split, fonts in (("train", TRAIN_FONTS), ("held", HELD_FONTS)):
        for package, (_, _, faces) in fonts.items():
            names = ", ".join(Path(face).name for face in faces)
            rows.append(f"| {package} | fonts/{split}: {names} | {licences(package, root)} |")
    rows.append(f"| wamerican | words.txt | {licences('wamerican', root)} |")
    rows.append(f"| libespeak-ng1, espeak-ng-data | espeak/ | {licences('libespeak-ng1', Path('/'))} |")
    rows.append(f"| libsonic0 | espeak/libsonic.so.0 | {licences('libsonic0', Path('/'))} |")
    head = "# What this folder was made from\n\nFonts are reduced to the characters of pages, otherwise unchanged.\n\n"
    out.write_text(head + "| Package | taken | licences |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")


def unpack(debs: Path, packages: Iterable[str], folder: Path) -> None:
    """Unpack downloaded packages below ``folder``."""
    for package in packages:
        for deb in sorted(debs.glob(f"{package}_*.deb"))[:1]:
            subprocess.run(["dpkg", "-x", str(deb), str(folder)], check=True)


def collect_assets(folder: str | Path, debs: Path | None = None) -> dict[str, int]:
    """Gather everything into ``folder`` (about 45 MB, 3 MB without ``debs``).

    Args:
        folder: made if needed.
        debs: downloaded packages, for what is not installed and for the families of ``training.asset_packages``.

    Returns:
        Counts: ``train_fonts``, ``held_fonts``, ``hand_fonts``, ``words``, ``names``, ``paragraphs``,
        ``examples``, ``common``, ``voices``, ``bytes``.

    Raises:
        FileNotFoundError: a Debian package named in ``LICENSES.md`` is neither installed nor in ``debs``.
    """
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # old fonts have odd dates
    out, rows = Path(folder), []
    shutil.rmtree(out / "fonts", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        root = Path("/")
        if debs is not None:
            root = Path(unpacked)
            unpack(debs, (*TRAIN_FONTS, *HELD_FONTS, "wamerican", EXAMPLES, FREQUENCIES, FLITE), root)
            rows.append(f"| {EXAMPLES} | examples.txt | {licences(EXAMPLES, root)} |")
            rows.append(f"| {FREQUENCIES} | common.txt | {licences(FREQUENCIES, root)} |")
            rows.append(f"| {FLITE} | flite/ | {licences(FLITE, root)} |")
        complete = collect_fonts(out / "fonts" / "train", TRAIN_FONTS, root)
        complete += collect_fonts(out / "fonts" / "held", HELD_FONTS, root)
        if debs is not None:
            for split, packages in (("train", MORE_FONTS), ("held", MORE_HELD_FONTS), ("hand", HAND_FONTS)):
                names, more = collect_families(out / "fonts" / split, packages, debs, split == "hand")
                complete += names
                rows += more
        (out / "fonts" / "latin.txt").write_text("\n".join(sorted(set(complete))) + "\n", encoding="utf-8")
        words = collect_words(out / "words.txt", root)
        listed = 0
        if available():
            listed = collect_names(out / "names", _UNWANTED)
            rows.append("| Faker (PyPI) | names/ | MIT |")
        write_licences(out / "LICENSES.md", rows, root)
    counts = {f"{s}_fonts": len(list((out / "fonts" / s).glob("*.?tf"))) for s in ("train", "held", "hand")}
    counts |= {"words": words, "names": listed, "paragraphs": 0, "examples": 0, "common": 0, "voices": 0}
    if debs is not None:
        counts["paragraphs"] = collect_prose(out / "prose.txt", debs)
        counts["examples"] = collect_examples(out / "examples.txt", debs, _UNWANTED)
        said = re.findall("[a-z]+(?:'[a-z]+)?", (out / "examples.txt").read_text(encoding="utf-8").lower())
        counts["common"] = collect_common(out / "common.txt", debs, set(said))
        counts["voices"] = collect_flite(out / "flite", debs)
    collect_espeak(out / "espeak")
    counts["bytes"] = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=".train-assets")
    parser.add_argument("--debs", type=Path, help="folder of downloaded packages, instead of installed ones")
    parser.add_argument("--packages", action="store_true", help="print the names of all packages, to be downloaded")
    args = parser.parse_args()
    if args.packages:
        print(
            *TRAIN_FONTS,
            *HELD_FONTS,
            *MORE_FONTS,
            *MORE_HELD_FONTS,
            *HAND_FONTS,
            "wamerican",
            *PROSE,
            EXAMPLES,
            FREQUENCIES,
            FLITE,
        )
        return
    for name, count in collect_assets(args.out, args.debs).items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
