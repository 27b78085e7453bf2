"""Facts in running text: sentences with blanks, what each of them answers, and paragraphs that hide them."""

from __future__ import annotations

from training.office.document import Document
from training.office.prose import prose
from training.office.values import Dates, Money, person, town
from training.pages import values as v
from training.pages.values import Rng

PLACES = (
    "bakery",
    "library",
    "harbour",
    "cinema",
    "museum",
    "bridge",
    "chapel",
    "school",
    "market hall",
    "town hall",
    "railway station",
    "swimming pool",
    "observatory",
    "brewery",
    "hospital",
    "theatre",
    "youth hostel",
    "lighthouse",
)
THINGS = (
    "boiler",
    "lift",
    "minibus",
    "printer",
    "greenhouse",
    "roof",
    "fence",
    "piano",
    "server",
    "playground",
    "archive",
    "kitchen",
    "heating",
    "loading ramp",
    "workshop",
)
EVENTS = (
    "summer fair",
    "book sale",
    "flea market",
    "open day",
    "charity run",
    "film night",
    "wine tasting",
    "chess tournament",
    "concert",
    "training day",
    "anniversary dinner",
    "blood donation",
    "clean-up day",
)
ANIMALS = (
    "stork",
    "otter",
    "hedgehog",
    "barn owl",
    "honey bee",
    "salmon",
    "lynx",
    "bat",
    "swallow",
    "seal",
    "badger",
    "toad",
)
CAUSES = (
    "it had rained for weeks",
    "the money had run out",
    "the roof was leaking",
    "too few people had signed up",
    "the road was being repaired",
    "a part could not be delivered",
    "the lease had ended",
    "the neighbours had complained",
    "the old one was too small",
    "nobody had checked the figures",
    "the staff were on strike",
    "a pipe had burst",
    "demand had doubled",
    "the law had changed",
)
AIMS = (
    "to save energy",
    "to attract younger visitors",
    "to reduce noise",
    "to cut costs",
    "to protect the birds",
    "to make room for bicycles",
    "to shorten the waiting time",
    "to honour the founder",
    "to raise money for the choir",
    "to avoid mistakes",
)
WORDS = ("two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty").split()

