"""Tab "Evaluate": a benchmark under several policies, with the scores' differences to full precision and downloads."""

from __future__ import annotations

import contextlib
import hashlib
import html
import logging
import queue
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from kvmm.errors import KVMMError
from kvmm.eval.report import compare
from kvmm.eval.report.build import build_report
from kvmm.eval.report.files import write_report as write_report_files
from kvmm.eval.run.evaluate import run
from kvmm.eval.run.records import Run, RunFiles, safe_name
from kvmm.eval.tasks import SampleSet, Task, get_task, task_names
from kvmm.eval.tasks.rows import media_inside_folder
from kvmm.eval.tasks.sources import mini_folder
from kvmm.models.caches import resolve_policies
from kvmm.policy import policies
from kvmm.policy.presets import policy_groups
from kvmm.ui.chat.session import Session
from kvmm.ui.models import Models
from kvmm.ui.parts.events import AT_ONCE, LONG, PRIVATE
from kvmm.ui.server import running
from kvmm.ui.server.archive import DATA_ENDINGS, unpack_benchmark
from kvmm.ui.server.visitors import session_of
from kvmm.ui.tabs.common import STOPPED, WAITING, LongWork, Page, hint, problem, table_html

MINI = "bundled mini set"
YOURS = "yours: "
FIRST_POLICIES = ("bf16", "balanced", "small")
FIRST_LIMIT = 20
MAX_LIMIT = 100_000
UPDATE_SECONDS = 0.5
LABELS = {
    "docvqa": "Document pages (docvqa)",
    "mp-docvqa": "Documents of several pages (mp-docvqa)",
    "ocrbench": "Reading text (ocrbench)",
    "audio-qa": "Recordings (audio-qa)",
}

logger = logging.getLogger(__name__)


def task_choices() -> list[tuple[str, str]]:
    """(label, name) of all tasks, those with a bundled set first."""
    order = list(LABELS)
    names = sorted(task_names(), key=lambda name: order.index(name) if name in LABELS else len(order))
    return [(LABELS.get(name, name), name) for name in names]


def check_mini(task: Task) -> None:
    """Raise ``KVMMError`` unless the task has a bundled set, or makes its questions itself."""
    try:
        has_set = task.default_source is not None or (task.mini is not None and mini_folder(task.mini).is_dir())
    except KVMMError:
        has_set = False
    if not has_set:
        raise KVMMError(f"There is no bundled set of {task.name}: send its official files as a .zip first.")


def sources_in(data_folder: Path | None) -> dict[str, Path | str]:
    """The choices of data by name: the mini set, and the files and folders of the server's data folder."""
    sources: dict[str, Path | str] = {MINI: "mini"}
    if data_folder is not None:
        sources |= {path.name: path for path in sorted(data_folder.iterdir()) if not path.name.startswith(".")}
    return sources


def without_paths(samples: SampleSet, source: str) -> SampleSet:
    """The same set without paths of the server, which visitors could read in the files of a run."""
    anonymous = [
        one if one.group is None else replace(one, group=hashlib.blake2b(one.group.encode(), digest_size=8).hexdigest())
        for one in samples
    ]
    return replace(samples, samples=tuple(anonymous), source=source)


def results_html(done: Run, task: str) -> str:
    """The table of a task, the headings in words."""
    columns, rows, caption = compare.table(done, task)
    return table_html(columns, [[html.escape(cell) for cell in row] for row in rows], "evaluate-table") + hint(caption)


def progress_html(done: int, total: int, new: int, seconds: float, answer: str) -> str:
    """How far it is, how long the rest may take, and the newest answer."""
    rest = f", about {_duration(seconds / new * (total - done))} left" if new else ""
    bar = f'<div class="bar"><i style="width:{100 * done / max(total, 1):.1f}%"></i></div>'
    return f'<div class="progress">{bar}{hint(f"{done:,} of {total:,} answers{rest}. {answer}")}</div>'


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True)
class Sent:
    """Data that a visitor sent: the name in the list, the folder of the files, and the folder to delete."""

    label: str
    data: Path
    home: Path


