"""The speech synthesisers of the training assets, from Debian packages, without what plays their sound."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
FLITE = "libflite1"
FLITE_VOICES = ("slt", "awb", "rms", "kal16")

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

# What libflite imports from ALSA, with the version of its symbols, for the same reason.
_SILENT_ALSA = (
    "config_update_free_global pcm_close pcm_drain pcm_drop pcm_hw_params pcm_hw_params_any pcm_hw_params_set_access "
    "pcm_hw_params_set_channels pcm_hw_params_set_format pcm_hw_params_set_rate pcm_hw_params_sizeof pcm_open "
    "pcm_prepare pcm_resume pcm_set_params pcm_state pcm_wait pcm_writei strerror"
).split()


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


def collect_flite(out: Path, debs: Path) -> int:
    """Unpack libflite, its English and its voices; needs a C compiler for the stand-in of ALSA.

    Returns:
        How many voices, 0 where ``debs`` has no package.
    """
    for deb in sorted(debs.glob(f"{FLITE}_*.deb"))[:1]:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg", "-x", str(deb), folder], check=True)
            for name in ("flite", "flite_usenglish", "flite_cmulex", *(f"flite_cmu_us_{v}" for v in FLITE_VOICES)):
                shutil.copy(Path(folder) / LIBRARIES.relative_to("/") / f"lib{name}.so.1", out / f"lib{name}.so.1")
            source, versions = Path(folder) / "alsa.c", Path(folder) / "alsa.map"
            source.write_text("\n".join(f"int snd_{name}() {{ return -1; }}" for name in _SILENT_ALSA))
            versions.write_text("ALSA_0.9 { global: snd_*; local: *; };")
            options = f"-shared -fPIC -O1 -Wl,-soname,libasound.so.2 -Wl,--version-script={versions}".split()
            subprocess.run(["cc", *options, "-o", str(out / "libasound.so.2"), str(source)], check=True)
        return len(FLITE_VOICES)
    return 0
