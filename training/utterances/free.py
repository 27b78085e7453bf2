"""Free voice memos: several sentences on one subject, said as people say them, with questions about each.

Sentences have blanks with a spoken form and a written one. The last of four or more wordings of a question is kept
for evaluation.
"""

from __future__ import annotations

import re

from training.pages.values import Rng
from training.utterances import QA, Utterance
from training.utterances.numbers import say_number
from training.utterances.questions import QUESTIONS
from training.utterances.slots import SLOTS, Spoken
from training.wordings import NOT_STATED

WORDS_A_SECOND = 2.1  # of slow speech: what surely fits a clip
FOODS = "milk bread eggs butter cheese rice apples bananas onions tomatoes flour sugar coffee tea salt yoghurt pasta carrots lemons potatoes toothpaste candles honey".split()
STREETS = "maple street|station road|church lane|king street|mill road|the high street|garden avenue|victoria road|bridge street|park lane".split(
    "|"
)
LANDMARKS = "the church|the petrol station|the bakery|the school|the town hall|the old bridge|the supermarket|the museum|the library|the fountain".split(
    "|"
)
CAUSES = "the car broke down|the train was late|the heating does not work|i have a cold|the office is closed|it is raining too much|the key got lost|the printer is broken|the doctor is ill|we missed the bus|the road is closed|the shop was shut".split(
    "|"
)
LOST = (
    "blue umbrella|black wallet|red scarf|grey laptop bag|silver ring|green notebook|brown gloves|small suitcase".split(
        "|"
    )
)
TASKS = "call the insurance|book the hall|send the contract|water the plants|fix the gate|order the cake|pay the deposit|check the figures|clean the kitchen|pick up the parcel|feed the cat|write the report".split(
    "|"
)
THINGS = "budget|new website|office move|summer party|hiring plan|price list|annual report|training course|parking problem|holiday rota".split(
    "|"
)

OPENERS = (
    "",
    "",
    "okay",
    "so",
    "hi",
    "hello",
    "right",
    "um",
    "note to self",
    "hey",
    "good morning",
    "good afternoon",
    "hi there",
    "well",
    "just a quick memo",
    "right then",
    "okay here we go",
    "before i forget",
)
LINKS = (
    "",
    "",
    "",
    "",
    "and",
    "also",
    "oh and",
    "and then",
    "by the way",
    "so",
    "um",
    "anyway",
    "one more thing",
    "and another thing",
    "what else",
    "okay",
)
CLOSERS = (
    "",
    "",
    "",
    "that is all",
    "thanks",
    "thank you bye",
    "bye for now",
    "talk soon",
    "see you then",
    "okay that is it",
    "cheers",
    "have a nice day",
)

