"""What to ask about a document: facts with the pages that state them, facts that no page states, transcriptions."""

from __future__ import annotations

from training import wordings
from training.pages import Fact, Page, Rng
from training.pages import values as v
from training.pages.fields import FIELDS
from training.sequences import ANSWER, TRANSCRIPT

ABSENT_SHARE = 0.075  # questions without an answer for each with one: more of them teach to refuse whenever in doubt


def absent_facts(r: Rng, pages: list[Page], n: int) -> list[Fact]:
    """Facts that none of the pages states, plausible enough to be asked for; their value is the fixed answer."""
    if any(page.absent is not None for page in pages):  # what general facts such a page states is not known
        own = [fact for page in pages for fact in page.absent or ()] if len(pages) == 1 else []
        return r.sample(own, min(n, len(own)))
    text = "\n".join(line for page in pages for line in page.lines).lower()
    tokens = set("".join(c if c.isalnum() else " " for c in text).split())
    tokens |= {word for page in pages for fact in page.facts if fact.key == "entry" for word in fact.label.split()}
    keys = {fact.key for page in pages for fact in page.facts}
    kinds = {page.kind for page in pages}
    found: list[Fact] = []
    for _ in range(6 * n):
        if len(found) == n:
            break
        style = r.random()
        if style < 0.4:
            key = r.pick(ABSENT_KEYS)
            rivals = next((rivals for names, rivals in RIVALS if key in names), ())
            nouns = {word for noun in wordings.WORDINGS[key].nouns for word in noun.lower().split()} - COMMON_WORDS
            if key in keys or keys & set(rivals) or nouns & tokens or (key in MONEY_KEYS and "text" in kinds):
                continue
            found.append(Fact(key, wordings.NOT_STATED))
        elif style < 0.65:
            labels = r.pick(FIELDS)[0]
            if any(set(label.lower().replace("-", " ").split()) & tokens for label in labels):
                continue
            found.append(Fact("field", wordings.NOT_STATED, r.pick(labels)))
        elif style < 0.8 and "item_amount" in keys:
            name = v.item(r)
            if set(name.lower().split()) & tokens:
                continue
            key = r.pick([k for k in ("item_amount", "item_quantity", "item_price") if k in keys])
            found.append(Fact(key, wordings.NOT_STATED, subject=name))
        elif "cell" in keys:
            cell = r.pick([fact for page in pages for fact in page.facts if fact.key == "cell"])
            row = r.pick((v.city, v.first_name, v.name_word, v.country, lambda r: r.pick(v.PRODUCTS)))(r)
            if set(row.lower().split()) & tokens:
                continue
            found.append(Fact("cell", wordings.NOT_STATED, cell.label, row))
    return found


# facts a page may lack; rivals are facts whose presence would make "it does not say" wrong or debatable
ABSENT_KEYS = (
    "total subtotal tax shipping discount invoice_number receipt_number order_number customer_number date "
    "due_date terms customer store time cashier table_number contact phone email website meeting_date "
    "meeting_place meeting_time reference train_time office project rent password interview deadline "
    "speaker budget hotel flight delivery_date contract salary dinner recipient sender subject change "
    "guest_count box_count warranty deposit start_date winner venue host weight fee degree university manager "
    "valid_until made_in"
).split()
_DATES = "date due_date meeting_date interview deadline delivery_date sign_date start_date valid_until period".split()
_TIMES = ("time", "meeting_time", "train_time", "dinner", "sign_time")
RIVALS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("date",), _DATES),
    (("due_date",), ("due_date", "deadline")),
    (("deadline",), ("deadline", "due_date")),
    (("delivery_date",), ("delivery_date", "sign_date")),
    (("meeting_date", "interview"), ("meeting_date", "interview", "sign_date")),
    (("time", "meeting_time", "train_time", "dinner"), _TIMES),
    (("customer", "recipient"), ("customer", "recipient", "guest_count")),
    (("store", "sender"), ("store", "sender", "issuer")),
    (("contact",), ("contact", "sender", "issuer", "replacement", "store", "manager", "host")),
    (
        ("total", "subtotal"),
        ("total", "subtotal", "item_amount", "payment", "rent", "sign_price", "budget", "salary", "fee", "deposit"),
    ),
    (("fee", "deposit"), ("fee", "deposit", "total", "payment", "shipping", "rent", "sign_price")),
    (("weight",), ("weight", "item_quantity")),
    (("host", "speaker", "manager"), ("host", "speaker", "manager", "sign_guest", "entry")),
    (("degree", "university"), ("degree", "university", "entry")),
    (("venue",), ("venue", "meeting_place", "sign_city", "office", "hotel", "entry", "address", "room", "title")),
    (("start_date", "valid_until"), ("start_date", "valid_until", "date", "deadline", "due_date", "entry")),
    (("warranty",), ("warranty", "notice", "work_time")),
    (("discount",), ("discount", "discount_offer")),
    (("change",), ("change",)),
    (("reference",), ("reference", "invoice_number", "order_number", "customer_number", "receipt_number", "contract")),
    (("invoice_number", "receipt_number", "order_number", "customer_number", "contract"), ("reference", "contract")),
    (("store",), ("title", "sign_city", "venue")),
    (("office", "meeting_place", "hotel"), ("office", "meeting_place", "sign_city", "hotel", "venue", "address")),
    (("subject",), ("subject", "title")),
    (("box_count", "guest_count"), ("box_count", "guest_count", "item_quantity")),
    (("email", "website"), ("email", "website")),
)
MONEY_KEYS = ("total", "subtotal", "tax", "shipping", "discount", "change", "rent", "budget", "salary")
COMMON_WORDS = {
    "of",
    "the",
    "to",
    "a",
    "number",
    "name",
    "date",
    "amount",
    "before",
    "for",
    "new",
    "no",
    "id",
    "day",
    "last",
    "code",
    "price",
    "cost",
}
# facts every page has: in a document they need the page's number
LOCAL_KEYS = frozenset(
    (
        "title kind first_line last_line numbered_line line_start next_word first_item last_item item_count "
        "row_count first_row last_row dearest_item asked"
    ).split()
)


