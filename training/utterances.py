"""What the recordings say and what can be asked about them.

An utterance is one sentence pattern, or a memo of up to four, with slots ("{who}", "{time}", "{amount}") that are filled
at random. Every filled slot is a fact with a spoken form ("half past nine") and an answer ("9:30"). Questions come from
``QUESTIONS``: wordings of training and wordings held out, which use the same words in other ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from training.pages.values import CITIES, COLOURS, FIRST_NAMES, LAST_NAMES, MONTHS, WEEKDAYS, Rng
from training.wordings import NOT_STATED

DIGITS = "zero one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth "
    "twenty-fifth twenty-sixth twenty-seventh twenty-eighth"
).split()
ROOMS = [
    *"kitchen bedroom bathroom garage office hallway garden cellar attic balcony nursery study".split(),
    "living room",
]
DEVICES = "light lamp heater fan radio television oven alarm speaker printer dishwasher sprinkler camera door".split()
EVENTS = "appointment meeting interview lesson lunch dinner breakfast call rehearsal visit inspection party".split()
TOPICS = (
    "budget contract holiday plan new website annual report garden party rent increase school trip repair work open invoice "
    "wedding training course family photo summer menu"
)
TOPICS = re.findall(
    "holiday plan|new website|annual report|garden party|rent increase|school trip|repair work|open invoice|training course"
    "|family photo|summer menu|[a-z]+",
    TOPICS,
)
THINGS = (
    "passport umbrella laptop contract keys camera ticket cake wallet letter notebook charger jacket receipt photos sandwich "
    "flowers toolbox blanket medicine"
).split()
GOODS = (
    "chairs tables lamps folders monitors keyboards notebooks pencils tickets sandwiches boxes bottles apples pizzas helmets "
    "blankets batteries speakers candles envelopes"
).split()
BILLS = "electricity telephone water heating hotel dentist insurance garage internet hospital".split()
SHOPS = (
    "bakery pharmacy station library hospital museum town hall post office airport school theatre supermarket".split()
)
SHOPS = re.findall("town hall|post office|[a-z]+", " ".join(SHOPS))
JOBS = "doctor dentist lawyer plumber teacher manager electrician painter".split()
NOUNS = (
    "apple bridge castle doctor engine farmer garden hammer island jacket kitten ladder market number orange pocket question "
    "river summer table uncle village window yellow bicycle camera dinner evening family forest guitar horse insect journey "
    "kitchen lemon mountain music newspaper ocean picture rabbit school station teacher umbrella visitor winter animal bottle "
    "candle dragon elephant finger glass house idea jungle king letter machine nurse office paper queen ring sister train "
    "valley water artist baker city driver egg fish ghost hotel king lake mirror night owner party road shop tree voice wall"
).split()
ADJECTIVES = (
    "old young happy quiet little broken clever cold dark early fresh gentle hungry important lazy modern narrow open perfect "
    "quick rich silver tired useful warm wooden beautiful curious dangerous empty famous golden honest strange simple tall"
).split()
VERBS = (
    "finds sees carries paints follows remembers buys sells cleans watches opens closes likes draws moves pushes breaks builds "
    "hides visits counts hears touches washes answers loses keeps brings"
).split()
PLACES = "behind,under,near,above,beside,inside,outside,in front of,across from,on top of".split(",")
SAYINGS = (
    "good morning|good evening everybody|thank you very much|see you tomorrow|how are you today|what time is it|open the window"
    "|play some music|turn the volume up|turn the volume down|stop the music|take the next street on the left|yes please"
    "|no thank you|wait a moment|happy birthday|the train is late again|dinner is ready|please close the door|call me later"
    "|where is the nearest station|i would like a cup of coffee|it will rain in the afternoon|read me the news"
    "|what is the weather like|add milk to the shopping list|the meeting is over|nobody was at home|have a nice weekend"
    "|could you repeat that please|i am on my way|the water is too cold|we are almost there|go straight ahead"
).split("|")


@dataclass(frozen=True)
class Question:
    """Wordings for one kind of fact; two kinds of one ``group`` could be mistaken for each other."""

    group: str
    train: tuple[str, ...]
    held: tuple[str, ...]


def _q(group: str, train: str, held: str) -> Question:
    return Question(group, tuple(t.strip() for t in train.split("|")), tuple(t.strip() for t in held.split("|")))


QUESTIONS: dict[str, Question] = {
    "transcript": _q(
        "transcript",
        "What is said? | Transcribe the audio. | Transcribe the recording. | Write down what you hear. | What do you hear? | What does the "
        "speaker say? | What was said in the recording? | Write down every word. | Listen and write down the words. | What did the person say?",
        "What does the recording say? | Write down what is said. | Transcribe what you hear.",
    ),
    "number": _q(
        "number",
        "What number is spoken? | Which digits are spoken? | What are the digits? | Write the digits. | Which number do you hear? | What is the "
        "number? | Which number was said? | Give me the number. | Write down the number. | The number?",
        "What number do you hear? | Which digits do you hear? | What number was spoken?",
    ),
    "digit_count": _q(
        "count",
        "How many digits are spoken? | How many digits are there? | How many digits does the number have? | Count the digits.",
        "How many digits do you hear?",
    ),
    "code": _q(
        "code",
        "What is the code? | Which code is said? | What code do you hear? | Write down the code. | Give me the code. | Which code was spoken? | "
        "What is the code in the recording?",
        "What code is spoken? | Which code do you hear?",
    ),
    "name": _q(
        "person",
        "What name is spoken? | Which name is said? | Who is it? | What is the name? | Which name do you hear? | Who is speaking? | What is the "
        "name of the person? | Tell me the name.",
        "What name do you hear? | Which name was spoken?",
    ),
    "room": _q("place", "Which room? | What room is meant? | In which room? | Which room is it? | Where is it? | Which room is named?", "What room is it? | Which room is meant?"),
    "device": _q("thing", "Which device? | What device is meant? | Which device is named? | What is switched? | Which device is it?", "What device is it? | Which device is meant?"),
    "state": _q("state", "On or off? | Is it switched on or off? | Turn it on or off? | Should it be on or off?", "Is it on or off?"),
    "duration": _q(
        "duration",
        "How long is the timer? | How long should the timer be? | For how long is the timer set? | What is the duration? | How much time is set? | "
        "What is the timer set to?",
        "How long is it? | How long is the timer set for?",
    ),
    "length": _q("duration", "How long does it take? | How long will it take? | For how long? | How much time does it take? | What is the duration?", "How much time will it take?"),
    "colour": _q("colour", "Which color? | What color? | What colour is it? | Which colour is named? | What color should it be? | Which colour should it have?", "What colour should it be? | Which color is it?"),
    "caller": _q(
        "person",
        "Who is calling? | Who left the message? | Who is the caller? | Who called? | Who is speaking? | What is the name of the caller? | Which "
        "name does the caller give? | Who is the message from? | Who says this?",
        "Who is the recording from? | What name does the caller give?",
    ),
    "callee": _q(
        "person",
        "Who is the message for? | Who is called? | For whom is the message? | Who should get the message? | Who is it for?",
        "Who is the call for? | Who should listen to the message?",
    ),
    "who": _q(
        "person",
        "Who is it with? | With whom? | Who is the appointment with? | Who will be there? | Who do I meet? | Which person is named? | Who is the "
        "person? | Who is the meeting with? | Whom do I meet?",
        "With whom do I meet? | Who will I meet? | Which person do I meet?",
    ),
    "event": _q(
        "event",
        "What is planned? | What is it about? | What kind of event is it? | What takes place? | Which event is named? | What should I remember?",
        "Which event is planned? | What event takes place?",
    ),
    "topic": _q("event", "What is the topic? | What is it about? | What will they talk about? | Which topic is named? | What is the subject?", "Which topic is it about? | What is the meeting about?"),
    "companion": _q("person", "Who travels with me? | With whom do I travel? | Who do I travel with? | Who comes along? | Which person is named?", "Who is it I travel with?"),
    "client": _q("person", "Who is it for? | For whom is it ordered? | Who gets them? | Which person is named? | Whom are they for?", "Who are they for?"),
    "contact": _q("person", "Who should I ask for? | Whom can I ask? | Who can help me? | Which person is named? | Whom do I ask?", "Whom should I ask?"),
    "when": _q("when", "When is it? | When will it be? | When? | When does it take place? | When do I have to be there? | Tell me when it is.", "When will it take place? | When should I be there?"),
    "day": _q(
        "day",
        "Which day? | On which day? | What day is it? | On what day is it? | Which day is named? | What day is named? | What is the date? | On which day will "
        "it be?",
        "What day will it be? | Which day is it? | On what day will it take place?",
    ),
    "alarm": _q("time", "When should I be woken? | For what time is the alarm set? | At what time? | What time is the alarm? | When does the alarm ring?", "What is the time of the alarm? | What time is the alarm set for?"),
    "departure": _q("time", "When does the train leave? | At what time does it leave? | When does the train go? | At what time? | When do I have to take the train?", "What time does the train leave? | At what time does the train go?"),
    "time": _q(
        "time",
        "At what time? | What time is it at? | When does it start? | What is the time? | What is the time of it? | At what time does it start? | What time is named? | Which time "
        "is said? | At which time? | When exactly is it?",
        "What time does it start? | Which time is named? | When exactly does it start?",
    ),
    "place": _q(
        "place",
        "Where is it? | Where? | Which place is named? | What is the place? | Where does it take place? | At which place? | Where do I have to go? | "
        "In which city is it? | Where should I go?",
        "Where will it take place? | Which place is it? | Where do I go?",
    ),
    "amount": _q(
        "amount",
        "How much? | How much is it? | How much does it cost? | What is the price? | How much money? | What does it cost? | What is the amount? | How "
        "much do I have to pay? | How much money is it? | What amount is named?",
        "How much money does it cost? | How much should I pay? | Which amount is named?",
    ),
    "phone": _q(
        "number",
        "What is the phone number? | Which number should I call? | What number should be called? | The phone number? | What is the telephone "
        "number? | How can I reach them? | Which phone number is given? | Under which number can I call? | Tell me the phone number.",
        "What number can I call? | Which telephone number is given? | Which number should be called?",
    ),
    "bring": _q("thing", "What should I bring? | What do I have to bring? | What is to be brought? | What should not be forgotten? | What must I take with me?", "What do I take with me? | What must I bring?"),
    "item": _q("thing", "What is ordered? | What is needed? | What should be ordered? | Which item is it? | Which thing is named? | What do they need?", "What is to be ordered? | Which item is needed?"),
    "quantity": _q("count", "How many? | How many are needed? | How many are ordered? | How many should be ordered? | What is the quantity? | How many do they need?", "How many are they? | What quantity is needed?"),
    "destination": _q("place", "Where does the train go? | Where to? | What is the destination? | To which city? | Which city does the train go to?", "To which city does it go? | What city is the destination?"),
    "city": _q("place", "Which city? | Which city is named? | What city is it? | In which city? | What is the name of the city?", "What city is named?"),
    "platform": _q("platform", "Which platform? | From which platform? | What is the platform? | On which platform is the train? | Which platform is it?", "What platform is it? | From which platform does the train go?"),
    "bill": _q("event", "Which bill? | What has to be paid? | What bill is it? | Which bill should be paid? | What is the bill for?", "Which bill is it? | What bill has to be paid?"),
    "due": _q("day", "When is it due? | Until when? | By when must it be paid? | What is the due date? | By which day? | When do I have to pay?", "By when is it due? | When must it be paid?"),
    "degrees": _q("degrees", "How warm will it be? | What temperature? | How many degrees? | What is the temperature? | How warm is it?", "How many degrees is it? | What temperature will it be?"),
    "weather": _q("weather", "What will the weather be? | How is the weather? | What is the weather like? | Which weather is named? | How is the weather there? | What kind of weather is it? | What weather will it be?", "How will the weather be? | What weather is it?"),
}  # fmt: skip


def say_number(n: int) -> str:
    """An integer from 0 to 999999 in words: 250 -> "two hundred and fifty"."""
    if n < 10:
        return DIGITS[n]
    if n < 20:
        return TEENS[n - 10]
    if n < 100:
        return TENS[n // 10] + (f" {DIGITS[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{DIGITS[n // 100]} hundred" + (f" and {say_number(n % 100)}" if n % 100 else "")
    rest = f" {say_number(n % 1000)}" if n % 1000 else ""
    return f"{say_number(n // 1000)} thousand{rest}"


def say_digits(digits: str) -> str:
    """Digit by digit: "407" -> "four zero seven"."""
    return " ".join(DIGITS[int(d)] for d in digits)


def say_code(code: str) -> str:
    """Letters and digits one by one: "B7" -> "b seven"."""
    return " ".join(DIGITS[int(c)] if c.isdigit() else c.lower() for c in code if c.isalnum())


class Spoken(NamedTuple):
    """A slot's value: how it is said (lower case, commas for pauses) and how it is answered."""

    spoken: str
    answer: str


