"""Names of people, towns and professions of many countries, from the lists of the package Faker (MIT).

Common English names alone teach a model to know them, not to see what a name is.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from training.pages.canvas import CHARACTERS

PACKAGE = "faker"
# written in Latin letters; of each, what the characters of pages can show
LOCALES = (
    "cs_CZ da_DK de_AT de_CH de_DE en en_AU en_CA en_GB en_IE en_IN en_KE en_NG en_NZ en_PH en_PK en_US es_AR es_CL "
    "es_CO es_ES es_MX et_EE fi_FI fr_BE fr_CA fr_CH fr_FR ga_IE ha_NG hr_HR hu_HU id_ID ig_NG it_IT lv_LV nl_BE nl_NL "
    "no_NO pl_PL pt_BR pt_PT ro_RO sk_SK sl_SI sv_SE sw tr_TR vi_VN yo_NG zu_ZA"
).split()
KINDS = {
    "first_names": ("person", ("first_names", "first_names_male", "first_names_female", "first_names_nonbinary")),
    "last_names": ("person", ("last_names", "last_names_male", "last_names_female")),
    "towns": ("address", ("cities", "city_names")),
}
LETTERS = 2, 13  # that a name may have
JOB_LETTERS = 24
_NAME = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")


def available() -> bool:
    """Whether the package is installed."""
    return find_spec(PACKAGE) is not None


def collect_names(out: Path, unwanted: re.Pattern) -> int:
    """Write ``first_names.txt``, ``last_names.txt``, ``towns.txt`` and ``jobs.txt``, a name a line.

    Args:
        out: folder, made if needed.
        unwanted: what no name may hold.

    Returns:
        how many names there are.
    """
    out.mkdir(parents=True, exist_ok=True)
    shown, count = set(CHARACTERS), 0
    for kind, (provider, attributes) in KINDS.items():
        found = set()
        for locale in LOCALES:
            found |= {name for name in _listed(provider, locale, attributes) if _fits(name) and set(name) <= shown}
        count += _write(out / f"{kind}.txt", found, unwanted)
    jobs = importlib.import_module(f"{PACKAGE}.providers.job").Provider.jobs
    plain = {job for job in jobs if re.fullmatch("[A-Z][a-z]+(?: [a-z]+)*", job) and len(job) <= JOB_LETTERS}
    return count + _write(out / "jobs.txt", plain, unwanted)


def _listed(provider: str, locale: str, attributes: Iterable[str]) -> Iterable[str]:
    try:
        module = importlib.import_module(f"{PACKAGE}.providers.{provider}.{locale}")
    except ImportError:
        return
    for attribute in attributes:
        names = getattr(module.Provider, attribute, ())
        yield from names if isinstance(names, (tuple, list, dict)) else ()


def _fits(name: object) -> bool:
    return (
        isinstance(name, str)
        and LETTERS[0] <= len(name) <= LETTERS[1]
        and _NAME.fullmatch(name) is not None
        and name[0].isupper()
        and not name.isupper()
    )


def _write(path: Path, names: Iterable[str], unwanted: re.Pattern) -> int:
    kept = sorted(name for name in names if not unwanted.search(name.lower()))
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return len(kept)
