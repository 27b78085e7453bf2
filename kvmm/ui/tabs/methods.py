"""Tab "Methods": all presets on the document of the open conversation, one after another, until stopped."""

from __future__ import annotations

import csv
import html
import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvmm.analysis.methods.measure import MethodRow, MethodsReport, iter_methods
from kvmm.analysis.methods.plots import method_seconds, pareto
from kvmm.analysis.plots import format_bytes
from kvmm.errors import KVMMError
from kvmm.memory_text import PACKED, WHOLE
from kvmm.policy import policies
from kvmm.policy.costs import measured_on
from kvmm.policy.presets import PolicyGroup, policy_groups
from kvmm.ui.chat.session import Session
from kvmm.ui.parts.events import AT_ONCE, LONG
from kvmm.ui.parts.model_notes import NOT_MEASURED, has_policy_figures
from kvmm.ui.parts.sidebar import policy_label
from kvmm.ui.tabs.common import (
    BUSY,
    STALE,
    STOPPED,
    WAITING,
    Head,
    LongWork,
    Page,
    build_head,
    connect,
    has_prompt,
    hint,
    is_busy,
    problem,
    sections_html,
)
from kvmm.ui.worked import worked_sample

MEANING = (
    "Every method packs the same document and answers the same question. Fewer bits take less memory; a small KL says "
    "that the next word is chosen as in full precision. No other method beats a bold one in both."
)
READY = "Every method packs the document that you asked about, and answers your last question."
PLOT_SECONDS = 2.0


COLUMNS = ("method", PACKED, WHOLE, "bytes", "KL, nats", "answer", "same", "seconds")


def methods_html(report: MethodsReport) -> str:
    """The rows so far by tier, full precision first."""
    front = set(report.pareto())
    by_policy = {row.policy: row for row in report.rows}
    first = ("full precision", "", "16.00", "", "", html.escape(report.answer), "", f"{report.answer_seconds:.2f}")
    sections: list[tuple[str, list[Sequence[str]]]] = [("", [first])]
    tier = ""
    for group in policy_groups():
        rows = [_row_html(by_policy.pop(name), name in front) for name in group.names if name in by_policy]
        if not rows:
            continue
        title = " · ".join(filter(None, (group.tier if group.tier != tier else "", group.source)))
        sections.append((title, rows))
        tier = group.tier
    sections.append(("Others", [_row_html(row, name in front) for name, row in by_policy.items()]))
    return sections_html(COLUMNS, sections, "methods-table")


def _row_html(row: MethodRow, on_front: bool) -> Sequence[str]:
    name = html.escape(row.policy if row.stored_as == row.policy else f"{row.policy} (as {row.stored_as})")
    name = f'<span title="{html.escape(row.description)}">{name}</span>'
    if row.error is not None:
        return name, "", "", "", "", f"⚠️ {html.escape(row.error)}", "", ""
    same = '<b class="same">yes</b>' if row.identical else '<b class="differs">no</b>'
    return (
        f"<b>{name}</b>" if on_front else name,
        "–" if row.packed_bits is None else f"{row.packed_bits:.2f}",
        f"{row.bits:.2f}",
        format_bytes(row.nbytes),
        f"{row.kl:.2g}",
        html.escape(row.answer),
        same,
        f"{row.answer_seconds:.2f}",
    )


def progress_html(report: MethodsReport, seconds: float) -> str:
    """How far it is, and how long the rest may take."""
    done, total = len(report.rows), report.total
    if report.done:
        what = f"Stopped after {done} of {total} methods." if report.stopped else f"{total} methods."
        return hint(
            f"{what} {report.document_tokens:,} of the prompt's {report.prompt_tokens:,} tokens are the document. "
            f"Bold: no other has fewer bytes and a smaller KL. {seconds:.0f} s.",
            "methods-done",
        )
    rest = f", about {seconds / done * (total - done):.0f} s left" if done else ""
    bar = f'<div class="bar"><i style="width:{100 * done / total:.1f}%"></i></div>'
    return f'<div class="progress">{bar}{hint(f"{done} of {total} methods{rest}")}</div>'