def _plain(options: list[str] | tuple[str, ...]) -> Callable[[Rng], Spoken]:
    def draw(r: Rng) -> Spoken:
        value = r.pick(options)
        return Spoken(value, value)

    return draw


def _number(r: Rng) -> Spoken:
    digits = "".join(str(r.randint(0, 9)) for _ in range(r.randint(1, 8)))
    return Spoken(say_digits(digits), digits)


def _code(r: Rng) -> Spoken:
    code = "".join(
        r.pick("ABCDEFGHIJKLMNOPQRSTUVWXYZ") if r.chance(0.45) else str(r.randint(0, 9)) for _ in range(r.randint(3, 6))
    )
    return Spoken(say_code(code), code)


def _person(r: Rng) -> Spoken:
    style = r.random()
    if style < 0.5:
        name = f"{r.pick(FIRST_NAMES)} {r.pick(LAST_NAMES)}"
    elif style < 0.8:
        name = r.pick(FIRST_NAMES)
    else:
        name = f"{r.pick(('Doctor', 'Mister', 'Professor'))} {r.pick(LAST_NAMES)}"
    return Spoken(name.lower(), name)


def _who(r: Rng) -> Spoken:
    if r.chance(0.15):
        job = r.pick(JOBS)
        return Spoken(f"the {job}", f"the {job}")
    return _person(r)


