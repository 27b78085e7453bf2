"""Covers, captions, plaques, programmes and cards, where the place of a name says what its bearer did."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, people, person, town
from training.pages import values as v

BOOKS = ("The Silent Harbour", "A Winter in {town}", "Bread and Stones", "Gardens of the North", "The Last Ferry", "Learning to Listen", "Under Two Roofs", "The Clockmaker's Son", "Rivers of Europe", "Small Boats", "Letters from {town}", "The Orchard Keeper")
GENRES = ("A novel", "Poems", "Stories", "A memoir", "A handbook", "Third edition", "A travel guide", "Essays", "A thriller")
PLAYS = ("The Cherry Tree", "An Evening in {town}", "The Broken Jug", "Summer Guests", "The Miller's Daughter", "Twelve Chairs", "The Stranger")
PARTS = ("the Captain", "a Nurse", "the Old King", "Rosa", "the Stranger", "a Policeman", "the Gardener", "Lady Ashby", "a Messenger", "Doctor Blum")
SIGNERS = ("Director", "Treasurer", "Chairwoman", "Tenant", "Landlord", "Witness", "Buyer", "Seller", "Head of Department", "President", "Secretary", "Notary")
PICTURES = ("Two boats at dawn", "Old woman with a cat", "View of {town}", "Still life with pears", "The red barn", "Girl reading", "Storm over the bay", "Harvest")
MATERIALS = ("oil on canvas", "watercolour", "bronze", "charcoal on paper", "woodcut", "mixed media", "photograph")
WRITTEN = ("How the market hall was saved", "Cycling through the night", "A school without bells", "What the river left behind", "The return of the stork", "New life for an old mill", "Ten years of the repair shop")


@kind("credits", 4.0)
def credits_page(d: Document) -> None:
    d.r.pick((_cover, _cast, _plaque, _signers, _byline, _mail, _cheque))(d)


def _title(d: Document, titles: tuple[str, ...]) -> str:
    return d.r.pick(titles).format(town=town(d.r))


def _cover(d: Document) -> None:
    r = d.r
    title, (author, other), align = _title(d, BOOKS), people(r, 2), r.pick("clc")
    press = r.pick((f"{v.name_word(r)} Press", f"{v.name_word(r)} Books", v.company(r)))
    first = r.chance(0.5)
    by = d.line(author, align, bold=True) if first else None
    top = d.heading(title, 1, align)
    genre = d.line(r.pick(GENRES), align) if r.chance(0.5) else None
    by = by if by is not None else d.line(r.pick((author, author.upper(), f"by {author}")), align)
    shown = author.upper() if author.upper() == d.blocks[-1].texts[0] else author
    d.gap()
    more = r.randint(0, 3)
    if more == 1:
        d.ask(("Who translated it?", "Who is the translator?", "Translated by whom?", "By whom is the translation?"), other, d.line(f"Translated by {other}", align, small=True))
    elif more == 2:
        d.ask(("Who drew the pictures?", "Who is the illustrator?", "By whom are the pictures?", "Who illustrated the book?"), other, d.line(r.pick((f"With pictures by {other}", f"Illustrated by {other}", f"Drawings: {other}")), align, small=True))
    elif more == 3:
        d.ask(("Who wrote the foreword?", "By whom is the foreword?", "Whose foreword is in it?"), other, d.line(r.pick((f"Foreword by {other}", f"With a foreword by {other}")), align, small=True))
    else:
        d.absent("Who translated it?", "Who is the translator?", "By whom is the translation?")
    foot = d.line(press, align, small=True)
    d.ask(("Who wrote the book?", "Who is the author?", "By whom is the book?", "Author?", "Whose book is it?", "Which writer is on the cover?"), shown, by)
    d.ask(("What is the title of the book?", "What is the book called?", "Title?", "Which book is it?"), title, top)
    d.ask(("Who published the book?", "Which publisher is it?", "Publisher?", "Where did the book appear?"), press, foot)
    if genre is not None:
        d.ask(("What does it say under the title?", "What sort of book is it?", "What is the subtitle?"), next(b.texts[0] for b in d.blocks if genre in b.parts), genre)
    d.about(f"The cover of {title} by {shown}.", top, by)


def _cast(d: Document) -> None:
    """Parts and players with dots or a gap between; who directs and who made the music stands below."""
    r, dates = d.r, Dates(d.r)
    play, names = _title(d, PLAYS), people(r, 9)
    top = d.heading(play, 1, r.pick("lc"))
    author = d.line(r.pick((f"by {names[8]}", names[8])), r.pick("lc"))
    parts = r.sample(PARTS, r.randint(3, 5))
    reverse = r.chance(0.3)
    rows = d.fields([(n, p) if reverse else (p[0].upper() + p[1:], n) for p, n in zip(parts, names, strict=False)], r.pick(("dots", "tab", "right")))
    for part, name, row in zip(parts, names, rows, strict=False):
        d.ask((f"Who plays {part}?", f"By whom is {part} played?", f"Which actor is {part}?", f"{part}: who?", f"Who appears as {part}?"), name, row)
        d.ask((f"Whom does {name} play?", f"Which part has {name}?", f"As whom does {name} appear?"), part, row)
    d.gap()
    for job, name, asks in (("Directed by", names[6], ("Who directs?", "Who is the director?", "By whom was it directed?", "Whose production is it?")), ("Music:", names[7], ("Who wrote the music?", "By whom is the music?", "Who is the composer?"))):
        if r.chance(0.7):
            d.ask(asks, name, d.line(f"{job} {name}"))
        else:
            d.absent(*asks)
    day = dates.date()
    d.ask(("When is the performance?", "On which day is it played?", "Date of the play?", "When can one see it?"), day, d.line(f"{day}, {dates.time()}"))
    d.ask(("What is the play called?", "Which play is it?", "What is performed?", "Title?"), play, top)
    d.ask(("Who wrote the play?", "By whom is the play?", "Who is the author?", "Whose play is it?"), names[8], author)
    d.about(f"The cast of {play}.", top, rows)


def _plaque(d: Document) -> None:
    """The label beside a picture."""
    r = d.r
    artist, title, made, giver = person(r), _title(d, PICTURES), str(r.randint(1850, 2024)), person(r)
    stuff = r.pick(MATERIALS)
    box = d.framed() if r.chance(0.4) else d
    order = r.pick((0, 1))
    a = box.line(artist, bold=True) if order == 0 else None
    t = box.heading(r.pick((f"{title}, {made}", title)), 2)
    y = t if made in box.blocks[-1].texts[0] else box.line(made)
    a = a if a is not None else box.line(artist)
    s = box.line(stuff, small=True)
    d.ask(("Who painted or made it?", "Who is the artist?", "By whom is the work?", "Artist?", "Whose work is it?"), artist, a)
    d.ask(("What is the work called?", "What is the title?", "Title of the work?", "Which work is it?"), title, t)
    d.ask(("In which year was it made?", "When was it made?", "Year?", "From which year is it?"), made, y)
    d.ask(("What is it made of?", "Which technique is it?", "Technique?", "In what material is it?"), stuff, s)
    if r.chance(0.5):
        g = box.line(r.pick((f"Gift of {giver}", f"On loan from {giver}", f"Collection {giver}")), small=True)
        d.ask(("Who gave or lent it?", "From whom does the museum have it?", "To whose collection does it belong?", "Whose gift or loan is it?"), giver, g)
    else:
        d.absent("Who gave it to the museum?", "From whom does the museum have it?")


def _signers(d: Document) -> None:
    """Two or three signatures side by side, with names and offices below."""
    r, dates = d.r, Dates(d.r)
    names, offices = people(r, 3), r.sample(SIGNERS, 3)
    d.heading(r.pick(("Agreement", "Resolution", "Confirmation", "Handover", "Receipt of keys", "Declaration", "Certificate of completion")), 1, r.pick("lc"))
    d.paragraph(f"{v.sentence(r)} {v.sentence(r)}")
    place, day = town(r), dates.date()
    at = d.line(f"{place}, {day}")
    d.ask(("Where was it signed?", "In which place was it signed?", "Place of signing?"), place, at)
    d.ask(("When was it signed?", "On which day was it signed?", "Date of signing?", "What is the date?"), day, at)
    d.gap()
    count = r.randint(1, 3) if d.shape[1] > 480 else r.randint(1, 2)
    targets = d.columns(count) if count > 1 else [d]
    found = []
    for name, office, target in zip(names, offices, targets, strict=False):
        hand = [target.written(r.pick((name, name.split()[-1], name)))] if r.chance(0.7) else []
        printed = target.lines(*((name, office) if r.chance(0.8) else (f"{name}, {office}",)), small=r.chance(0.3))
        found += printed
        d.ask((f"Who is the {office}?", f"Who signed as {office}?", f"What is the name of the {office}?", f"{office}: who?", f"Which name belongs to the {office}?"), name, hand, printed)
        d.ask((f"What is {name}?", f"In which function did {name} sign?", f"Which office has {name}?", f"As what did {name} sign?"), office, printed)
    d.ask(("Who signed it?", "Whose signatures are on the page?", "By whom was it signed?", "Which people signed?"), ", ".join(names[:count]), found)
    d.ask(("How many people signed?", "How many signatures are there?", "Number of signatures?"), str(count), found)


def _byline(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    headline = r.pick(WRITTEN)
    author, photographer, seen, boss = people(r, 4)
    top = d.heading(headline)
    day = dates.date()
    style = r.randint(0, 2)
    by = d.line(r.pick((author, f"by {author}", f"{author}, {day}", f"From our correspondent {author}", author.upper())), small=True) if style < 2 else None
    photo = d.line(r.pick((f"Photo: {photographer}", f"Picture: {photographer}", f"\u00a9 {photographer}")), r.pick("lr"), small=True) if r.chance(0.6) else None
    post = r.pick(("the mayor", "the head of the school", "a neighbour", "the forester", "the baker", "the architect"))
    p = d.paragraph(f"{v.sentence(r)} \u201cNobody believed in it,\u201d says {seen}, {post}. {v.sentence(r)}")
    q = d.paragraph(f"{boss}, who started it all, remembers the first day. {v.sentence(r)}")
    by = by if by is not None else d.line(r.pick((author, f"({author})")), "r")
    shown = next(b.texts[0] for b in d.blocks if by in b.parts)
    d.ask(("Who wrote the article?", "Who is the author?", "By whom is the text?", "Author?", "Which journalist wrote this?"), author.upper() if shown == author.upper() else author, by)
    if photo is not None:
        d.ask(("Who took the photo?", "By whom is the picture?", "Whose photograph is it?", "Who is the photographer?"), photographer, photo)
    else:
        d.absent("Who took the photo?", "By whom is the picture?", "Who is the photographer?")
    d.ask(("Who says that nobody believed in it?", "Who is quoted?", "Whose words are in quotation marks?", f"Who is {post}?"), seen, p)
    d.ask((f"What is {seen}?", f"Who is {seen}?", f"What does {seen} do?"), post, p)
    d.ask(("Who started it all?", "Who remembers the first day?", "Who had the idea first?"), boss, q)
    d.ask(("What is the headline?", "What is the title of the article?", "Headline?"), headline, top)


def _mail(d: Document) -> None:
    """An e-mail without its head: greeting, text, signature, perhaps an older one below."""
    r, dates = d.r, Dates(d.r)
    writer, reader, third, old = people(r, 4)
    hello = d.paragraph(f"{r.pick(('Hi', 'Hello', 'Dear', 'Good morning'))} {reader.split()[0] if r.chance(0.6) else reader},")
    called = reader if reader in d.blocks[-1].texts[0] else reader.split()[0]
    place = town(r)
    text = d.paragraph(r.pick((f"I met {third} in {place} yesterday.", f"{third} from the office in {place} has just called.", f"Please ring {third} in {place} as soon as you can.")) + " " + v.sentence(r))
    d.ask(("Who is being written about?", "Which third person is mentioned?", "Who is mentioned in the text?", f"Who is in {place}?"), third, text)
    signed = writer if r.chance(0.7) else writer.split()[0]
    end = d.lines(r.pick(("Best", "Cheers", "Kind regards", "Thanks a lot", "See you")), signed)[1]
    if r.chance(0.5):
        firm, post = v.company(r), r.pick(SIGNERS)
        sig = d.lines(post, firm, small=True)
        d.ask((f"Where does {signed} work?", "Which company does the writer work for?", "What is the writer's firm?"), firm, sig)
        d.ask((f"What is the job of {signed}?", "What is the writer's position?", f"What is {signed}?"), post, sig)
    d.ask(("Who wrote the mail?", "Who is the sender?", "From whom is it?", "Who signed it?", "Who is writing?"), signed, end)
    d.ask(("To whom is it written?", "Who gets the mail?", "Who is addressed?", "Who is the reader?"), called, hello)
    if r.chance(0.6):
        day = dates.date()
        head = d.line(r.pick((f"On {day} {old} wrote:", f"{old} wrote on {day}:", f"> {old}, {day}")))
        said = d.paragraph(f"> {v.sentence(r)}")
        d.ask(("Who wrote the older message?", "Whose mail is quoted?", "Who wrote the first message?", "From whom is the quoted text?"), old, head, said)
        d.ask((f"When did {old} write?", "From when is the older message?", "When was the quoted mail written?"), day, head)


def _cheque(d: Document) -> None:
    """Cheques, vouchers and gift cards: whose money, for whom, signed by whom."""
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    giver, taker, clerk = people(r, 3)
    amount, day = money(money.round(r, 5, 900)), dates.date()
    box = d.framed() if r.chance(0.7) else d
    top = box.heading(r.pick(("Voucher", "Gift voucher", "Cheque", "Gift card", "Receipt", "IOU")), 1, r.pick("lc"))
    a = box.line(r.pick((f"{amount}", f"worth {amount}", f"for {amount}")), r.pick("lcr"), bold=True)
    t = box.line(r.pick((f"for {taker}", f"To {taker}", f"Pay {taker}")))
    g = box.line(r.pick((f"with love from {giver}", f"from {giver}", f"given by {giver}", f"Account of {giver}")))
    w = box.line(day, r.pick("lr"))
    d.ask(("Who gets the money?", "For whom is it?", "Who receives it?", "To whom does it go?", "Who may use it?"), taker, t)
    d.ask(("Who gives it?", "From whom is it?", "Whose money is it?", "Who paid for it?", "Who is the giver?"), giver, g)
    d.ask(("How much is it?", "What is it worth?", "Amount?", "Which sum is it for?", "What is the value?"), amount, a)
    d.ask(("What is the date?", "On which day was it made out?", "Date?", "When was it issued?"), day, w)
    if r.chance(0.6):
        s = box.written(clerk)
        d.ask(("Who signed it?", "Whose signature is it?", "By whom is it signed?", "Which name is written by hand?"), clerk, s)
    else:
        d.absent("Who signed it?", "Whose signature is it?")
    d.about(f"A {box.blocks[0].texts[0].lower() if box.blocks[0].texts[0] != 'IOU' else 'IOU'} from {giver} for {taker}.", top, t, g)