def document_facts(pages: list[Page]) -> list[tuple[Fact, int | None]]:
    """Facts of a document with the page to name in the question, ``None`` where the question is clear without it."""
    values: dict[tuple, set[str]] = {}
    holders: dict[tuple, int] = {}
    for page in pages:
        for fact in page.facts:
            values.setdefault(fact.identity, set()).add(fact.value)
        for identity in {fact.identity for fact in page.facts}:
            holders[identity] = holders.get(identity, 0) + 1
    pairs = []
    for number, page in enumerate(pages, 1):
        for fact in page.facts:
            shared = len(values[fact.identity]) > 1 or holders[fact.identity] > 1 or fact.key in LOCAL_KEYS
            pairs.append((fact, number if shared and len(pages) > 1 else None))
    return pairs


def _page_facts(r: Rng, pages: list[Page]) -> list[Fact]:
    """Questions about the document as a whole."""
    facts = [Fact("page_count", str(len(pages)))]
    kinds = [page.kind for page in pages]
    names = {
        "form": "form",
        "invoice": "invoice",
        "receipt": "receipt",
        "letter": "letter",
        "table": "table",
        "sign": "sign",
    }
    for number, kind in enumerate(kinds, 1):
        if kinds.count(kind) == 1 and kind in names:
            facts.append(Fact("page_of", f"Page {number}", subject=names[kind]))
    return facts


def questions_about(
    r: Rng, pages: list[Page], n: int, held: bool, absent_share: float = ABSENT_SHARE
) -> list[tuple[str, str, int]]:
    """About ``n`` questions on the pages, and ``absent_share`` as many that they leave open."""
    pairs = document_facts(pages)
    # tables have many facts: weigh kinds of facts rather than facts
    by_key: dict[str, list[tuple[Fact, int | None]]] = {}
    for fact, page in pairs:
        by_key.setdefault(fact.key, []).append((fact, page))
    weights = {key: min(len(group), 7) for key, group in by_key.items()}
    for key in ("next_word", "kind", "title", "first_line", "last_line", "line_start", "numbered_line"):
        if key in weights:
            weights[key] *= 0.45
    chosen = []
    keys = list(by_key)
    if keys:
        for key in r.choices(keys, [weights[k] for k in keys], k=2 * n):
            if by_key[key] and len(chosen) < n:
                chosen.append(by_key[key].pop(r.randint(0, len(by_key[key]) - 1)))
    if len(pages) > 1 and r.chance(0.7):
        chosen.append((r.pick(_page_facts(r, pages)), None))
    many = absent_share * len(chosen)
    absent = absent_facts(r, pages, int(many) + r.chance(many % 1))
    chosen += [(fact, r.randint(1, len(pages)) if len(pages) > 1 and r.chance(0.15) else None) for fact in absent]
    r.shuffle(chosen)
    return [(*wordings.ask(r, fact, held, page, manners=True), ANSWER) for fact, page in chosen]


def transcription(r: Rng, page: Page, number: int | None) -> list[tuple[str, str, int]]:
    question = r.pick(wordings.TRANSCRIBE)
    if number is not None:
        question = r.pick((f"Transcribe page {number}.", f"Read page {number}.", f"What does page {number} say?"))
    lines = page.lines
    if number is None and lines and r.chance(0.3):
        at = r.randint(0, len(lines) - 1)
        question = f"Continue from: {' '.join(lines[at].split()[:2])}"
        lines = lines[at:]
    return [(question, "\n".join(lines), TRANSCRIPT)]