def _city(r: Rng) -> Spoken:
    city = r.pick(CITIES)
    return Spoken(city.lower(), city)


def _place(r: Rng) -> Spoken:
    style = r.random()
    if style < 0.4:
        city = _city(r)
        return Spoken(f"in {city.spoken}", city.answer)
    if style < 0.75:
        shop = r.pick(SHOPS)
        return Spoken(f"at the {shop}", f"the {shop}")
    n = r.randint(1, 60)
    return Spoken(f"in room {say_number(n)}", f"room {n}")


def _day(r: Rng) -> Spoken:
    style = r.random()
    if style < 0.5:
        day = r.pick(WEEKDAYS)
        return Spoken(f"on {day.lower()}", day)
    if style < 0.6:
        day = r.pick(WEEKDAYS)
        return Spoken(f"next {day.lower()}", f"next {day}")
    if style < 0.7:
        return Spoken("tomorrow", "tomorrow")
    date = _date(r)
    return Spoken(f"on {date.spoken}", date.answer)


def _date(r: Rng) -> Spoken:
    n, month = r.randint(1, 28), r.pick(MONTHS)
    ordinal = ORDINALS[n - 1].replace("-", " ")
    return Spoken(r.pick((f"the {ordinal} of {month.lower()}", f"{month.lower()} {ordinal}")), f"{month} {n}")


