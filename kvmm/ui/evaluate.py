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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from kvmm.errors import KVMMError
from kvmm.eval import compare
from kvmm.eval.answering import resolve_policies
from kvmm.eval.records import Run, RunFiles, safe_name
from kvmm.eval.report import build_report
from kvmm.eval.report_files import write_report as write_report_files
from kvmm.eval.runner import run
from kvmm.eval.tasks import SampleSet, Task, get_task, task_names
from kvmm.eval.tasks.rows import media_inside_folder
from kvmm.eval.tasks.sources import mini_folder
from kvmm.policy import policies
from kvmm.policy.presets import policy_groups
from kvmm.ui.archive import DATA_ENDINGS, unpack_benchmark
from kvmm.ui.models import Models
from kvmm.ui.prompts import AT_ONCE, LONG, PRIVATE, STOPPED, WAITING, LongWork, Page, hint, problem, table_html
from kvmm.ui.session import Session
from kvmm.ui.visitors import session_of

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
        found = task.default_source is not None or (task.mini is not None and mini_folder(task.mini).is_dir())
    except KVMMError:
        found = False
    if not found:
        raise KVMMError(f"There is no bundled set of {task.name}: send its official files as a .zip first.")


def sources_in(data_folder: Path | None) -> dict[str, Path | str]:
    """What can be chosen as data: the mini set, and the files and folders of the server's data folder, by name."""
    found: dict[str, Path | str] = {MINI: "mini"}
    if data_folder is not None:
        found |= {path.name: path for path in sorted(data_folder.iterdir()) if not path.name.startswith(".")}
    return found


def without_paths(samples: SampleSet, source: str) -> SampleSet:
    """The same set as far as visitors are concerned: its files do not tell where things are on the server."""
    own = [
        one if one.group is None else replace(one, group=hashlib.blake2b(one.group.encode(), digest_size=8).hexdigest())
        for one in samples
    ]
    return replace(samples, samples=tuple(own), source=source)


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
    """What a visitor sent: its name in the list, the folder of the data files, and the folder to delete."""

    label: str
    data: Path
    home: Path


class _Work:
    """A run in a thread of its own, whose rows are read from a queue."""

    def __init__(self, stop: threading.Event, *arguments: Any, **options: Any) -> None:
        self.rows: queue.Queue[tuple[int, int, dict[str, Any]] | None] = queue.Queue()
        self.run: Run | None = None
        self.error: BaseException | None = None

        def body() -> None:
            try:
                self.run = run(*arguments, progress=lambda *row: self.rows.put(row), stop=stop, **options)
            except BaseException as error:  # raised where the rows are read
                self.error = error
            finally:
                self.rows.put(None)

        self.thread = threading.Thread(target=body, name="kvmm-evaluate", daemon=True)
        self.thread.start()

    def newest(self, seconds: float) -> tuple[tuple[int, int, dict[str, Any]] | None, bool]:
        """The last row that came within ``seconds``, and whether there will be no more."""
        found, until = None, time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                row = self.rows.get(timeout=left)
            except queue.Empty:
                break
            if row is None:
                return found, True
            found = row
        return found, False


