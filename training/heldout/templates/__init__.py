"""Business documents in HTML and CSS. Nothing of their make-up is shared with the page generator of training.

A template draws its values, returns the body, its style and what can be asked. Every answer stands on the page as text.
"""

from __future__ import annotations

from collections.abc import Callable

from training.heldout.templates.commercial import (
    bank_statement,
    delivery_note,
    hotel_bill,
    invoice,
    pay_slip,
    quote,
    utility_bill,
)
from training.heldout.templates.markup import Layout
from training.heldout.templates.notices import flyer, product_label, timetable
from training.heldout.templates.records import boarding_pass, lab_report, membership, resume
from training.pages import Rng

TEMPLATES: tuple[Callable[[Rng], Layout], ...] = (
    invoice,
    hotel_bill,
    pay_slip,
    utility_bill,
    boarding_pass,
    resume,
    timetable,
    lab_report,
    bank_statement,
    product_label,
    flyer,
    delivery_note,
    membership,
    quote,
)