def _due(r: Rng) -> Spoken:
    return _date(r) if r.chance(0.6) else (lambda day: Spoken(day.lower(), day))(r.pick(WEEKDAYS))


def _time(r: Rng) -> Spoken:
    hour, style = r.randint(1, 12), r.random()
    after = hour % 12 + 1
    if style < 0.2:
        return Spoken(f"half past {say_number(hour)}", f"{hour}:30")
    if style < 0.3:
        return Spoken(f"a quarter past {say_number(hour)}", f"{hour}:15")
    if style < 0.4:
        return Spoken(f"a quarter to {say_number(after)}", f"{hour}:45")
    if style < 0.55:
        return Spoken(f"{say_number(hour)} o'clock", f"{hour}:00")
    half = r.pick(("am", "pm"))
    if style < 0.7:
        return Spoken(f"{say_number(hour)} {half[0]} m", f"{hour}:00 {half}")
    minute = r.pick((5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55))
    spoken = f"{say_number(hour)} {'oh ' if minute < 10 else ''}{say_number(minute)}"
    return (
        Spoken(spoken, f"{hour}:{minute:02d}")
        if style < 0.9
        else Spoken(f"{spoken} {half[0]} m", f"{hour}:{minute:02d} {half}")
    )


def _duration(r: Rng) -> Spoken:
    unit, n = r.pick(("second", "minute", "minute", "hour")), r.randint(1, 60)
    unit += "s" if n > 1 else ""
    return Spoken(f"{say_number(n)} {unit}", f"{n} {unit}")


