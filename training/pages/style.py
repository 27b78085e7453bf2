"""Typography of a page: faces, sizes, and how fields and tables are set."""

from __future__ import annotations

from dataclasses import dataclass

from training.pages.canvas import Face, face, random_faces
from training.pages.values import Rng


@dataclass
class Style:
    """Typography of one page."""

    body: Face
    bold: Face
    small: Face
    title: Face
    leading: int
    margin: int
    fields: str
    rule: int
    table: str
    grey: int
    value: Face | None = None  # of values with their label above or below, if not the body's

    @classmethod
    def random(cls, r: Rng, width: int, held: bool) -> Style:
        body_path, bold_path = random_faces(r, held)
        sizes = (11, 12, 13, 14, 15, 16, 18, 20, 23)
        weights = (2, 3, 4, 4, 4, 4, 3, 1, 0.6)
        if width < 400:
            sizes, weights = sizes[:7], weights[:7]
        size = r.choices(sizes, weights)[0]
        return cls(
            body=face(body_path, size),
            bold=face(bold_path, size + r.pick((0, 0, 0, 1))),
            small=face(r.pick((body_path, bold_path)), max(11, size - r.randint(0, 3))),
            title=face(bold_path, size + r.randint(2, 14)),
            leading=r.randint(1, 8),
            margin=r.randint(8, 44) if width >= 400 else r.randint(8, 22),
            fields=r.pick(FIELD_STYLES),
            rule=r.pick((255, 190, 140, 90)),
            table=r.pick(TABLE_STYLES),
            grey=r.pick((255, 255, 200, 160)),
            value=face(r.pick((body_path, bold_path)), size + r.randint(0, 8)) if r.chance(0.3) else None,
        )


FIELD_STYLES = (
    "colon",
    "colon",
    "tab",
    "tab",
    "right",
    "above",
    "above",
    "boxed",
    "grid",
    "dots",
    "ruled",
    "inline",
    "header",
    "strip",
)
TABLE_STYLES = ("plain", "plain", "rule", "rule", "grid", "zebra", "header", "boxed")