def csv_text(report: MethodsReport) -> str:
    """The rows as CSV, without the bytes by component."""
    stream = io.StringIO()
    rows = [{k: v for k, v in row.to_dict().items() if k != "by_component"} for row in report.rows]
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else ["policy"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _choice_of_methods(preset_names: Sequence[str] | None, model: gr.Dropdown) -> list[gr.CheckboxGroup]:
    """Lay out a group of boxes for each tier, one for each paper in the last; ``preset_names`` are ticked.

    What was measured of a preset stands behind its name where it was measured with the chosen ``model``.
    """
    groups, ticked, found = policy_groups(), set(preset_names or policies()), []

    def boxes(group: PolicyGroup, label: str) -> None:
        choices = [(policy_label(name, model.value), name) for name in group.names]
        value = [name for name in group.names if name in ticked]
        found.append(gr.CheckboxGroup(choices, value=value, label=label, elem_classes="methods-group", min_width=280))

    for group in groups:
        if not group.source:
            boxes(group, group.tier)
    papers = [group for group in groups if group.source]
    with gr.Accordion(
        f"{papers[0].tier} · {sum(len(one.names) for one in papers)}", open=False, elem_id="methods-papers"
    ):
        for group in papers:
            boxes(group, group.source)
    told = gr.HTML(_told(model.value), padding=False, elem_id="methods-told")
    # in the order in which they were laid out
    labelled = [*(group for group in groups if not group.source), *papers]

    def of_model(name: str) -> tuple[Any, ...]:
        labels = [[(policy_label(preset, name), preset) for preset in group.names] for group in labelled]
        return *map(gr.CheckboxGroup, labels), _told(name)

    model.change(of_model, model, [*found, told], **AT_ONCE)
    return found


def _told(model: str | None) -> str:
    """What stands behind the names of the presets."""
    if not has_policy_figures(model):
        return hint(f"Bits and right answers kept: {NOT_MEASURED}; the comparison below measures your document.")
    return hint(f"Behind a name: bits per value, and of 100 right answers those kept. {measured_on()}")


@dataclass(frozen=True)
class MethodsTab:
    """The components of the tab."""

    head: Head
    body: gr.Column
    presets: list[gr.CheckboxGroup]
    start: gr.Button
    stop: gr.Button
    as_csv: gr.DownloadButton
    as_json: gr.DownloadButton
    progress: gr.HTML
    results: gr.Column
    table: gr.HTML
    figure: gr.Plot
    times: gr.Plot

    @property
    def outcome(self) -> list[Any]:
        """The components that a comparison changes: buttons, downloads, progress, results."""
        return [
            *(self.start, self.stop, self.as_csv, self.as_json, self.progress),
            *(self.results, self.table, self.figure, self.times),
        ]


def build_methods(page: Page, tab: gr.Tab, preset_names: Sequence[str] | None = None) -> None:
    """Lay out the tab inside the current context; ``preset_names`` are selected first, None for all presets."""
    part = _lay_out(page, preset_names)
    events = _Events(page, part)
    connect(page, tab, part.head, events.at_once, None, [], [*part.head.outputs, part.body, *part.outcome])
    pressed = [part.start, part.stop, part.progress]
    part.start.click(events.wait, page.session, pressed, **AT_ONCE).then(
        events.compare, [page.session, *part.presets], part.outcome, **LONG
    )
    part.stop.click(events.halt, page.session, pressed, **AT_ONCE)


def _lay_out(page: Page, preset_names: Sequence[str] | None) -> MethodsTab:
    """Lay out the tab inside the current context."""
    head = build_head(page, "methods", MEANING)
    with gr.Column(visible=False) as body:
        presets = _choice_of_methods(preset_names, page.sidebar.model)
        with gr.Row(elem_classes="actions"):
            start = gr.Button("Compare these methods", variant="primary", elem_id="methods-start", min_width=200)
            stop = gr.Button("Stop", variant="stop", visible=False, elem_id="methods-stop", min_width=90)
            as_csv = gr.DownloadButton("CSV", visible=False, elem_id="methods-csv", min_width=90)
            as_json = gr.DownloadButton("JSON", visible=False, elem_id="methods-json", min_width=90)
    progress = gr.HTML(elem_id="methods-progress", padding=False)
    with gr.Column(visible=False) as results:
        table = gr.HTML(elem_id="methods", padding=False)
        figure = gr.Plot(label="Quality against bytes: down and left is better", elem_id="methods-pareto")
        times = gr.Plot(label="Seconds by method", elem_id="methods-seconds")
    return MethodsTab(head, body, presets, start, stop, as_csv, as_json, progress, results, table, figure, times)


def _buttons(running: bool, files: tuple[str, str] | None = None) -> tuple[Any, ...]:
    """Values of the four buttons; ``files`` are what the downloads give."""
    downloads = [gr.DownloadButton(value=path, visible=True) for path in files or ()]
    hidden = (gr.DownloadButton(visible=False),) * 2
    return gr.Button(visible=not running), gr.Button(visible=running), *(downloads or hidden)


def _results(report: MethodsReport, figures: tuple[Any, Any] | None = None) -> tuple[Any, ...]:
    """Values of the results: the table, and the two figures if they are not given."""
    return gr.Column(visible=True), methods_html(report), *(figures or (pareto(report), method_seconds(report)))


class _Events:
    """The events of the tab."""

    def __init__(self, page: Page, part: MethodsTab) -> None:
        self.page, self.part, self.work = page, part, LongWork()

    def at_once(self, state: Session | None) -> tuple[Any, ...]:
        nothing = (gr.skip(),) * len(self.part.outcome)
        if not has_prompt(state):
            sample = worked_sample().methods
            return *self.part.head.worked(state), gr.Column(visible=False), *nothing[:4], "", *_results(sample)
        shown = (*self.part.head.say(hint(f"{READY} {BUSY}" if is_busy(state) else READY)), gr.Column(visible=True))
        if "methods" in state.talk.reports or state in self.work:  # shown already, or on its way
            return *shown, *nothing
        return *shown, *_buttons(False), "", gr.Column(visible=False), *nothing[6:]

    def compare(self, state: Session | None, *presets: list[str]) -> Iterator[tuple[Any, ...]]:
        skipped = (gr.skip(),) * 4
        event = self.work.begin(state)
        if event is None:
            yield (gr.skip(),) * len(self.part.outcome)
            return
        yield *_buttons(True), hint("Reading the document …"), *skipped
        try:
            yield from self._rows(state, [name for group in presets for name in group], event)
        except KVMMError as error:
            yield *_buttons(False), problem(error), *skipped
        finally:
            self.work.end(state)

    def _rows(self, state: Session, names: list[str], event: threading.Event) -> Iterator[tuple[Any, ...]]:
        """The table after each method; the figures are drawn every :data:`PLOT_SECONDS`."""
        if unknown := [name for name in names if name not in policies()]:
            raise KVMMError(f"Unknown policy {unknown[0]!r}.")
        if not names:
            raise KVMMError("Tick the methods to compare.")
        talk, begin, drawn = state.talk, time.monotonic(), 0.0
        inputs, report = state.prompt_inputs(), None
        for report in iter_methods(state.model, state.processor, inputs, names, stop=event):
            seconds = time.monotonic() - begin
            figures = (gr.skip(), gr.skip())
            if report.rows and (report.done or time.monotonic() - drawn > PLOT_SECONDS):
                drawn, figures = time.monotonic(), (pareto(report), method_seconds(report))
            progress = progress_html(report, seconds)
            if report.done:
                break
            if talk not in state.talks:  # the conversation was deleted, or the visitor has left
                yield *_buttons(False), "", *(gr.skip(),) * 4
                return
            yield *(gr.skip(),) * 4, progress, *_results(report, figures)
        talk.reports["methods"] = report
        files = self._save(state, report)
        stale = hint(STALE) if talk is not state.talk else ""
        yield *_buttons(False, files), progress + stale, *_results(report, figures)

    def _save(self, state: Session, report: MethodsReport) -> tuple[str, str]:
        folder = self.page.visitors.folder(state)
        (folder / "methods.csv").write_text(csv_text(report), encoding="utf-8")
        text = json.dumps(report.to_dict(), ensure_ascii=False, indent=2) + "\n"
        (folder / "methods.json").write_text(text, encoding="utf-8")
        return str(folder / "methods.csv"), str(folder / "methods.json")

    def wait(self, state: Session | None) -> tuple[Any, ...]:
        if not has_prompt(state) or not self.work.wait(state):
            return (gr.skip(),) * 3
        return gr.Button(visible=False), gr.Button(visible=True), hint(WAITING)

    def halt(self, state: Session | None) -> tuple[Any, ...]:
        if self.work.stop(state):
            return gr.Button(visible=True), gr.Button(visible=False), hint(STOPPED)
        return gr.skip(), gr.skip(), hint("Stopping …")


__all__ = ["build_methods", "csv_text", "methods_html"]
