"""Receipts of several countries: labels in their language, their currency, their way to write numbers."""

# fmt: off

from dataclasses import dataclass

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, first_name, last_name, town
from training.pages import values as v


@dataclass(frozen=True)
class Country:
    """Words of a country's receipts."""

    total: tuple[str, ...]
    tax: tuple[str, ...]
    cash: tuple[str, ...]
    change: tuple[str, ...]
    thanks: tuple[str, ...]
    goods: tuple[str, ...]
    currencies: tuple[str, ...]
    rates: tuple[int, ...]
    style: str


_c = lambda text: tuple(text.split(", "))  # noqa: E731
COUNTRIES = (
    Country(_c("TOTAL, Total, Balance due, Amount, Grand total, To pay"), _c("VAT, Tax, Sales tax"), _c("Cash, Card, Visa, Mastercard, Debit"), _c("Change, Change due"), _c("Thank you!, Please come again, Have a nice day"),
            _c("Milk, White bread, Butter, Eggs, Bananas, Cheddar, Ham sandwich, Flat white, Fish & chips, Lemonade, Crisps, Tea, Shortbread, Apple pie, Soup of the day"), ("£", "$", "GBP"), (5, 20, 8), "1,234.50"),
    Country(_c("Summe, SUMME, Gesamt, Zu zahlen, Betrag, Total"), _c("MwSt, USt, Mehrwertsteuer"), _c("Bar, EC-Karte, Kartenzahlung, Gegeben"), _c("Rückgeld, Zurück"), _c("Vielen Dank!, Auf Wiedersehen, Danke für Ihren Einkauf"),
            _c("Brötchen, Käsekuchen, Vollmilch, Äpfel, Kartoffeln, Weißwein, Butterbrezel, Müsli, Kölsch, Bratwurst, Süßstoff, Gemüsebrühe, Quark, Kaffee"), ("€", "EUR", "CHF"), (7, 19), "1.234,50"),
    Country(_c("TOTAL, Total TTC, Net à payer, À payer"), _c("TVA"), _c("Espèces, Carte bancaire, CB"), _c("Rendu, Monnaie"), _c("Merci de votre visite, À bientôt, Merci et à bientôt"),
            _c("Café crème, Crème brûlée, Pain complet, Thé vert, Salade niçoise, Jus d'orange, Pâté, Crêpe, Bière, Entrecôte, Gâteau, Fromage, Tarte aux pommes"), ("€", "EUR"), (10, 20), "1 234,50"),
    Country(_c("TOTAL, Importe, Total a pagar, Suma"), _c("IVA"), _c("Efectivo, Tarjeta, Entregado"), _c("Cambio"), _c("Gracias por su visita, ¡Hasta pronto!, Gracias"),
            _c("Café con leche, Jamón ibérico, Piña, Champiñones, Tortilla, Agua sin gas, Croquetas, Queso manchego, Piñones, Melón, Cortado, Paella"), ("€", "EUR"), (10, 21), "1.234,50"),
    Country(_c("TOTALE, Totale, Totale complessivo, Importo"), _c("IVA"), _c("Contanti, Carta, Bancomat"), _c("Resto"), _c("Grazie e arrivederci, Grazie"),
            _c("Caffè, Tiramisù, Cornetto, Acqua naturale, Ragù, Panino, Prosciutto, Gelato, Spritz, Insalata, Pizza margherita, Tè freddo"), ("€", "EUR"), (10, 22), "1.234,50"),
    Country(_c("Att betala, Totalt, Summa"), _c("Moms"), _c("Kontant, Kort"), _c("Växel, Tillbaka"), _c("Tack för besöket!, Välkommen åter"),
            _c("Smörgås, Köttbullar, Kaffe, Mjölk, Ost, Räkor, Blåbär, Knäckebröd, Ägg, Öl, Glass"), ("kr", "SEK"), (12, 25), "1 234,50"),
)


