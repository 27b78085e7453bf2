"""Sentence patterns with slots: short utterances, and the sentences of memos."""

from __future__ import annotations


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
