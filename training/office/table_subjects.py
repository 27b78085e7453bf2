"""What tables of figures under two levels of headings are about."""

# fmt: off

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.office.values import distinct, people, town
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
YEARS = ("years",)  # of the page

SUBJECTS = (
    Subject(("Sales by branch", "Turnover of our branches", "Branch figures", "Annual comparison of the branches", "How our shops did"), "branch", many(town), (YEARS, _QUARTERS, *_CHANNELS, *_PLAN), (
        (Measure("Sales", "sales", "How much did {n} sell {g}?", ints(20, 990), "k\u20ac"), Measure("Costs", "costs", "How high were the costs of {n} {g}?", ints(10, 600), "k\u20ac"), Measure("Profit", "profit", "How much profit did {n} make {g}?", ints(2, 300), "k\u20ac")),
        (Measure("Orders", "orders", "How many orders did {n} have {g}?", ints(10, 4000)), Measure("Returns", "returns", "How many returns did {n} have {g}?", ints(0, 300)), Measure("Complaints", "complaints", "How many complaints did {n} have {g}?", ints(0, 60))),
    ), ("Branch", "Town", "Location", "")),
    Subject(("Products", "Units sold", "Sales by product", "Article statistics", "Stock list of the warehouse"), "product", many(lambda r: r.pick(v.PRODUCTS)), (YEARS, ("Warehouse A|in warehouse A", "Warehouse B|in warehouse B", "Warehouse C|in warehouse C"), *_CHANNELS, ("North|in the north", "South|in the south", "East|in the east", "West|in the west")), (
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
    Subject(("Visitors", "Visitor numbers", "Who came to see us", "Admissions", "Tickets sold"), "month", run(*v.MONTHS), (YEARS, *_WEEKENDS, ("Museum|in the museum", "Garden|in the garden"), ("Pool|in the pool", "Sauna|in the sauna")), (
        (Measure("Adults", "adults", "How many adults came in {n} {g}?", ints(30, 4000)), Measure("Children", "number of children", "How many children came in {n} {g}?", ints(10, 2500)), Measure("Groups", "groups", "How many groups came in {n} {g}?", ints(1, 90))),
        (Measure("Visitors", "visitors", "How many visitors came in {n} {g}?", ints(50, 9000)), Measure("Tours", "tours", "How many tours were there in {n} {g}?", ints(1, 60))),
    ), ("Month", ""), link="for"),
    Subject(("Staff", "Employees by department", "Headcount", "Our workforce", "Personnel statistics"), "department", many(lambda r: r.pick(v.DEPARTMENTS)), (YEARS, *_SEXES[::2], ("Full-time|in full-time posts", "Part-time|in part-time posts"), ("Office|in the office", "Home|at home")), (
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
    Subject(("Meter readings", "Electricity meter", "Energy use", "Consumption of the house", "Our electricity"), "month", run(*v.MONTHS), (YEARS, ("Day|by day", "Night|at night"), ("Flat 1|in flat 1", "Flat 2|in flat 2", "Flat 3|in flat 3")), (
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
    Subject(("Harvest", "Crop yields", "Farm report", "What we grew", "Yields by crop"), "crop", some("Wheat", "Barley", "Maize", "Potatoes", "Sugar beet", "Oats", "Rapeseed", "Sunflowers", "Peas", "Clover", "Rye"), (YEARS, ("North field|on the north field", "South field|on the south field"), ("Organic|in organic farming", "Conventional|in conventional farming")), (
        (Measure("Area", "area", "How large was the area of {n} {g}?", ints(2, 90), "ha"), Measure("Yield", "yield", "How high was the yield of {n} {g}?", tenths(1, 60), "t"), Measure("Price", "price", "What was the price of {n} {g}?", ints(90, 480), "\u20ac/t")),
    ), ("Crop", "")),
    Subject(("Budget", "Budget of the club", "Household budget", "Income and expenses", "Accounts of the association"), "item", some("Rent", "Heating", "Insurance", "Events", "Travel", "Equipment", "Printing", "Fees", "Repairs", "Donations", "Training", "Postage"), (*_PLAN, YEARS, _QUARTERS), (
        (Measure("Income", "income", "How much income is there for {n} {g}?", ints(0, 9000), "\u20ac"), Measure("Expenses", "expenses", "How much is spent on {n} {g}?", ints(10, 9000), "\u20ac")),
        (Measure("Amount", "amount", "How much is {n} {g}?", ints(10, 9000), "\u20ac"), Measure("Share", "share", "What share has {n} {g}?", ints(1, 60), "%")),
    ), ("Item", "Post", ""), link="for"),
    Subject(("Traffic count", "Traffic census", "How many vehicles pass", "Counting station report"), "street", many(lambda r: f"{r.pick(v.STREETS)} {r.pick(('Street', 'Road', 'Lane', 'Avenue'))}"), (("Morning|in the morning", "Evening|in the evening"), *_WEEKENDS[:1], YEARS, ("Into town|into town", "Out of town|out of town")), (
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
    Subject(("Population", "Population by region", "Inhabitants", "Census", "Households by district"), "district", many(lambda r: f"{r.pick(('North ', 'South ', 'Old ', 'Upper ', ''))}{v.name_word(r)}"), (YEARS, _SEXES[0], ("City|in the city", "Country|in the country")), (
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
