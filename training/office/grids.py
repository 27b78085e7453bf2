"""Tables whose headings have two levels: the same cells with their groups above, at the left or one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from training.office.document import Document, Part

WIDEST = 5  # columns of names that a page has room for
ACROSS, DOWN, BY_NAME, BY_GROUP = "across", "down", "by name", "by group"


@dataclass
class Grid:
    """Cells by name and by leaf, a leaf being a group with what stands under it.

    Attributes:
        names: headings of one side. leaves: (group, heading under it) of the other side, groups one after the other.
        cells: text by (name number, leaf number).
        parts: what a question about a cell rests on, by the same, once it is set.
    """

    names: Sequence[str]
    leaves: Sequence[tuple[str, str]]
    cells: dict[tuple[int, int], str]
    parts: dict[tuple[int, int], tuple[Part, ...]] = field(default_factory=dict)

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(group for group, _ in self.leaves))

    def count(self, group: str) -> int:
        return sum(own == group for own, _ in self.leaves)

    @property
    def everything(self) -> tuple[Part, ...]:
        """Parts of the whole table."""
        return tuple(sorted({part for parts in self.parts.values() for part in parts}))

    def layouts(self) -> list[str]:
        """Ways of setting it that suit its size: with groups across the columns, down the rows, or one below the other
        under every name or every group.
        """
        groups, under = self.groups, [name for _, name in self.leaves]
        share = len(under) // len(groups)
        regular = under == under[:share] * len(groups) and share > 1
        found = [ACROSS] if len(under) <= 9 else []
        found += [DOWN] if len(self.names) <= WIDEST and all(under) else []
        found += [BY_NAME, BY_GROUP] if regular and len(self.names) * len(groups) <= 18 else []
        return found or [ACROSS]

    def set(
        self, d: Document, layout: str, corner: str = "", numbers: bool = True, heads: tuple[str, str] = ("", ""),
        units: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Sets the table and fills :attr:`parts`.

        Args:
            layout: one of :meth:`layouts`.
            corner: heading of the names. heads: of the groups and of what stands under them, where they have columns.
            numbers: whether cells stand at the right.
            units: a row of them under the headings, one a leaf; only of layout "across".
        """
        names, leaves, groups = range(len(self.names)), range(len(self.leaves)), self.groups
        under = [name for _, name in self.leaves]
        if layout == ACROSS:
            rows = [[self.names[n], *(self.cells[n, i] for i in leaves)] for n in names]
            spans, head = [self.count(group) for group in groups], [corner, *under]
            above = [["", *units]] if units else []
            parts = d.table(head, above + rows, len(leaves) if numbers else 0, groups, spans=spans)
            start = len(above)
            self.parts = {(n, i): (*parts[:start], parts[start + n]) for n in names for i in leaves}
            return
        if layout == DOWN:
            rows = [[self._new(i), under[i], *(self.cells[n, i] for n in names)] for i in leaves]
            parts = d.table([*heads, *self.names], rows, len(names) if numbers else 0, merged=True)
            self.parts = {
                (n, i): tuple(parts[k] for k in leaves if self.leaves[k][0] == self.leaves[i][0])
                for n in names
                for i in leaves
            }
            return
        share = len(leaves) // len(groups)
        outer, inner = (len(names), len(groups)) if layout == BY_NAME else (len(groups), len(names))
        rows, places = [], {}
        for o in range(outer):
            for k in range(inner):
                n, g = (o, k) if layout == BY_NAME else (k, o)
                leads = (self.names[n], groups[g]) if layout == BY_NAME else (groups[g], self.names[n])
                places[n, g] = o
                cells = (self.cells[n, g * share + s] for s in range(share))
                rows.append([leads[0] if k == 0 else "", leads[1], *cells])
        lead = [corner, heads[0]] if layout == BY_NAME else [heads[0], corner]
        parts = d.table([*lead, *under[:share]], rows, share if numbers else 0, merged=True)
        for n, i in ((n, i) for n in names for i in leaves):
            first = places[n, i // share] * inner
            self.parts[n, i] = tuple(parts[first : first + inner])

    def _new(self, leaf: int) -> str:
        """The group of a leaf where it is its first, else nothing."""
        group = self.leaves[leaf][0]
        return group if leaf == 0 or self.leaves[leaf - 1][0] != group else ""
