"""Tab "Evaluate": a benchmark under several policies, with the scores' differences to full precision and downloads."""

from __future__ import annotations

import html
import logging
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from kvmm.errors import KVMMError
from kvmm.eval import compare
from kvmm.eval.answering import resolve_policies
from kvmm.eval.records import Run, RunFiles, safe_name
from kvmm.eval.runner import run
from kvmm.eval.tasks import Task, get_task, task_names
from kvmm.eval.tasks.sources import mini_folder
from kvmm.policy import policies
from kvmm.ui.models import Models
from kvmm.ui.prompts import AT_ONCE, LONG, WAITING, Page, hint, problem, table_html
from kvmm.ui.session import Session

MINI = "bundled mini set"
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


def tasks_with_data(data_folder: Path | None) -> list[tuple[str, str]]:
    """(label, name) of the tasks that can be run: those with a mini set, and all where the server offers data."""
    found = []
    for name in task_names():
        task = get_task(name)
        try:
            has_mini = task.mini is not None and mini_folder(task.mini) is not None
        except KVMMError:
            has_mini = False
        if has_mini or data_folder is not None:
            found.append((LABELS.get(name, name), name))
    return sorted(found, key=lambda item: list(LABELS).index(item[1]) if item[1] in LABELS else len(LABELS))


def sources_in(data_folder: Path | None) -> dict[str, Path | str]:
    """What can be chosen as data: the mini set, and the files and folders of the server's data folder, by name."""
    found: dict[str, Path | str] = {MINI: "mini"}
    if data_folder is not None:
        found |= {path.name: path for path in sorted(data_folder.iterdir()) if not path.name.startswith(".")}
    return found


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
    stops: weakref.WeakKeyDictionary[Session, threading.Event] = weakref.WeakKeyDictionary()
    homes: weakref.WeakKeyDictionary[Session, Path] = weakref.WeakKeyDictionary()
    tasks, sources = tasks_with_data(folder), list(sources_in(folder))

    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=280):
            if tasks:
                task = gr.Dropdown(tasks, value=tasks[0][1], label="Benchmark", elem_id="evaluate-task")
            else:
                task = gr.Dropdown([], label="Benchmark", elem_id="evaluate-task", interactive=False)
            source = gr.Dropdown(sources, value=MINI, label="Data", elem_id="evaluate-source", visible=len(sources) > 1)
            names = gr.Dropdown(
                list(policies()),
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

    def checked(task_name: str, source_name: str, names: Sequence[str], limit: float | None) -> tuple[Task, str, int]:
        if task_name not in [name for _, name in tasks]:
            raise KVMMError("There is no benchmark of that name here: choose one in the list.")
        known = sources_in(folder)
        if source_name not in known:
            raise KVMMError("There is no data of that name here: choose one in the list.")
        if unknown := [name for name in names if name not in policies()]:
            raise KVMMError(f"Unknown policy {unknown[0]!r}.")
        if limit is None or not 1 <= limit <= MAX_LIMIT:
            raise KVMMError(f"Questions must be a whole number from 1 to {MAX_LIMIT:,}.")
        return get_task(task_name), str(known[source_name]), int(limit)

    def home(state: Session) -> Path:
        if state not in homes or not homes[state].is_dir():
            homes[state] = page.visitors.folder(state)
        return homes[state]

    def evaluate(
        request: gr.Request,
        state: Session | None,
        model_name: str,
        task_name: str,
        source_name: str,
        names: list[str],
        limit: float | None,
    ) -> Iterator[tuple[Any, ...]]:
        state = state or page.visitors.session(request.session_hash)
        if state in stops:
            yield *(gr.skip(),) * 3, "", gr.skip(), gr.skip()
            return
        event, begin = threading.Event(), time.monotonic()
        stops[state] = event
        running = state, gr.Button(visible=False), gr.Button(visible=True)
        ended = state, gr.Button(visible=True), gr.Button(visible=False)
        work = None
        yield *running, hint("Reading the questions …"), gr.skip(), gr.File(visible=False)
        try:
            task, data, count = checked(task_name, source_name, names, limit)
            chosen = resolve_policies(names)
            samples = task.load(data, limit=count)
            model, processor = models.get(model_name)
            # data of another name are another run
            out = home(state) / safe_name(f"{task.name}-{source_name}")
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
            yield *ended, problem(error), gr.skip(), gr.skip()
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
            stops.pop(state, None)

    def downloads(finished: Run, state: Session) -> Any:
        paths = sorted(finished.folder.glob(f"{finished.date}_*.json*"))
        if any(rows for rows in finished.samples[finished.tasks[0]].values()):
            paths.append(write_report(finished, finished.folder.parent))
        return gr.File([str(path) for path in paths], visible=True)

    def halt(state: Session | None) -> Any:
        event = stops.get(state) if state is not None else None
        if event is not None:
            event.set()
        return hint("Stopping after the answers in hand …")

    start.click(lambda: hint(WAITING), None, line, **AT_ONCE).then(
        evaluate, [page.session, page.sidebar.model, task, source, names, limit], outputs, **LONG
    )
    stop.click(halt, page.session, line, **AT_ONCE)


def write_report(finished: Run, folder: Path) -> Path:
    """The report of a run as one HTML file that needs nothing else."""
    from kvmm.eval.report import build_report
    from kvmm.eval.report_files import write_report as write

    files = write(folder / "report", build_report([finished]), [finished])
    return next(path for path in files if path.suffix == ".html")


__all__ = ["build_evaluate", "progress_html", "results_html", "sources_in", "tasks_with_data"]