def build_evaluate(models: Models, page: Page, data_folder: str | Path | None = None) -> None:
    """Lay out the tab inside the current context.

    Args:
        models: what the sidebar offers.
        page: the parts of the page.
        data_folder: whose files and folders visitors may choose as data; they never name paths.
    """
    folder = None if data_folder is None else Path(data_folder)
    long_work = LongWork()
    homes: weakref.WeakKeyDictionary[Session, Path] = weakref.WeakKeyDictionary()
    sent: weakref.WeakKeyDictionary[Session, Sent] = weakref.WeakKeyDictionary()
    tasks, sources = task_choices(), list(sources_in(folder))

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

    outputs = [page.session, start, stop, line, table, files]

    def known_sources(state: Session | None) -> dict[str, Path | str]:
        own = sent.get(state) if state is not None else None
        return sources_in(folder) | ({own.label: own.data} if own else {})

    def checked(
        state: Session, task_name: str, source_name: str, names: Sequence[str], limit: float | None
    ) -> tuple[Task, str, int]:
        if task_name not in [name for _, name in tasks]:
            raise KVMMError("There is no benchmark of that name here: choose one in the list.")
        known = known_sources(state)
        if source_name not in known:
            raise KVMMError("There is no data of that name here: choose one in the list.")
        if unknown := [name for name in names if name not in policies()]:
            raise KVMMError(f"Unknown policy {unknown[0]!r}.")
        if limit is None or not 1 <= limit <= MAX_LIMIT:
            raise KVMMError(f"Questions must be a whole number from 1 to {MAX_LIMIT:,}.")
        task = get_task(task_name)
        if known[source_name] == "mini":
            check_mini(task)
        return task, str(known[source_name]), int(limit)

    def receive(path: str | None, state: Session | None, request: gr.Request) -> tuple[Any, ...]:
        """Unpack what a visitor sends, which takes the place of what they sent before."""
        state = session_of(page.visitors, request)
        try:
            if path is None:
                return state, gr.skip(), gr.skip()
            if state in long_work:
                raise KVMMError("Wait for the evaluation to end, or stop it, before you send other data.")
            if (before := sent.pop(state, None)) is not None:
                shutil.rmtree(before.home, ignore_errors=True)
            home = page.visitors.folder(state)
            try:
                data, said = unpack_benchmark(path, home)
            except KVMMError:
                shutil.rmtree(home, ignore_errors=True)
                raise
            own = sent[state] = Sent(f"{YOURS}{Path(path).name}", data, home)
            chosen, line = own.label, hint(f"{said} Choose the benchmark that it belongs to, then press Evaluate.")
        except KVMMError as error:
            chosen, line = MINI, problem(error)
        finally:
            if path is not None:
                page.visitors.discard_upload(path)  # it has been unpacked, or is of no use
        return state, gr.Dropdown(list(known_sources(state)), value=chosen), line

    def home(state: Session) -> Path:
        if state not in homes or not homes[state].is_dir():
            homes[state] = page.visitors.folder(state)
        return homes[state]

    def evaluate(
        state: Session | None,
        model_name: str,
        task_name: str,
        source_name: str,
        names: list[str],
        limit: float | None,
    ) -> Iterator[tuple[Any, ...]]:
        event, begin = long_work.begin(state), time.monotonic()
        if event is None:
            yield (gr.skip(),) * 6
            return
        running = state, gr.Button(visible=False), gr.Button(visible=True)
        ended = state, gr.Button(visible=True), gr.Button(visible=False)
        work, data = None, ""
        yield *running, hint("Reading the questions …"), gr.skip(), gr.File(visible=False)
        try:
            task, data, count = checked(state, task_name, source_name, names, limit)
            chosen = resolve_policies(names)
            own = sent[state] if source_name not in sources_in(folder) else None
            with media_inside_folder() if own else contextlib.nullcontext():
                samples = without_paths(task.load(data, limit=count), source_name)
            model, processor = models.get(model_name)
            # other data are another run
            out = home(state) / safe_name(f"{task.name}-{own.home.name if own else source_name}")
            work = _Work(
                event,
                model,
                processor,
                task,
                samples,
                chosen,
                RunFiles.open(out, model_name),
                settings={"dataset_path": data if source_name == MINI else source_name, "split": None, "limit": count},
                model_name=model_name,
            )
            first, over = None, False
            while not over:
                row, over = work.newest(UPDATE_SECONDS)
                if not out.parent.is_dir():  # the visitor has left, and the folder with them
                    event.set()
                if row is not None:
                    done, total, entry = row
                    first = done - 1 if first is None else first
                    said = f"{entry['policy']}: {str(entry.get('filtered_resps') or entry.get('error') or '')[:60]}"
                    text = progress_html(done, total, done - first, time.monotonic() - begin, said)
                    yield (gr.skip(),) * 3 + (text, gr.skip(), gr.skip())
            work.thread.join()
            if work.error is not None:
                raise work.error
            finished = work.run
            answers = sum(len(rows) for rows in finished.samples[task.name].values())
            what = "Stopped: press Evaluate to go on." if event.is_set() else samples.summary() + "."
            said = hint(f"{what} {answers:,} answers in {_duration(time.monotonic() - begin)}.", "evaluate-done")
            yield *ended, said, results_html(finished, task.name), downloads(finished, state)
        except KVMMError as error:
            said = str(error).replace(data, source_name) if data else str(error)  # not where it is on the server
            yield *ended, problem(KVMMError(said)), gr.skip(), gr.skip()
        except Exception:
            logger.exception("an evaluation failed")
            yield (
                *ended,
                problem(KVMMError("The server could not finish this; press Evaluate to go on.")),
                gr.skip(),
                gr.skip(),
            )
        finally:
            event.set()
            if work is not None:
                work.thread.join()
            long_work.end(state)

    def downloads(finished: Run, state: Session) -> Any:
        paths = sorted(finished.folder.glob(f"{finished.date}_*.json*"))
        if any(rows for rows in finished.samples[finished.tasks[0]].values()):
            paths.append(write_report(finished, finished.folder.parent))
        return gr.File([str(path) for path in paths], visible=True)

    def wait(state: Session | None, request: gr.Request) -> tuple[Any, ...]:
        state = session_of(page.visitors, request)
        if not long_work.wait(state):
            return state, *(gr.skip(),) * 3
        return state, gr.Button(visible=False), gr.Button(visible=True), hint(WAITING)

    def halt(state: Session | None) -> tuple[Any, ...]:
        if long_work.stop(state):
            return gr.Button(visible=True), gr.Button(visible=False), hint(STOPPED)
        return gr.skip(), gr.skip(), hint("Stopping after the answers in hand …")

    start.click(wait, page.session, outputs[:4], **AT_ONCE).then(
        evaluate, [page.session, page.sidebar.model, task, source, names, limit], outputs, **LONG
    )
    stop.click(halt, page.session, outputs[1:4], **AT_ONCE)
    upload.upload(
        receive,
        [upload, page.session],
        [page.session, source, line],
        concurrency_limit=2,
        show_progress="minimal",
        **PRIVATE,
    )


def write_report(finished: Run, folder: Path) -> Path:
    """The report of a run as one HTML file that needs nothing else."""
    files = write_report_files(folder / "report", build_report([finished]), [finished])
    return next(path for path in files if path.suffix == ".html")


__all__ = ["build_evaluate", "progress_html", "results_html", "sources_in", "task_choices"]
