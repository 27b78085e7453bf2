"""Screenshots of programs and web pages."""

# fmt: off

from training.office.document import Document
from training.office.prose import prose
from training.office.registry import kind
from training.office.values import Dates, Money, person
from training.pages import values as v

SETTINGS = (
    ("Language", ("English", "Deutsch", "Français", "Español")), ("Theme", ("Dark", "Light", "System")), ("Font size", ("10 pt", "12 pt", "14 pt", "18 pt")), ("Autosave", ("On", "Off", "Every 5 min")),
    ("Notifications", ("All", "None", "Mentions only")), ("Time zone", ("UTC+1", "UTC", "UTC-5", "UTC+9")), ("Volume", ("20 %", "45 %", "80 %")), ("Proxy", ("None", "Automatic", "Manual")), ("Backup", ("Daily", "Weekly", "Never")),
    ("Page size", ("A4", "Letter", "A5")), ("Resolution", ("1920 x 1080", "1280 x 720", "2560 x 1440")), ("Units", ("Metric", "Imperial")),
)
ERRORS = (
    ("The file could not be saved because the disk is full.", "the disk is full"), ("The connection was lost because the server does not answer.", "the server does not answer"),
    ("The update failed because the battery is low.", "the battery is low"), ("The document is read-only because another user has opened it.", "another user has opened it"),
    ("Printing was stopped because there is no paper.", "there is no paper"),
)


@kind("program_window", 2.0)
def window(d: Document) -> None:
    r = d.r
    name, file = f"{v.name_word(r)}{r.pick((' Office', ' Studio', ' Manager', 'Pad', ' Mail'))}", f"{v.word(r)}.{r.pick(('txt', 'odt', 'csv', 'pdf', 'cfg'))}"
    top = d.strip(r.pick((f"{file} - {name}", f"{name} - {file}")), dark=r.chance(0.6))
    menus = ["File", "Edit", "View", *r.sample(("Insert", "Format", "Tools", "Window", "Table", "Data"), r.randint(1, 3)), "Help"]
    bar = d.strip(*menus)
    d.ask(("Which program is shown?", "What is the name of the program?", "Which application is this?", "What program is open?"), name, top)
    d.ask(("Which file is open?", "What is the name of the file?", "What file is being edited?"), file, top)
    d.ask(("What is the last menu?", "Which menu is at the right end?"), "Help", bar)
    d.ask(("How many menus are there?", "How many menus does the program have?"), str(len(menus)), bar)
    d.rule()
    kind_ = r.randint(0, 2)
    if kind_ == 0:
        chosen = [(key, r.pick(values)) for key, values in r.sample(SETTINGS, r.randint(3, 8))]
        d.line(r.pick(("Settings", "Preferences", "Options")), bold=True)
        for (key, value), part in zip(chosen, d.fields(chosen), strict=True):
            d.ask((f"What is {key} set to?", f"Which {key.lower()} is selected?", f"What is the setting of {key}?", f"{key} is set to what?"), value, part)
        missing = r.pick([key for key, _ in SETTINGS if key not in dict(chosen)])
        d.absent(f"What is {missing} set to?", f"Which {missing.lower()} is selected?")
    elif kind_ == 1:
        text, reason = r.pick(ERRORS)
        box = d.framed()
        box.line(r.pick(("Error", "Warning", "Attention")), bold=True)
        part = box.paragraph(text)
        code = f"{r.randint(100, 9999)}"
        part2 = box.line(r.pick((f"Error code: {code}", f"(code {code})", f"Code {code}")))
        buttons = r.sample(("OK", "Cancel", "Retry", "Ignore", "Details", "Close"), 2)
        part3 = box.strip(*buttons)
        d.ask(("Why did it fail?", "What is the cause of the error?", "What is the reason for the message?", "Why does the message appear?"), reason, part)
        d.ask(("What is the error code?", "Which code does the error have?", "What number has the error?"), code, part2)
        d.ask(("Which buttons are there?", "What buttons does the message have?"), " and ".join(buttons), part3)
        d.absent("Which language is selected?", "What is Theme set to?")
    else:
        files = [(f"{v.word(r)}.{r.pick(('txt', 'pdf', 'png', 'zip', 'xlsx'))}", f"{r.randint(1, 990)} {r.pick(('KB', 'MB'))}", Dates(r).date()) for _ in range(r.randint(3, 9))]
        rows = list({row[0]: row for row in files}.values())
        for row, part in zip(rows, d.table(["Name", "Size", "Changed"], rows, numbers=1), strict=True):
            d.ask((f"How large is {row[0]}?", f"What is the size of {row[0]}?", f"How big is the file {row[0]}?"), row[1], part)
            d.ask((f"When was {row[0]} changed?", f"What is the date of {row[0]}?", f"On which day was {row[0]} changed?"), row[2], part)
        d.absent("How large is setup.exe?", "When was setup.exe changed?")
    if r.chance(0.5):
        words, line = r.randint(10, 9999), r.randint(1, 400)
        part = d.strip(f"Line {line}", f"{words} words", r.pick(("UTF-8", "100 %", "Insert")))
        d.ask(("How many words does the document have?", "How many words are counted?"), str(words), part)
        d.ask(("In which line is the cursor?", "What line is shown in the status bar?"), str(line), part)
    else:
        d.absent("How many words does the document have?", "How many words are counted?")


