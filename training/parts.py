"""A folder cut into files small enough to carry, and put together again.

    python -m training.parts split .base --out carry --compress     # carry/base.00, base.01, ..., base.json
    python -m training.parts join base carry --out .base            # more folders if the parts came in several

The manifest (`base.json`) has every part's size and SHA-256, so a part that is missing or damaged is named.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

PART_BYTES = 15 * 2**20


def split_folder(folder: Path, out: Path, name: str, part_bytes: int = PART_BYTES, compress: bool = False) -> Path:
    """Writes the files of `folder` as parts `out/name.00`, `name.01`, ... and returns the manifest.

    Args:
        part_bytes: of every part but the last. compress: with xz, which takes long and spares a quarter of 4-bit
            weights and half of fonts.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz" if compress else "w") as archive:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.add(file, str(file.relative_to(folder)))
    data = buffer.getbuffer()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{name}.[0-9][0-9]"):
        old.unlink()
    parts = []
    for number, start in enumerate(range(0, len(data), part_bytes)):
        part = data[start : start + part_bytes]
        (out / f"{name}.{number:02d}").write_bytes(part)
        parts.append({
            "file": f"{name}.{number:02d}", "bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()
        })  # fmt: skip
    manifest = out / f"{name}.json"
    manifest.write_text(json.dumps({"parts": parts}, indent=1) + "\n", encoding="utf-8")
    return manifest


def join_parts(name: str, folders: Sequence[Path], out: Path) -> None:
    """Puts the folder together again whose parts lie in any of `folders`; replaces `out`.

    Raises:
        ValueError: the manifest or a part is missing, or a part is not what was written.
    """
    find = lambda file: next((f / file for f in folders if (f / file).is_file()), None)  # noqa: E731
    manifest = find(f"{name}.json")
    if manifest is None:
        raise ValueError(f"{name}.json is not in {', '.join(map(str, folders))}: name the folder that holds it")
    pieces = []
    for part in json.loads(manifest.read_text(encoding="utf-8"))["parts"]:
        file = find(part["file"])
        if file is None:
            raise ValueError(f"{part['file']} is not in {', '.join(map(str, folders))}: carry it along as well")
        pieces.append(file.read_bytes())
        if hashlib.sha256(pieces[-1]).hexdigest() != part["sha256"]:
            raise ValueError(f"{file} is damaged or of another run: copy it again")
    fresh = out.with_name(out.name + ".tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces)), mode="r:*") as archive:
        archive.extractall(fresh, filter="data")
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.parts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    split = commands.add_parser("split", help="cut a folder into parts")
    split.add_argument("folder", type=Path)
    split.add_argument("--out", type=Path, required=True)
    split.add_argument("--name", help="of the parts (default: the folder's, without its dot)")
    split.add_argument("--compress", action="store_true", help="with xz")
    join = commands.add_parser("join", help="put a folder together")
    join.add_argument("name")
    join.add_argument("folders", type=Path, nargs="+")
    join.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "join":
        try:
            join_parts(args.name, args.folders, args.out)
        except ValueError as error:
            sys.exit(str(error))
        return
    if not args.folder.is_dir():
        sys.exit(f"{args.folder} is no folder")
    manifest = split_folder(args.folder, args.out, args.name or args.folder.name.lstrip("."), compress=args.compress)
    parts = json.loads(manifest.read_text(encoding="utf-8"))["parts"]
    print(f"{manifest}: {len(parts)} parts, {sum(part['bytes'] for part in parts) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