def _length(r: Rng) -> Spoken:
    n = r.pick((*range(1, 10), 10, 15, 20, 30, 40, 45, 90))
    unit = ("hour" if n < 10 and r.chance(0.7) else "minute") + ("s" if n > 1 else "")
    return Spoken(f"{say_number(n)} {unit}", f"{n} {unit}")


def _amount(r: Rng) -> Spoken:
    n = r.pick((r.randint(2, 99), r.randint(1, 20) * 10, r.randint(100, 999), r.randint(11, 60) * 100))
    unit = r.pick(("dollars", "dollars", "euros", "pounds"))
    return Spoken(f"{say_number(n)} {unit}", f"{n} {unit}")


def _phone(r: Rng) -> Spoken:
    parts = r.pick(((3, 4), (3, 4), (3, 3, 4), (4, 4), (3, 3)))
    groups = ["".join(str(r.randint(0, 9)) for _ in range(n)) for n in parts]
    return Spoken(", ".join(say_digits(group) for group in groups), " ".join(groups))


def _count(low: int, high: int, unit: str = "") -> Callable[[Rng], Spoken]:
    def draw(r: Rng) -> Spoken:
        n = r.randint(low, high)
        return Spoken(f"{say_number(n)}{unit}", f"{n}{unit}")

    return draw


SLOTS: dict[str, Callable[[Rng], Spoken]] = {
    "number": _number,
    "code": _code,
    "name": _person,
    "caller": _person,
    "callee": _person,
    "who": _who,
    "companion": _who,
    "client": _person,
    "contact": _person,
    "room": _plain(ROOMS),
    "device": _plain(DEVICES),
    "state": _plain(("on", "off")),
    "colour": _plain(COLOURS),
    "duration": _duration,
    "length": _length,
    "event": _plain(EVENTS),
    "topic": _plain(TOPICS),
    "day": _day,
    "due": _due,
    "time": _time,
    "alarm": _time,
    "departure": _time,
    "place": _place,
    "destination": _city,
    "city": _city,
    "platform": _count(1, 24),
    "amount": _amount,
    "phone": _phone,
    "bring": _plain(THINGS),
    "item": _plain(GOODS),
    "quantity": _count(2, 99),
    "bill": _plain(BILLS),
    "degrees": _count(2, 35, " degrees"),
    "weather": _plain("sunny cloudy rainy windy snowy foggy stormy dry".split()),
}


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


