"""Labels of forms and records, with a generator of values for each."""

from __future__ import annotations

import string
from collections.abc import Callable

from training.pages import values as v
from training.pages.values import Rng


def _one_of(*options: str) -> Callable[[Rng], str]:
    return lambda r: r.pick(options)


def _big_money(r: Rng) -> str:
    return v.money_format(r)(v.cents(r, 4, 7)) if r.chance(0.6) else v.money(r, 6.5)


def _seat(r: Rng) -> str:
    return f"{r.randint(1, 60)}{r.pick('ABCDEF')}"


def _flight(r: Rng) -> str:
    return f"{r.pick(string.ascii_uppercase)}{r.pick(string.ascii_uppercase)}{r.pick(('', ' '))}{r.randint(10, 9999)}"


def _iban(r: Rng) -> str:
    return (
        r.pick(("DE", "FR", "GB", "CH", "NL", "IT")) + v.digits(r, 2) + " " + " ".join(v.digits(r, 4) for _ in range(4))
    )


def _range(low: int, high: int, unit: str = "") -> Callable[[Rng], str]:
    return lambda r: f"{r.randint(low, high)}{unit}"


# label variants -> generator. The first variant's words also serve as the plain name of the field.
FIELDS: list[tuple[tuple[str, ...], Callable[[Rng], str]]] = [
    (("Name", "Full Name", "Surname and Name"), v.person),
    (("First Name", "Given Name", "Forename"), v.first_name),
    (("Last Name", "Surname", "Family Name"), v.last_name),
    (("Date of Birth", "Birth Date", "DOB", "Born"), v.date),
    (("Place of Birth", "Birthplace"), v.city),
    (("Address", "Street", "Street Address"), v.street),
    (("City", "Town"), v.city),
    (("ZIP Code", "Postal Code", "Postcode", "ZIP"), v.postcode),
    (("Country", "Nationality"), v.country),
    (("Phone", "Telephone", "Phone Number", "Tel", "Mobile"), v.phone),
    (("Fax", "Fax Number"), v.phone),
    (("Email", "E-mail", "Email Address"), v.email),
    (("Website", "Web", "Internet"), v.website),
    (("Employee ID", "Employee No", "Staff Number", "Personnel No"), v.code),
    (("Department", "Division", "Dept"), lambda r: r.pick(v.DEPARTMENTS)),
    (("Position", "Job Title", "Role", "Occupation"), lambda r: f"{r.pick(v.DEPARTMENTS)} {r.pick(v.JOBS)}"),
    (("Manager", "Supervisor", "Line Manager"), v.person),
    (("Salary", "Annual Salary", "Gross Salary", "Gross Pay"), _big_money),
    (("Net Pay", "Net Salary", "Take-home Pay"), _big_money),
    (("Account No", "Account Number", "Account"), v.code),
    (("IBAN", "Bank Account"), _iban),
    (("Bank", "Bank Name"), lambda r: f"{r.pick((v.city, v.last_name, v.name_word))(r)} Bank"),
    (("Policy No", "Policy Number", "Insurance No"), v.code),
    (("Customer No", "Customer ID", "Client Number", "Customer Number"), v.code),
    (("Contract No", "Contract Number", "Contract"), v.code),
    (("Meter No", "Meter Number"), v.code),
    (("Consumption", "Usage"), _range(10, 9999, " kWh")),
    (("Patient", "Patient Name"), v.person),
    (("Doctor", "Physician", "Attending Doctor"), v.person),
    (("Room", "Room No", "Room Number"), _range(1, 999)),
    (("Ward", "Unit"), lambda r: r.pick(v.DEPARTMENTS)),
    (("Blood Type", "Blood Group"), _one_of("A+", "B+", "O+", "AB-", "A-", "O-", "AB+", "B-")),
    (("Height",), _range(140, 210, " cm")),
    (("Weight", "Net Weight", "Gross Weight"), _range(1, 140, " kg")),
    (("Diagnosis", "Finding"), v.phrase),
    (("Model", "Model No", "Type"), v.code),
    (("Serial No", "Serial Number", "S/N"), v.code),
    (("Part No", "Article No", "SKU", "Product Code"), v.code),
    (("Brand", "Make", "Manufacturer"), v.name_word),
    (("Color", "Colour"), lambda r: r.pick(v.COLOURS).capitalize()),
    (("Size",), _one_of("S", "M", "L", "XL", "XXL", "38", "40", "42", "44")),
    (("Quantity", "Number of Units", "Pieces"), v.count),
    (("Flight", "Flight No", "Flight Number"), _flight),
    (("Gate", "Boarding Gate"), lambda r: f"{r.pick('ABCDEFG')}{r.randint(1, 70)}"),
    (("Seat", "Seat No", "Seat Number"), _seat),
    (("Platform", "Track"), _range(1, 24)),
    (("Class", "Travel Class"), _one_of("Economy", "Business", "First", "Second")),
    (("Departure", "Departs", "Departure Time"), v.time_of_day),
    (("Arrival", "Arrives", "Arrival Time"), v.time_of_day),
    (("Boarding", "Boarding Time"), v.time_of_day),
    (("From", "Origin"), v.city),
    (("To", "Destination"), v.city),
    (("Passenger", "Passenger Name", "Traveller"), v.person),
    (("Booking Code", "Booking Reference", "Confirmation No", "Reservation No"), v.code),
    (("Hotel",), lambda r: f"{r.pick((v.city, v.last_name, v.name_word))(r)} Hotel"),
    (("Guest", "Guest Name"), v.person),
    (("Check-in", "Arrival Date"), v.date),
    (("Check-out", "Departure Date"), v.date),
    (("Nights", "Number of Nights"), _range(1, 30)),
    (("Guests", "Number of Guests", "Persons"), _range(1, 12)),
    (("Project", "Project Name"), v.phrase),
    (("Budget", "Total Budget"), _big_money),
    (("Status",), _one_of("Open", "Closed", "Pending", "Active", "Approved", "Rejected", "Paid", "Shipped", "Draft")),
    (("Priority",), _one_of("Low", "High", "Medium", "Urgent", "Normal")),
    (("Deadline", "Due By", "Submit By"), v.date),
    (("Start Date", "Start", "Valid From", "Begin"), v.date),
    (("End Date", "End", "Valid Until", "Expires"), v.date),
    (("Version", "Revision"), lambda r: f"{r.randint(0, 20)}.{r.randint(0, 9)}"),
    (("Author", "Written By", "Prepared By"), v.person),
    (("Approved By", "Checked By", "Authorised By"), v.person),
    (("Course", "Course Title", "Subject"), lambda r: f"{v.name_word(r)} {r.randint(100, 500)}"),
    (("Grade", "Mark"), _one_of("A", "A-", "B+", "B", "C", "D", "1.0", "2.3")),
    (("Student", "Student Name"), v.person),
    (("Student ID", "Matriculation No"), v.code),
    (("Teacher", "Instructor", "Lecturer"), v.person),
    (("School", "University"), lambda r: f"{v.city(r)} {r.pick(('School', 'College', 'University', 'Academy'))}"),
    (("License Plate", "Registration No", "Plate"), v.code),
    (("Driver", "Driver Name"), v.person),
    (("Mileage", "Odometer"), _range(10, 250000, " km")),
    (("Supplier", "Vendor"), v.company),
    (("Company", "Employer", "Organisation"), v.company),
    (("Contact", "Contact Person"), v.person),
    (("Order ID", "Order Reference"), v.code),
    (("Tracking No", "Tracking Number", "Shipment No"), v.code),
    (("Carrier", "Shipped Via"), v.company),
    (("Reference", "Our Reference", "Ref. No", "Your Reference"), v.code),
    (("File No", "Case Number", "Case No"), v.code),
    (("Issue Date", "Issued On"), v.date),
    (("Expiry Date", "Expiration Date", "Best Before"), v.date),
    (("Amount", "Amount Paid"), v.money),
    (("Deposit", "Down Payment"), v.money),
    (("Rent", "Monthly Rent"), v.money),
    (("Fee", "Service Fee", "Charge"), v.money),
    (("Opening Balance", "Previous Balance"), v.money),
    (("Closing Balance", "New Balance"), v.money),
    (("Interest Rate", "Rate"), v.percent),
    (("Age",), _range(1, 99)),
    (("Gender", "Sex"), _one_of("Male", "Female", "F", "M")),
    (("Marital Status",), _one_of("Single", "Married", "Divorced", "Widowed")),
    (("Language", "Mother Tongue"), _one_of("English", "French", "German", "Spanish", "Italian", "Polish", "Dutch")),
    (("Temperature",), lambda r: f"{r.randint(-20, 45)} C"),
    (("Pressure",), _range(900, 1100, " hPa")),
    (("Distance",), _range(1, 900, " km")),
    (("Duration", "Length"), lambda r: f"{r.randint(1, 90)} {r.pick(('min', 'minutes', 'hours', 'days'))}"),
    (
        ("Opening Hours", "Hours", "Open"),
        lambda r: f"{r.randint(6, 11)}:00 - {r.randint(15, 23)}:{r.pick(('00', '30'))}",
    ),
    (
        ("Venue", "Location", "Place"),
        lambda r: f"{v.name_word(r)} {r.pick(('Hall', 'Centre', 'Theatre', 'Park', 'Arena'))}",
    ),
    (("Speaker", "Host", "Presenter"), v.person),
    (("Ticket No", "Ticket Number", "Ticket"), v.code),
    (("Entrance", "Door"), lambda r: r.pick(string.ascii_uppercase)),
    (("Row",), _range(1, 60)),
    (("Notes", "Remarks", "Comment", "Comments"), lambda r: v.phrase(r, 2, 4)),
    (("Signature", "Signed By"), v.last_name),
    (("Languages", "Spoken Languages"), v.several(v.LANGUAGES)),
    (("Services", "Work Done"), v.several(v.WORK)),
    (("Departments", "Divisions"), v.several(v.DEPARTMENTS)),
    (("Colours", "Available Colours"), v.several(v.COLOURS)),
    (("Open Days", "Office Days"), v.several(v.WEEKDAYS)),
    (("Offices", "Branches"), v.several(v.CITIES)),
    (("Month", "Billing Period", "Period"), v.month),
    (("Assessment Year", "Season"), lambda r: f"{(y := r.randint(1995, 2033))}/{(y + 1) % 100:02d}"),
    (("Warranty", "Guarantee"), v.span),
    (("Notice Period", "Notice"), v.span),
    (("Voltage",), lambda r: f"{r.pick((12, 24, 110, 120, 220, 230, 400))} V"),
    (("Capacity", "Volume"), lambda r: f"{r.random() * 100:.1f} {r.pick(('l', 'kg', 'GB', 'm3', 'gal'))}"),
    (("Speed", "Top Speed"), _range(10, 320, " km/h")),
    (("Area", "Living Space"), _range(12, 900, " m2")),
    (("Overtime", "Overtime Pay"), v.money),
    (("Allowance", "Travel Allowance"), v.money),
    (("Social Security", "Health Insurance"), v.money),
    (("Member", "Member Name", "Account Holder"), v.person),
    (("Tenant", "Tenant Name"), v.person),
    (("Landlord", "Owner"), v.person),
    (("Inspector", "Technician"), v.person),
    (("Agent", "Adviser"), v.person),
    (("Event", "Event Name"), lambda r: f"{v.name_word(r)} {r.pick(('Gala', 'Party', 'Meeting', 'Tour', 'Show'))}"),
    (("Deck", "Cabin", "Zone"), _seat),
    (("Bus", "Line", "Train No"), _flight),
    (("PIN", "Access Code"), lambda r: v.digits(r, r.randint(4, 8))),
    (("Score", "Points"), _range(0, 100)),
]


def field_entries(r: Rng, n: int, made_up: float) -> list[tuple[str, str]]:
    """``n`` pairs (label, value) with distinct labels; a share ``made_up`` of the labels is random words."""
    pairs, seen = [], set()
    for labels, make in r.sample(FIELDS, min(n + 4, len(FIELDS))):
        label = labels[0] if r.chance(0.5) else r.pick(labels)
        if r.chance(made_up):
            label = r.pick(
                (v.phrase(r, 1, 2), f"{v.name_word(r)} {r.pick(('No', 'Date', 'Name', 'Code', 'Rate', 'ID'))}")
            )
            make = r.pick(
                (v.code, v.count, v.person, v.date, v.city, v.phrase, v.money, v.word, v.percent, v.time_of_day)
            )
        if r.chance(0.06):
            label = label.upper()
        if label.lower() not in seen and len(pairs) < n:
            seen.add(label.lower())
            pairs.append((label, make(r)))
    return pairs
