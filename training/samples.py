"""The sample documents and recordings of the app: ``python -m training.samples --out assets/samples``.

Everything in them is invented. Pages are HTML rendered by Chromium with Lato and Noto Serif (both OFL-1.1), recordings
are espeak-ng.
"""

# ruff: noqa: E501  (HTML and CSS)

from __future__ import annotations

import argparse
import io
import json
import shutil
from pathlib import Path

from PIL import Image

from training.heldout.writer import Writer
from training.pages import Rng
from training.speech import SAMPLE_RATE, espeak, place, trim

WIDTH, HEIGHT, SCALE = 560, 784, 2  # CSS pixels of a page; its picture is twice as large

BASE = """*{margin:0;box-sizing:border-box}body{width:560px;background:#fff;color:#1b1b1b;font:15px Lato,sans-serif;line-height:1.35}
.page{width:560px;height:784px;position:relative;overflow:hidden;page-break-after:always}table{border-collapse:collapse;width:100%}
@page{size:560px 784px;margin:0}"""

INVOICE = """<style>.page{padding:36px 40px}.top{display:flex;justify-content:space-between}h1{font-size:27px;color:#1f4e79}.meta td{padding:3px 0 3px 14px}
.meta td:last-child{text-align:right;font-weight:bold}.to{margin:30px 0}.to b{display:block;color:#1f4e79}.items th{background:#1f4e79;color:#fff;text-align:left}
.items td,.items th{padding:9px 10px}.items tr:nth-child(odd) td{background:#eef3f8}.items td:nth-child(n+2),.items th:nth-child(n+2){text-align:right}
.sum{margin:20px 0 0 280px;width:200px}.sum td{padding:5px 0}.sum td+td{text-align:right}.sum tr:last-child td{border-top:2px solid #1f4e79;font-size:18px;font-weight:bold;padding-top:8px}
.foot{position:absolute;bottom:36px;font-size:13px;color:#444}</style><div class=page><div class=top><div><h1>Harbour Paper Ltd</h1>14 Mill Road<br>Bristol</div>
<table class=meta style="width:auto"><tr><td>Invoice number<td>HP-20417</tr><tr><td>Invoice date<td>March 4, 2026</tr><tr><td>Due date<td>April 3, 2026</tr></table></div>
<div class=to><b>Bill to</b>Clara Bennett<br>8 Garden Lane<br>Oxford</div><table class=items><tr><th>Item<th>Quantity<th>Price<th>Amount</tr>
<tr><td>Blue Notebook<td>12<td>$4.50<td>$54.00</tr><tr><td>Desk Lamp<td>2<td>$38.00<td>$76.00</tr><tr><td>Steel Shelf<td>1<td>$129.90<td>$129.90</tr><tr><td>Printer Paper<td>6<td>$7.25<td>$43.50</tr></table>
<table class=sum><tr><td>Subtotal<td>$303.40</tr><tr><td>Tax<td>$60.68</tr><tr><td>Total<td>$364.08</tr></table><div class=foot>Payment terms: 30 days &nbsp; Phone: 555-201-7788</div></div>"""

RECEIPT = """<style>body{width:336px}.page{width:336px;height:616px;padding:28px 26px;font:15px 'Liberation Mono',monospace}h1{font-size:21px;text-align:center}.c{text-align:center}
.r td{padding:4px 0}.r td+td{text-align:right}hr{border:0;border-top:2px dashed #777;margin:12px 0}.t{font-size:19px;font-weight:bold}@page{size:336px 616px}</style>
<div class=page><h1>Willow Cafe</h1><div class=c>22 Station Street<br>Leeds</div><hr><table class=r><tr><td>Date<td>07/18/2026</tr><tr><td>Time<td>12:46</tr><tr><td>Receipt No<td>88213</tr><tr><td>Cashier<td>Nora</tr></table><hr>
<table class=r><tr><td>2 Coffee<td>7.00</tr><tr><td>1 Lemon Cookies<td>3.40</tr><tr><td>1 Tomato Soup<td>6.80</tr><tr><td>1 Apple Juice<td>3.20</tr></table><hr>
<table class=r><tr class=t><td>TOTAL<td>20.40</tr><tr><td>Cash<td>25.00</tr><tr><td>Change<td>4.60</tr></table><hr><div class=c>Thank you for your visit!</div></div>"""