@kind("web_page", 3.0)
def web_page(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    site, address = v.company(r), f"www.{v.name_word(r).lower()}.example"
    if r.chance(0.6):
        part = d.strip("<", ">", f"https://{address}/{r.pick(('shop', 'news', 'home', 'offers'))}")
        d.ask(("What is the address of the web page?", "Which website is shown?", "Which domain is open?"), address, part)
    top = d.strip(site, *r.sample(("Home", "Products", "About us", "Contact", "News", "Login", "Cart (2)", "Jobs"), 4), dark=r.chance(0.5))
    d.ask(("Whose website is it?", "Which company does the site belong to?", "What company is shown on the page?"), site, top)
    if r.chance(0.5):
        names = r.sample(v.PRODUCTS, r.randint(2, 4))
        product, others = names[0], names[1:]
        price, old = money.round(r, 10, 400), money.round(r, 401, 900)
        stars, stock, days = f"{r.randint(2, 4)}.{r.randint(0, 9)}", r.randint(2, 90), r.randint(1, 14)
        title = d.heading(f"{v.name_word(r)} {product}")
        d.paragraph(prose(r, 220))
        was = d.line(f"was {money(old)}", small=True)
        now = d.line(r.pick(("Now ", "", "Our price: ", "only ")) + money(price), bold=True)
        rated = d.line(f"{stars} out of 5 stars ({r.randint(3, 2000)} reviews)")
        left = d.line(r.pick((f"{stock} in stock, delivery in {days} days", f"Only {stock} left! Delivered within {days} days")))
        d.ask(("How much does the product cost now?", "What is the current price?", "What do I pay for it now?", "What is the price today?"), money(price), now)
        d.ask(("What did it cost before?", "What was the old price?", "How much was it earlier?"), money(old), was)
        d.ask(("How is the product rated?", "How many stars does it have?", "What is the rating?"), stars, rated)
        d.ask(("How many are in stock?", "How many pieces are left?", "How many are available?"), str(stock), left)
        d.ask(("How long does delivery take?", "Within how many days is it delivered?", "When will it arrive?"), f"{days} days", left)
        d.ask(("Which product is shown?", "What is sold on this page?", "What is the product called?"), d.blocks[-6].texts[0], title)
        d.strip(*r.sample(("Add to cart", "Buy now", "Wish list", "Compare"), 2))
        if others:
            part = d.line(f"You may also like: {', '.join(others)}", small=True)
            d.ask(("What else is recommended?", "Which other products are suggested?"), ", ".join(others), part)
        d.absent("Who sells the product?", "How long is the warranty?")
    else:
        headline, author, day = v.phrase(r, 3, 6).capitalize(), person(r), dates.date()
        title = d.heading(headline)
        by = d.line(r.pick((f"{author}, {day}", f"by {author} on {day}", f"{day} | {author}")), small=True)
        d.ask(("Who wrote the article?", "Who is the author?", "By whom is the text?"), author, by)
        d.ask(("When was the article published?", "What is the date of the article?", "On which day did it appear?"), day, by)
        d.ask(("What is the headline?", "What is the article called?", "What is the title of the article?"), headline, title)
        for _ in range(r.randint(1, 4)):
            d.paragraph(prose(r, 420))
        count = r.randint(2, 900)
        if r.chance(0.5):
            part = d.line(f"{count} comments", small=True)
            d.ask(("How many comments are there?", "How many people commented?"), str(count), part)
        else:
            d.absent("How many comments are there?", "How many people commented?")