@kind("receipt_world", 3.0)
def receipt(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    c = r.choices(COUNTRIES, (5, 3, 3, 2, 2, 2))[0]
    money.currency, money.style, money.whole = r.pick(c.currencies), c.style, False
    money.before, money.space = money.currency in "£$" or r.chance(0.3), "" if money.currency in "£$" else " "
    shop = r.pick((f"{r.pick(('Café', 'Bistro', 'Chez', 'Hotel', 'Bar', 'Bäckerei', 'Trattoria', 'The'))} {last_name(r)}", f"{v.name_word(r)} {r.pick(v.SHOP_ENDINGS)}"))
    place, day, time, clerk, number = town(r), dates.date(), dates.time(), first_name(r), str(r.randint(100, 999999))
    shop = shop.upper() if r.chance(0.3) else shop
    top = d.heading(shop, align=r.pick("ccl"))
    where = d.lines(f"{r.randint(1, 99)} {v.name_word(r)} {r.pick(v.STREET_TYPES)}", place, align=r.pick("cl"))
    when = d.line(r.pick((f"{day}  {time}", f"{day} {time}")), align=r.pick("lc"))
    d.rule()
    goods = r.sample(c.goods, r.randint(2, min(9, len(c.goods))))
    counts = [r.choices((1, 2, 3, 4), (7, 2, 1, 1))[0] for _ in goods]
    prices = [money.round(r, 1, r.pick((9, 30, 90))) for _ in goods]
    sums = [a * b for a, b in zip(counts, prices, strict=True)]
    show = money if r.chance(0.3) else money.bare
    if r.chance(0.5):
        rows = [(f"{n} {g}" if r.chance(0.98) else g, show(s)) for n, g, s in zip(counts, goods, sums, strict=True)]
        items = d.fields(rows, r.pick(("right", "right", "dots")))
    else:
        rows = [(str(n), g, show(s)) for n, g, s in zip(counts, goods, sums, strict=True)]
        items = d.table([], rows, numbers=1)
    for g, n, s, part in zip(goods, counts, sums, items, strict=True):
        d.ask((f"How much did the {g} cost?", f"What is the amount for {g}?", f"How much was paid for {g}?", f"What is the price of {g}?"), show(s), part)
        d.ask((f"{g}: how many were bought?", f"How many portions or pieces of {g} are on the receipt?", f"What is the quantity of {g}?", f"How many times was {g} bought?"), str(n), part)
    d.ask(("How many different items were bought?", "How many lines of goods are there?", "How many different things are on the receipt?"), str(len(goods)), items)
    if sums.count(max(sums)) == 1:
        d.ask(("What was the most expensive line?", "Which item costs the most?", "On which item was the most money spent?"), goods[sums.index(max(sums))], items)
    d.rule()
    total, rate = sum(sums), r.pick(c.rates)
    pay = money(total)
    low = d.fields([(r.pick(c.total), pay)], r.pick(("right", "right", "colon", "dots")))
    d.ask(("How much was paid in total?", "What is the total?", "How much does everything cost together?", "What did it come to?", "How much is the bill?", "What is the amount to pay?"), pay, low)
    if r.chance(0.6):
        tax = show(round(total * rate / (100 + rate)))
        part = d.fields([(f"{r.pick(c.tax)} {rate}%", tax)], r.pick(("right", "colon")))
        d.ask(("How much tax is included?", "How much is the tax?", "What is the amount of tax?", "How much VAT was paid?"), tax, part)
        d.ask(("What is the tax rate?", "At how many percent is it taxed?", "Which rate of tax applies?"), f"{rate}%", part)
    else:
        d.absent("How much tax is included?", "How much is the tax?", "What is the tax rate?")
    if r.chance(0.6):
        given = (total // 1000 + r.randint(1, 3)) * 1000
        word, back = r.pick(c.cash[:1]), r.pick(c.change)
        parts = d.fields([(word, show(given)), (back, show(given - total))], r.pick(("right", "colon")))
        d.ask(("How much change was given?", "How much money was given back?", "What is the change?", "How much did the customer get back?"), show(given - total), parts[1])
        d.ask(("How much cash was handed over?", "How much money did the customer give?", "With how much was it paid?"), show(given), parts[0])
    else:
        d.absent("How much change was given?", "How much money was given back?")
    d.about(f"A receipt from {shop} over {pay}.", top, low)
    d.ask(("Which shop is the receipt from?", "Where was this bought?", "What is the name of the shop?", "In which place of business was it bought?"), shop, top)
    d.ask(("In which town is the shop?", "In which city was it bought?", "Where is the shop, in which town?"), place, where)
    d.ask(("When was it bought?", "On which day was this bought?", "What is the date on the receipt?", "What is the day of the purchase?"), day, when)
    d.ask(("At what time was it bought?", "What time is on the receipt?", "At which hour was the purchase?"), time, when)
    if r.chance(0.5):
        part = d.line(r.pick((f"No. {number}", f"Bon {number}", f"# {number}", f"Ticket {number}")))
        d.ask(("What is the number of the receipt?", "Which number does the receipt have?", "What is the receipt number?"), number, part)
    else:
        d.absent("What is the number of the receipt?", "Which number does the receipt have?")
    if r.chance(0.5):
        part = d.line(r.pick(("Served by ", "You were served by ", "Cashier: ", "Server: ")) + clerk, align=r.pick("lc"))
        d.ask(("Who served the customer?", "Who was the cashier?", "What is the name of the cashier?", "Who worked at the till?"), clerk, part)
    else:
        d.absent("Who served the customer?", "Who was the cashier?")
    d.line(r.pick(c.thanks), align="c")
