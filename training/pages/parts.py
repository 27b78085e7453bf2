"""Parts that several kinds of documents have: labelled entries, titles, letterheads and parties."""

from __future__ import annotations

from training.pages import values as v
from training.pages.blocks import Box, Setter
from training.pages.facts import Fact
from training.pages.fields import field_entries

Entry = tuple[str, str, Fact | None]


def labelled(key: str, label: str, value: str) -> Entry:
    return label, value, Fact(key, value, label)


def party(s: Setter, box: Box, heading: str | None, name: str, key: str) -> None:
    """A name with an address below, optionally under a small heading such as "Bill to"."""
    r = s.r
    entries: list[tuple[str, Fact | None]] = [(heading, None)] if heading else []
    entries.append((name, Fact(key, name, heading or "")))
    street, town = v.street(r), v.town(r)
    if r.chance(0.8):
        entries.append((street, Fact(f"{key}_street", street)))
        entries.append((town, None))
    if r.chance(0.3):
        phone = v.phone(r)
        entries.append((r.pick(("", "Tel ", "Phone: ", "Tel. ", "T ")) + phone, Fact("phone", phone)))
    if r.chance(0.25):
        email = v.email(r)
        entries.append((email, Fact("email", email)))
    s.lines(box, entries, small=r.chance(0.4))
    s.gap(box)


def page_title(s: Setter, box: Box, *options: str) -> None:
    text = s.r.pick(options)
    if s.r.chance(0.15):
        text = text.upper()
    s.heading(box, text, [Fact("title", text)])


def letterhead(s: Setter, box: Box) -> None:
    """A company on top and a customer's address, neither of them labelled."""
    r = s.r
    if r.chance(0.7):
        company = v.company(r)
        s.heading(box, company, [Fact("issuer", company)])
    if r.chance(0.6):
        customer = v.person(r)
        extra = [(a, b, Fact("field", b, a)) for a, b in field_entries(r, r.randint(0, 2), 0)]
        if r.chance(0.5):
            s.columns(box, lambda b: party(s, b, None, customer, "customer"), lambda b: s.fields(b, extra))
        else:
            party(s, box, r.pick((None, None, "To", "Customer")), customer, "customer")
            s.fields(box, extra)