SHORT: dict[str, tuple[str, ...]] = {
    "number": _patterns(
        "{number}\n{number}\nthe number is {number}\nplease write down {number}\nmy number is {number}"
    ),
    "code": _patterns("the code is {code}\nthe code for the door is {code}\nuse the code {code}\n{code}"),
    "name": _patterns(
        "{name}\nmy name is {name}\ncall {name}\nthis is {name}\nplease tell {name}\nsend a message to {name}"
    ),
    "command": _patterns(
        """turn {state} the {device} in the {room}
        turn {state} the {room} {device}
        switch {state} the {device} in the {room}
        please turn {state} the {room} {device}
        switch the {device} in the {room} {state}
        could you switch {state} the {device} please"""
    ),
    "timer": _patterns(
        "set a timer for {duration}\nstart a timer of {duration}\nremind me in {duration}\n{duration} please"
    ),
    "alarm": _patterns(
        "wake me up at {alarm}\nset the alarm to {alarm}\nremind me at {alarm}\nwake me {day} at {alarm}"
    ),
    "colour": _patterns("make the {device} {colour}\npaint the {room} {colour}\nthe {device} should be {colour}"),
}

# topic: (opening sentences, sentences that may follow)
MEMOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "appointment": (
        _patterns(
            """remember the {event} with {who} {day} at {time}
            there is a {event} with {who} {day}
            the {event} with {who} starts at {time}
            {event} with {who} {place} {day}
            my {event} with {who} is {day} at {time}
            note to myself, {event} with {who} {day} at {time}"""
        ),
        _patterns(
            """it is {place}
            we meet {place}
            it costs {amount}
            the price is {amount}
            do not forget to bring the {bring}
            please bring the {bring}
            to cancel call {phone}
            the phone number is {phone}
            we will talk about the {topic}
            it takes {length}
            the code for the door is {code}"""
        ),
    ),
    "message": (
        _patterns(
            """hello this is {caller}
            hi this is {caller} with a message for {callee}
            good morning, {caller} speaking
            this is {caller} calling for {callee}
            hello {callee}, this is {caller}"""
        ),
        _patterns(
            """please call me back at {phone}
            my number is {phone}
            you can reach me at {phone}
            the meeting is {day} at {time}
            we meet {place}
            the {event} is {day}
            i will be there at {time}
            the repair costs {amount}
            i need {amount}
            it is about the {topic}
            please bring the {bring}"""
        ),
    ),
    "order": (
        _patterns(
            """please order {quantity} {item}
            we need {quantity} {item} for the office
            order {quantity} {item} for {client}
            i would like to order {quantity} {item}"""
        ),
        _patterns(
            """we need them {day}
            send them to {city}
            the price is {amount}
            it should not cost more than {amount}
            they should be {colour}
            call {phone} when they arrive
            the order code is {code}"""
        ),
    ),
    "travel": (
        _patterns(
            """the train to {destination} leaves at {departure} from platform {platform}
            the train to {destination} leaves {day} at {departure}
            your train to {destination} goes from platform {platform}
            we take the train to {destination} {day}"""
        ),
        _patterns(
            """the ticket costs {amount}
            the booking code is {code}
            i travel with {companion}
            the trip takes {length}
            take the {bring} with you
            for questions call {phone}"""
        ),
    ),
    "bill": (
        _patterns(
            """pay the {bill} bill of {amount} by {due}
            the {bill} bill is {amount}
            remember to pay the {bill} bill by {due}
            the {bill} bill of {amount} is due by {due}"""
        ),
        _patterns(
            """the customer code is {code}
            for questions call {phone}
            ask for {contact}
            pay it {place}"""
        ),
    ),
    "weather": (
        _patterns(
            """in {city} it will be {weather} {day}
            the weather {day} will be {weather}
            it will be {weather} with {degrees}"""
        ),
        _patterns("expect {degrees}\ntake the {bring} with you"),
    ),
}


class QA(NamedTuple):
    """A question about a recording. ``key`` is one of ``QUESTIONS``."""

    key: str
    question: str
    answer: str


@dataclass(frozen=True)
class Utterance:
    """What to speak, and what can be asked.

    Attributes:
        text: for the synthesiser, with commas and full stops for pauses.
        transcript: the same words, lower case, without punctuation.
        qa: questions the recording answers, one of them for the transcript.
        unanswerable: questions it does not answer; their answer is ``NOT_STATED``.
        kind: which family of patterns it is from.
    """

    text: str
    transcript: str
    qa: tuple[QA, ...]
    unanswerable: tuple[QA, ...]
    kind: str