# text, then (wordings joined by |, answer); names in braces are blanks of `Blanks`
TOLD: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("{p} has been running the {place} in {town} since {year}.", (("Who runs the {place}? | Who is in charge of the {place}? | Who leads the {place}? | Who has been running the {place}?", "{p}"), ("Since when has {p} been running the {place}? | Since what year has {p} been in charge? | In which year did {p} take over the {place}?", "{year}"), ("Where is the {place} that {p} runs? | In which town is the {place}? | Where does {p} run the {place}?", "{town}"))),
    ("The {place} was built in {year} and cost {money}.", (("When was the {place} built? | In which year was the {place} built? | What year does the {place} date from? | How old is the {place}, from which year?", "{year}"), ("How much did the {place} cost? | What did it cost to build the {place}? | What was paid for the {place}?", "{money}"))),
    ("In {year}, {p} moved from {town} to {town2} because {cause}.", (("Why did {p} move? | Why did {p} leave {town}? | What made {p} move to {town2}? | For what reason did {p} go to {town2}?", "{cause}"), ("Where did {p} move to? | To which town did {p} move? | Where did {p} go from {town}?", "{town2}"), ("Where did {p} live before? | From where did {p} move? | Which town did {p} leave?", "{town}"), ("When did {p} move? | In which year did {p} move to {town2}?", "{year}"))),
    ("The {thing} had to be replaced because {cause}; the new one cost {money}.", (("Why was the {thing} replaced? | Why did they need a new {thing}? | What was the reason to replace the {thing}? | Why did the {thing} have to be replaced?", "{cause}"), ("How much did the new {thing} cost? | What was the price of the new {thing}? | What did the {thing} come to?", "{money}"))),
    ("The {event} was postponed from {date} to {date2} because {cause}.", (("Why was the {event} postponed? | What is the reason for the new date of the {event}? | Why is the {event} later?", "{cause}"), ("When is the {event} now? | To which day was the {event} moved? | What is the new date of the {event}? | When will the {event} be held?", "{date2}"), ("When should the {event} have been? | What was the first date of the {event}? | For what day was the {event} planned at first?", "{date}"))),
    ("Tickets for the {event} cost {money} for adults and {money2} for children.", (("How much is a ticket for children? | What do children pay for the {event}? | How much does a child pay?", "{money2}"), ("How much is a ticket for adults? | What do adults pay for the {event}? | How much does an adult pay?", "{money}"))),
    ("{n} people took part in the {event}, {m} more than the year before.", (("How many people took part in the {event}? | What was the number of people at the {event}? | How many came to the {event}?", "{n}"), ("How many more than the year before took part? | By how many did the number at the {event} grow?", "{m}"))),
    ("{p} won the first prize with a {colour} {animal} made of paper, and {q} came second.", (("Who won the first prize? | Who came first? | Who is the winner? | Who got the first prize?", "{p}"), ("Who came second? | Who got the second prize? | Who was in second place?", "{q}"), ("What did {p} win the prize with? | What had {p} made?", "a {colour} {animal}"))),
    ("A {animal} weighs about {n} grams and can live for up to {words} years.", (("How old can a {animal} get? | How long does a {animal} live? | Up to what age does a {animal} live?", "{words} years"), ("How heavy is a {animal}? | What does a {animal} weigh? | What is the weight of a {animal}?", "{n} grams"))),
    ("The factory in {town} employs {n} people and makes {product} for {firm}.", (("How many people work at the factory? | How many people does the factory in {town} employ? | How large is the staff of the factory?", "{n}"), ("What does the factory make? | What is produced in {town}? | What is made at the factory?", "{product}"), ("For whom does the factory work? | Which company does the factory in {town} supply? | Who gets the {product}?", "{firm}"))),
    ("{firm} was founded by {p} in {town} in {year}.", (("Who founded {firm}? | By whom was {firm} founded? | Who is the founder of {firm}? | Who started {firm}?", "{p}"), ("When was {firm} founded? | In which year was {firm} founded? | Since when does {firm} exist?", "{year}"), ("Where was {firm} founded? | In which town was {firm} founded? | Where does {firm} come from?", "{town}"))),
    ("Last year {firm} sold {n},000 units, and its profit rose from {money} to {money2}.", (("How high is the profit of {firm} now? | To what did the profit rise? | What is the new profit of {firm}?", "{money2}"), ("How high was the profit of {firm} before? | From what did the profit rise? | What was the profit earlier?", "{money}"), ("How many units did {firm} sell? | What number of units was sold last year?", "{n},000"))),
    ("The road between {town} and {town2} will be closed from {date} until {date2}, {aim}.", (("Which road will be closed? | What road is closed? | Between which towns is the road closed?", "the road between {town} and {town2}"), ("Until when is the road closed? | When does the road open again? | How long is the road closed?", "{date2}"), ("From when is the road closed? | When does the closure of the road begin?", "{date}"), ("Why is the road closed? | What is the closure of the road for? | What is the aim of closing the road?", "{aim}"))),
    ("It was {p}, not {q}, who found the key in the {place}.", (("Who found the key? | By whom was the key found? | Which person found the key?", "{p}"), ("Where was the key found? | Where did {p} find the key? | In what building was the key?", "in the {place}"))),
    ("The trip takes {words} hours by train but only {words2} by car.", (("How long does the trip take by car? | How many hours is it by car? | How long is the drive?", "{words2} hours"), ("How long does the trip take by train? | How many hours is it by train?", "{words} hours"))),
    ("{p}, who teaches at the school in {town}, speaks {language} and {language2}.", (("Which languages does {p} speak? | What languages are spoken by {p}? | What does {p} speak?", "{language} and {language2}"), ("Where does {p} teach? | In which town does {p} work? | Where is the school of {p}?", "{town}"), ("Who speaks {language}? | Who can speak {language2}? | Which person knows {language}?", "{p}"))),
    ("The {place} opens at {time} and closes at {time2}, except on {weekday}, when it stays shut.", (("When does the {place} open? | From what time is the {place} open? | At what time does the {place} open?", "{time}"), ("When does the {place} close? | Until when is the {place} open? | At what time does the {place} close?", "{time2}"), ("On which day is the {place} closed? | When is the {place} shut all day? | Which day can I not go to the {place}?", "{weekday}"))),
    ("Please send the signed form to {p} by {date}, or hand it in at room {n}.", (("To whom must the form be sent? | Who gets the signed form? | Who should I send the form to?", "{p}"), ("By when must the form be sent? | Until when can I send the form? | What is the deadline for the form?", "{date}"), ("In which room can the form be handed in? | Where can I hand in the form? | Which room takes the form?", "room {n}"))),
    ("The committee voted {words} to {words2} against the plan of {p}.", (("Whose plan was voted on? | Whose plan did the committee reject? | Who had made the plan?", "{p}"), ("How did the committee vote? | What was the result of the vote? | With how many votes was it decided?", "{words} to {words2}"))),
    ("At {height} metres, {name} Hill is the highest point of the county; {name2} Hill is {n} metres lower.", (("What is the highest point of the county? | Which hill is the highest? | Where is the highest point?", "{name} Hill"), ("How high is {name} Hill? | What is the height of {name} Hill? | How many metres has the highest point?", "{height} metres"), ("Which hill is lower? | Which hill is not the highest?", "{name2} Hill"))),
    ("The river {name} rises near {town} and flows into the sea at {town2} after {n} kilometres.", (("How long is the river {name}? | What is the length of the {name}? | How many kilometres does the {name} flow?", "{n} kilometres"), ("Where does the {name} rise? | Where is the source of the {name}? | Where does the river {name} begin?", "near {town}"), ("Where does the {name} flow into the sea? | Where does the river {name} end? | Where is the mouth of the {name}?", "{town2}"))),
    ("{p} was born in {town} on {date} as the {ordinal} of {words} children.", (("When was {p} born? | What is the birthday of {p}? | On which day was {p} born?", "{date}"), ("Where was {p} born? | In which town was {p} born? | What is the birthplace of {p}?", "{town}"), ("How many children were there in the family of {p}? | How many children did the parents of {p} have?", "{words}"))),
    ("After {words} years at {firm}, {p} retires at the end of {month}; {q} takes over.", (("Who retires? | Who is leaving {firm}? | Who stops working?", "{p}"), ("Who takes over from {p}? | Who follows {p}? | Who is the successor of {p}?", "{q}"), ("When does {p} retire? | When will {p} leave {firm}?", "at the end of {month}"), ("How long did {p} work at {firm}? | For how many years was {p} at {firm}?", "{words} years"))),
    ("The new {thing} uses {percent} less electricity than the old one and was paid for by {firm}.", (("Who paid for the new {thing}? | By whom was the new {thing} paid? | Which company paid for the {thing}?", "{firm}"), ("How much less electricity does the new {thing} use? | How much electricity does the new {thing} save?", "{percent}"))),
    ("Only {percent} of the {n} people asked were content with the {thing}.", (("How many people were asked? | How many people took part in the survey? | What was the number of people asked?", "{n}"), ("What share was content with the {thing}? | How many percent were content? | How many like the {thing}, in percent?", "{percent}"))),
    ("Because {cause}, the meeting in {town} began {words} minutes late.", (("Why did the meeting begin late? | Why was the meeting late? | What delayed the meeting?", "{cause}"), ("How late did the meeting begin? | By how many minutes was it late? | How many minutes late was the meeting?", "{words} minutes"), ("In which town was the meeting that began late? | Where did the meeting begin late?", "{town}"))),
    ("The dog of {p} is called {pet} and is {words} years old.", (("What is the name of the dog? | What is the dog called? | How is the dog called?", "{pet}"), ("Whose dog is {pet}? | Who owns {pet}? | To whom does the dog belong?", "{p}"), ("How old is the dog? | What is the age of {pet}?", "{words} years"))),
    ("{p} paid {money} for the {colour} bicycle, which {q} had sold too cheaply.", (("What did {p} pay for the bicycle? | How much was the bicycle? | What was the price of the bicycle?", "{money}"), ("Who sold the bicycle? | From whom did {p} buy the bicycle? | Who was the seller of the bicycle?", "{q}"), ("What colour is the bicycle? | Which colour has the bicycle?", "{colour}"), ("Who bought the bicycle? | Who has the bicycle now?", "{p}"))),
    ("The parcel weighs {n} kg and is to be left with {p} on floor {m} if nobody opens.", (("With whom should the parcel be left? | Who takes the parcel if nobody opens? | Where can the parcel be left?", "{p}"), ("On which floor does {p} live? | What floor is it?", "floor {m}"), ("How heavy is the parcel? | What is the weight of the parcel?", "{n} kg"))),
    ("The course lasts {words} weeks, starts on {date} and is taught by {p}.", (("Who teaches the course? | Who gives the course? | By whom is the course taught?", "{p}"), ("When does the course start? | On which day does the course begin? | What is the first day of the course?", "{date}"), ("How long does the course last? | How many weeks is the course?", "{words} weeks"))),
    ("{p} lent {q} {money}, to be paid back before {date}.", (("How much did {p} lend? | What sum did {q} borrow? | How much does {q} have to pay back?", "{money}"), ("Who lent the money? | From whom did {q} borrow?", "{p}"), ("Who borrowed the money? | Who has to pay back?", "{q}"), ("By when must the money be paid back? | Until when does {q} have to pay?", "{date}"))),
    ("Since {date}, smoking has been forbidden in the {place}; the fine is {money}.", (("How high is the fine? | How much is the fine for smoking? | What does it cost to smoke there?", "{money}"), ("What is forbidden in the {place}? | What may one not do in the {place}?", "smoking"), ("Since when is smoking forbidden? | From which date is it forbidden to smoke?", "{date}"))),
    ("The painting, which shows a {colour} {animal}, was stolen from the {place} and found again in {town}.", (("What was stolen? | What was taken from the {place}?", "the painting"), ("What does the painting show? | What can be seen on the painting?", "a {colour} {animal}"), ("Where was the painting found? | In which town did the painting turn up?", "{town}"))),
    ("The {thing} will be inspected by {p} of {firm} on {weekday} at {time}.", (("Who will inspect the {thing}? | Who comes to inspect the {thing}? | By whom is the {thing} checked?", "{p}"), ("When is the {thing} inspected? | On which day is the inspection of the {thing}?", "{weekday}"), ("At what time is the {thing} inspected? | What time is the inspection of the {thing}?", "{time}"), ("For which company does {p} work? | What is the firm of {p}?", "{firm}"))),
    ("There are {n} rooms on the first floor and {m} on the second.", (("How many rooms are on the first floor? | What number of rooms has the first floor?", "{n}"), ("How many rooms are on the second floor? | What number of rooms has the second floor?", "{m}"))),
    ("To open the door of the {place}, use the code {code}; it changes every {weekday}.", (("What is the code of the door? | Which code opens the {place}? | What code do I need?", "{code}"), ("When does the code change? | On which day does the code change? | How often does the code change?", "every {weekday}"))),
    ("The idea came from {p}, the drawings from {q}, and the money from {firm}.", (("Who had the idea? | Whose idea was it? | From whom did the idea come?", "{p}"), ("Who made the drawings? | Whose drawings are they?", "{q}"), ("Who gave the money? | Where did the money come from? | Who paid?", "{firm}"))),
    ("{firm} will close its branch in {town} {aim}; the {words} employees move to {town2}.", (("Which branch will be closed? | Where does {firm} close a branch? | In which town does the branch close?", "{town}"), ("Why does the branch close? | What does {firm} close the branch for?", "{aim}"), ("Where do the employees move? | To which town do the employees go?", "{town2}"), ("How many employees move? | How many people work at the branch?", "{words}"))),
    ("Mix {n} ml of water with {m} g of salt and wait {words} minutes.", (("How much salt is needed? | How many grams of salt are mixed in?", "{m} g"), ("How much water is needed? | How many millilitres of water are used?", "{n} ml"), ("How long must one wait? | How many minutes does one wait?", "{words} minutes"))),
    ("The oldest member, {p}, is {n} years old; the youngest, {q}, is only {m}.", (("Who is the oldest member? | Which member is the oldest?", "{p}"), ("Who is the youngest member? | Which member is the youngest?", "{q}"), ("How old is the oldest member? | What is the age of {p}?", "{n}"), ("How old is the youngest member? | What is the age of {q}?", "{m}"))),
    ("{p} plays the {instrument}, {q} the {instrument2}.", (("Who plays the {instrument}? | By whom is the {instrument} played?", "{p}"), ("Who plays the {instrument2}? | By whom is the {instrument2} played?", "{q}"), ("What does {p} play? | Which instrument does {p} play?", "the {instrument}"))),
)  # fmt: skip
INSTRUMENTS = ("cello", "flute", "trumpet", "piano", "harp", "drums", "violin", "clarinet", "organ", "guitar")
PETS = ("Bruno", "Luna", "Rex", "Mira", "Otto", "Pixie", "Sam", "Tosca", "Milo", "Flocke")


