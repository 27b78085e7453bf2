"""Questions that look answerable and are not: labels of other documents, people and places that are not on the page."""

from __future__ import annotations

import re

from training.office import values
from training.office.document import Ask, Document
from training.pages import values as v
from training.pages.values import Rng

MOST = 3  # of one page
# (wordings, words that must not begin any word of the page or of its questions)
FOREIGN: tuple[tuple[tuple[str, ...], str], ...] = (
    (("What is the invoice number?", "Which invoice number is given?", "Number of the invoice?", "What number does the invoice have?"), "invoice bill number no. nr # reference"),
    (("What is the VAT number?", "Which tax number is given?", "What is the tax ID?"), "vat tax number id ust tva iva"),
    (("What is the IBAN?", "To which account should the money be paid?", "Which bank account is given?", "What are the bank details?"), "iban account bank bic"),
    (("What is the phone number?", "Which number can I call?", "Is there a telephone number? Which one?", "How can I phone them?"), "phone tel call mobile fax reach ring number"),
    (("What is the email address?", "Where can I send an email?", "Which email address is given?"), "mail @ write contact"),
    (("What is the website?", "Which web address is shown?", "What is the URL?"), "www http web .example .com .org site domain"),
    (("What is the discount?", "How much discount is given?", "How many percent off is it?"), "discount off rebate reduc % was"),
    (("When is the delivery?", "On which day will it be delivered?", "What is the delivery date?"), "deliver arriv ship send dispatch"),
    (("How much is the postage?", "What does shipping cost?", "How high are the delivery costs?"), "post shipping deliver freight"),
    (("What is the booking code?", "Which reservation number is given?", "What is the confirmation code?"), "booking code reserv confirm number no. reference ticket"),
    (("Which gate does it leave from?", "What is the gate?", "At which gate is boarding?"), "gate board platform"),
    (("What is the dosage?", "How many tablets should be taken?", "How often should the medicine be taken?"), "dos tablet medic pill drop capsule take daily"),
    (("Who is the doctor?", "Which doctor signed it?", "What is the name of the physician?"), "dr doctor physician clinic surgery"),
    (("What is the patient's name?", "Who is the patient?"), "patient name medic prescri"),
    (("How long must it be baked?", "What is the oven temperature?", "At how many degrees is it baked?"), "bake oven \u00b0 degree minute cook"),
    (("How many people does the recipe serve?", "For how many people is the recipe?"), "serve portion people person recipe"),
    (("Who won the match?", "What was the final score?", "Which team won?"), "won win score match beat team goal"),
    (("What is the weather like?", "How warm is it?", "What temperature is expected?"), "weather temp \u00b0 rain sun warm wind degree"),
    (("Who is the landlord?", "How high is the rent?", "What is the monthly rent?"), "rent landlord tenant lease monthly"),
    (("What is the notice period?", "How much notice has to be given?"), "notice terminat cancel month"),
    (("What is the interest rate?", "How high is the interest?"), "interest rate % loan savings"),
    (("How many miles did the car do?", "What is the mileage?", "How many kilometres are on the clock?"), "mile km kilomet car vehicle"),
    (("What is the registration number of the car?", "Which licence plate is given?"), "car vehicle plate registration licen"),
    (("When was the person born?", "What is the date of birth?", "How old is the person?"), "born birth age old dob year"),
    (("What is the blood group?", "Which blood type is it?"), "blood group"),
    (("Is there a dress code? Which one?", "What should guests wear?"), "dress wear formal attire"),
    (("When does the shop open?", "What are the opening hours?", "From when is it open?"), "open hour clos shop"),
    (("What is the password?", "Which password is needed?", "What is the Wi-Fi password?"), "password wifi wi-fi code pin login"),
    (("Which languages does the person speak?", "What languages are listed?"), "language english german french spanish speak fluent"),
    (("At which university did the person study?", "What did the person study?"), "universit stud degree college school educat"),
    (("How many pages does the book have?", "Who published the book?", "What is the ISBN?"), "book page publish isbn press"),
    (("How long is the warranty?", "For how long is there a guarantee?"), "warrant guarant year month"),
    (("What is the serial number?", "Which serial number is printed?"), "serial number no. model code s/n"),
    (("What is the emergency number?", "Whom should one call in an emergency?"), "emergency call phone number tel"),
    (("How many guests are invited?", "How many people will come?"), "guest people person invit present attend come"),
    (("Which seat is reserved?", "What is the seat number?"), "seat row place reserv table"),
    (("Who took the photograph?", "Whose photo is it?"), "photo picture image"),
    (("What is the insurance number?", "Which insurance policy is it?"), "insur policy number premium"),
    (("How many calories does it have?", "How much energy does it contain?"), "calor kcal energy kj nutri"),
    (("What is the minimum order?", "How many must be ordered at least?"), "minimum order least quantity"),
)  # fmt: skip
_PERSON = re.compile(r"(?<![\w\u201c\"])([A-Z\xc0-\xde][\w'-]+) ([A-Z\xc0-\xde][\w'-]+)(?![\w])")
_FIRST = frozenset((*v.FIRST_NAMES, *values.FIRST))
_LISTS = tuple(frozenset(names) for names in (v.CITIES, values.TOWNS, v.COUNTRIES, v.DEPARTMENTS))


def swapped(r: Rng, question: str, text: str) -> str | None:
    """The question about somebody or something else of the same sort that ``text`` (lower case) does not name."""
    for match in _PERSON.finditer(question):
        if match.start() and match[1] in _FIRST and match[0].lower() in text:
            for _ in range(8):
                other = values.person(r)
                if not any(part.lower() in text for part in other.split()):
                    return question.replace(match[0], other)
    for word in question.rstrip("?.").split()[1:]:
        for names in _LISTS:
            if word in names and word.lower() in text:
                others = [n for n in sorted(names) if n.lower() not in text]
                if others:
                    return question.replace(word, r.pick(others))
    return None


def near_misses(r: Rng, document: Document, lines: list[str]) -> list[Ask]:
    """Up to :data:`MOST` questions that the page leaves open though they sound as if it did not."""
    asked = " ".join(q for ask in document.asks for q in ask.questions)
    text, everything = "\n".join(lines).lower(), ("\n".join(lines) + " " + asked).lower()
    found: list[Ask] = []
    for ask in r.sample(document.asks, min(12, len(document.asks))):
        if ask.answer is None or len(found) >= MOST - 1:
            continue
        other = [q for q in (swapped(r, question, text) for question in ask.questions[:-1] or ask.questions) if q]
        names = {question for known in document.asks for question in known.questions}
        if other and not names & set(other):
            found.append(Ask(tuple(other[:1]), None))
    starts = re.findall(r"[^\s(\"\u201c]+", everything)
    most = min(MOST, len(found) + 1)  # strange topics teach to refuse whatever sounds new: names that differ do not
    for questions, blockers in r.sample(FOREIGN, 6):
        if len(found) >= most:
            break
        if not any(
            b in everything if not b.isalpha() else any(w.startswith(b) for w in starts) for b in blockers.split()
        ):
            found.append(Ask(questions, None))
    return found
