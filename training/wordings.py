"""How people ask for a fact: question wordings, split into those of training and those held out.

A question is a *frame* around a noun phrase ("Tell me the {}." + "invoice number") or a *direct* question of its own ("How
much is due?"). Held-out questions use frames and direct questions that training never shows; their words do occur there,
in other combinations, because a model this small has met no other English.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.manners import lower_first, typed, typed_held
from training.pages import values as v
from training.pages.facts import Fact
from training.pages.fields import FIELDS
from training.pages.values import Rng

NOT_STATED = "It does not say."

FRAMES = (
    "What is the {}?", "What is the {}?", "What is the {}?", "What's the {}?", "{}?", "{}", "Tell me the {}.", "Give me the {}.", "Find the {}.",
    "Read the {}.", "Which {} is shown?", "What {} is shown?", "What {} is given?", "I need the {}.", "Can you find the {}?", "Show me the {}.",
    "Please tell me the {}.", "Please give me the {}.", "What does it say for {}?", "What is written for {}?", "What is printed as the {}?",
    "Could you read the {}?", "Look for the {}.", "What is the {} here?", "I want to know the {}.", "Do you know the {}?", "the {}?",
    "What is given as the {}?", "Where is the {}, and what does it say?", "Please find the {}.", "Can you tell me the {}?", "Extract the {}.",
    "I am looking for the {}.", "Write down the {}.", "What do you see for {}?", "State the {}.", "Return the {}.", "The {} is what?",
)  # fmt: skip
HELD_FRAMES = (
    "{} please", "Could you tell me the {}?", "Please read the {}.", "What is shown as the {}?", "Can you give me the {}?", "Do you see the {}?",
    "I want the {}.", "Which {} is written here?", "Could you find the {} for me?", "Look up the {}.",
)  # fmt: skip


@dataclass(frozen=True)
class Wording:
    """Ways to ask for one kind of fact. ``{label}`` and ``{subject}`` stand for those of the fact."""

    nouns: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


def _w(nouns: str = "", direct: str = "", held: str = "") -> Wording:
    split = lambda text: tuple(part.strip() for part in text.split("|") if part.strip())  # noqa: E731
    return Wording(split(nouns), split(direct), split(held))


WORDINGS: dict[str, Wording] = {
    "total": _w(
        "total | total | total amount | invoice total | grand total | amount due | final amount | total price | total cost | balance due | full amount | "
        "amount to pay | sum total | total due | total sum | overall total | amount payable",
        "How much is due? | How much is due in total? | How much is it in total? | How much does it cost in total? | How much has to be paid? | "
        "How much do I have to pay? | What do I have to pay? | What is to be paid? | How much is the total? | How much must be paid? | How much is the bill? | "
        "What does it all cost? | How much does everything cost together? | What do I need to pay? | How much is owed? | What amount is owed? | What do I owe? | "
        "How much money is due? | What does it come to? | How much was spent? | How much altogether? | What is the amount owed in total?",
        "How much do I owe? | How much do I need to pay? | How much does it come to in total? | What is owed in total? | How much money do I have to pay? | "
        "How much is to be paid altogether? | What is the full amount due? | What must I pay?",
    ),
    "subtotal": _w(
        "subtotal | sub total | net amount | net total | amount before tax | total before tax",
        "How much is it before tax? | What is the sum without tax? | How much is the subtotal? | What does it cost without tax?",
        "How much is it without tax? | How much does it cost before tax? | What is the sum before tax?",
    ),
    "tax": _w(
        "tax | tax amount | VAT | sales tax | amount of tax | VAT amount",
        "How much is the tax? | How much tax is charged? | How much VAT is there? | How much tax is included? | How much tax is paid?",
        "How much tax is there? | What is the amount of VAT? | How much VAT is charged?",
    ),
    "shipping": _w(
        "shipping cost | shipping | delivery cost | shipping fee | postage | cost of delivery | delivery charge",
        "How much is shipping? | How much does delivery cost? | What does shipping cost? | How much is charged for delivery?",
        "How much does shipping cost? | What is the cost of shipping? | How much is delivery?",
    ),
    "discount": _w(
        "discount | rebate | price reduction | discount amount",
        "How much is the discount? | How much was taken off? | How much is the rebate? | What discount is given?",
        "How much discount is given? | What was taken off?",
    ),
    "paid": _w("amount paid | paid amount | money given", "How much was paid? | How much cash was given? | How much did the customer pay?", "How much money was paid? | How much did they pay?"),
    "change": _w("change | change given | change due", "How much change was given? | How much change is there? | How much money was given back?", "How much change is due? | What change was given back?"),
    "invoice_number": _w(
        "invoice number | invoice no | number of the invoice | bill number | invoice ID | invoice code",
        "Which number does the invoice have? | What number is on the invoice? | Under which number was it invoiced?",
        "What number does the invoice have? | Which invoice number is on it?",
    ),
    "receipt_number": _w("receipt number | number of the receipt | receipt no | ticket number", "What number is on the receipt? | Which number does the receipt have?", "What number does the receipt have?"),
    "order_number": _w("order number | purchase order | PO number | number of the order | purchase order number", "Which order is it for? | What order does it belong to?", "Which order does it belong to? | What is the number of the purchase order?"),
    "customer_number": _w("customer number | customer ID | client number | number of the customer", "Which number does the customer have?", "What number does the customer have?"),
    "date": _w(
        "date | issue date | date of issue | invoice date | document date | date of the document",
        "When was it issued? | When was this written? | What date is printed? | What date is on it? | When was this made? | Which day is it from? | When was it dated? | On what date was it issued? | "
        "When was the purchase? | What day is given?",
        "When was this issued? | What date was it written? | On which day was it made? | What date is given on it?",
    ),
    "due_date": _w(
        "due date | payment date | payment deadline | date of payment | last day to pay",
        "When is it due? | When is the payment due? | When must it be paid? | By when do I have to pay? | When do I have to pay? | Until when can I pay? | By which date must it be paid?",
        "When do I need to pay? | By when must it be paid? | By which day is the payment due? | When must I pay?",
    ),
    "terms": _w("payment terms | terms | terms of payment", "How is it to be paid? | What are the payment terms? | What are the terms?", "What are the terms of payment?"),
    "issuer": _w(
        "company | company name | seller | sender company | issuer | name of the company | vendor | supplier",
        "Who issued it? | Who is the seller? | Which company is it from? | Who sent the invoice? | What company wrote this? | Who is the supplier? | Which company issued this? | Who sells?",
        "Which company sent it? | Who sent this? | What is the name of the seller? | Which company wrote this?",
    ),
    "issuer_street": _w("address of the company | street of the seller | company address | seller's address", "Where is the company? | In which street is the company?", "Where is the seller? | What street is the company in?"),
    "customer": _w(
        "customer | customer name | client | buyer | name of the customer | recipient of the invoice",
        "Who is the customer? | Who is billed? | Who has to pay? | To whom is it billed? | Who bought this? | Who is the client? | Who is the buyer? | Who is it for?",
        "Who must pay? | Who is the invoice for? | What is the name of the client? | Who was billed?",
    ),
    "customer_street": _w("address of the customer | customer's street | customer address", "Where does the customer live? | In which street is the customer?", "Where is the customer? | What street does the customer live in?"),
    "store": _w(
        "store | store name | shop | name of the shop | name of the store",
        "Which store is it from? | Where was this bought? | What shop is it? | Where did I buy this? | Which shop is this receipt from?",
        "Which shop is it? | Where was it bought? | What store is this receipt from?",
    ),
    "time": _w("time | time of purchase | time of day", "At what time was the purchase? | What time is printed? | When exactly was it bought?", "What time was it bought? | At what time was it?"),
    "cashier": _w("cashier | name of the cashier | clerk", "Who was the cashier? | Who served? | Who was at the counter?", "Who served the customer? | Which cashier was it?"),
    "table_number": _w("table | table number", "Which table was it? | At which table?", "Which table number is it?"),
    "card": _w("payment method | way of payment", "How was it paid? | What was used to pay?", "How did the customer pay?"),
    "contact": _w("contact | contact person | name of the contact", "Who should be contacted? | Whom can I ask? | Who can I contact? | Who can I ask for details?", "Who is the contact? | Whom should I contact?"),
    "iban": _w("bank account | account number | account | IBAN", "Which account is it paid to? | Where should the money go? | Where do I transfer the money to? | Which account should I pay to?", "To which account should I pay?"),
    "phone": _w("phone number | telephone number | phone | telephone | number to call", "Which number can I call? | What number should I call? | How can I call them?", "Which phone number can I call? | What number can I call?"),
    "email": _w("email address | email | e-mail | mail address", "Where can I write to? | Which email can I use? | Where should the reply go?", "Which email address can I write to?"),
    "website": _w("website | web address | web page", "Where is it on the web?", "Which website is given?"),
    "title": _w("title | heading | headline | title of the page | title of the document", "What is it called? | What does the heading say? | How is it titled?", "What does the title say? | What is the document called?"),
    "kind": _w("type of document | kind of document | document type", "What type of document is this? | What kind of document is this? | What is this? | What sort of page is it?", "What kind of page is this? | Which type of document is it?"),
    "item_amount": _w(
        "amount for {subject} | line total of {subject} | cost of {subject} | sum for {subject} | total for {subject}",
        "How much is {subject}? | How much does {subject} cost? | What does {subject} cost? | How much was paid for {subject}? | How much do I pay for {subject}? | {subject}: how much?",
        "How much for {subject}? | What is to be paid for {subject}? | What do I pay for {subject}?",
    ),
    "item_quantity": _w(
        "quantity of {subject} | number of {subject} | amount of units of {subject}",
        "How many {subject}? | How many {subject} were ordered? | How many {subject} were bought? | How many units of {subject}? | How often is {subject} listed as quantity? | How many {subject} are there?",
        "How many units of {subject} were ordered? | What number of {subject} was bought? | How many {subject} are listed?",
    ),
    "item_price": _w(
        "unit price of {subject} | price of one {subject} | price per unit of {subject} | single price of {subject}",
        "How much is one {subject}? | What does one {subject} cost? | What is the price for a single {subject}? | How much does one unit of {subject} cost?",
        "How much does one {subject} cost? | How much is a single {subject}? | What is the price of a single {subject}?",
    ),
    "first_item": _w("first item | first product | first position", "What is listed first? | Which item comes first?", "What item is listed first? | Which product is first?"),
    "last_item": _w("last item | last product | last position", "What is listed last? | Which item comes last?", "What item is listed last? | Which product is last?"),
    "item_count": _w("number of items | number of products", "How many items are listed? | How many items are there? | How many products are listed? | How many different items are there?", "How many products are there? | How many different items are listed?"),
    "dearest_item": _w("most expensive item | most expensive product | dearest item", "Which item costs the most? | What is the most expensive? | Which item has the highest amount?", "Which product costs the most? | What item is the most expensive?"),
    "field": _w("{label} | {label} | {label} | {label} field | entry for {label} | value of {label} | value for {label}", "What stands next to {label}? | What is entered under {label}? | {label} is what? | What does {label} say?", "What is entered for {label}? | What does it say under {label}? | What stands under {label}?"),
    "cell": _w(
        "{label} of {subject} | {label} of {subject} | {label} for {subject} | {subject} {label} | value of {label} for {subject}",
        "{subject}: {label}? | What {label} does {subject} have? | Which {label} does {subject} have? | In the row {subject}, what is the {label}? | {label} of {subject}? | "
        "What is {subject}'s {label}? | What is listed under {label} for {subject}? | What does the table say for {subject} under {label}? | How much {label} does {subject} have?",
        "Which {label} is listed for {subject}? | What {label} is given for {subject}? | For {subject}, what is the {label}? | What does {subject} have under {label}?",
    ),
    "entry": _w(
        "{label} of {subject} | {label} of {subject} | {label} for {subject} | {subject} {label}",
        "{subject}: {label}? | What {label} does {subject} have? | Which {label} does {subject} have? | {label} of {subject}? | What is {subject}'s {label}? | "
        "What is the {label} at {subject}? | Which {label} belongs to {subject}?",
        "Which {label} is listed for {subject}? | What {label} is given for {subject}? | For {subject}, what is the {label}?",
    ),
    "section_first": _w("first point under {label} | first entry under {label}", "Which point comes first under {label}? | What is the first thing under {label}?", "What comes first under {label}?"),
    "section_count": _w("number of points under {label}", "How many points are there under {label}? | How many things are named under {label}?", "How many points does {label} have?"),
    "doc_number": _w(
        "{label} number | number of the {label} | {label} no | {label} code | reference of the {label}",
        "Which number does the {label} have? | What is the {label} called? | What number is the {label}?",
        "What number does the {label} have?",
    ),
    "two_stage": _w("{subject}", "How high is the {subject}? | How much is the {subject}? | {subject}? | What stands for the {subject}?", "What does it say for the {subject} there?"),
    "degree": _w("degree | academic degree | university degree", "Which degree was earned? | What degree does the person have?", "What degree was earned?"),
    "university": _w("university | college | school attended | place of study", "Where did the person study? | Which university was it? | At which school was the degree earned?", "At which university did the person study?"),
    "period": _w("period | billing period | month | time covered", "Which month is it for? | What period does it cover?", "Which period does it cover?"),
    "start_date": _w("start date | first day | start | date of the start", "When does it begin? | From when does it run? | On which day does it begin?", "On what date does it begin?"),
    "notice": _w("notice period | length of notice | notice", "How long is the notice period? | How much notice must be given?", "How much notice is needed?"),
    "warranty": _w("warranty | length of the warranty | guarantee", "How long is the warranty? | How long is it guaranteed?", "How long does the warranty last?"),
    "weight": _w("weight | weight of the parcel", "How heavy is it? | How much does it weigh? | What does it weigh?", "What is its weight?"),
    "fee": _w("fee | amount of the fee | charge", "How much is the fee? | What fee applies? | What fee is charged?", "How much is charged as a fee?"),
    "deposit": _w("deposit | amount of the deposit", "How much is the deposit? | How large is the deposit? | What deposit is required?", "How much deposit is required?"),
    "seats": _w("number of seats", "How many seats are there? | How many seats are left?", "How many seats does it have?"),
    "member_count": _w("number of members", "How many members are there? | How many members does the club have?", "How many people are members?"),
    "winner": _w("winner | name of the winner", "Who won? | Who is the winner? | Who gets the first prize?", "Who has won?"),
    "age": _w("age", "How old is the person? | How old is the writer?", "What age is the person?"),
    "address": _w("address | street address | street", "Where can I find them? | At which address are they? | Where do they live? | What street is it in?", "At what address can I find them?"),
    "host": _w("host | name of the host", "Who is the host? | Who hosts it? | Who will be the host?", "Who is hosting it?"),
    "venue": _w("venue | place | location | place of the event", "Where is it? | Where will it be held? | Which place is it at? | Where do they meet? | Where do I have to go?", "Where is it held? | Where should I go?"),
    "manager": _w("manager | name of the manager | head of the team", "Who is the manager? | Who leads the team?", "Who is the head of the team?"),
    "language": _w("language", "Which language is spoken? | In which language is it?", "What language is spoken?"),
    "order_item": _w("product ordered | item ordered | ordered item", "What was ordered? | Which product is it? | What did the customer order?", "Which product was ordered?"),
    "speed": _w("speed", "How fast is it? | How fast does it go?", "At what speed does it run?"),
    "valid_until": _w("end of the offer | last day of the offer | expiry date", "Until when is it valid? | Until when is the offer valid? | How long is it valid? | When does the offer end? | How long do the prices hold?", "Until what date is it valid? | When does it end?"),
    "made_in": _w("country of origin | country it was made in", "Where was it made? | In which country was it made? | Where does it come from? | Which country is it from? | Where is it produced?", "In what country was it produced? | What country does it come from?"),
    "work_time": _w("duration of the work | length of the work", "How long will the work last? | How long will it take? | How much time does the work need? | How long is the work?", "How much time does it take? | How long does it take?"),
    "sign_guest": _w("guest | name of the guest | artist", "Who will be there? | Who is the guest? | Who plays?", "Who is going to be there?"),
    "row_count": _w("number of rows | number of entries", "How many rows does the table have? | How many entries are there? | How many rows are there?", "How many rows are listed? | How many entries does the table have?"),
    "first_row": _w("first {label} | first entry in the column {label}", "Which {label} is listed first? | What is the first {label} in the table?", "Which {label} comes first?"),
    "last_row": _w("last {label} | last entry in the column {label}", "Which {label} is listed last? | What is the last {label} in the table?", "Which {label} comes last?"),
    "sender": _w("sender | author | name of the sender | writer", "Who wrote this? | Who is it from? | Who sent the letter? | Who signed the letter? | Who is the letter from? | Who wrote the letter?", "Who is the sender? | Who signed this? | Who sent this letter?"),
    "recipient": _w("recipient | addressee | name of the recipient", "Who is it addressed to? | Who is the recipient? | To whom was it written? | Who gets the letter? | Who is the letter for? | Who is the letter addressed to?", "To whom is the letter addressed? | Who was it written to? | Who is this letter for?"),
    "subject": _w("subject | topic | subject line", "What is it about? | What is the letter about? | What is the subject?", "What is this letter about? | Which topic is it about?"),
    "meeting_date": _w("date of the meeting | meeting date | day of the meeting", "When will the meeting take place? | When is the meeting? | On what date do they meet? | When will they meet?", "When does the meeting take place? | On which day is the meeting?"),
    "meeting_place": _w("place of the meeting | meeting place | city of the meeting", "Where will they meet? | Where is the meeting? | In which city do they meet? | Where does the meeting take place?", "In which city is the meeting? | Where do they meet?"),
    "meeting_time": _w("time of the meeting | meeting time | start of the meeting", "At what time is the meeting? | When does the meeting start? | What time does the meeting begin?", "At what time does the meeting start? | What time do they meet?"),
    "payment": _w("payment | payment received | amount of the payment", "How much was the payment? | How much money was received? | What was paid?", "How much was received? | How much money did they pay?"),
    "reference": _w("reference | reference number | reference code", "Which reference is given? | What reference should be quoted?", "Which reference should be quoted?"),
    "box_count": _w("number of boxes", "How many boxes are in the order? | How many boxes were sent? | How many boxes are there?", "How many boxes does the order contain?"),
    "train_time": _w("departure of the train | departure time of the train", "When does the train leave? | At what time does the train go? | When is the train?", "When does the train depart? | What time does the train leave?"),
    "office": _w("city of the office | place of the new office", "Where is the new office? | Where did the office move? | In which city is the office?", "Where has the office moved to? | In which city is the new office?"),
    "project": _w("project | project name | name of the project", "What is the project called? | How is the project called?", "What name does the project have?"),
    "rent": _w("rent | new rent | amount of rent", "How high will the rent be? | How much is the rent? | What will the rent be?", "How much will the rent be?"),
    "password": _w("password | secret word", "What is the password? | Which password do I need? | How can I log in?", "Which password is used to log in?"),
    "interview": _w("date of the interview | interview date", "When is the interview? | On what day is the interview?", "On what date is the interview?"),
    "deadline": _w("deadline | reply date | last day to reply", "By when should I reply? | Until when do they need an answer? | When is the deadline? | By when do they need the answer?", "By which date should I reply? | Until when can I reply?"),
    "speaker": _w("speaker | guest speaker | name of the speaker", "Who gives the speech? | Who will speak?", "Who is the speaker?"),
    "budget": _w("budget | amount of the budget", "How large is the budget? | How much money is in the budget? | How high is the budget?", "How much is the budget?"),
    "guest_count": _w("number of guests", "How many guests are expected? | How many guests will there be? | How many people will come?", "How many guests will come?"),
    "hotel": _w("hotel | name of the hotel", "Where will they stay? | Which hotel is booked? | In which hotel is the room?", "Which hotel will they stay at?"),
    "flight": _w("flight | flight number", "Which flight is booked? | Which flight should be taken?", "Which flight is it?"),
    "room": _w("room | room number", "Which room is it? | Where should I come to? | Which room is booked?", "Which room should I come to?"),
    "replacement": _w("replacement | name of the replacement", "Who will help? | Who helps while the sender is away?", "Who is the replacement?"),
    "delivery_date": _w("delivery date | date of delivery | day of arrival", "When will the order arrive? | When are the goods delivered? | When does the order come?", "When will the goods arrive? | When is the order delivered?"),
    "contract": _w("contract | contract number | number of the contract", "Which contract is it about?", "Which contract number is given?"),
    "discount_offer": _w("discount offered | offered discount", "How much off do I get? | What discount is offered?", "How much discount is offered?"),
    "salary": _w("salary | new salary | pay", "How much is the salary? | What will I earn? | How much will I earn?", "What salary is offered?"),
    "dinner": _w("time of dinner | dinner time", "When is dinner? | At what time is dinner served?", "When does dinner start?"),
    "sign_date": _w("date | day", "When is it? | What date is shown?", "On which day is it?"),
    "sign_time": _w("time | hour", "At what time? | When does it start?", "What time does it start?"),
    "sign_price": _w("price | cost", "How much does it cost? | How much is it?", "What does it cost?"),
    "sign_city": _w("city | place | town", "Where is it? | In which city? | Where will it be?", "In which city is it?"),
    "next_word": _w('word after "{subject}"', 'Which word comes after "{subject}"? | What comes after "{subject}"?', 'Which word is after "{subject}"?'),
    "first_line": _w("first line", "What does the first line say? | Read the first line.", "What is written in the first line?"),
    "last_line": _w("last line", "What does the last line say? | Read the last line.", "What is written in the last line?"),
    "numbered_line": _w("line {subject}", "What does line {subject} say? | Read line {subject}.", "What is written in line {subject}?"),
    "line_start": _w('line that starts with "{subject}"', 'Which line starts with "{subject}"? | Read the line that starts with "{subject}".', 'What does the line that starts with "{subject}" say?'),
    "page_count": _w("number of pages", "How many pages are there? | How many pages does the document have?", "How many pages does it have?"),
    "page_of": _w("page of the {subject} | page number of the {subject}", "On which page is the {subject}? | Which page shows the {subject}? | Where is the {subject}?", "Which page has the {subject}? | On what page is the {subject}?"),
}  # fmt: skip
TRANSCRIBE = (
    "Transcribe the page.", "Read all the text.", "Transcribe the document.", "What does the page say?", "OCR:", "Read the page.", "Write down all the text.",
    "What is written here?", "Read everything.", "Read the text in the image.", "Transcribe this.", "What text is in the image?", "Please read the page to me.",
    "Give me the full text.", "Type out the whole page.", "Copy the text word for word.", "What does it say, word for word?", "I need the complete text of this page.",
    "Please type this up for me.", "Convert this to text.", "full text please", "text of the page", "Extract all text.", "Extract the text from this scan.", "Read it out.",
    "Read it aloud.", "Can you read this to me?", "Could you write out everything on the page?", "Write out the text exactly as it stands.", "transcribe", "ocr", "Please transcribe.",
    "Return the text of the document.", "Turn this picture into text.", "What are the exact words on this page?", "I can't read this, what does it say?", "Show me the text.",
    "Copy everything that is written here.", "Let me have the text of this.", "Write down what you see, line by line.", "Repeat the text of the page.", "Output the text.",
    "Everything on this page as text, please.", "Would you transcribe the whole thing?", "Get me the text of this page.", "Reproduce the text in full.", "Type what is written.",
    "What is the text?", "Tell me everything that is on the page.", "Spell out the whole text.", "The whole text, from top to bottom.", "Read from the beginning to the end.",
)  # fmt: skip
ON_PAGE = (
    "{q} (page {n})", "On page {n}: {q}", "Page {n}: {q}", "{s} on page {n}{e}", "{s} on page {n}{e}", "{s} on the {o} page{e}", "On the {o} page, {l}", "On page {n}, {l}",
)  # fmt: skip
HELD_ON_PAGE = ("For page {n}: {q}", "{s} of page {n}{e}", "{s}, page {n}{e}")
ORDINALS = "first second third fourth fifth sixth seventh eighth".split()
_SHORT = "\nAnswer the question using a single word or phrase."

# questions for a field whose value is a person, a date or an amount
FIELD_QUESTIONS: dict[str, tuple[str, ...]] = {
    "person": ("Who is named as the {0}?", "Who is given as {0}?", "Which person is the {0}?", "What name is given for the {0}?", "{0}: who is it?"),
    "date": ("On what day is the {0}?", "Which date is given for {0}?", "For when is the {0} given?", "{0}: when?"),
    "money": ("How high is the {0}?", "What amount is given for {0}?", "How much money is the {0}?", "{0}: how much?"),
}  # fmt: skip
VALUE_KINDS = {v.person: "person", v.date: "date", v.money: "money"}
FIELD_KINDS = {label.lower(): VALUE_KINDS[make] for labels, make in FIELDS if make in VALUE_KINDS for label in labels}

# Names of what an "entry" states, first the one that generators use, and questions of its own ({0} is the subject).
ATTRIBUTES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "time": (("time", "start", "starting time", "hour"), ("When does {0} start?", "At what time does {0} begin?", "What time is {0}?", "When will {0} be?")),
    "speaker": (("speaker", "presenter", "name of the speaker", "person"), ("Who presents {0}?", "Who talks about {0}?", "Who gives {0}?", "Who leads {0}?", "Who is in charge of {0}?")),
    "room": (("room", "place", "location"), ("Where is {0}?", "In which room is {0}?", "Where does {0} take place?", "Where do I go for {0}?")),
    "job": (("job", "role", "title", "position", "occupation", "post"), ("What did the person do at {0}?", "Which job was held at {0}?", "As what did the person work at {0}?", "Which role was held at {0}?")),
    "period": (("period", "years", "dates", "time", "duration"), ("When was {0}?", "From when to when was {0}?", "During which years was {0}?")),
    "city": (("city", "place", "town", "location"), ("Where is {0}?", "In which city is {0}?", "In which town is {0}?")),
    "departure": (("departure", "departure time", "time"), ("When does the one to {0} leave?", "When does it leave for {0}?", "At what time does {0} depart?")),
    "arrival": (("arrival", "arrival time", "time"), ("When does the one from {0} arrive?", "When does {0} arrive?")),
    "platform": (("platform", "track"), ("From which platform does {0} go?", "Where does {0} leave from?")),
    "price": (("price", "cost", "amount", "charge"), ("How much is {0}?", "How much does {0} cost?", "What does {0} cost?", "What is to be paid for {0}?")),
    "size": (("size", "contents"), ("How much is in {0}?", "How large is {0}?", "How big is {0}?")),
    "phone number": (("phone number", "phone", "number", "telephone"), ("Which number does {0} have?", "How can I call {0}?", "What number do I call for {0}?")),
    "department": (("department", "division", "team"), ("Where does {0} work?", "In which department is {0}?", "Which team is {0} in?")),
    "email": (("email", "email address", "e-mail"), ("Where can I write to {0}?", "How can I write to {0}?")),
    "degree": (("degree", "qualification"), ("What was earned at {0}?", "Which degree comes from {0}?", "What was studied at {0}?")),
    "date": (("date", "day"), ("When was {0}?", "On which day is {0}?", "What day was {0}?")),
    "person": (("person", "name", "contact"), ("Who is responsible for {0}?", "Who does {0}?", "Who takes care of {0}?")),
    "status": (("status", "state"), ("How far is {0}?", "What is the state of {0}?")),
    "result": (("result", "score", "value"), ("What was measured for {0}?", "What did {0} score?", "How high is {0}?")),
    "unit": (("unit",), ("In what is {0} measured?",)),
}  # fmt: skip
# other names of a form field: asking for the "telephone number" finds "Tel"
SYNONYMS = {label.lower(): labels for labels, _ in FIELDS for label in labels}


def _casual(r: Rng, question: str, suffix: bool) -> str:
    """Small differences of typing that must not matter."""
    if r.chance(0.2) and '"' not in question:
        question = lower_first(question)
    if r.chance(0.15):
        question = question.rstrip("?.")
    if r.chance(0.04):
        question = f"{r.pick(('Hi, ', 'Hello, ', 'Please: ', 'Question: ', 'Q: '))}{question}"
    if r.chance(0.05):
        question = question.rstrip("?.") + r.pick((" on this page?", " in this document?", " here?", " in the image?"))
    if suffix and r.chance(0.08):
        question += _SHORT
    return question


def phrase_question(r: Rng, fact: Fact, held: bool = False) -> str:
    """A question for ``fact``, without the variations of :func:`ask`."""
    if fact.asks:
        kept = len(fact.asks) - (len(fact.asks) >= 4)  # the last wording of four or more is held out
        return fact.asks[-1] if held and kept < len(fact.asks) else r.pick(fact.asks[:kept])
    wording = WORDINGS[fact.key]
    label = fact.label.rstrip(":")
    if fact.key == "field" and label.lower() in SYNONYMS and r.chance(0.35):
        label = r.pick(SYNONYMS[label.lower()])
    if fact.key == "entry" and label in ATTRIBUTES:
        names, direct = ATTRIBUTES[label]
        if not held and r.chance(0.45):
            question = r.pick(direct).format(f'"{fact.subject}"' if r.chance(0.1) else fact.subject)
            return question[0].upper() + question[1:]
        label = label if r.chance(0.5) else r.pick(names)
    if fact.key == "field" and not held and label.lower() in FIELD_KINDS and r.chance(0.25):
        question = r.pick(FIELD_QUESTIONS[FIELD_KINDS[label.lower()]]).format(label if r.chance(0.5) else label.lower())
        return question[0].upper() + question[1:]
    if label and r.chance(0.4) and not label.isupper():
        label = label.lower()
    own = wording.held if held else wording.direct
    if own and r.chance(0.5 if wording.nouns else 1.0):
        question = r.pick(own)
    else:
        question = r.pick(HELD_FRAMES if held else FRAMES).format(
            r.pick(wording.nouns).replace("{", "{{").replace("}", "}}")
        )
        question = question.replace("{{", "{").replace("}}", "}")
    question = question.replace("{label}", label).replace("{subject}", fact.subject)
    return question[0].upper() + question[1:]


def ask(r: Rng, fact: Fact, held: bool = False, page: int | None = None, manners: bool = False) -> tuple[str, str]:
    """A question about ``fact`` and its answer.

    Args:
        r: the source of randomness.
        fact: what is asked for.
        held: use only wordings that training never shows.
        page: number of the page (from 1) to name in the question, for documents of several pages.
        manners: type it in any of the manners of `training.manners`, as training does, not with small slips alone.
    """
    question = phrase_question(r, fact, held)
    if page is not None:
        stem, end = question.rstrip("?."), question[len(question.rstrip("?.")) :]
        question = r.pick(HELD_ON_PAGE if held else ON_PAGE).format(
            q=question, s=stem, e=end, n=page, o=ORDINALS[page - 1], l=lower_first(question)
        )
    if manners and not held:
        question = typed(r, question)
    elif manners and fact.asks and page is None:
        question = typed_held(r, question)
    elif not held:
        question = _casual(r, question, suffix=True)
    return question, fact.value
