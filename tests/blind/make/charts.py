"""Bar, line and pie charts, with and without figures on them, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import font_manager, pyplot
from matplotlib.text import Text
from PIL import Image

from tests.blind.make.files import save_image
from tests.blind.make.wear import worn

FONTS = ("/usr/share/fonts/truetype", "/usr/share/fonts/opentype")


def chart_bakery(figure: Any) -> None:
    """Bars with their figures."""
    axes = figure.subplots()
    bars = axes.bar(["Rye", "Spelt", "Baguette", "Raisin", "Walnut"], [184, 96, 310, 75, 128], color="#b5651d")
    axes.bar_label(bars)
    axes.set(title="Loaves sold on Saturday, 10 October", ylabel="Loaves")
    axes.spines[["top", "right"]].set_visible(False)


def chart_rain(figure: Any) -> None:
    """Bars without figures, on a grid."""
    axes = figure.subplots()
    axes.bar(["Jan", "Feb", "Mar", "Apr", "May", "Jun"], [80, 60, 40, 50, 100, 20], color="#2a7fba")
    axes.set(title="Rainfall at Kilmory weather station", ylabel="mm", ylim=(0, 120), yticks=range(0, 121, 20))
    axes.grid(axis="y", alpha=0.6)
    axes.set_axisbelow(True)


def chart_museum(figure: Any) -> None:
    """One line without figures."""
    axes = figure.subplots()
    axes.plot(range(2018, 2026), [42, 45, 18, 23, 38, 47, 55, 51], marker="o", color="#8e2b5c")
    axes.set(title="Visitors of the Tin Toy Museum (thousands)", xlabel="Year", ylim=(0, 60))
    axes.grid(alpha=0.4)
    axes.annotate("closed for repairs", (2020, 18), (2020.6, 8), arrowprops={"arrowstyle": "->"})


def chart_heating(figure: Any) -> None:
    """A pie with shares."""
    axes = figure.subplots()
    labels = ["Gas", "Heat pump", "District heat", "Oil", "Wood"]
    axes.pie([46, 21, 17, 11, 5], labels=labels, autopct="%d %%", startangle=90, colors=pyplot.cm.Set3.colors)
    axes.set_title("How the houses of Altenried are heated")


def chart_time(figure: Any) -> None:
    """A pie without shares and a legend."""
    axes = figure.subplots()
    wedges, _ = axes.pie([50, 25, 15, 10], startangle=0, colors=["#264653", "#2a9d8f", "#e9c46a", "#e76f51"])
    axes.legend(wedges, ["Meetings", "E-mail", "Travel", "Drawing"], loc="center left", bbox_to_anchor=(0.95, 0.5))
    axes.set_title("An architect's week")


def chart_exports(figure: Any) -> None:
    """Grouped bars with a legend and figures."""
    axes = figure.subplots()
    places = np.arange(4)
    for shift, year, values, colour in (
        (-0.2, "2024", [3.1, 5.4, 2.2, 4.0], "#999"),
        (0.2, "2025", [3.8, 4.9, 2.9, 6.1], "#c44"),
    ):
        axes.bar_label(axes.bar(places + shift, values, 0.38, label=year, color=colour), fmt="%.1f", fontsize=9)
    axes.set_xticks(places, ["Spain", "Norway", "Peru", "Japan"])
    axes.set(title="Exports of cork flooring (million €)")
    axes.legend()


def chart_languages(figure: Any) -> None:
    """Lying bars with figures, small photograph."""
    axes = figure.subplots()
    bars = axes.barh(["Czech", "Finnish", "Portuguese", "Welsh", "Dutch"], [12, 31, 27, 8, 19], color="#3d7a4e")
    axes.bar_label(bars, padding=3)
    axes.set(title="Evening classes: people enrolled, spring 2026")
    axes.invert_yaxis()
    axes.set_xlim(0, 36)


def chart_temperature(figure: Any) -> None:
    """Two lines and a legend."""
    axes = figure.subplots()
    hours = ["06", "09", "12", "15", "18", "21"]
    axes.plot(hours, [14, 18, 24, 27, 22, 17], "-o", label="Roof", color="#d1495b")
    axes.plot(hours, [12, 14, 16, 19, 20, 18], "--s", label="Cellar", color="#00798c")
    axes.set(title="Temperatures on 8 July", xlabel="Hour", ylabel="°C", ylim=(10, 30))
    axes.grid(alpha=0.4)
    axes.legend()


def chart_budget(figure: Any) -> None:
    """Stacked bars with figures inside."""
    axes = figure.subplots()
    schools, below = ["Birch Rd", "St Ita's", "Weir Hill"], np.zeros(3)
    for label, values, colour in (
        ("Books", [14, 9, 20], "#577590"),
        ("Sport", [6, 12, 8], "#90be6d"),
        ("Repairs", [25, 17, 11], "#f9c74f"),
    ):
        axes.bar_label(axes.bar(schools, values, 0.55, below, label=label, color=colour), label_type="center")
        below += values
    axes.set(title="School budgets, £ thousand")
    axes.legend()


CHARTS: dict[str, tuple[Callable[[Any], None], str, tuple[float, float], list[str], str]] = {
    # name: (what is drawn, font, inches, wear, ending)
    "chart-bakery": (chart_bakery, "Open Sans", (6.4, 4.4), [], "png"),
    "chart-rain": (chart_rain, "Roboto", (6.4, 4.2), [], "png"),
    "chart-museum": (chart_museum, "Carlito", (6.8, 4.4), [], "png"),
    "chart-heating": (chart_heating, "Lato", (5.8, 4.8), ["scan"], "jpg"),
    "chart-time": (chart_time, "Cabin", (6.4, 4.2), [], "png"),
    "chart-exports": (chart_exports, "PT Sans", (6.6, 4.4), [], "png"),
    "chart-languages": (chart_languages, "Manrope", (6.8, 4.0), ["photo"], "jpg"),
    "chart-temperature": (chart_temperature, "TeX Gyre Heros", (6.4, 4.4), [], "png"),
    "chart-budget": (chart_budget, "Inter", (6.0, 4.6), [], "png"),
}


def render(out: Path, wanted: str = "") -> Iterator[tuple[str, list[str]]]:
    """Write the charts whose names contain ``wanted``; yields each name with the words and figures on it."""
    for path in font_manager.findSystemFonts(FONTS):
        if path.endswith((".ttf", ".otf")):
            font_manager.fontManager.addfont(path)
    for name, (draw, font, inches, wear, ending) in CHARTS.items():
        if wanted not in name:
            continue
        pyplot.rcParams["font.family"] = font
        figure = pyplot.figure(figsize=inches, dpi=140, layout="constrained")
        draw(figure)
        figure.canvas.draw()
        picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
        save_image(worn(picture, wear, 7 + len(name)), out / f"{name}.{ending}", colours=48)
        words = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        pyplot.close(figure)
        yield name, ["\n".join(dict.fromkeys(words))]