class Blanks(dict):
    """Values of blanks, drawn when first used; a blank and its second, such as ``town`` and ``town2``, differ."""

    def __init__(self, r: Rng, dates: Dates, money: Money) -> None:
        super().__init__()
        self.r, self.dates, self.money = r, dates, money

    def draw(self, name: str) -> str:
        r = self.r
        lists = {
            "place": PLACES, "thing": THINGS, "event": EVENTS, "animal": ANIMALS, "cause": CAUSES, "aim": AIMS, "words": WORDS, "colour": v.COLOURS, "language": v.LANGUAGES, "weekday": v.WEEKDAYS,
            "month": v.MONTHS, "instrument": INSTRUMENTS, "pet": PETS, "ordinal": ("first", "second", "third", "youngest", "eldest"),
        }  # fmt: skip
        if name in lists:
            return r.pick(lists[name])
        return {
            "p": lambda: person(r), "q": lambda: person(r), "town": lambda: town(r), "firm": lambda: v.company(r).rstrip("."), "name": lambda: v.name_word(r),
            "money": lambda: self.money(self.money.round(r, 3, r.pick((90, 900, 90000)))), "year": lambda: str(r.randint(1820, 2029)), "n": lambda: str(r.randint(40, 980)), "m": lambda: str(r.randint(2, 39)),
            "height": lambda: f"{r.randint(1, 3)},{r.randint(100, 999)}", "percent": lambda: f"{r.randint(3, 97)}{r.pick((' %', '%', ' percent'))}", "product": lambda: r.pick(v.PRODUCTS).lower(),
            "code": lambda: str(r.randint(1000, 99999)),
        }[name]()  # fmt: skip

    def __missing__(self, key: str) -> str:
        if key in ("date", "date2"):  # the second is the later one
            self["date"], self["date2"] = self.dates.period()
            return self[key]
        if key in ("time", "time2"):
            early = self.r.randint(6 * 12, 13 * 12) * 5
            self["time"], self["time2"] = (self.dates.time(m) for m in (early, early + self.r.randint(6, 96) * 5))
            return self[key]
        for _ in range(30):
            value = self.draw(key.rstrip("2"))
            if value not in self.values():
                break
        self[key] = value
        return value


