"""Contracts with numbered clauses."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, people, town
from training.pages import values as v


@kind("contract", 2.0)
def contract(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    one, two = people(r, 2)
    sort, first, second = r.pick((
        ("Rental Agreement", "Landlord", "Tenant"), ("Employment Contract", "Employer", "Employee"), ("Service Agreement", "Client", "Contractor"),
        ("Purchase Contract", "Seller", "Buyer"), ("Loan Agreement", "Lender", "Borrower"), ("Licence Agreement", "Licensor", "Licensee"),
    ))
    if r.chance(0.3):
        one = v.company(r)
    title = d.heading(sort.upper() if r.chance(0.3) else sort)
    parties = d.paragraph(r.pick((
        f"This agreement is made between {one} (the \u201c{first}\u201d) and {two} (the \u201c{second}\u201d).",
        f"between {one}, hereinafter called the {first}, and {two}, hereinafter called the {second}",
    )))
    d.ask((f"Who is the {first.lower()}?", f"What is the name of the {first.lower()}?", f"Which party is the {first.lower()}?", f"Who acts as {first.lower()}?"), one, parties)
    d.ask((f"Who is the {second.lower()}?", f"What is the name of the {second.lower()}?", f"Which party is the {second.lower()}?", f"Who acts as {second.lower()}?"), two, parties)
    d.ask(("What kind of contract is this?", "What type of agreement is it?", "What is this contract called?"), sort, title)
    d.about(f"A contract between {one} and {two}: {sort}.", title, parties)
    begin, notice, amount = dates.date(), f"{r.pick(('two', 'three', 'four', 'six'))} months", money(money.round(r, 200, 9000))
    years = f"{r.randint(2, 10)} years"
    late, deposit, court = f"{r.randint(1, 12)} %", money(money.round(r, 100, 4000)), town(r)
    clauses = [
        (("Term", "Duration", "Commencement"), f"This contract begins on {begin} and runs for {years}.",
         [(("When does the contract begin?", "From when is the contract valid?", "What is the start date?", "On which day does the agreement start?"), begin),
          (("How long does the contract run?", "What is the duration of the contract?", "For how many years is it made?", "How long is the term?"), years)]),
        (("Payment", "Fees", "Remuneration"), f"The {second} and the {first} agree on an amount of {amount}, payable on the {r.pick(('first', 'fifteenth', 'last'))} day of each month.",
         [(("What amount is to be paid each month?", "How much is paid monthly?", "How high is the monthly payment?", "What sum did they agree on?"), amount)]),
        (("Termination", "Notice"), f"Either party may end this contract in writing with a notice period of {notice}.",
         [(("What is the notice period?", "How long is the notice period?", "How much notice must be given?", "With what notice can it be ended?"), notice)]),
        (("Deposit", "Security"), f"The {second} pays a deposit of {deposit} when signing.",
         [(("How much is the deposit?", "What deposit has to be paid?", "How high is the security deposit?"), deposit)]),
        (("Default", "Late payment"), f"Amounts not paid in time bear interest of {late} a year.",
         [(("What interest is charged on late payments?", "How high is the interest for late payment?", "What rate applies to amounts paid late?"), late)]),
        (("Jurisdiction", "Applicable law"), f"Any dispute is settled by the courts of {court}.",
         [(("Which courts settle disputes?", "Where are disputes settled?", "Which place has jurisdiction?"), court)]),
        (("Confidentiality",), "Both parties keep secret what they learn about each other's business.", []),
        (("Changes",), "Changes and additions are valid only if they are made in writing.",
         [(("How must changes be made?", "In what form are changes valid?"), "in writing")]),
    ]
    used = r.sample(clauses, r.randint(3, len(clauses)))
    mark = r.pick(("1. ", "\u00a7 1 ", "Clause 1: ", "1) ", "Article 1. "))
    for i, (names, text, asks) in enumerate(used, 1):
        name = r.pick(names)
        d.heading(mark.replace("1", str(i)) + name, level=2)
        part = d.paragraph(text)
        for questions, answer in asks:
            d.ask(questions, answer, part)
        d.ask((f"Which clause deals with {name.lower()}?", f"In which clause is {name.lower()} regulated?"), mark.replace("1", str(i)).strip(" :.)"), part)
    for names, _, asks in clauses:
        if all(names != chosen for chosen, *_ in used):
            for questions, _ in asks[:1]:
                d.absent(*questions)
    day, place = dates.date(), town(r)
    signed = d.line(f"{place}, {day}")
    d.ask(("When was the contract signed?", "What is the date of signature?", "On which day was it signed?", "When did they sign?"), day, signed)
    d.ask(("Where was the contract signed?", "In which town was it signed?", "What is the place of signature?"), place, signed)
    d.fields([(first, one), (second, two)], r.pick(("above", "colon")), hand=r.chance(0.6))
