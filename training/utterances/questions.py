"""How people ask for what a recording says: wordings of training, and wordings held out."""

from __future__ import annotations

from dataclasses import dataclass


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
