"""Tables of figures under two levels of headings, and comparisons whose first column holds for several rows."""

# fmt: off

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.office.document import Document
from training.office.grids import ACROSS, Grid
from training.office.registry import kind
from training.office.values import Dates, Money, distinct, people, person, quantity, town
from training.pages import values as v
from training.pages.values import Rng

Value = tuple[float | None, str]  # what is compared, if anything, and the text of the cell
Names = Callable[[Rng, int], list[str]]


@dataclass(frozen=True)
class Measure:
    """What stands under a group: its heading, its noun, a question of its own and how its values are drawn."""

    shown: str
    noun: str
    ask: str  # {n} is the row, {g} the group with its preposition
    value: Callable[[Rng], Value]
    unit: str = ""
    ends: tuple[str, str] = ("highest", "lowest")


@dataclass(frozen=True)
class Subject:
    """What tables are about: groups are "heading|as a question says it", in their order."""

    titles: tuple[str, ...]
    row: str  # what a name is
    names: Names
    groups: tuple[tuple[str, ...], ...]
    measures: tuple[tuple[Measure, ...], ...]
    corner: tuple[str, ...] = ()
    over: str = ""  # what the groups are, for their column
    person: bool = False
    link: str = "of"  # between what is measured and the name
    rising: bool = False  # values grow with the names


def ints(low: int, high: int) -> Callable[[Rng], Value]:
    def make(r: Rng) -> Value:
        n = r.randint(low, high)
        return n, str(n)

    return make


def tenths(low: int, high: int) -> Callable[[Rng], Value]:
    def make(r: Rng) -> Value:
        n = r.randint(10 * low, 10 * high)
        return n, f"{n / 10:.1f}"

    return make