LETTER = """<style>.page{padding:52px 54px;font:16px 'Noto Serif',serif;line-height:1.5}.r{text-align:right}p{margin-top:16px}h3{margin-top:26px;font-size:17px}</style><div class=page>
<div class=r>Helen Archer<br>31 Lake Street<br>Vienna</div><div class=r style="margin-top:14px">12 May 2026</div><div style="margin-top:8px">Martin Kumar<br>5 Castle Square<br>Prague</div>
<h3>Subject: Meeting about the new library</h3><p>Dear Martin Kumar,</p><p>thank you for your letter. The meeting will take place on June 9, 2026 at 14:30 in Salzburg. The budget of the project is $48,500. Please reply by May 29, 2026.</p>
<p>You can reach me at 555-430-1199.</p><p>Kind regards,<br>Helen Archer</p></div>"""

TABLE = """<style>.page{width:700px;height:532px;padding:34px 36px}body{width:700px}h1{font-size:25px;color:#2f6b3a;margin-bottom:18px}th{background:#2f6b3a;color:#fff;text-align:left}
td,th{padding:11px 12px;border:1px solid #b9c9bc;font-size:16px}td:nth-child(n+3),th:nth-child(n+3){text-align:right}tr:nth-child(odd) td{background:#f1f6f2}@page{size:700px 532px}</style>
<div class=page><h1>Train connections from Basel</h1><table><tr><th>City<th>Platform<th>Departure<th>Arrival<th>Price</tr><tr><td>Zurich<td>4<td>07:15<td>08:09<td>34.00</tr><tr><td>Milan<td>11<td>08:28<td>12:37<td>89.50</tr>
<tr><td>Hamburg<td>7<td>09:06<td>15:35<td>142.00</tr><tr><td>Lyon<td>32<td>10:21<td>14:04<td>76.40</tr><tr><td>Vienna<td>5<td>11:33<td>20:30<td>118.90</tr><tr><td>Bern<td>9<td>12:01<td>12:56<td>41.20</tr></table></div>"""

FORM = """<style>.page{padding:36px 42px}h1{font-size:24px;color:#4a3c8c;border-bottom:3px solid #4a3c8c;padding-bottom:8px;margin-bottom:22px}.g{display:grid;grid-template-columns:1fr 1fr;gap:16px 22px}
.g b{font-size:13px;color:#4a3c8c;display:block}.g div div{border:1px solid #999;padding:9px 11px;font-size:16px;background:#fafaff}.w{grid-column:span 2}</style><div class=page><h1>Patient registration</h1><div class=g>
<div><b>First Name</b><div>Oscar</div></div><div><b>Last Name</b><div>Lindberg</div></div><div><b>Date of Birth</b><div>21.08.1984</div></div><div><b>Blood Type</b><div>AB-</div></div><div class=w><b>Address</b><div>77 Chapel Road, Bergen</div></div>
<div><b>Phone</b><div>555 618 2043</div></div><div><b>Email</b><div>oscar@lindberg.example</div></div><div><b>Insurance</b><div>Meadow Health</div></div><div><b>Policy No</b><div>MH-733902</div></div><div><b>Doctor</b><div>Dr. Iris Palmer</div></div><div><b>Room</b><div>214</div></div>
<div><b>Height</b><div>183 cm</div></div><div><b>Weight</b><div>79 kg</div></div></div></div>"""

