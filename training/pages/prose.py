"""Letters, memos and running text."""

from __future__ import annotations

from training.pages import values as v
from training.pages.blocks import Box, Setter
from training.pages.facts import Fact
from training.pages.letters import STATEMENTS
from training.pages.parts import labelled, page_title


def letter(s: Setter, box: Box) -> None:
    r = s.r
    sender, recipient, day = v.person(r), v.person(r), v.date(r)
    memo = r.chance(0.5)
    if memo:
        s.heading(box, r.pick(("Memo", "MEMO", "Memorandum", "Notice", "Letter", "Message", v.company(r))))
        subject = v.phrase(r)
        entries = [
            labelled("recipient", r.pick(("To", "For", "Recipient")), recipient),
            labelled("sender", r.pick(("From", "Sender")), sender),
            labelled("date", r.pick(("Date", "Sent")), day),
            labelled("subject", r.pick(("Subject", "Re", "Topic", "About")), subject),
        ]
        if r.chance(0.4):
            r.shuffle(entries)
        s.fields(box, entries, r.pick(("colon", "colon", "tab", None)))
        s.rule(box)
    else:
        if r.chance(0.5):
            name = v.company(r)
            s.heading(box, name, [Fact("issuer", name)])
            s.lines(box, [(v.street(r), None), (v.town(r), None)], r.pick("lcr"))
        s.lines(box, [(r.pick(("", "", v.city(r) + ", ")) + day, Fact("date", day))], r.pick("lr"))
        box.y += 6
        if r.chance(0.3):
            subject = v.phrase(r)
            s.lines(box, [(r.pick(("Subject: ", "Re: ", "About: ", "")) + subject, Fact("subject", subject))])
        s.lines(box, [(f"{r.pick(('Dear', 'Hello', 'Hi', 'Dear'))} {recipient},", Fact("recipient", recipient))])
        box.y += 4
    fixed = ("sender", "recipient", "date", "issuer")
    for statement in [chosen for chosen in r.sample(STATEMENTS, r.randint(1, 7)) if chosen.key not in fixed]:
        value = statement.value(r)
        text = r.pick(statement.sentences).format(value)
        if r.chance(0.3):
            text = f"{text} {v.sentence(r)}" if r.chance(0.5) else f"{v.sentence(r)} {text}"
        s.paragraph(box, text, [Fact(statement.key, value)])
        box.y += r.pick((0, 0, s.style.leading, 8))
    s.lines(
        box,
        [
            (
                r.pick(
                    ("Sincerely,", "Best regards,", "Yours,", "Kind regards,", "Yours sincerely,", "With best wishes,")
                ),
                None,
            )
        ],
    )
    if not memo or r.chance(0.3):
        s.lines(box, [(sender, None if memo else Fact("sender", sender))])


def text(s: Setter, box: Box) -> None:
    r = s.r
    if r.chance(0.4):  # lines of mixed content and sizes: reading, not layout
        makers = (
            v.word,
            v.name_word,
            v.count,
            v.code,
            lambda r: v.word(r).upper(),
            v.city,
            v.date,
            v.money,
            v.email,
            v.time_of_day,
            v.phone,
            v.person,
        )
        while box.fits(s.style.body.height):
            line = " ".join(r.pick(makers)(r) for _ in range(r.randint(1, 6)))
            while line and s.style.body.width(line) > box.width:
                line = line.rpartition(" ")[0]
            if line:
                s.lines(box, [(line, None)], r.pick("llcr"))
            box.y += r.randint(0, 5)
            if r.chance(0.04):
                break
    else:
        if r.chance(0.5):
            page_title(s, box, v.phrase(r))
        while s.paragraph(box, " ".join(v.sentence(r) for _ in range(r.randint(1, 4)))):
            box.y += r.randint(0, 10)
            if r.chance(0.15):
                break
    for line in r.sample(s.canvas.lines(), min(3, len(s.canvas.lines()))):
        tokens = line.split()
        if len(tokens) > 2:
            at = r.randint(0, len(tokens) - 3)
            s.facts.append(Fact("next_word", tokens[at + 2], subject=f"{tokens[at]} {tokens[at + 1]}"))