def clock(low: int, high: int, step: int = 5) -> Callable[[Rng], Value]:
    def make(r: Rng) -> Value:
        n = r.randint(low * 60 // step, high * 60 // step) * step
        return n, f"{n // 60:02d}:{n % 60:02d}"

    return make


def lap(low: int, high: int) -> Callable[[Rng], Value]:
    """A time in minutes and seconds of ``low`` to ``high`` seconds."""
    def make(r: Rng) -> Value:
        n = r.randint(low, high)
        return n, f"{n // 60}:{n % 60:02d}"

    return make


def words(*options: str) -> Callable[[Rng], Value]:
    return lambda r: (None, r.pick(options))


def some(*options: str) -> Names:
    """Some of ``options`` in their order."""
    def make(r: Rng, count: int) -> list[str]:
        chosen = r.sample(range(len(options)), min(count, len(options)))
        return [options[i] for i in sorted(chosen)]

    return make


def run(*options: str) -> Names:
    """Neighbours among ``options``."""
    def make(r: Rng, count: int) -> list[str]:
        count = min(count, len(options))
        start = r.randint(0, len(options) - count)
        return list(options[start : start + count])

    return make


def many(make: Callable[[Rng], str]) -> Names:
    return lambda r, count: distinct(r, make, count)


def club(r: Rng) -> str:
    return f"{r.pick(('', '', 'FC ', 'SV ', 'TSV '))}{town(r)}{r.pick(('', '', ' United', ' Rovers', ' City'))}"


def test_date(r: Rng) -> Value:
    return None, f"{r.randint(1, 28)} {r.pick(('May', 'June', 'July', 'March', 'April'))}"


def room(r: Rng) -> Value:
    return None, r.pick((str(r.randint(1, 420)), f"{r.pick('ABCD')}{r.randint(1, 320)}", "Gym", "Main hall", "Library", "Lab 2", "Aula"))


def letter_mark(r: Rng) -> Value:
    n = r.randint(0, 8)
    return 8 - n, ("A", "A-", "B+", "B", "B-", "C+", "C", "C-", "D")[n]


def decimal_places(r: Rng) -> Value:
    n = r.randint(-12, 8)
    return n, f"{n * 0.25:+.2f}"


_HALVES = ("1st half|in the first half", "2nd half|in the second half")
_TERMS = ("Term 1|in the first term", "Term 2|in the second term", "Term 3|in the third term")
_WEEKS = tuple(f"Week {i}|in week {i}" for i in range(1, 5))
_QUARTERS = tuple(f"Q{i}|in Q{i}" for i in range(1, 5))
_SEASONS = ("Spring|in spring", "Summer|in summer", "Autumn|in autumn", "Winter|in winter")
_SEXES = (("Women|among women", "Men|among men"), ("Girls|among girls", "Boys|among boys"), ("Female|among women", "Male|among men"))
_CHANNELS = (("Online|online", "Shop|in the shop"), ("Online|online", "In store|in store", "By phone|by phone"), ("Home market|in the home market", "Export|abroad"))
_PLAN = (("Plan|by plan", "Actual|in fact"), ("Budget|in the budget", "Actual|in fact"), ("Forecast|in the forecast", "Result|in the result"))
_WEEKENDS = (("Weekdays|on weekdays", "Weekends|at weekends"), ("Mon-Fri|from Monday to Friday", "Sat|on Saturday", "Sun|on Sunday"))
_DAYTIMES = (("Morning|in the morning", "Evening|in the evening"), ("Morning|in the morning", "Noon|at noon", "Evening|in the evening"), ("AM|in the morning", "PM|in the afternoon"))
_YEARS = ("years",)  # of the page

SUBJECTS = (
    Subject(("Sales by branch", "Turnover of our branches", "Branch figures", "Annual comparison of the branches", "How our shops did"), "branch", many(town), (_YEARS, _QUARTERS, *_CHANNELS, *_PLAN), (
        (Measure("Sales", "sales", "How much did {n} sell {g}?", ints(20, 990), "k\u20ac"), Measure("Costs", "costs", "How high were the costs of {n} {g}?", ints(10, 600), "k\u20ac"), Measure("Profit", "profit", "How much profit did {n} make {g}?", ints(2, 300), "k\u20ac")),
        (Measure("Orders", "orders", "How many orders did {n} have {g}?", ints(10, 4000)), Measure("Returns", "returns", "How many returns did {n} have {g}?", ints(0, 300)), Measure("Complaints", "complaints", "How many complaints did {n} have {g}?", ints(0, 60))),
    ), ("Branch", "Town", "Location", "")),
    Subject(("Products", "Units sold", "Sales by product", "Article statistics", "Stock list of the warehouse"), "product", many(lambda r: r.pick(v.PRODUCTS)), (_YEARS, ("Warehouse A|in warehouse A", "Warehouse B|in warehouse B", "Warehouse C|in warehouse C"), *_CHANNELS, ("North|in the north", "South|in the south", "East|in the east", "West|in the west")), (
        (Measure("In stock", "stock", "How many pieces of {n} are in stock {g}?", ints(0, 900), "pcs"), Measure("On order", "quantity on order", "How many pieces of {n} are on order {g}?", ints(0, 300), "pcs"), Measure("Reserved", "reserved quantity", "How many pieces of {n} are reserved {g}?", ints(0, 200), "pcs")),
        (Measure("Sold", "quantity sold", "How many pieces of {n} were sold {g}?", ints(1, 990)), Measure("Returned", "quantity returned", "How many pieces of {n} came back {g}?", ints(0, 80)), Measure("Damaged", "quantity damaged", "How many pieces of {n} were damaged {g}?", ints(0, 40))),
    ), ("Product", "Article", "Item", "")),
    Subject(("League table", "Standings", "Final table", "Table after the first round", "Division 2"), "team", many(club), (("Home|at home", "Away|away"), ("Home|at home", "Away|away", "Total|in total"), _HALVES), (
        (Measure("W", "number of wins", "How many games did {n} win {g}?", ints(0, 15)), Measure("D", "number of draws", "How many draws did {n} have {g}?", ints(0, 9)), Measure("L", "number of defeats", "How many games did {n} lose {g}?", ints(0, 14))),
        (Measure("Won", "number of games won", "How many games did {n} win {g}?", ints(0, 15)), Measure("Lost", "number of games lost", "How many games did {n} lose {g}?", ints(0, 14))),
        (Measure("Goals", "goals", "How many goals did {n} score {g}?", ints(3, 60)), Measure("Points", "points", "How many points did {n} get {g}?", ints(4, 70)), Measure("Red cards", "red cards", "How many red cards did {n} get {g}?", ints(0, 9))),
    ), ("Team", "Club", "")),
    Subject(("Marks", "School report", "Grades of class 7b", "Results of the pupils", "Class list with marks"), "pupil", people, (_TERMS, ("Written|in the written exam", "Oral|in the oral exam"), ("Midterm|in the midterm", "Final|in the final exam")), (
        (Measure("Maths", "mark in maths", "Which mark does {n} have in maths {g}?", letter_mark, ends=("best", "worst")), Measure("English", "mark in English", "Which mark does {n} have in English {g}?", letter_mark, ends=("best", "worst")), Measure("Science", "mark in science", "Which mark does {n} have in science {g}?", letter_mark, ends=("best", "worst"))),
        (Measure("Points", "points", "How many points did {n} get {g}?", ints(12, 100)), Measure("Errors", "errors", "How many errors did {n} make {g}?", ints(0, 30))),
        (Measure("Absent", "days absent", "How many days was {n} absent {g}?", ints(0, 19)), Measure("Late", "times late", "How often was {n} late {g}?", ints(0, 12))),
    ), ("Pupil", "Name", "Student", ""), "Term", True),
    Subject(("Weather", "Climate", "Climate table", "When to travel", "Average weather"), "place", many(town), (_SEASONS, ("January|in January", "April|in April", "July|in July", "October|in October"), ("Morning|in the morning", "Afternoon|in the afternoon")), (
        (Measure("High", "daily high", "How warm does it get in {n} {g}?", ints(8, 38), "\u00b0C"), Measure("Low", "daily low", "How cold does it get in {n} {g}?", ints(-15, 7), "\u00b0C")),
        (Measure("Rain", "rainfall", "How much does it rain in {n} {g}?", ints(2, 260), "mm"), Measure("Sun", "hours of sunshine", "How many hours of sunshine does {n} have {g}?", ints(20, 330), "h"), Measure("Rainy days", "rainy days", "How many rainy days does {n} have {g}?", ints(0, 25), "days")),
    ), ("Place", "City", "Station", ""), "Season"),
    Subject(("Visitors", "Visitor numbers", "Who came to see us", "Admissions", "Tickets sold"), "month", run(*v.MONTHS), (_YEARS, *_WEEKENDS, ("Museum|in the museum", "Garden|in the garden"), ("Pool|in the pool", "Sauna|in the sauna")), (
        (Measure("Adults", "adults", "How many adults came in {n} {g}?", ints(30, 4000)), Measure("Children", "number of children", "How many children came in {n} {g}?", ints(10, 2500)), Measure("Groups", "groups", "How many groups came in {n} {g}?", ints(1, 90))),
        (Measure("Visitors", "visitors", "How many visitors came in {n} {g}?", ints(50, 9000)), Measure("Tours", "tours", "How many tours were there in {n} {g}?", ints(1, 60))),
    ), ("Month", ""), link="for"),
    Subject(("Staff", "Employees by department", "Headcount", "Our workforce", "Personnel statistics"), "department", many(lambda r: r.pick(v.DEPARTMENTS)), (_YEARS, *_SEXES[::2], ("Full-time|in full-time posts", "Part-time|in part-time posts"), ("Office|in the office", "Home|at home")), (
        (Measure("Staff", "number of staff", "How many people work in {n} {g}?", ints(2, 190)), Measure("Trainees", "trainees", "How many trainees does {n} have {g}?", ints(0, 20)), Measure("Vacancies", "vacancies", "How many vacancies does {n} have {g}?", ints(0, 12))),
        (Measure("Sick days", "sick days", "How many sick days did {n} have {g}?", ints(0, 140)), Measure("Overtime", "overtime", "How much overtime did {n} do {g}?", ints(0, 400), "h")),
    ), ("Department", "Unit", "")),
    Subject(("Blood pressure diary", "Blood pressure record", "My blood pressure", "Readings"), "day", run(*v.WEEKDAYS), _DAYTIMES, (
        (Measure("Upper", "upper value", "What was the upper value on {n} {g}?", ints(104, 169)), Measure("Lower", "lower value", "What was the lower value on {n} {g}?", ints(58, 99)), Measure("Pulse", "pulse", "How high was the pulse on {n} {g}?", ints(51, 98))),
        (Measure("Sugar", "blood sugar", "How high was the blood sugar on {n} {g}?", ints(72, 210), "mg/dl"), Measure("Insulin", "insulin dose", "How much insulin was taken on {n} {g}?", ints(2, 24), "units")),
    ), ("Day", ""), "Time", link="for"),
    Subject(("Eye test", "Glasses prescription", "Vision test of the class", "Results of the hearing test"), "person", people, (("Right|on the right", "Left|on the left"), ("Right eye|in the right eye", "Left eye|in the left eye")), (
        (Measure("Sph", "value Sph", "Which value of Sph does {n} have {g}?", decimal_places), Measure("Cyl", "value Cyl", "Which value of Cyl does {n} have {g}?", decimal_places), Measure("Axis", "axis", "Which axis does {n} have {g}?", ints(5, 180), "\u00b0")),
    ), ("Name", "Patient", ""), person=True),
    Subject(("Meter readings", "Electricity meter", "Energy use", "Consumption of the house", "Our electricity"), "month", run(*v.MONTHS), (_YEARS, ("Day|by day", "Night|at night"), ("Flat 1|in flat 1", "Flat 2|in flat 2", "Flat 3|in flat 3")), (
        (Measure("Reading", "meter reading", "What did the meter show in {n} {g}?", ints(1200, 48000)), Measure("Used", "consumption", "How much was used in {n} {g}?", ints(40, 690), "kWh")),
        (Measure("Power", "use of power", "How much power was used in {n} {g}?", ints(60, 690), "kWh"), Measure("Gas", "use of gas", "How much gas was used in {n} {g}?", ints(5, 900), "m\u00b3"), Measure("Water", "use of water", "How much water was used in {n} {g}?", ints(2, 40), "m\u00b3")),
    ), ("Month", ""), link="for"),
    Subject(("Nutrition", "Nutrition facts", "What is in our food", "Nutritional values", "Canteen: what you eat"), "food", some("Muesli", "Yogurt", "Pizza", "Rice pudding", "Tomato soup", "Cheese roll", "Fruit bar", "Potato salad", "Apple cake", "Lentil curry", "Fish fingers", "Oat drink", "Pancake"), (("Per 100 g|per 100 g", "Per portion|per portion"), ("Small|in the small size", "Large|in the large size")), (
        (Measure("Energy", "energy", "How much energy is in {n} {g}?", ints(40, 690), "kcal"), Measure("Fat", "fat content", "How much fat is in {n} {g}?", tenths(0, 30), "g"), Measure("Sugar", "sugar content", "How much sugar is in {n} {g}?", tenths(0, 45), "g")),
        (Measure("Protein", "protein content", "How much protein is in {n} {g}?", tenths(1, 30), "g"), Measure("Salt", "salt content", "How much salt is in {n} {g}?", tenths(0, 4), "g")),
    ), ("Food", "Dish", ""), "Amount"),
    Subject(("Size chart", "Sizes", "Which size fits?", "Size guide", "Measurements"), "size", run("XS", "S", "M", "L", "XL", "XXL"), (("Women|for women", "Men|for men"), ("Girls|for girls", "Boys|for boys"), ("Regular|in the regular fit", "Slim|in the slim fit")), (
        (Measure("Chest", "chest measurement", "What is the chest measurement of {n} {g}?", ints(76, 128), "cm"), Measure("Waist", "waist measurement", "What is the waist measurement of {n} {g}?", ints(58, 120), "cm"), Measure("Hips", "hip measurement", "What is the hip measurement of {n} {g}?", ints(82, 130), "cm")),
        (Measure("EU", "EU size", "Which EU size is {n} {g}?", ints(32, 60)), Measure("UK", "UK size", "Which UK size is {n} {g}?", ints(4, 28)), Measure("US", "US size", "Which US size is {n} {g}?", ints(0, 24))),
    ), ("Size", ""), rising=True),
    Subject(("Training plan", "Workout", "Training log", "My gym plan", "Exercises"), "exercise", some("Squats", "Bench press", "Deadlift", "Rowing", "Leg press", "Pull-ups", "Lunges", "Crunches", "Shoulder press", "Plank", "Dips"), (_WEEKS, ("Monday|on Monday", "Wednesday|on Wednesday", "Friday|on Friday"), ("Beginner|for beginners", "Advanced|for advanced people")), (
        (Measure("Sets", "sets", "How many sets of {n} are there {g}?", ints(1, 6)), Measure("Reps", "repetitions", "How many repetitions of {n} are there {g}?", ints(5, 25)), Measure("Weight", "weight", "How heavy is the weight for {n} {g}?", ints(5, 120), "kg")),
    ), ("Exercise", "")),
    Subject(("Harvest", "Crop yields", "Farm report", "What we grew", "Yields by crop"), "crop", some("Wheat", "Barley", "Maize", "Potatoes", "Sugar beet", "Oats", "Rapeseed", "Sunflowers", "Peas", "Clover", "Rye"), (_YEARS, ("North field|on the north field", "South field|on the south field"), ("Organic|in organic farming", "Conventional|in conventional farming")), (
        (Measure("Area", "area", "How large was the area of {n} {g}?", ints(2, 90), "ha"), Measure("Yield", "yield", "How high was the yield of {n} {g}?", tenths(1, 60), "t"), Measure("Price", "price", "What was the price of {n} {g}?", ints(90, 480), "\u20ac/t")),
    ), ("Crop", "")),
    Subject(("Budget", "Budget of the club", "Household budget", "Income and expenses", "Accounts of the association"), "item", some("Rent", "Heating", "Insurance", "Events", "Travel", "Equipment", "Printing", "Fees", "Repairs", "Donations", "Training", "Postage"), (*_PLAN, _YEARS, _QUARTERS), (
        (Measure("Income", "income", "How much income is there for {n} {g}?", ints(0, 9000), "\u20ac"), Measure("Expenses", "expenses", "How much is spent on {n} {g}?", ints(10, 9000), "\u20ac")),
        (Measure("Amount", "amount", "How much is {n} {g}?", ints(10, 9000), "\u20ac"), Measure("Share", "share", "What share has {n} {g}?", ints(1, 60), "%")),
    ), ("Item", "Post", ""), link="for"),
    Subject(("Traffic count", "Traffic census", "How many vehicles pass", "Counting station report"), "street", many(lambda r: f"{r.pick(v.STREETS)} {r.pick(('Street', 'Road', 'Lane', 'Avenue'))}"), (("Morning|in the morning", "Evening|in the evening"), *_WEEKENDS[:1], _YEARS, ("Into town|into town", "Out of town|out of town")), (
        (Measure("Cars", "cars", "How many cars were counted in {n} {g}?", ints(90, 9000)), Measure("Bikes", "bikes", "How many bikes were counted in {n} {g}?", ints(5, 2500)), Measure("Lorries", "lorries", "How many lorries were counted in {n} {g}?", ints(0, 700))),
        (Measure("Speed", "average speed", "How fast was the traffic in {n} {g}?", ints(22, 74), "km/h"), Measure("Accidents", "accidents", "How many accidents were there in {n} {g}?", ints(0, 19))),
    ), ("Street", "")),
    Subject(("Results", "Race results", "Time sheet", "Club championship", "Ski race"), "runner", people, (("Run 1|in the first run", "Run 2|in the second run"), ("Heat|in the heat", "Final|in the final"), ("50 m|over 50 m", "100 m|over 100 m", "200 m|over 200 m")), (
        (Measure("Time", "time", "Which time did {n} have {g}?", lap(41, 320), ends=("longest", "shortest")), Measure("Penalty", "penalty", "Which penalty did {n} get {g}?", ints(0, 20), "s")),
        (Measure("Time", "time", "How fast was {n} {g}?", lap(41, 320), ends=("longest", "shortest")), Measure("Points", "points", "How many points did {n} get {g}?", ints(0, 100))),
    ), ("Name", "Runner", "Athlete", ""), person=True),
    Subject(("Train times", "Timetable to the coast", "Our journey", "Departures and arrivals", "Ferry times"), "stop", many(town), (("Weekdays|on weekdays", "Weekends|at weekends"), ("Outward|on the way out", "Return|on the way back"), ("Train 1|with train 1", "Train 2|with train 2", "Train 3|with train 3"), ("Summer|in summer", "Winter|in winter")), (
        (Measure("arr.", "arrival", "When does it arrive in {n} {g}?", clock(6, 22, 1), ends=("latest", "earliest")), Measure("dep.", "departure", "When does it leave {n} {g}?", clock(6, 22, 1), ends=("latest", "earliest")), Measure("Platform", "platform", "From which platform does it go in {n} {g}?", lambda r: (None, str(r.randint(1, 14))))),
    ), ("Stop", "Station", ""), link="for"),
    Subject(("Opening hours", "When we are open", "Our hours", "Office hours"), "place", some("Library", "Town hall", "Swimming pool", "Museum", "Recycling centre", "Post office", "Tourist office", "Cemetery", "Sauna", "Archive", "Youth club"), (*_WEEKENDS, ("Summer|in summer", "Winter|in winter"), ("School term|in school term", "Holidays|in the holidays")), (
        (Measure("Opens", "opening time", "When does the {n} open {g}?", clock(6, 11, 30), ends=("latest", "earliest")), Measure("Closes", "closing time", "When does the {n} close {g}?", clock(13, 23, 30), ends=("latest", "earliest"))),
        (Measure("From", "opening time", "From when is the {n} open {g}?", clock(6, 11, 30), ends=("latest", "earliest")), Measure("To", "closing time", "Until when is the {n} open {g}?", clock(13, 23, 30), ends=("latest", "earliest"))),
    ), ("", "Place", "Facility")),
    Subject(("Exams", "Exam dates", "Examination plan", "Final exams"), "subject", some("Maths", "Physics", "Biology", "History", "French", "Latin", "Economics", "Music", "Geography", "Chemistry", "Art"), (("Written|for the written exam", "Oral|for the oral exam"), ("Class 10a|for class 10a", "Class 10b|for class 10b"), ("First try|for the first try", "Resit|for the resit")), (
        (Measure("Date", "date", "On which day is {n} {g}?", test_date), Measure("Time", "time", "At what time is {n} {g}?", clock(8, 16, 15), ends=("latest", "earliest")), Measure("Room", "room", "In which room is {n} {g}?", room)),
        (Measure("Date", "date", "When is {n} {g}?", test_date), Measure("Examiner", "examiner", "Who examines {n} {g}?", lambda r: (None, v.last_name(r)))),
    ), ("Subject", ""), link="for"),
    Subject(("Medication plan", "Medicines", "What to take when", "Plan of medicines"), "medicine", some("Ibuprofen", "Metformin", "Ramipril", "Vitamin D", "Aspirin", "Omeprazole", "Iron", "Thyroxine", "Amoxicillin", "Magnesium", "Bisoprolol"), (("Weekdays|on weekdays", "Weekends|at weekends"), ("Days 1-3|on days 1-3", "Days 4-7|on days 4-7"), _WEEKS), (
        (Measure("Morning", "morning dose", "How much {n} is taken in the morning {g}?", words("1", "2", "\u00bd", "0", "1\u00bd")), Measure("Noon", "noon dose", "How much {n} is taken at noon {g}?", words("1", "\u00bd", "0")), Measure("Evening", "evening dose", "How much {n} is taken in the evening {g}?", words("1", "2", "\u00bd", "0"))),
    ), ("Medicine", "Drug", "")),
    Subject(("Survey", "Results of the survey", "What people said", "Poll", "Vote"), "proposal", some("New car park", "Longer opening hours", "Cycle path", "Playground", "Speed limit", "Summer festival", "Tram line", "Dog park", "School canteen", "Solar roof"), (*_SEXES, ("Under 30|among those under 30", "30-60|among those of 30 to 60", "Over 60|among those over 60"), ("Members|among members", "Guests|among guests")), (
        (Measure("Yes", "share of Yes", "How many percent said yes to {n} {g}?", ints(5, 64), "%"), Measure("No", "share of No", "How many percent said no to {n} {g}?", ints(5, 30), "%"), Measure("No answer", "share of No answer", "How many percent gave no answer on {n} {g}?", ints(0, 5), "%")),
    ), ("Topic", "Proposal", ""), link="for"),
    Subject(("Population", "Population by region", "Inhabitants", "Census", "Households by district"), "district", many(lambda r: f"{r.pick(('North ', 'South ', 'Old ', 'Upper ', ''))}{v.name_word(r)}"), (_YEARS, _SEXES[0], ("City|in the city", "Country|in the country")), (
        (Measure("Under 18", "number under 18", "How many people under 18 live in {n} {g}?", ints(90, 9000)), Measure("18-64", "number aged 18-64", "How many people aged 18-64 live in {n} {g}?", ints(300, 42000)), Measure("65+", "number aged 65+", "How many people aged 65+ live in {n} {g}?", ints(60, 9900))),
        (Measure("Births", "births", "How many births were there in {n} {g}?", ints(4, 900)), Measure("Deaths", "deaths", "How many deaths were there in {n} {g}?", ints(4, 900))),
    ), ("District", "Area", "")),
    Subject(("Rooms", "Flats to let", "House plan", "Floor space"), "room", some("Kitchen", "Living room", "Bedroom", "Bathroom", "Hall", "Study", "Nursery", "Cellar", "Balcony", "Garage"), (("Ground floor|on the ground floor", "First floor|on the first floor"), ("Flat A|in flat A", "Flat B|in flat B", "Flat C|in flat C"), ("Old|in the old plan", "New|in the new plan")), (
        (Measure("Area", "area", "How large is the {n} {g}?", tenths(3, 42), "m\u00b2"), Measure("Windows", "windows", "How many windows has the {n} {g}?", ints(0, 6)), Measure("Sockets", "sockets", "How many sockets has the {n} {g}?", ints(1, 14))),
        (Measure("Floor", "floor", "What kind of floor has the {n} {g}?", words("oak", "tiles", "carpet", "cork", "laminate", "stone")), Measure("Walls", "walls", "What are the walls of the {n} like {g}?", words("white", "papered", "panelled", "tiled", "brick", "plaster"))),
    ), ("Room", "")),
    Subject(("Travel costs", "Expenses", "Expense report", "Costs of the trip"), "day", run(*v.WEEKDAYS), (("Outward trip|on the outward trip", "Return trip|on the return trip"), ("Team A|for team A", "Team B|for team B"), _WEEKS), (
        (Measure("Hotel", "hotel costs", "How much was the hotel on {n} {g}?", ints(48, 320), "\u20ac"), Measure("Meals", "cost of meals", "How much were the meals on {n} {g}?", ints(8, 95), "\u20ac"), Measure("Taxi", "taxi fare", "How much was the taxi on {n} {g}?", ints(6, 70), "\u20ac")),
    ), ("Day", ""), link="for"),
)
NOTES = (
    "As of {date}.", "Status: {date}", "Source: {person}", "Prepared by {person}", "Figures rounded.", "Checked by {person} on {date}", "All figures are provisional.", "Last change: {date}",
)


def _groups(r: Rng, subject: Subject) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Groups of a page as (heading, in a question), and some of the same sort that it does not have."""
    options = r.pick(subject.groups)
    if options == _YEARS:
        year = r.randint(2008, 2031)
        options = tuple(f"{y}|in {y}" for y in range(year, year + 5))
    pairs = [tuple(option.split("|")) for option in options]
    count = min(len(pairs), r.choices((2, 3, 4), (5, 3, 1))[0])
    start = r.randint(0, len(pairs) - count)
    return pairs[start : start + count], [*pairs[:start], *pairs[start + count :]]


def _called(noun: str) -> tuple[str, str]:
    """As `quantity`, for a noun with or without an addition: ("number of hours of sunshine", "is")."""
    head, of, rest = noun.partition(" of ")
    called, verb = quantity(head)
    return called + of + rest, verb


def _sayings(noun: str, verb: str, link: str, name: str, group: tuple[str, str], measure: Measure, layout: str) -> list[str]:
    """Questions about one cell."""
    shown, said = group
    first = measure.ask.format(n=name, g=said)
    place = f"Which value stands in the row {name} under {shown}, {measure.shown}?" if layout == ACROSS else f"Which value stands where {name} and {shown}, {measure.shown} meet?"
    return [
        first, f"What {verb} the {noun} {link} {name} {said}?", f"{name}, {shown}, {measure.shown}?", place, f"{name} {said}: {noun}?", f"Look up {measure.shown} {link} {name} in {shown}.", f"I need the {noun} {link} {name} {said}.",
        f"{said[0].upper()}{said[1:]}, what {verb} the {noun} {link} {name}?",
    ]


@kind("merged_table", 5.0)
def merged(d: Document) -> None:
    """Figures under two levels of headings."""
    r = d.r
    subject = r.pick(SUBJECTS)
    groups, other_groups = _groups(r, subject)
    measures = list(r.pick(subject.measures))
    spare = [measures.pop(r.randint(0, len(measures) - 1))] if len(measures) > 2 and r.chance(0.4) else []
    names = subject.names(r, r.randint(3, 7))
    leaves = [(g, m) for g in range(len(groups)) for m in range(len(measures))]
    missing = None
    if len(measures) > 1 and r.chance(0.2):  # not every group has the same columns
        missing = leaves.pop(r.randint(0, len(leaves) - 1))
    units = [m.unit for m in measures]
    style = r.pick(("cell", "row", "head", "none")) if any(units) else "none"
    line = style == "none" and len(set(units)) == 1 and bool(units[0])
    heads = [f"{m.shown} ({m.unit})" if m.unit and style == "head" else m.shown for m in measures]
    values = {}
    for i, (_, m) in enumerate(leaves):
        column = [measures[m].value(r) for _ in names]
        for n, value in enumerate(sorted(column) if subject.rising else column):
            values[n, i] = value
    cells = {}
    for (n, i), (_, text) in values.items():
        unit = units[leaves[i][1]] if style == "cell" else ""
        cells[n, i] = text + (unit if unit[:1] in ("", "\u00b0") else f" {unit}")
    grid = Grid(names, [(groups[g][0], heads[m]) for g, m in leaves], cells)
    layouts = grid.layouts()
    layout = ACROSS if style == "row" and ACROSS in layouts else r.pick([*layouts, ACROSS] if ACROSS in layouts else layouts)

    top = d.heading(r.pick(subject.titles))
    d.ask(("What is the title of the table?", "What is the heading?", "What is the table called?", "Which title does the table have?"), d.blocks[-1].texts[0], top)
    if line:
        d.line(r.pick(("All figures in {}", "Figures in {}", "in {}", "All values in {}.")).format(units[0]), small=True)
        d.ask(("In which unit are the figures?", "What is the unit of the values?", "In what are the figures given?", "Which unit is used?"), units[0], d.blocks[-1].parts)
    elif r.chance(0.12):
        d.paragraph(v.sentence(r))
    grid.set(d, layout, r.pick(subject.corner), heads=(subject.over, ""), units=[units[m] for _, m in leaves] if style == "row" and layout == ACROSS else ())
    if r.chance(0.35):
        _note(d)

    nouns = [_called(m.noun) for m in measures]
    picked = r.sample(sorted(cells), min(len(cells), 9))
    for n, i in picked:
        g, m = leaves[i]
        noun, verb = nouns[m]
        d.ask(_sayings(noun, verb, subject.link, names[n], groups[g], measures[m], layout), cells[n, i], grid.parts[n, i])
    _whole_columns(d, subject, grid, groups, measures, nouns, leaves, values)
    _across_a_row(d, subject.link, grid, groups, measures, nouns, leaves, values)
    _shape(d, grid, subject, groups, measures, nouns)

    # what the table might have and has not
    noun, verb = r.pick(nouns)
    group = r.pick(groups)
    m = r.randint(0, len(measures) - 1)
    strange = [name for name in subject.names(r, 8) if not any(name in own or own in name for own in names)]
    if strange:
        name = r.pick(strange)
        d.absent(measures[m].ask.format(n=name, g=group[1]), f"What {nouns[m][1]} the {nouns[m][0]} {subject.link} {name} {group[1]}?", f"{name}, {group[0]}, {measures[m].shown}?")
    if other_groups:
        other, name = r.pick(other_groups), r.pick(names)
        d.absent(measures[m].ask.format(n=name, g=other[1]), f"What {nouns[m][1]} the {nouns[m][0]} {subject.link} {name} {other[1]}?", f"{name}, {other[0]}, {measures[m].shown}?")
    for one in spare:
        name, (noun, verb) = r.pick(names), _called(one.noun)
        d.absent(one.ask.format(n=name, g=group[1]), f"What {verb} the {noun} {subject.link} {name} {group[1]}?", f"{name}, {group[0]}, {one.shown}?")
    if missing:
        (shown, said), one, name, (noun, verb) = groups[missing[0]], measures[missing[1]], r.pick(names), nouns[missing[1]]
        d.absent(one.ask.format(n=name, g=said), f"What {verb} the {noun} {subject.link} {name} {said}?", f"{name}, {shown}, {one.shown}?")


def _note(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    note, name, date = r.pick(NOTES), person(r), dates.date()
    part = d.line(note.format(person=name, date=date), small=True)
    if "{date}" in note:
        d.ask(("From when are the figures?", "Which date stands below the table?", "What date is given under the table?", "How old are the figures, from which date?"), date, part)
    if "{person}" in note:
        d.ask(("Who is named below the table?", "Whose name stands under the table?", "Which person is named under the table?", "Who is responsible for the figures?"), name, part)


def _whole_columns(d: Document, subject: Subject, grid: Grid, groups, measures: Sequence[Measure], nouns, leaves, values) -> None:
    """Largest, smallest, the row of a value, and two rows compared."""
    r, names, every = d.r, grid.names, grid.everything
    which, who = f"Which {subject.row}", "Who" if subject.person else f"Which {subject.row}"
    for i in r.sample(range(len(leaves)), min(len(leaves), 3)):
        g, m = leaves[i]
        (shown, said), measure, (noun, verb) = groups[g], measures[m], nouns[m]
        texts, numbers = [grid.cells[n, i] for n in range(len(names))], [values[n, i][0] for n in range(len(names))]
        n = r.randint(0, len(names) - 1)
        if texts.count(texts[n]) == 1:
            d.ask((f"{which} has {texts[n]} under {shown}, {measure.shown}?", f"{which} has the {noun} {texts[n]} {said}?", f"Where do I find {texts[n]} in {measure.shown} of {shown}?", f"{who} stands beside {texts[n]} in {measure.shown} of {shown}?", f"For which {subject.row} {verb} the {noun} {said} {texts[n]}?"), names[n], every)
        if None in numbers:
            continue
        for word, bound in zip(measure.ends, (max(numbers), min(numbers)), strict=True):
            if numbers.count(bound) == 1 and r.chance(0.7):
                d.ask((f"{which} has the {word} {noun} {said}?", f"{who} has the {word} {noun} {said}?", f"Where {verb} the {noun} {said} the {word}?", f"Which row has the {word} value for {shown}, {measure.shown}?", f"{said[0].upper()}{said[1:]}, {who.lower()} has the {word} {noun}?"), names[numbers.index(bound)], every)
            if r.chance(0.35):
                d.ask((f"What is the {word} {noun} {said}?", f"What is the {word} value under {shown}, {measure.shown}?", f"{word.capitalize()} {noun} {said}?", f"Which is the {word} entry for {measure.shown} {said}?"), texts[numbers.index(bound)], every)
        a, b = r.sample(range(len(names)), 2)
        if numbers[a] != numbers[b]:
            word = {"highest": "higher", "latest": "later", "longest": "longer", "best": "better"}[measure.ends[0]]
            best = a if numbers[a] > numbers[b] else b
            d.ask((f"Which has the {word} {noun} {said}, {names[a]} or {names[b]}?", f"{names[a]} or {names[b]}: {who.lower()} has the {word} {noun} {said}?", f"Compare {names[a]} and {names[b]} {said}: where {verb} the {noun} {word}?", f"{said[0].upper()}{said[1:]}, {verb} the {noun} {word} for {names[a]} or for {names[b]}?"), names[best], grid.parts[a, i], grid.parts[b, i])


def _across_a_row(d: Document, link: str, grid: Grid, groups, measures: Sequence[Measure], nouns, leaves, values) -> None:
    """The groups of one row compared."""
    r = d.r
    for n in r.sample(range(len(grid.names)), min(len(grid.names), 2)):
        name, m = grid.names[n], r.randint(0, len(measures) - 1)
        columns = [i for i, leaf in enumerate(leaves) if leaf[1] == m]
        numbers = [values[n, i][0] for i in columns]
        noun, verb = nouns[m]
        high = measures[m].ends[0]
        if len(columns) > 1 and None not in numbers:
            a, b = r.sample(range(len(columns)), 2)
            if numbers[a] != numbers[b]:
                word = {"highest": "higher", "latest": "later", "longest": "longer", "best": "better"}[high]
                one, two, best = groups[leaves[columns[a]][0]], groups[leaves[columns[b]][0]], a if numbers[a] > numbers[b] else b
                needs = grid.parts[n, columns[a]] + grid.parts[n, columns[b]]
                d.ask((f"{verb.capitalize()} the {noun} {link} {name} {word} {one[1]} or {two[1]}?", f"{name}: where {verb} the {noun} {word}, {one[0]} or {two[0]}?", f"{one[0]} or {two[0]}: which has the {word} {noun} for {name}?", f"When {verb} the {noun} {link} {name} {word}: {one[1]} or {two[1]}?" if one[0][0].isdigit() else f"Of {one[0]} and {two[0]}, which shows the {word} {noun} {link} {name}?"), groups[leaves[columns[best]][0]][0], needs)
                gap = abs(numbers[a] - numbers[b])
                if high == "highest" and gap == int(gap) < 200 and all(grid.cells[n, i].isdigit() for i in (columns[a], columns[b])):
                    d.ask((f"How much higher {verb} the {noun} {link} {name} {groups[leaves[columns[best]][0]][1]} than {(two if best == a else one)[1]}?", f"How much higher: {name}, {measures[m].shown}, {groups[leaves[columns[best]][0]][0]} against {(two if best == a else one)[0]}?"), str(gap), needs)
        if len(columns) > 2 and None not in numbers and numbers.count(max(numbers)) == 1:
            best = groups[leaves[columns[numbers.index(max(numbers))]][0]][0]
            d.ask((f"In which group {verb} the {noun} {link} {name} the {high}?", f"Where {verb} the {noun} {link} {name} the {high}?", f"{name}: which heading has the {high} {noun}?", f"Under which heading does {name} have the {high} {noun}?"), best, *(grid.parts[n, i] for i in columns))


def _shape(d: Document, grid: Grid, subject: Subject, groups, measures: Sequence[Measure], nouns) -> None:
    """What is compared, and how many there are."""
    r, every, row = d.r, grid.everything, subject.row
    plural = {"branch": "branches", "person": "people", "country": "countries"}.get(row, row if row.endswith("s") else f"{row}s")
    d.ask((f"How many {plural} does the table have?", f"How many {plural} are listed?", f"For how many {plural} are there figures?", f"How many {plural} are in the table?"), str(len(grid.names)), every)
    shown = [group for group, _ in groups]
    if r.chance(0.5):
        what = "years" if shown[0].isdigit() else "groups"
        d.ask((f"Which {what} does the table compare?" if what == "years" else "What are the main headings of the table?", f"Which {what} are in the table?" if what == "years" else "Which headings span several cells?", "What is compared with what?", "Name the upper headings." if what == "groups" else "Name the years."), " and ".join(shown) if len(shown) == 2 else ", ".join(shown), every)
    if r.chance(0.4) and len({len(grid.leaves) // len(groups), *(grid.count(group) for group in shown)}) == 1 and len(measures) > 1:
        heads = [name for group, name in grid.leaves if group == shown[0]]
        d.ask((f"What stands under {shown[0]}?", f"Which values are given for {shown[0]}?", f"What is given under the heading {shown[0]}?", f"Name the headings below {shown[0]}."), " and ".join(heads) if len(heads) == 2 else ", ".join(heads), every)
    if r.chance(0.4):
        at = r.pick((0, len(grid.names) - 1))
        end = "last" if at else "first"
        d.ask((f"Which {row} comes {end}?", f"Which is the {end} {row}?", f"What is the {end} {row} in the table?", f"With which {row} does the table {'end' if at else 'begin'}?"), grid.names[at], every)


PLANS = (
    ("Basic", "Plus", "Premium"), ("Free", "Personal", "Business"), ("S", "M", "L"), ("Bronze", "Silver", "Gold"), ("Starter", "Family", "Pro"), ("Standard", "Comfort"), ("Light", "Classic", "Max"), ("Economy", "Business", "First"),
)
# what is compared, its titles, and its features by category: "feature|value;value;..." of the plans, or a feature alone, which a plan has or has not
COMPARED: tuple[tuple[str, tuple[str, ...], dict[str, tuple[str, ...]]], ...] = (
    ("plan", ("Mobile plans", "Our phone plans", "Compare our plans", "Which plan suits you?"), {
        "Calls": ("Free minutes|100;250;500;1000;unlimited", "Calls abroad", "Voicemail", "Conference calls", "Second SIM card"),
        "Data": ("Data volume|2 GB;5 GB;10 GB;25 GB;60 GB;unlimited", "Speed|25 Mbit/s;50 Mbit/s;100 Mbit/s;300 Mbit/s;500 Mbit/s", "Data roaming", "Hotspot", "Data rollover"),
        "Contract": ("Duration|1 month;6 months;12 months;24 months", "Setup fee|0;5;10;15;25;30", "Free phone", "Family discount"),
    }),
    ("package", ("Insurance", "What is covered", "Cover at a glance", "Travel insurance"), {
        "Medical": ("Doctor's visits", "Dental treatment", "Hospital|1000;5000;20000;50000;100000", "Transport home", "Medicines"),
        "Luggage": ("Theft", "Delay|100;200;300;500;800", "Lost passport", "Sports equipment", "Damage"),
        "Journey": ("Cancellation", "Missed flight", "Rental car", "Excess|0;50;100;150;250", "Legal help"),
    }),
    ("model", ("Compare models", "Technical data", "Our bicycles", "Which model for whom?"), {
        "Frame": ("Material|steel;aluminium;carbon;titanium", "Weight|9.5 kg;11.2 kg;12.8 kg;14 kg;16.5 kg", "Colour|black;red;green;white;blue;grey", "Suspension"),
        "Equipment": ("Gears|3;7;8;11;21;27", "Lights", "Luggage rack", "Mudguards", "Bell", "Kickstand"),
        "Service": ("Warranty|1 year;2 years;5 years;10 years", "Free inspection", "Delivery", "Assembly"),
    }),
    ("membership", ("Membership", "Gym membership", "Become a member", "What you get"), {
        "Gym": ("Weights", "Courses|2 a week;4 a week;8 a week;unlimited", "Personal trainer", "Opening hours|8-16;6-22;24 hours;7-23"),
        "Wellness": ("Sauna", "Pool", "Massage|1 a month;2 a month;4 a month;6 a year", "Towels", "Solarium"),
        "Extras": ("Drinks", "Parking", "Guest passes|1;2;5;10;12", "Child care", "Locker"),
    }),
    ("edition", ("Software editions", "Features", "Compare editions", "Price and features"), {
        "Storage": ("Space|5 GB;50 GB;100 GB;500 GB;1 TB;2 TB", "Backup", "Encryption", "Versions|3;10;30;90;unlimited"),
        "Team": ("Users|1;3;5;10;25;100;unlimited", "Guest access", "Shared calendar", "Video calls", "Roles"),
        "Support": ("Email support", "Telephone support", "Response time|1 hour;4 hours;24 hours;48 hours;3 days", "Training", "Updates"),
    }),
    ("room", ("Our rooms", "Rooms and equipment", "Meeting rooms", "Rooms for hire"), {
        "Size": ("Area|24 m\u00b2;36 m\u00b2;48 m\u00b2;75 m\u00b2;120 m\u00b2", "Seats|8;12;20;36;60;100", "Floor|ground;first;second;third"),
        "Equipment": ("Projector", "Whiteboard", "Microphone", "Piano", "Air conditioning", "Wi-Fi"),
        "Service": ("Coffee", "Kitchen use", "Cleaning", "Parking spaces|2;5;10;20;40"),
    }),
)
COUNTED = ("Free minutes", "Versions", "Users", "Gears", "Seats", "Guest passes", "Parking spaces")
MARKS = (("yes", "no"), ("Yes", "No"), ("x", "\u2013"), ("X", ""), ("\u2022", "\u2013"), ("included", "\u2013"), ("x", ""), ("Yes", "\u2014"), ("+", "\u2013"))


@kind("comparison", 1.5)
def comparison(d: Document) -> None:
    """What several plans, models or rooms have, by category: a category holds for the rows beside it."""
    r, money = d.r, Money(d.r)
    what, titles, features = r.pick(COMPARED)
    plans = distinct(r, v.name_word, 3) if what in ("model", "room") or r.chance(0.15) else list(r.pick(PLANS))
    have, lack = r.pick(MARKS)
    name = d.heading(r.pick(titles))
    d.about(f"A comparison of the {what}s {', '.join(plans[:-1])} and {plans[-1]}.", name)
    rows, entries = [], []  # entries: feature, category, values
    for category, options in r.sample(sorted(features.items()), r.randint(2, 3)):
        for option in r.sample(options, r.randint(1, min(4, len(options)))):
            feature, _, values = option.partition("|")
            if values:
                known = values.split(";")
                chosen = sorted(r.sample(range(len(known)), len(plans))) if len(known) >= len(plans) and r.chance(0.7) else [r.randint(0, len(known) - 1) for _ in plans]
                cells = [known[i] for i in chosen]
            else:
                cells = [r.pick((have, have, lack)) for _ in plans]
            first = not entries or entries[-1][1] != category
            entries.append((feature, category, cells, bool(values)))
            rows.append([category if first else "", feature, *cells])
    prices = [money(100 * p + r.pick((0, 0, 50, 90, 99))) if not money.whole else money(100 * p) for p in sorted(r.sample(range(3, 120), len(plans)))]
    priced = r.chance(0.6)
    if priced:
        per = r.pick(("per month", "a month", "per year")) if what not in ("model", "room") else r.pick(("from", "list price")) if what == "model" else r.pick(("per hour", "per day"))
        entries.append((per, "Price", prices, True))
        rows.append(["Price", per, *prices])
    head = r.pick((["", ""], ["Category", "Feature"], ["", what.capitalize()]))
    parts = d.table([*head, *plans], rows, merged=True)
    starts = [i for i, row in enumerate(rows) if row[0]]
    needs = [[p for p, first in zip(parts, range(len(rows)), strict=True) if max(s for s in starts if s <= first) == max(s for s in starts if s <= i)] for i in range(len(rows))]

    for i in r.sample(range(len(entries)), min(len(entries), 7)):
        feature, category, cells, valued = entries[i]
        low = feature if feature.isupper() or "Wi-Fi" in feature or "SIM" in feature else feature[0].lower() + feature[1:]
        p = r.randint(0, len(plans) - 1)
        plan = plans[p]
        if category == "Price":
            d.ask((f"How much is {plan}?", f"What does {plan} cost?", f"What is the price of {plan}?", f"{plan}: price?", f"How much do I pay for {plan}?"), cells[p], needs[i])
            continue
        if valued:
            low = f"number of {low}" if feature in COUNTED else low
            verb = "are" if feature in ("Opening hours", "Courses") else "is"
            d.ask((f"What {verb} the {low} of {plan}?", f"{plan}: {low}?", f"Which {low} does {plan} have?", f"What does {plan} have under {feature}?", f"Look up {low} for {plan}.", f"For {plan}, what {verb} the {low}?"), cells[p], needs[i])
            if cells.count(cells[p]) == 1:
                d.ask((f"Which {what} has {cells[p]} under {feature}?", f"For which {what} {verb} the {low} {cells[p]}?", f"Where does the row {feature} say {cells[p]}?", f"{feature} {cells[p]}: which {what} is that?"), plan, needs[i])
        else:
            d.ask((f"Is {low} included in {plan}?", f"Does {plan} include {low}?", f"{plan} with {low}: yes or no?", f"Do I get {low} with {plan}?", f"Does {plan} come with {low}?"), "yes" if cells[p] == have else "no", needs[i])
            having = [plan for plan, cell in zip(plans, cells, strict=True) if cell == have]
            if 0 < len(having) < len(plans):
                said = having[0] if len(having) == 1 else f"{', '.join(having[:-1])} and {having[-1]}"
                plural = f"{what}s" if len(having) > 1 else what
                d.ask((f"Which {plural} {'include' if len(having) > 1 else 'includes'} {low}?", f"With which {plural} do I get {low}?", f"Where is {low} included?", f"What do I have to take to get {low}?"), said, needs[i])
                without = [plan for plan in plans if plan not in having]
                if len(without) == 1:
                    d.ask((f"Which {what} does not include {low}?", f"Which {what} comes without {low}?", f"Where is {low} missing?", f"Without {low}: which {what}?"), without[0], needs[i])
    if not valued or r.chance(0.6):
        feature, category, _, _ = r.pick(entries[: len(entries) - priced] or entries)
        i = [e[0] for e in entries].index(feature)
        d.ask((f"In which category is {feature}?", f"To which section does {feature} belong?", f"Under what is {feature} listed?", f"Beside which heading does {feature} stand?"), category, needs[i])
    category = r.pick([row[0] for row in rows if row[0] and row[0] != "Price"])
    inside = [e[0] for e in entries if e[1] == category]
    d.ask((f"How many rows belong to {category}?", f"How many features are listed under {category}?", f"How many lines stand beside {category}?", f"How many points are there for {category}?"), str(len(inside)), parts)
    if len(inside) > 1:
        d.ask((f"What is listed under {category}?", f"Which features belong to {category}?", f"What stands beside {category}?", f"Name the features of {category}."), ", ".join(inside), parts)
    d.ask((f"How many {what}s are compared?", f"How many {what}s are there?", f"How many {what}s does the table show?", f"Between how many {what}s can I choose?"), str(len(plans)), parts)
    if priced:
        d.ask((f"Which {what} is the cheapest?", f"What is the cheapest {what}?", f"Which {what} costs the least?", "What costs the least?"), plans[0], parts)
        d.ask((f"Which {what} is the most expensive?", f"What is the dearest {what}?", f"Which {what} costs the most?", "What costs the most?"), plans[-1], parts)
    else:
        d.absent(f"How much is {r.pick(plans)}?", f"What does {r.pick(plans)} cost?", f"Which {what} is the cheapest?")
    known = {e[0] for e in entries}
    others = [o.partition("|")[0] for options in features.values() for o in options if o.partition("|")[0] not in known]
    if others:
        feature, plan = r.pick(others), r.pick(plans)
        d.absent(f"What does {plan} have under {feature}?", f"What does the table say about {feature}?", f"{feature} of {plan}?")
    strange = [plan for own in PLANS for plan in own if plan not in plans and len(plan) > 1]
    d.absent(f"How much is {r.pick(strange)}?", f"What does {r.pick(strange)} include?")