REPORT = (
    """<style>.page{padding:44px 46px;font-size:16px}h1{font-size:29px;color:#7a1f3d}h2{font-size:22px;color:#7a1f3d;margin-bottom:14px}p{margin-top:12px}td,th{padding:10px;border-bottom:1px solid #bbb;text-align:left}
td:nth-child(n+2),th:nth-child(n+2){text-align:right}.f td:first-child{color:#7a1f3d;width:190px}.f td:nth-child(2){text-align:left}.n{position:absolute;bottom:26px;right:46px;font-size:13px}</style>
<div class=page><h1 style="margin-top:90px">Annual Report 2025</h1><p style="font-size:19px">Northwind Gardens</p><table class=f style="margin-top:60px"><tr><td>Author<td>Daniel Foster</tr><tr><td>Date<td>February 17, 2026</tr><tr><td>Reference<td>NG-2025-118</tr><tr><td>City<td>Copenhagen</tr></table><div class=n>1</div></div>"""
    """<div class=page><h2>Sales by month</h2><table><tr><th>Month<th>Visitors<th>Sales</tr><tr><td>April<td>1240<td>$18,300</tr><tr><td>May<td>2105<td>$27,950</tr><tr><td>June<td>2860<td>$41,200</tr><tr><td>July<td>3312<td>$46,780</tr><tr><td>August<td>2977<td>$39,640</tr></table><div class=n>2</div></div>"""
    """<div class=page><h2>Staff</h2><table><tr><th>Name<th>Department<th>Office</tr><tr><td>Julia Weber<td>Finance<td>A12</tr><tr><td>Victor Costa<td>Research<td>C30</tr><tr><td>Emma Olsen<td>Marketing<td>B07</tr><tr><td>Lucas Perry<td>Security<td>A03</tr></table><p style="margin-top:26px">The office is closed on Monday.</p><div class=n>3</div></div>"""
    """<div class=page><h2>Plans for the next year</h2><table class=f><tr><td>Project<td>Winter House</tr><tr><td>Budget<td>$120,000</tr><tr><td>Manager<td>Sylvia Grant</tr><tr><td>Start<td>October 5, 2026</tr><tr><td>Deadline<td>March 31, 2027</tr></table><p style="margin-top:26px">For questions call 555-744-0126.</p><div class=n>4</div></div>"""
)

PICTURES = {
    "invoice": (INVOICE, HEIGHT, WIDTH),
    "receipt": (RECEIPT, 616, 336),
    "letter": (LETTER, HEIGHT, WIDTH),
    "table": (TABLE, 532, 700),
    "form": (FORM, HEIGHT, WIDTH),
}
MEMO = (
    "Hello Martin, this is Laura Fisher. The meeting is on Thursday at half past nine. We meet in Geneva. "
    "Please call me back at five five five, two zero one nine."
)
SPOKEN_QUESTION = "How much do I have to pay?"

SAMPLES = [
    {"title": "Invoice: what is due", "files": ["invoice.png"], "question": "How much do I have to pay?"},
    {"title": "Receipt: what was bought", "files": ["receipt.png"], "question": "How much is the Tomato Soup?"},
    {"title": "Letter: when to reply", "files": ["letter.png"], "question": "By when should I reply?"},
    {"title": "Table: look something up", "files": ["table.png"], "question": "What is the platform for Hamburg?"},
    {"title": "Form: find a field", "files": ["form.png"], "question": "What is the policy number?"},
    {"title": "PDF of four pages", "files": ["report.pdf"], "question": "What are the visitors of July?"},
    {"title": "Voice memo", "files": ["memo.wav"], "question": "What is the phone number?"},
    {"title": "Ask the invoice aloud", "files": ["invoice.png", "question.wav"], "question": ""},
    {"title": "Not on the page", "files": ["receipt.png"], "question": "Which card was used?"},
]


def page(body: str) -> str:
    return f"<!doctype html><head><meta charset=utf-8><style>{BASE}</style></head><body>{body}</body>"


def render(out: Path) -> None:
    """Pictures and the PDF, with the system's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, (body, height, width) in PICTURES.items():
            tab = chromium.new_page(viewport={"width": width, "height": height}, device_scale_factor=SCALE)
            tab.set_content(page(body))
            picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
            picture.quantize(64, dither=Image.Dither.NONE).save(out / f"{name}.png", optimize=True)
            tab.close()
        tab = chromium.new_page()
        tab.set_content(page(REPORT))
        tab.pdf(path=out / "report.pdf", prefer_css_page_size=True, print_background=True)
        chromium.close()


def record(out: Path) -> None:
    """The two recordings, lightly noisy."""
    writer = Writer(out)
    for name, text, voice, seed in (("memo", MEMO, "en-us+f3", 1), ("question", SPOKEN_QUESTION, "en-us+m3", 2)):
        clip = trim(espeak()(text, voice, rate=155))
        clip = place(Rng(seed), clip, len(clip) + SAMPLE_RATE // 2)
        (out / writer.recording(name, clip)).rename(out / f"{name}.wav")
    for name in ("images", "audio"):
        (out / name).rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.samples", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("assets/samples"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    render(out)
    record(out)
    (out / "samples.json").write_text(json.dumps(SAMPLES, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
