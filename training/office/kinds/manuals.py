"""Pages of instruction manuals: numbered steps, warnings, technical data, troubleshooting."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import distinct
from training.pages import values as v

MACHINES = ("coffee machine", "vacuum cleaner", "printer", "dishwasher", "router", "bicycle lamp", "hedge trimmer", "heater", "camera", "scale", "toaster", "water filter", "drill", "projector")
STEPS = (
    "Unplug the device from the mains.", "Open the cover on the left side.", "Fill the tank with cold water.", "Press the green button for {n} seconds.", "Wait {n} minutes until the lamp stops blinking.",
    "Turn the knob to position {n}.", "Insert {n} AA batteries.", "Clean the filter with a soft cloth.", "Close the lid until it clicks.", "Tighten the four screws.", "Remove the protective film.",
    "Connect the cable to port {n}.", "Rinse all parts with warm water.", "Place the device on a flat surface.", "Enter the code {n}{n}{n}{n}.", "Let the device cool down for {n} minutes.",
)
FAULTS = (
    ("The lamp blinks red", "The tank is empty", "Fill the tank"), ("The device does not start", "The cover is open", "Close the cover"), ("It makes a loud noise", "A part is loose", "Tighten the screws"),
    ("Water leaks out", "The seal is worn", "Replace the seal"), ("The screen stays dark", "The cable is not connected", "Connect the cable"), ("It smells of smoke", "The motor is too hot", "Let it cool down"),
    ("The display shows E4", "The filter is blocked", "Clean the filter"), ("No sound", "The volume is set to zero", "Turn up the volume"),
)
DATA = (
    ("Power", ("{} W", 40, 2400)), ("Voltage", ("{} V", 12, 240)), ("Weight", ("{} kg", 1, 40)), ("Length of cable", ("{} m", 1, 9)), ("Capacity", ("{} ml", 100, 1900)), ("Noise level", ("{} dB", 30, 90)),
    ("Temperature range", ("0 - {} \u00b0C", 25, 60)), ("Warranty", ("{} years", 2, 10)), ("Battery life", ("{} hours", 2, 48)), ("Width", ("{} mm", 80, 900)),
)


@kind("manual", 1.5)
def manual(d: Document) -> None:
    r = d.r
    machine, model = r.pick(MACHINES), v.code(r)
    title = d.heading(f"{r.pick(('User Manual', 'Instructions', 'Operating Instructions', 'Quick Start Guide'))}: {machine.title()} {model}")
    d.ask(("Which model is this manual for?", "What is the model number?", "Which model does it describe?", "What model is it about?"), model, title)
    d.ask(("What device is described?", "What is this manual for?", "Which device is it about?"), machine, title)
    d.about(f"Instructions for a {machine}, model {model}.", title)
    parts = r.sample((_steps, _data, _faults, _warning), r.randint(2, 4))
    for number, part in enumerate(parts, 1):
        part(d, f"{number} " if r.chance(0.5) else "")
    if _data not in parts:
        name = r.pick(DATA)[0].lower()
        d.absent(f"What is the {name}?", f"Which {name} is given?", f"How is the {name} given?")
    if _warning not in parts:
        d.absent("What does the warning say?", "What are you warned about?")


def _steps(d: Document, number: str) -> None:
    r = d.r
    what = r.pick(("Before first use", "Cleaning", "Setting up", "Changing the filter", "Switching on"))
    d.heading(number + what, level=2)
    steps = [text.format(n=r.randint(2, 9)) for text in r.sample(STEPS, r.randint(3, 7))]
    parts = d.items(steps, r.pick(("1", "1", "a", "A")))
    for i, word in enumerate(("first", "second", "third", "fourth", "fifth")[: len(steps)]):
        d.ask((f"What is the {word} step?", f"What do I have to do in step {i + 1}?", f"What comes {word} under {what}?", f"What does step {i + 1} tell me to do?"), steps[i], *parts[: i + 1])
    i = r.randint(0, len(steps) - 2)
    d.ask((f'What do I do after "{steps[i].rstrip(".")}"?', f'What follows "{steps[i].rstrip(".")}"?'), steps[i + 1], parts)
    d.ask((f"How many steps does {what} have?", f"How many steps are listed under {what}?"), str(len(steps)), parts)
    d.ask(("What is the last step?", "What do I have to do at the end?", "Which step comes last?"), steps[-1], parts)


def _data(d: Document, number: str) -> None:
    r = d.r
    d.heading(number + r.pick(("Technical data", "Specifications")), level=2)
    entries = [(name, pattern.format(r.randint(low, high))) for name, (pattern, low, high) in r.sample(DATA, r.randint(3, 7))]
    parts = d.fields(entries) if r.chance(0.5) else d.table([], entries)
    for (name, value), part in zip(entries, parts, strict=True):
        low = name.lower()
        d.ask((f"What is the {low}?", f"What {low} does the device have?", f"{name}?", f"Which value is given for the {low}?"), value, part)
    for name in distinct(r, lambda r: r.pick(DATA)[0], 2):
        if all(name != known for known, _ in entries):
            d.absent(f"What is the {name.lower()}?", f"What {name.lower()} does the device have?")


def _faults(d: Document, number: str) -> None:
    r = d.r
    d.heading(number + r.pick(("Troubleshooting", "Problems and solutions")), level=2)
    rows = r.sample(FAULTS, r.randint(3, 5))
    if r.chance(0.7):
        parts = d.table(["Problem", "Cause", "Solution"], rows)
    else:
        parts = [d.paragraph(f"{a}: {b[0].lower()}{b[1:]}. {c}.") for a, b, c in rows]
    for (fault, cause, cure), part in zip(rows, parts, strict=True):
        low = fault[0].lower() + fault[1:] if not fault.startswith("No ") else "there is no sound"
        d.ask((f"What should I do if {low}?", f"What helps when {low}?", f"{fault}. What can I do?", f"How do I fix it when {low}?"), cure, part)
        d.ask((f"What is the cause if {low}?", f"Why can it be that {low}?", f"{fault}: why?", f"What may be wrong when {low}?"), cause, part)


def _warning(d: Document, number: str) -> None:
    r = d.r
    age, what = r.randint(3, 14), r.pick(("Never use the device near water", "Do not open the housing", "Do not touch the hot plate", "Keep away from open fire", "Do not use outdoors"))
    box = d.framed() if r.chance(0.7) else d
    part = box.paragraph(f"{r.pick(('WARNING!', 'Caution:', 'Important:'))} {what}. Not suitable for children under {age} years.")
    d.ask(("From what age may children use it?", "For children under what age is it not suitable?", "What is the minimum age?"), f"{age} years", part)
    d.ask(("What does the warning say not to do?", "What must not be done?", "What are you warned about?"), what, part)