# subject: sentences, each with its questions as (wordings joined by |, answer)
MEMOS: dict[str, tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = {
    "shopping": (
        ("we need {n} {food} and some {food2}", (("How many {food} are needed? | What number of {food} is needed? | How many {food} should be bought? | What amount of {food} is named?", "{n}"), ("What else is needed besides {food}? | What should be bought with the {food}? | Which other thing is named with {food}?", "{food2}"))),
        ("please get {food} from the {shop}", (("What should be bought at the {shop}? | What is needed from the {shop}? | What do I get at the {shop}?", "{food}"), ("Where should the {food} be bought? | In which shop do I get {food}? | From where is the {food}?", "the {shop}"))),
        ("do not buy {food2} we still have enough", (("What should not be bought? | Of what is there still enough? | What do they not need? | What is not to be bought?", "{food2}"),)),
        ("it should not cost more than {amount}", (("How much may it cost? | What is the most it may cost? | How much money may be spent? | What is the limit?", "{amount}"),)),
        ("{p} is coming for dinner {day}", (("Who is coming for dinner? | Who comes to eat? | Which guest is expected? | For whom is the dinner?", "{p}"), ("When is the dinner? | On which day does {p} come? | What day is the dinner? | For which day is the dinner planned?", "{day}"))),
        ("the {shop} closes at {time} today", (("When does the {shop} close? | Until when is the {shop} open? | At what time does the {shop} shut? | What time does it close?", "{time}"),)),
        ("i left {amount} on the kitchen table for you", (("How much money is on the table? | What was left on the kitchen table? | How much money was left?", "{amount}"), ("Where is the money? | Where was the money left? | Where do I find the money?", "on the kitchen table"))),
    ),
    "appointment": (
        ("i have an appointment with {p} {day} at {time}", (("Who is the appointment with? | With whom is the appointment? | Whom does the speaker meet?", "{p}"), ("On which day is the appointment? | When is the appointment? | What day is the appointment? | For which day is it fixed?", "{day}"), ("At what time is the appointment? | What time is the appointment? | When does the appointment begin, at what time?", "{time}"))),
        ("it was moved from {day} to {day2} because {cause}", (("To which day was it moved? | What is the new day? | When is it now?", "{day2}"), ("Why was it moved? | What is the reason for the change? | For what reason is it on another day? | Why did the day change?", "{cause}"), ("On which day was it before? | What was the old day? | From which day was it moved?", "{day}"))),
        ("the practice is on {street} opposite {landmark}", (("In which street is the practice? | On which street is it? | Where is the practice? | What street do I have to go to?", "{street}"), ("What is opposite the practice? | What does the practice face? | Opposite what is it?", "{landmark}"))),
        ("i should bring my {lost} and the papers", (("What should be brought besides the papers? | What must the speaker bring? | What else than the papers is needed?", "{lost}"),)),
        ("it takes about {length}", (("How long does it take? | How much time does it need? | What is the duration? | For how long will it last?", "{length}"),)),
        ("if i cannot come i have to call {phone}", (("Which number must be called? | What is the phone number? | Under which number can one cancel? | Which number is given?", "{phone}"),)),
        ("the door code is {code}", (("What is the code of the door? | What is the door code? | Which code opens the door? | What code is needed?", "{code}"),)),
    ),
    "directions": (
        ("take the {ordinal} street on the {side} after {landmark}", (("On which side is the street? | Left or right after {landmark}? | To which side do I turn after {landmark}? | In which direction do I turn there?", "{side}"), ("Which street do I take after {landmark}? | After {landmark}, which turn is it? | How many streets after {landmark}?", "the {ordinal}"))),
        ("then go straight on for {n} metres until you see {landmark2}", (("How far do I go straight on? | For how many metres do I go straight on? | How many metres is it?", "{n} metres"), ("What will I see then? | Until what do I go straight on? | What do I look out for?", "{landmark2}"))),
        ("the house is number {n2} with a {colour} door", (("What is the number of the house? | Which house is it? | What house number do I look for? | Which number does the house have?", "{n2}"), ("What colour is the door? | Which colour does the door have? | What does the door look like?", "{colour}"))),
        ("take bus {n2} and get off at {landmark}", (("Which bus do I take? | What is the number of the bus? | Which bus goes there? | What bus should I take?", "bus {n2}"), ("Where do I get off? | At which stop do I get off? | Where do I leave the bus?", "{landmark}"))),
        ("park behind {landmark2} it is free after {time}", (("Where can I park? | Where should I leave the car? | What is the place to park?", "behind {landmark2}"), ("From when is parking free? | After what time is it free? | When does parking cost nothing?", "{time}"))),
        ("if you get lost ring {p}", (("Whom can I ring? | Who should be called if I get lost? | Who helps if I am lost? | Who can be rung?", "{p}"),)),
    ),
    "recap": (
        ("in the meeting we talked about the {thing} and the {thing2}", (("What was talked about? | What were the topics of the meeting? | Which two things were discussed?", "the {thing} and the {thing2}"),)),
        ("{p} will {task} by {day}", (("Who will {task}? | Whose task is it to {task}? | Who has to {task}? | Who is going to {task}?", "{p}"), ("By when will {p} {task}? | What is the deadline for {p}? | Until when does {p} have time?", "{day}"), ("What will {p} do? | What is the task of {p}? | What did {p} promise to do?", "{task}"))),
        ("{q} was not there because {cause}", (("Who was not there? | Who was missing? | Who did not come? | Which person was absent?", "{q}"), ("Why was {q} not there? | What kept {q} from coming? | Why did {q} not come?", "{cause}"))),
        ("we agreed to spend {amount} on the {thing2}", (("How much will be spent? | What sum was agreed? | How much money is for the {thing2}? | On what amount did they agree?", "{amount}"), ("What is the money for? | On what will they spend it? | What will the money be spent on?", "the {thing2}"))),
        ("{n} people voted for it and {n2} against", (("How many voted for it? | How many were in favour? | What number voted yes?", "{n}"), ("How many voted against it? | How many were against? | What number voted no?", "{n2}"))),
        ("the next meeting is {day2} at {time} in room {n2}", (("When is the next meeting? | On which day do they meet next? | What is the day of the next meeting?", "{day2}"), ("At what time is the next meeting? | When does the next meeting start, at what time? | What time do they meet next?", "{time}"), ("In which room is the next meeting? | What room do they meet in? | Where is the next meeting?", "room {n2}"))),
    ),
    "voicemail": (
        ("this is {p} calling from {city}", (("Who is calling? | Who left the message? | What is the name of the caller? | Who is speaking?", "{p}"), ("From where is the call? | Where does {p} call from? | From which city is the call? | In which city is the caller?", "{city}"))),
        ("this message is for {q}", (("Who is the message for? | For whom is the message? | Who should get the message? | To whom is it addressed?", "{q}"),)),
        ("i am calling about the {lost} you lost", (("What is the call about? | What was lost? | What did somebody lose? | Which thing is it about?", "{lost}"),)),
        ("i cannot come {day} because {cause}", (("Why can the caller not come? | What is the reason? | What has happened? | Why does the caller stay away?", "{cause}"), ("On which day can the caller not come? | When will the caller be missing? | What day is called off?", "{day}"))),
        ("could you call me back on {phone} before {time}", (("What is the number to call back? | Which number should be called? | On which number can I call back? | What phone number is left?", "{phone}"), ("Before what time should I call back? | Until when should I call? | By what time does the caller want a call?", "{time}"))),
        ("the bill comes to {amount} and is due {day2}", (("How much is the bill? | What does the bill come to? | How much must be paid? | What is to be paid?", "{amount}"), ("When is the bill due? | By which day must it be paid? | What is the day of payment?", "{day2}"))),
        ("your order of {n} {goods} has arrived", (("What has arrived? | What was ordered? | Which goods have come? | What can be picked up?", "{goods}"), ("How many {goods} have come? | How many were ordered? | What is the number of the {goods}?", "{n}"))),
        ("you can pick it up at the {shop} on {street}", (("Where can it be picked up? | Where do I pick it up? | In which place is it waiting?", "the {shop}"), ("In which street is the {shop}? | On which street can it be picked up? | What street is the {shop} in?", "{street}"))),
    ),
    "reminder": (
        ("remember to {task} {day}", (("What must be done? | What should be remembered? | What is the reminder about? | What is there to do?", "{task}"), ("When must it be done? | On which day should it be done? | For which day is the reminder? | What day is it for?", "{day}"))),
        ("{p} has the keys", (("Who has the keys? | With whom are the keys? | From whom do I get the keys? | Where are the keys?", "{p}"),)),
        ("it is {q}'s birthday {day2} she turns {n}", (("Whose birthday is it? | Who has a birthday? | Who is to be congratulated? | Whose birthday should I remember?", "{q}"), ("When is the birthday? | On which day is the birthday? | What day is the birthday?", "{day2}"), ("How old will {q} be? | What age does {q} reach? | How old is {q} going to be?", "{n}"))),
        ("the flight to {city} leaves at {time} from gate {n2}", (("Where does the flight go? | What is the destination of the flight? | To which city is the flight? | Where does the plane go?", "{city}"), ("When does the flight leave? | At what time is the flight? | What time does the plane leave?", "{time}"), ("From which gate does it leave? | What is the gate? | Which gate is it?", "gate {n2}"))),
        ("the password is {code}", (("What is the password? | Which password is said? | What is the secret word? | What password do I need?", "{code}"),)),
        ("i parked the car on {street} level {n2}", (("Where is the car? | In which street is the car? | Where was the car parked? | On which street did I park?", "{street}"), ("On which level is the car? | What is the parking level? | Which level did I park on?", "level {n2}"))),
        ("i lent {p} {amount} for the {goods}", (("How much was lent? | What sum did {p} get? | How much money does {p} owe? | How much did I lend?", "{amount}"), ("To whom was money lent? | Who borrowed money? | Who owes money?", "{p}"), ("What was the money for? | For what did {p} need the money?", "the {goods}"))),
    ),
    "announcement": (
        ("the train to {city} is {n} minutes late", (("How late is the train? | By how many minutes is the train late? | What is the delay? | How long is the delay?", "{n} minutes"), ("Which train is late? | Where does the late train go? | What is the destination of the train?", "{city}"))),
        ("it now leaves from platform {n2} instead of {n3}", (("From which platform does it leave now? | What is the new platform? | Which platform is it now? | To which platform do I go?", "platform {n2}"), ("What was the old platform? | From which platform should it have left? | Which platform was it before?", "{n3}"))),
        ("the reason is that {cause}", (("What is the reason? | Why is that? | What has caused it? | What is given as the reason?", "{cause}"),)),
        ("a {lost} was found at the entrance", (("What was found? | Which thing was found? | What has somebody lost? | What lay at the entrance?", "{lost}"),)),
        ("would {p} please come to counter {n2}", (("Who should come to the counter? | Who is called? | Whose name is announced? | Which person is asked to come?", "{p}"), ("To which counter should one come? | What is the number of the counter? | Which counter is it?", "counter {n2}"))),
        ("the shop will close in {n} minutes", (("In how many minutes does the shop close? | How long is the shop still open? | When will the shop close?", "{n} minutes"),)),
        ("today {food} costs only {amount}", (("How much does {food} cost today? | What is the price of {food}? | What do I pay for {food}? | How much is the {food}?", "{amount}"), ("What is cheap today? | What is on offer? | Which product is on offer?", "{food}"))),
    ),
    "handover": (
        ("i am not in {day} so {p} takes over", (("On which day is the speaker away? | When is the speaker not in? | What day is the speaker absent? | The speaker is away on what day?", "{day}"), ("Who takes over? | Who does the work then? | Who stands in for the speaker? | By whom is the speaker replaced?", "{p}"))),
        ("somebody has to {task} before {time}", (("What has somebody to do? | Which job must be done? | What is left to do? | What is still open?", "{task}"), ("Before what time must it be done? | By what time should it be done? | Until when is there time for it? | What is the latest time for it?", "{time}"))),
        ("the {device} in the {room} is broken again", (("What is broken again? | Which device is broken? | What does not work? | What needs repairing?", "the {device}"), ("In which room is it broken? | Where is the {device} that does not work? | In what room is the {device}? | Where should it be repaired?", "the {room}"))),
        ("we are nearly out of {goods}", (("Of what is there hardly any left? | What are they nearly out of? | What must be bought soon? | What runs short?", "{goods}"),)),
        ("the key to the store is with {q}", (("Who has the key to the store? | With whom is the key? | From whom do I get the key? | Where is the key to the store?", "{q}"),)),
        ("a customer from {city} called about the {thing}", (("From where was the customer? | In which city is the customer? | Where did the call come from? | What city did the customer call from?", "{city}"), ("What did the customer call about? | About what was the call? | What does the customer want to talk about? | The customer's call was about what?", "the {thing}"))),
        ("we counted {n} boxes yesterday and {n2} today", (("How many boxes were there yesterday? | What was counted yesterday? | What was yesterday's number? | Yesterday they had how many?", "{n}"), ("How many boxes are there today? | What was counted today? | What is today's number? | Today they have how many?", "{n2}"))),
    ),
    "diary": (
        ("today i met {p} in {city}", (("Whom did the speaker meet? | Who was met today? | With whom was the speaker today? | The speaker met whom?", "{p}"), ("In which city was the speaker? | Where did they meet? | What city were they in? | Where was the speaker today?", "{city}"))),
        ("we had {food} for lunch and talked about the {thing}", (("What was there for lunch? | What did they eat? | Which food did they have? | For lunch they had what?", "{food}"), ("What did they talk about? | Which subject did they talk about? | What was the talk about at lunch? | They talked about what?", "the {thing}"))),
        ("i found a {lost} on the bench", (("What was found on the bench? | Which thing did the speaker find? | What lay on the bench? | The speaker found what?", "a {lost}"), ("Where was the {lost}? | Where did the speaker find something? | On what did it lie? | In which place was it found?", "on the bench"))),
        ("it was {weather} in the morning", (("What was the weather like? | How was the weather in the morning? | How did the day begin, weather? | The morning was what?", "{weather}"),)),
        ("i was so tired that i went to bed at {time}", (("When did the speaker go to bed? | At what time did the speaker go to bed? | What time was bedtime? | To bed at what time?", "{time}"), ("Why did the speaker go to bed then? | How did the speaker feel in the evening? | What was the speaker in the evening? | For what reason did the speaker go to bed?", "tired"))),
        ("{q} rang because {cause}", (("Who rang? | Who called the speaker? | From whom was there a call? | By whom was the speaker rung?", "{q}"), ("Why did {q} ring? | What was the call about? | What did {q} tell? | For what reason did {q} ring?", "{cause}"))),
        ("i have read {n} pages of the new book", (("How many pages were read? | How far is the speaker with the book? | What number of pages did the speaker read? | Pages read, how many?", "{n}"),)),
    ),
    "order": (
        ("this is {p} and i would like {n} {goods}", (("Who orders something? | What is the customer called? | Who is the customer? | For whom is the order?", "{p}"), ("How many {goods} are wanted? | What number of {goods} is ordered? | How many of them should be sent? | {goods}, how many?", "{n}"), ("What does the customer want? | What is ordered? | Which thing should be sent? | What is wanted?", "{goods}"))),
        ("please send them to {street} number {n2}", (("To which street should they be sent? | In what street is the customer? | On which street is the address? | The address is on which street?", "{street}"), ("What is the number of the house? | Which house number is it? | What number on the street is it? | The house has which number?", "{n2}"))),
        ("i need it {day} at the latest", (("When is it needed at the latest? | By which day must it arrive? | What is the last day for it? | It has to be there by when?", "{day}"),)),
        ("last time you sent {goods2} by mistake", (("What was sent by mistake? | What did they get wrongly last time? | What went wrong last time? | By mistake they sent what?", "{goods2}"),)),
        ("you can ring me on {phone}", (("On which number can one ring? | What is the customer's number? | Which number does the customer give? | How is the customer reached?", "{phone}"),)),
        ("my customer number is {code}", (("What is the customer number? | Which customer number is given? | Under what number is the customer known? | The customer's number is what?", "{code}"),)),
        ("i do not want to pay more than {amount}", (("What is the most the customer will pay? | How much does the customer want to pay at most? | What is the upper limit? | Not more than how much?", "{amount}"),)),
        ("in {colour} please if you have it", (("In which colour should it be? | What colour is wanted? | Which colour does the customer like? | The colour, please?", "{colour}"),)),
    ),
    "inspection": (
        ("there is a crack of {n} centimetres in the wall of the {room}", (("How long is the crack? | How many centimetres is the crack? | What length has the crack? | The crack measures what?", "{n} centimetres"), ("In which room is the crack? | Where is there a crack? | The wall of which room has a crack? | What room has a crack?", "the {room}"))),
        ("the {device} was repaired by {p}", (("What was repaired? | Which device was repaired? | What works again? | On what was there a repair?", "the {device}"), ("Who repaired it? | By whom was it repaired? | Who did the repair? | To whom do we owe the repair?", "{p}"))),
        ("the door is painted {colour} and still wet", (("What colour is the door? | In which colour is the door painted? | Which colour has the door now? | The door is what colour?", "{colour}"), ("What is still wet? | Which thing should not be touched? | On what is the paint wet? | Wet paint is on what?", "the door"))),
        ("the new {goods} are in the {room2}", (("What is new? | Which things are new? | What was put in the {room2}? | New are what?", "{goods}"), ("Where are the {goods}? | In which room are the new things? | Where were they put? | The {goods} are where?", "the {room2}"))),
        ("the whole thing will cost {amount}", (("What will the whole thing cost? | How much is it in all? | What is the price of it all? | The costs are how much?", "{amount}"),)),
        ("nothing could be done because {cause}", (("Why could nothing be done? | What was the obstacle? | For what reason was nothing done? | Nothing happened because of what?", "{cause}"),)),
        ("i will look at it again {day} at {time}", (("On which day will the speaker look again? | When is the next inspection? | What day is the next look? | Again on what day?", "{day}"), ("At what time will the speaker look again? | What time is the next inspection? | When on that day is the next look? | Again at what time?", "{time}"))),
    ),
}  # fmt: skip
SUBJECTS = {
    "shopping": "shopping",
    "appointment": "an appointment",
    "directions": "the way to a place",
    "recap": "a meeting",
    "voicemail": "a message for somebody",
    "reminder": "things to remember",
    "announcement": "an announcement",
    "handover": "work that somebody takes over",
    "diary": "what happened on a day",
    "order": "an order of goods",
    "inspection": "the state of a building",
}
ABOUT = (
    "What is the memo about? | What is it about in one word? | What kind of recording is it? | Sum up what it is about."
).split(" | ")


def _draw(r: Rng, name: str) -> Spoken:
    lists = {
        "food": FOODS,
        "street": STREETS,
        "landmark": LANDMARKS,
        "cause": CAUSES,
        "lost": LOST,
        "task": TASKS,
        "thing": THINGS,
        "side": ["left", "right"],
        "ordinal": ["first", "second", "third", "fourth"],
    }
    if name in lists:
        value = r.pick(lists[name])
        return Spoken(value, value)
    if name == "n":
        n = r.pick((r.randint(2, 30), r.randint(2, 99), r.randint(1, 19) * 10))
        return Spoken(say_number(n), str(n))
    if name == "shop":
        value = r.pick(
            ("bakery", "pharmacy", "market", "supermarket", "butcher", "corner shop", "post office", "garden centre")
        )
        return Spoken(value, value)
    if name == "code":
        code = SLOTS["code"](r)
        return code if any(c.isdigit() for c in code.answer) else _draw(r, name)  # letters alone could be a word
    return SLOTS[{"p": "name", "q": "name", "goods": "item"}.get(name, name)](r)


class _Blanks(dict):
    """Blanks of one memo, drawn when first used; a blank and its second differ."""

    def __init__(self, r: Rng) -> None:
        super().__init__()
        self.r = r

    def __missing__(self, key: str) -> Spoken:
        for _ in range(20):
            value = _draw(self.r, key.rstrip("23"))
            if value.answer not in {other.answer for other in self.values()}:
                break
        self[key] = value
        return value


def _names(pattern: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", pattern))


def _fill(pattern: str, blanks: _Blanks, written: bool) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: blanks[m[1]].answer if written else blanks[m[1]].spoken, pattern)


def wording(r: Rng, patterns: str | list[str], held: bool) -> str:
    """One of the wordings; the last of four or more only if ``held``, and then it alone."""
    ways = patterns.split(" | ") if isinstance(patterns, str) else patterns
    kept = len(ways) - (len(ways) >= 4)
    return ways[-1] if held and kept < len(ways) else r.pick(ways[:kept])


def free_memo(r: Rng, held: bool = False, seconds: float = 20.0) -> Utterance:
    """A memo that surely fits ``seconds`` of speech, with questions about each of its sentences.

    Args:
        held: ask with the wordings that training never shows, where there are such.
    """
    subject = r.pick(tuple(MEMOS))
    words, blanks, said, used = WORDS_A_SECOND * seconds, _Blanks(r), [], []
    for entry in r.sample(MEMOS[subject], len(MEMOS[subject])):
        # what two sentences would both fill could not be asked for
        if any(
            {n for _, a in entry[1] for n in _names(a)} & {n for _, a in other[1] for n in _names(a)} for other in used
        ):
            continue
        text = _fill(entry[0], blanks, False)
        if len(text.split()) + 2 > words and used:
            continue
        words -= len(text.split()) + 2
        said.append(text)
        used.append(entry)
        if r.chance(0.12):
            break
    text = r.pick(OPENERS) if words > 3 else ""
    for i, sentence in enumerate(said):
        link = r.pick(LINKS) if i and words > 0 else ""
        text += f"{'. ' if text and i else ', ' if text else ''}{f'{link}, ' if link else ''}{sentence}"
    closer = r.pick(CLOSERS) if words > 6 else ""
    text = re.sub(r"\ba (?=[aeio])", "an ", text + (f". {closer}" if closer else ""))
    transcript = re.sub(r"[.,]", "", text)
    ask = lambda patterns: _fill(wording(r, patterns, held), blanks, True)  # noqa: E731
    qa = [QA(subject, ask(ways), _fill(answer, blanks, True)) for entry in used for ways, answer in entry[1]]
    qa = [item for item in qa if sum(item.question == other.question for other in qa) == 1]
    if r.chance(0.3):
        qa.append(QA("topic", wording(r, ABOUT, held), SUBJECTS[subject]))
    qa.append(
        QA("transcript", r.pick(QUESTIONS["transcript"].held if held else QUESTIONS["transcript"].train), transcript)
    )
    present = {n.rstrip("23") for entry in used for n in _names(entry[0])}
    open_ = []
    for other in (entry for entries in MEMOS.values() for entry in entries):
        for ways, answer in other[1]:
            asked = {n.rstrip("23") for n in _names(answer)}
            if (
                asked
                and not asked & present
                and asked <= {"phone", "amount", "code", "colour", "length", "city", "lost", "food", "time", "street"}
            ):
                open_.append(ways)
    strange = _Blanks(r)
    missing = [
        QA("absent", _fill(wording(r, ways, held), strange, True), NOT_STATED)
        for ways in r.sample(open_, min(2, len(open_)))
    ]
    return Utterance(text, transcript, tuple(qa), tuple(missing), f"free_{subject}")