def told(r: Rng, entry: tuple, dates: Dates, money: Money) -> tuple[str, list[tuple[tuple[str, ...], str]]]:
    """A sentence with its blanks filled, and its questions with their answers."""
    blanks = Blanks(r, dates, money)
    text = entry[0].format_map(blanks)
    fill = lambda pattern: tuple(q.strip().format_map(blanks) for q in pattern.split("|"))  # noqa: E731
    return text, [(fill(questions), answer.format_map(blanks)) for questions, answer in entry[1]]


def tell(d: Document, count: int, dates: Dates, money: Money, hide: float = 0.5, longest: int = 260) -> list[int]:
    """Adds ``count`` facts as paragraphs, between sentences that nothing is asked about.

    Args:
        hide: probability that such sentences surround a fact. longest: characters of each of them.

    Returns:
        The parts of the paragraphs.
    """
    r = d.r
    fresh = [i for i in range(len(TOLD)) if i not in d.told]  # each once, so that no question fits two of them
    picked = r.sample(fresh, min(count + 1, len(fresh)))
    chosen, parts = [TOLD[i] for i in picked], []
    count = len(chosen) - 1
    d.told.update(picked[:count])
    waiting: list[tuple[str, list]] = []
    for i, entry in enumerate(chosen[:count]):
        waiting.append(told(r, entry, dates, money))
        if i + 1 < count and r.chance(0.5):
            continue
        sentences = [text for text, _ in waiting]
        if r.chance(hide):
            sentences.insert(r.randint(0, len(sentences)), prose(r, longest))
        part = d.paragraph(" ".join(sentences))
        parts.append(part)
        for _, asks in waiting:
            for questions, answer in asks:
                d.ask(questions, answer, part)
        waiting = []
    if chosen:
        d.absent(*r.pick(told(r, chosen[count], dates, money)[1])[0])
    return parts