class _Work:
    """A run in a thread of its own, which puts its rows into a queue."""

    def __init__(self, stop: threading.Event, *arguments: Any, **options: Any) -> None:
        self.rows: queue.Queue[tuple[int, int, dict[str, Any]] | None] = queue.Queue()
        self.stop = stop
        self.run: Run | None = None
        self.error: BaseException | None = None

        def body() -> None:
            try:
                with running.under_way(stop):
                    self.run = run(*arguments, progress=lambda *row: self.rows.put(row), stop=stop, **options)
            except BaseException as error:  # raised where the rows are read
                self.error = error
            finally:
                self.rows.put(None)

        self.thread = threading.Thread(target=body, name="kvmm-evaluate", daemon=True)
        self.thread.start()

    def newest(self, seconds: float) -> tuple[tuple[int, int, dict[str, Any]] | None, bool]:
        """The last row that came within ``seconds``, and whether there will be no more."""
        last, until = None, time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                row = self.rows.get(timeout=left)
            except queue.Empty:
                break
            if row is None:
                return last, True
            last = row
        return last, False

    def result(self) -> Run:
        """The run once it is over; raises what it raised."""
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self.run


@dataclass(frozen=True)
class EvaluateTab:
    """The components of the tab."""

    task: gr.Dropdown
    source: gr.Dropdown
    upload: gr.UploadButton
    names: gr.Dropdown
    limit: gr.Number
    start: gr.Button
    stop: gr.Button
    line: gr.HTML
    table: gr.HTML
    files: gr.File

    @property
    def inputs(self) -> list[Any]:
        """The inputs of a run."""
        return [self.task, self.source, self.names, self.limit]

    @property
    def outcome(self) -> list[Any]:
        """The components that a run updates."""
        return [self.start, self.stop, self.line, self.table, self.files]


def build_evaluate(models: Models, page: Page, data_folder: str | Path | None = None) -> None:
    """Lay out the tab inside the current context.

    Args:
        models: what the sidebar offers.
        page: the parts of the page.
        data_folder: visitors may choose its files and folders as data, by name and never by path.
    """
    events = _Events(models, page, None if data_folder is None else Path(data_folder))
    tab = _lay_out(events.tasks, list(sources_in(events.data_folder)))
    pressed = [tab.start, tab.stop, tab.line]
    tab.start.click(events.wait, page.session, [page.session, *pressed], **AT_ONCE).then(
        events.evaluate, [page.session, page.sidebar.model, *tab.inputs], [page.session, *tab.outcome], **LONG
    )
    tab.stop.click(events.halt, page.session, pressed, **AT_ONCE)
    tab.upload.upload(
        events.receive,
        [tab.upload, page.session],
        [page.session, tab.source, tab.line],
        concurrency_limit=2,
        show_progress="minimal",
        **PRIVATE,
    )


