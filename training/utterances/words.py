"""Words that the recordings say."""

from __future__ import annotations

import re

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
