"""Gather what training needs from a Debian machine into one small folder: fonts, words and the speech synthesiser.

``python -m training.assets --out .train-assets`` writes

    fonts/train/*, fonts/held/*   faces reduced to printable ASCII, families disjoint between the two folders
    words.txt                     lower-case English words of 3-11 letters
    espeak/                       libespeak-ng, its two libraries and the English part of its data
    LICENSES.md                   every package taken from, with its licences

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
from pathlib import Path

FONT_ROOT = Path("/usr/share/fonts")
WORD_LIST = Path("/usr/share/dict/american-english")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")

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

# What libespeak-ng imports from libpcaudio. Samples only come through a callback, so a library that has these names and
# opens no device replaces the real one, and with it the sound servers that one links to.
_SILENT_PCAUDIO = """
typedef void audio;
audio *create_audio_device_object(const char *d, const char *a, const char *n) { return 0; }
int audio_object_open(audio *o, int f, unsigned r, unsigned char c) { return 0; }
void audio_object_close(audio *o) {}
void audio_object_destroy(audio *o) {}
int audio_object_write(audio *o, const void *d, unsigned long n) { return 0; }
int audio_object_drain(audio *o) { return 0; }
int audio_object_flush(audio *o) { return 0; }
const char *audio_object_strerror(audio *o, int e) { return ""; }
"""


def collect_fonts(out: Path, fonts: dict[str, tuple[str, str, tuple[str, ...]]]) -> int:
    """Write every face of ``fonts`` into ``out``, reduced to printable ASCII. Returns how many there are."""
    from fontTools import subset  # training/requirements.txt

    logging.getLogger("fontTools").setLevel(logging.ERROR)  # old fonts have odd dates
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for folder, suffix, faces in fonts.values():
        for face in faces:
            options = subset.Options(
                layout_features=["kern", "liga"], name_IDs=[0, 1, 2, 4, 6, 13, 14], notdef_outline=True
            )
            options.drop_tables += ["FFTM", "TTFA"]  # notes of font editors
            font = subset.load_font(str(FONT_ROOT / folder / f"{face}.{suffix}"), options)
            reducer = subset.Subsetter(options)
            reducer.populate(unicodes=range(32, 127))
            reducer.subset(font)
            name = Path(face).name.replace(" ", "")
            subset.save_font(font, str(out / f"{name}.{suffix}"), options)
            count += 1
    return count


def collect_words(out: Path) -> int:
    """Write the lower-case ASCII words of 3-11 letters, one a line. Returns how many there are."""
    words = (line.strip() for line in WORD_LIST.read_text(encoding="utf-8").splitlines())
    kept = [w for w in words if re.fullmatch("[a-z]{3,11}", w) and not _UNWANTED.search(w)]
    out.write_text("\n".join(kept) + "\n", encoding="ascii")
    return len(kept)


def collect_espeak(out: Path) -> None:
    """Copy libespeak-ng with the English part of its data; needs a C compiler for the stand-in of its audio output."""
    data = LIBRARIES / "espeak-ng-data"
    (out / "espeak-ng-data").mkdir(parents=True, exist_ok=True)
    for name in ("en_dict", "intonations", "phondata", "phonindex", "phontab"):
        shutil.copy(data / name, out / "espeak-ng-data" / name)
    languages = out / "espeak-ng-data" / "lang" / "gmw"
    languages.mkdir(parents=True, exist_ok=True)
    for path in sorted((data / "lang" / "gmw").glob("en*")):
        shutil.copy(path, languages / path.name)
    shutil.copytree(data / "voices" / "!v", out / "espeak-ng-data" / "voices" / "!v", dirs_exist_ok=True)
    shutil.copy(LIBRARIES / "libespeak-ng.so.1", out / "libespeak-ng.so")
    shutil.copy(LIBRARIES / "libsonic.so.0", out / "libsonic.so.0")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pcaudio.c"
        source.write_text(_SILENT_PCAUDIO)
        library = str(out / "libpcaudio.so.0")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libpcaudio.so.0", "-o", library, str(source)], check=True
        )


def licences(package: str) -> str:
    """The licence names in a Debian package's copyright file, those of the packaging itself left out."""
    text = Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8", errors="replace")
    names: list[str] = []
    for stanza in re.split(r"\n\s*\n", text):
        files = re.search(r"^Files:\s*(.*)$", stanza, re.M)
        name = re.search(r"^License:[ \t]*(\S.*)$", stanza, re.M)
        if files and name and not files.group(1).startswith(("debian", "./debian")):
            names.append(name.group(1).strip())
    return ", ".join(dict.fromkeys(names)) or FREE_TEXT_LICENCES[package]


def write_licences(out: Path) -> None:
    """``LICENSES.md``: package, what was taken, licences."""
    rows = []
    for split, fonts in (("train", TRAIN_FONTS), ("held", HELD_FONTS)):
        for package, (_, _, faces) in fonts.items():
            names = ", ".join(Path(face).name for face in faces)
            rows.append(f"| {package} | fonts/{split}: {names} | {licences(package)} |")
    rows.append(f"| wamerican | words.txt | {licences('wamerican')} |")
    rows.append(f"| libespeak-ng1, espeak-ng-data | espeak/ | {licences('libespeak-ng1')} |")
    rows.append(f"| libsonic0 | espeak/libsonic.so.0 | {licences('libsonic0')} |")
    head = "# What this folder was made from\n\nFonts are reduced to printable ASCII, otherwise unchanged.\n\n"
    out.write_text(head + "| Debian package | taken | licences |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")


def collect_assets(folder: str | Path) -> dict[str, int]:
    """Gather everything into ``folder`` (about 3 MB).

    Returns:
        Counts: ``train_fonts``, ``held_fonts``, ``words``, ``bytes``.

    Raises:
        FileNotFoundError: a Debian package named in ``LICENSES.md`` is not installed.
    """
    out = Path(folder)
    shutil.rmtree(out / "fonts", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    counts = {
        "train_fonts": collect_fonts(out / "fonts" / "train", TRAIN_FONTS),
        "held_fonts": collect_fonts(out / "fonts" / "held", HELD_FONTS),
        "words": collect_words(out / "words.txt"),
    }
    collect_espeak(out / "espeak")
    write_licences(out / "LICENSES.md")
    counts["bytes"] = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=".train-assets")
    for name, count in collect_assets(parser.parse_args().out).items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