def _lay_out(tasks: Sequence[tuple[str, str]], sources: Sequence[str]) -> EvaluateTab:
    """Lay out the tab inside the current context."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=280):
            task = gr.Dropdown(tasks, value=tasks[0][1], label="Benchmark", elem_id="evaluate-task", filterable=False)
            source = gr.Dropdown(sources, value=MINI, label="Data", elem_id="evaluate-source", filterable=False)
            upload = gr.UploadButton(
                "Send your own: .zip or .json", size="sm", file_types=[".zip", *DATA_ENDINGS], elem_id="evaluate-upload"
            )
            names = gr.Dropdown(
                [name for group in policy_groups() for name in group.names],
                value=list(FIRST_POLICIES),
                multiselect=True,
                label="Policies",
                elem_id="evaluate-policies",
            )
            limit = gr.Number(FIRST_LIMIT, precision=0, label="Questions", elem_id="evaluate-limit")
            with gr.Row(elem_classes="actions"):
                start = gr.Button("Evaluate", variant="primary", elem_id="evaluate-start", min_width=120)
                stop = gr.Button("Stop", variant="stop", visible=False, elem_id="evaluate-stop", min_width=90)
        with gr.Column(scale=8, min_width=320):
            line = gr.HTML(
                hint(
                    "Press Evaluate: the sidebar's model answers the first questions of a benchmark under each policy. "
                    "With bf16 among them, every other score comes with its difference to full precision, question by "
                    "question, and the 95 % confidence interval. A stopped run goes on where it was."
                ),
                elem_id="evaluate-progress",
                padding=False,
            )
            table = gr.HTML(elem_id="evaluate", padding=False)
            files = gr.File(
                label="Results", file_count="multiple", visible=False, interactive=False, elem_id="evaluate-files"
            )
    return EvaluateTab(task, source, upload, names, limit, start, stop, line, table, files)


class _Events:
    """The events of the tab."""

    def __init__(self, models: Models, page: Page, data_folder: Path | None) -> None:
        self.models, self.page, self.data_folder = models, page, data_folder
        self.tasks = task_choices()
        self.long_work = LongWork()
        self.homes: weakref.WeakKeyDictionary[Session, Path] = weakref.WeakKeyDictionary()
        self.sent: weakref.WeakKeyDictionary[Session, Sent] = weakref.WeakKeyDictionary()

    def _sources(self, state: Session | None) -> dict[str, Path | str]:
        sent = self.sent.get(state) if state is not None else None
        return sources_in(self.data_folder) | ({sent.label: sent.data} if sent else {})

    def _checked(
        self, state: Session, task_name: str, source_name: str, names: Sequence[str], limit: float | None
    ) -> tuple[Task, str, int]:
        if task_name not in [name for _, name in self.tasks]:
            raise KVMMError("There is no benchmark of that name here: choose one in the list.")
        sources = self._sources(state)
        if source_name not in sources:
            raise KVMMError("There is no data of that name here: choose one in the list.")
        if unknown := [name for name in names if name not in policies()]:
            raise KVMMError(f"Unknown policy {unknown[0]!r}.")
        if limit is None or not 1 <= limit <= MAX_LIMIT:
            raise KVMMError(f"Questions must be a whole number from 1 to {MAX_LIMIT:,}.")
        task = get_task(task_name)
        if sources[source_name] == "mini":
            check_mini(task)
        return task, str(sources[source_name]), int(limit)

    def receive(self, path: str | None, state: Session | None, request: gr.Request) -> tuple[Any, ...]:
        """Unpack an upload, which replaces the visitor's previous one."""
        state = session_of(self.page.visitors, request)
        try:
            if path is None:
                return state, gr.skip(), gr.skip()
            if state in self.long_work:
                raise KVMMError("Wait for the evaluation to end, or stop it, before you send other data.")
            if (before := self.sent.pop(state, None)) is not None:
                shutil.rmtree(before.home, ignore_errors=True)
            home = self.page.visitors.folder(state)
            try:
                data, said = unpack_benchmark(path, home)
            except KVMMError:
                shutil.rmtree(home, ignore_errors=True)
                raise
            received = self.sent[state] = Sent(f"{YOURS}{Path(path).name}", data, home)
            chosen, line = received.label, hint(f"{said} Choose the benchmark that it belongs to, then press Evaluate.")
        except KVMMError as error:
            chosen, line = MINI, problem(error)
        finally:
            if path is not None:
                self.page.visitors.discard_upload(path)  # it has been unpacked, or is of no use
        return state, gr.Dropdown(list(self._sources(state)), value=chosen), line

    def _home(self, state: Session) -> Path:
        if state not in self.homes or not self.homes[state].is_dir():
            self.homes[state] = self.page.visitors.folder(state)
        return self.homes[state]

    def evaluate(
        self,
        state: Session | None,
        model_name: str,
        task_name: str,
        source_name: str,
        names: list[str],
        limit: float | None,
    ) -> Iterator[tuple[Any, ...]]:
        event, begin = self.long_work.begin(state), time.monotonic()
        if event is None:
            yield (gr.skip(),) * 6
            return
        running = state, gr.Button(visible=False), gr.Button(visible=True)
        ended = state, gr.Button(visible=True), gr.Button(visible=False)
        work, data, nothing = None, "", (gr.skip(), gr.skip())
        yield *running, hint("Reading the questions …"), gr.skip(), gr.File(visible=False)
        try:
            task, data, count = self._checked(state, task_name, source_name, names, limit)
            chosen = resolve_policies(names)
            samples = self._load(state, task, data, source_name, count)
            # other data are another run
            sent = self._sent(state, source_name)
            out = self._home(state) / safe_name(f"{task.name}-{sent.home.name if sent else source_name}")
            settings = {"dataset_path": data if source_name == MINI else source_name, "split": None, "limit": count}
            work = self._start(event, model_name, task, samples, chosen, out, settings)
            for progress in self._follow(work, out, begin):
                yield *(gr.skip(),) * 3, progress, *nothing
            finished = work.result()
            answers = sum(len(rows) for rows in finished.samples[task.name].values())
            what = "Stopped: press Evaluate to go on." if event.is_set() else samples.summary() + "."
            said = hint(f"{what} {answers:,} answers in {_duration(time.monotonic() - begin)}.", "evaluate-done")
            yield *ended, said, results_html(finished, task.name), self._downloads(finished)
        except KVMMError as error:
            said = str(error).replace(data, source_name) if data else str(error)  # not where it is on the server
            yield *ended, problem(KVMMError(said)), *nothing
        except Exception:
            logger.exception("an evaluation failed")
            yield *ended, problem(KVMMError("The server could not finish this; press Evaluate to go on.")), *nothing
        finally:
            event.set()
            if work is not None:
                work.thread.join()
            self.long_work.end(state)

    def _sent(self, state: Session, source_name: str) -> Sent | None:
        """The visitor's own data, if ``source_name`` names them."""
        return self.sent[state] if source_name not in sources_in(self.data_folder) else None

    def _load(self, state: Session, task: Task, data: str, source_name: str, count: int) -> SampleSet:
        """The first ``count`` samples; media of data that the visitor sent come from the folder of these data alone."""
        sent = self._sent(state, source_name)
        with media_inside_folder() if sent else contextlib.nullcontext():
            return without_paths(task.load(data, limit=count), source_name)

    def _start(
        self,
        event: threading.Event,
        model_name: str,
        task: Task,
        samples: SampleSet,
        chosen: Mapping[str, Any],
        out: Path,
        settings: Mapping[str, Any],
    ) -> _Work:
        model, processor = self.models.get(model_name)
        files = RunFiles.open(out, model_name)
        return _Work(event, model, processor, task, samples, chosen, files, settings=settings, model_name=model_name)

    @staticmethod
    def _follow(work: _Work, out: Path, begin: float) -> Iterator[str]:
        """The progress of a run as HTML, every :data:`UPDATE_SECONDS`."""
        first, over = None, False
        while not over:
            row, over = work.newest(UPDATE_SECONDS)
            if not out.parent.is_dir():  # the visitor has left, and the folder with them
                work.stop.set()
            if row is not None:
                done, total, entry = row
                first = done - 1 if first is None else first
                said = f"{entry['policy']}: {str(entry.get('filtered_resps') or entry.get('error') or '')[:60]}"
                yield progress_html(done, total, done - first, time.monotonic() - begin, said)

    @staticmethod
    def _downloads(finished: Run) -> Any:
        paths = sorted(finished.folder.glob(f"{finished.date}_*.json*"))
        if any(rows for rows in finished.samples[finished.tasks[0]].values()):
            paths.append(write_report(finished, finished.folder.parent))
        return gr.File([str(path) for path in paths], visible=True)

    def wait(self, state: Session | None, request: gr.Request) -> tuple[Any, ...]:
        state = session_of(self.page.visitors, request)
        if not self.long_work.wait(state):
            return state, *(gr.skip(),) * 3
        return state, gr.Button(visible=False), gr.Button(visible=True), hint(WAITING)

    def halt(self, state: Session | None) -> tuple[Any, ...]:
        if self.long_work.stop(state):
            return gr.Button(visible=True), gr.Button(visible=False), hint(STOPPED)
        return gr.skip(), gr.skip(), hint("Stopping after the answers in hand …")


def write_report(finished: Run, folder: Path) -> Path:
    """The report of a run as one HTML file that needs nothing else."""
    files = write_report_files(folder / "report", build_report([finished]), [finished])
    return next(path for path in files if path.suffix == ".html")


__all__ = ["build_evaluate", "progress_html", "results_html", "sources_in", "task_choices"]