def question_for(rng: Rng, key: str, held: bool = False) -> str:
    """A wording for ``key``; ``held`` uses only those training never shows."""
    return rng.pick(QUESTIONS[key].held if held else QUESTIONS[key].train)


def _fill(rng: Rng, pattern: str, facts: dict[str, str]) -> str:
    def replace(match: re.Match) -> str:
        value = SLOTS[match.group(1)](rng)
        facts[match.group(1)] = value.answer
        return value.spoken

    return re.sub(r"\{(\w+)\}", replace, pattern)


def _keys(pattern: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", pattern))


def _groups(keys: set[str] | dict[str, str]) -> set[str]:
    return {QUESTIONS[key].group for key in keys}


def _memo(rng: Rng, facts: dict[str, str]) -> str:
    """One to four sentences whose facts no question can confuse."""
    openings, following = MEMOS[rng.pick(tuple(MEMOS))]
    sentences = [_fill(rng, rng.pick(openings), facts)]
    for _ in range(rng.pick((0, 1, 1, 2, 2, 3))):
        options = [p for p in following if not _groups(_keys(p)) & _groups(facts)]
        if options:
            sentences.append(_fill(rng, rng.pick(options), facts))
    return ". ".join(sentences)


def _sentence(rng: Rng) -> str:
    """Words without facts, for transcription."""
    if rng.chance(0.25):
        return rng.pick(SAYINGS)
    first, second = f"{rng.pick(ADJECTIVES)} {rng.pick(NOUNS)}", rng.pick(NOUNS)
    second = f"{rng.pick(ADJECTIVES)} {second}" if rng.chance(0.4) else second
    style = rng.randint(0, 3)
    if style == 0:
        return f"the {first} {rng.pick(VERBS)} the {second}"
    if style == 1:
        return f"the {first} is {rng.pick(PLACES)} the {second}"
    if style == 2:
        return f"the {first} {rng.pick(VERBS)} the {second} {rng.pick(PLACES)} the {rng.pick(NOUNS)}"
    return " ".join(rng.pick(NOUNS) for _ in range(rng.randint(1, 4)))


KINDS = (
    ("memo", 34),
    ("number", 15),
    ("command", 13),
    ("sentence", 13),
    ("name", 8),
    ("alarm", 6),
    ("timer", 5),
    ("code", 4),
    ("colour", 2),
)


def utter(rng: Rng, held: bool = False, kind: str | None = None) -> Utterance:
    """A random utterance with its questions.

    Args:
        held: ask with the wordings that training never shows.
        kind: one of ``KINDS``; drawn by their weights when left out.
    """
    kind = kind or rng.choices([name for name, _ in KINDS], [weight for _, weight in KINDS])[0]
    facts: dict[str, str] = {}
    if kind == "memo":
        text = _memo(rng, facts)
    elif kind == "sentence":
        text = _sentence(rng)
    else:
        text = _fill(rng, rng.pick(SHORT[kind]), facts)
    text = re.sub(r"\ba (?=[aeio])", "an ", text)
    transcript = re.sub(r"[.,]", "", text)
    if "number" in facts and rng.chance(0.25):
        facts["digit_count"] = str(len(facts["number"]))
    moment = [facts[key] for key in ("day", "time", "alarm", "departure") if key in facts]
    if moment and "weather" not in facts and rng.chance(0.6):
        facts["when"] = ", ".join(moment)
    facts["transcript"] = transcript
    qa = [QA(key, question_for(rng, key, held), answer) for key, answer in facts.items()]
    absent = _absent(kind, facts)
    missing = [QA(key, question_for(rng, key, held), NOT_STATED) for key in rng.sample(absent, min(2, len(absent)))]
    return Utterance(text, transcript, tuple(qa), tuple(missing), kind)


def _absent(kind: str, facts: dict[str, str]) -> list[str]:
    """Kinds of fact the utterance surely does not give; what is open to debate is left out."""
    present = _groups(facts) | {"count"} if "number" in facts else _groups(facts)
    if kind == "sentence":
        certain = {"amount", "code", "platform", "degrees", "duration"}
        return [key for key, question in QUESTIONS.items() if question.group in certain]
    if present & {"number", "code"}:
        present |= {"number", "code", "count"}
    if present & {"day", "time"} or kind == "timer":
        present |= {"when"}
    if kind in ("alarm", "timer"):
        present |= {"day", "time", "duration", "event"}
    if kind in ("name", "command") or (kind == "memo" and "event" not in facts):
        present |= {"event", "thing"}
    absent = [key for key, question in QUESTIONS.items() if question.group not in present and key != "digit_count"]
    counted = present & {"count", "amount", "platform", "duration", "degrees", "time", "day"}
    return [key for key in absent if key != "number"] if counted else absent


# How abbreviations of written questions are said.
_SAID = {
    "no": "number", "qty": "quantity", "tel": "telephone", "id": "i d", "vat": "v a t", "po": "p o", "iban": "i ban", "zip": "zip", "e-mail": "email",
    "dob": "date of birth", "ref": "reference", "acc": "account", "acct": "account", "amt": "amount", "dept": "department", "st": "street", "ave": "avenue",
    "rd": "road", "blvd": "boulevard", "dr": "doctor", "mr": "mister", "mrs": "missis", "ms": "miss", "inc": "incorporated", "ltd": "limited", "co": "company",
    "corp": "corporation", "llc": "l l c", "gmbh": "g m b h", "sku": "s k u", "bic": "b i c", "url": "u r l", "ocr": "o c r", "fax": "fax", "pc": "p c",
}  # fmt: skip
_UNITS = {"$": "dollars", "€": "euros", "£": "pounds"}
_SIGNS = {"&": "and", "%": "percent", "#": "number", "+": "plus", "@": "at", "=": "equals"}


def _say_amount(match: re.Match) -> str:
    unit, whole, fraction = match.group(1), match.group(2).replace(",", ""), match.group(3)
    words = say_number(int(whole)) if len(whole) <= 6 else say_digits(whole)
    if fraction:
        words += f" point {say_digits(fraction)}"
    return f"{words} {_UNITS[unit]}" if unit else words


def _say_token(token: str) -> str:
    low = token.lower().rstrip(".")
    if low in _SAID:
        return _SAID[low]
    if token.isdigit():
        return say_number(int(token)) if len(token) <= 2 else say_digits(token)
    if any(c.isdigit() for c in token):
        return say_code(token)
    return low


def spoken_question(rng: Rng, question: str) -> str:
    """How a written question is read aloud: abbreviations in full, codes and long numbers character by character.

    Args:
        rng: decides whether the hyphen of a code is said, and whether "please" is added.
        question: for example ``What is the amount for INV-2041?``

    Returns:
        Lower-case text for :func:`training.speech.speak`, for example ``what is the amount for i n v two zero four one``.
    """
    dash = rng.pick((" dash ", " "))
    text = question.split("\n")[0].strip()
    text = re.sub(r"(?<=\d)[-/](?=\w)|(?<=\w)[-/](?=\d)", dash, text)  # the parts of a code
    text = re.sub(r"\b([A-Z]{2,3})(?= ?(?:dash )?\d)", lambda m: " ".join(m.group(1).lower()), text)
    text = re.sub(r"([$€£]?) ?\b(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d{1,2}))\b", _say_amount, text)
    text = re.sub(r"([$€£]) ?(\d[\d,]*)()\b", _say_amount, text)
    for sign, word in _SIGNS.items():
        text = text.replace(sign, f" {word} ")
    text = re.sub(r"[\"“”():;!?/_]|\.(?=\s|$)", " ", text)
    tokens = re.findall(r"[\w'’.-]+|,", text)
    words = " ".join(_say_token(token.strip("-")) if token != "," else "," for token in tokens).replace(" ,", ",")
    return f"{words} please" if "please" not in words and rng.chance(0.05) else words.strip(", ")
