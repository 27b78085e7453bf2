"""A report of evaluations as Markdown and as one HTML page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence

from kvmm.eval.report.build import EvaluationReport, Failure, PolicyResult, RunResult, TaskResult
from kvmm.eval.report.pictures import Picture
from kvmm.eval.report.statistics import Difference
from kvmm.markdown_text import literal_line
from kvmm.memory_text import LEGEND as BITS_LEGEND
from kvmm.memory_text import PACKED, WHOLE

HEAD = (
    "policy",
    "score",
    "difference",
    "95 % interval",
    "p",
    PACKED,
    WHOLE,
    "KV",
    "ttft",
    "tpot",
    "tokens",
    "repeated",
    "failed",
)
LEGEND = (
    "score: {metric}, points of 100; difference: {paired} minus {reference} on the same questions, with its bootstrap "
    "interval{clusters}; p: McNemar's exact test on right and wrong answers, Holm's correction for {count} "
    "{comparisons}; {bits}; KV: bytes of bf16 over the whole cache's; ttft, "
    "tpot: seconds to the first token and milliseconds for each further one; tokens: of an answer; repeated: share of "
    "repeated 4-grams; failed: questions without an answer."
)
_STYLE = """<style>
.failure { display: flex; gap: 16px; align-items: flex-start; border-top: 1px solid var(--line); padding: 12px 0; }
.failure .pages { flex: none; display: flex; gap: 6px; flex-wrap: wrap; width: 250px; }
.failure img { max-width: 250px; max-height: 340px; border: 1px solid var(--line); background: #fff; }
.failure .pages.many img { max-width: 120px; }
.failure dl { margin: 0; display: grid; grid-template-columns: max-content 1fr; gap: 2px 12px; }
.failure dt { color: var(--faint); }
.failure dd { margin: 0; overflow-wrap: anywhere; }
audio { width: 240px; }
</style>"""


def rows_of(task: TaskResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of a task's table; columns that are empty everywhere are left out."""
    rows = [_row(one) for one in task.policies]
    keep = [i for i in range(len(HEAD)) if any(row[i] for row in rows)]
    return tuple(HEAD[i] for i in keep), [tuple(row[i] for i in keep) for row in rows]


def _row(one: PolicyResult) -> tuple[str, ...]:
    d, p = one.difference, one.p_holm
    return (
        one.policy,
        _points(one.score),
        "" if d is None else f"{100 * d.mean:+.1f}",
        "" if d is None else _interval(d),
        "" if p is None else "<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1",
        _number(one.packed_bits_per_value, ".2f"),
        _number(one.bits_per_value, ".2f"),
        "" if one.kv_ratio is None else f"{one.kv_ratio:.2f}x",
        _number(one.ttft_s, ".3f"),
        _number(None if one.tpot_s is None else 1000 * one.tpot_s, ".1f"),
        _number(one.output_tokens, ".1f"),
        _number(one.repetition_rate, ".3f"),
        str(one.failed) if one.failed else "",
    )


def _interval(difference: Difference) -> str:
    if difference.interval is None:
        return "too few"
    return " to ".join(f"{100 * end:+.1f}" for end in difference.interval)


def _points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def legend(task: TaskResult) -> str:
    """The meaning of the columns of a task's table."""
    compared = [one for one in task.policies if one.difference is not None]
    if not compared:
        missing = "more policies" if task.reference else "bf16 too"
        return f"score: {task.metric}, points of 100. Nothing to compare: run {missing} for paired differences."
    first = compared[0].difference
    clusters = f" ({first.clusters} documents resampled)" if task.clusters else ""
    return LEGEND.format(
        metric=task.metric,
        paired=task.paired_metric,
        reference=task.reference,
        clusters=clusters,
        count=len(compared),
        comparisons="comparisons" if len(compared) > 1 else "comparison",
        bits=BITS_LEGEND,
    )


def title_of(run: RunResult, task: TaskResult) -> str:
    """One line: the task, the model, the questions and where they come from."""
    left = f", {task.left_out} left out" if task.left_out else ""
    count = max(one.answered + one.failed for one in task.policies)
    return f"{task.task}: {run.model}, {count} questions of {task.data or 'a list'}{left}"


def picture_key(run: RunResult, task: TaskResult, failure: Failure) -> tuple[str, str, str]:
    """The key of a failure's pictures in the report."""
    return f"{run.model} {run.date}", task.task, failure.doc_id


def settings_of(run: RunResult) -> str:
    """One line on how the run was made."""
    packages = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    parts = [f"run {run.date}", f"{run.dtype} on {run.device}", packages]
    if run.git_hash:
        parts.append(f"commit {run.git_hash[:10]}")
    if run.seconds:
        parts.append(f"{run.seconds:.0f} s")
    if not run.complete:
        parts.append("NOT COMPLETE")
    return "; ".join(part for part in parts if part)


def parts_of(task: TaskResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Scores by type or group: one row per part, one column per policy; no rows where the task has no parts."""
    names = list(dict.fromkeys(name for one in task.policies for name in one.parts or ()))
    columns = ("part", *(one.policy for one in task.policies))
    return columns, [(name, *(_points((one.parts or {}).get(name)) for one in task.policies)) for name in names]


SUMMARY = (
    "{reference}: points of 100 ({metrics}); other policies: the paired difference to it in points, in brackets its "
    "95 % bootstrap interval over documents (five or more)."
)
SUMMARY_BITS = (
    "Bits: per value of the KV cache, over all questions, everything counted (metadata, first and newest tokens)"
    "{batches}."
)


def summary_of(run: RunResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """All tasks of a run in one table: one row per policy, with its score or difference per task."""
    rows = []
    for name in dict.fromkeys(one.policy for task in run.tasks for one in task.policies):
        policy_results = [next((one for one in task.policies if one.policy == name), None) for task in run.tasks]
        measured = [one for one in policy_results if one is not None and one.kv_ratio]
        packed = sum(one.kv_bytes * one.answered for one in measured)
        dense = sum(one.kv_bytes * one.kv_ratio * one.answered for one in measured)
        bits = f"{16 * packed / dense:.2f}" if measured else ""
        cells = (
            "" if one is None else _summary_cell(task, one) for task, one in zip(run.tasks, policy_results, strict=True)
        )
        rows.append((name, bits, *cells))
    return ("policy", WHOLE, *(task.task for task in run.tasks)), rows


def _summary_cell(task: TaskResult, one: PolicyResult) -> str:
    # a metric of all answers together, such as CIDEr, has no paired difference
    if one.difference is None or task.paired_metric != task.metric:
        return _points(one.score)
    mean, interval = f"{100 * one.difference.mean:+.1f}", one.difference.interval
    return mean if interval is None else f"{mean} [{', '.join(f'{100 * end:.1f}' for end in interval)}]"


def summary_legend(run: RunResult) -> str:
    """The meaning of the cells of :func:`summary_of`."""
    questions = ", ".join(f"{max(one.answered for one in task.policies)} of {task.task}" for task in run.tasks)
    metrics = ", ".join(dict.fromkeys(task.metric for task in run.tasks))
    compared = [task.reference for task in run.tasks if any(one.difference for one in task.policies)]
    scores = SUMMARY.format(reference=compared[0], metrics=metrics) if compared else f"Points of 100 ({metrics})."
    batches = f", of batches of {run.batch_size} without their padding" if run.batch_size > 1 else ""
    return f"{scores} {SUMMARY_BITS.format(batches=batches)} Questions: {questions}."


def summary_table(run: RunResult) -> str:
    """The Markdown of :func:`summary_of` with its title and legend."""
    head = f"**{literal_line(run.model)}** ({literal_line(run.dtype)}, {literal_line(run.device)})"
    return f"{head}\n\n{markdown_table(*summary_of(run))}\n{literal_line(summary_legend(run))}\n"


# --------------------------------------------------------------------------------------------------------------------
# Markdown


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is left-aligned, the others right."""
    lines = ["| " + " | ".join(map(literal_line, line)) + " |" for line in (columns, *rows)]
    bounds = "| " + " | ".join(["---", *["---:"] * (len(columns) - 1)]) + " |"
    return "\n".join([lines[0], bounds, *lines[1:]]) + "\n"


def table_of(run: RunResult, task: TaskResult) -> str:
    """The Markdown of one task's table with its title and legend."""
    head = f"**{literal_line(title_of(run, task))}** ({literal_line(run.dtype)}, {literal_line(run.device)})"
    return f"{head}\n\n{markdown_table(*rows_of(task))}\n{literal_line(legend(task))}\n"


def markdown(report: EvaluationReport, pictures: dict[tuple[str, str, str], list[Picture]]) -> str:
    """The whole report; ``pictures`` are by :func:`picture_key`, with the paths they were written to."""
    parts = ["# Evaluation\n"]
    for run in report.runs:
        parts.append(f"## {literal_line(run.model)}\n\n{literal_line(settings_of(run))}\n")
        if len(run.tasks) > 1:
            parts.append(f"{markdown_table(*summary_of(run))}\n{literal_line(summary_legend(run))}\n")
        for task in run.tasks:
            table = markdown_table(*rows_of(task))
            parts.append(f"### {literal_line(title_of(run, task))}\n\n{table}\n{literal_line(legend(task))}\n")
            columns, rows = parts_of(task)
            if rows:
                parts.append(f"#### {literal_line(task.task)} by part\n\n{markdown_table(columns, rows)}")
            if task.failures:
                reference = literal_line(task.reference or "")
                parts.append(f"#### {literal_line(task.task)}: right in {reference}, wrong in a policy\n")
                for one in task.failures:
                    parts.append(_markdown_failure(task, one, pictures.get(picture_key(run, task, one), [])))
    return "\n".join(parts)


def _markdown_failure(task: TaskResult, one: Failure, pictures: Sequence[Picture]) -> str:
    question, doc_id = literal_line(one.question) or "(asked aloud)", literal_line(one.doc_id)
    lines = [f"- **{question}** ({doc_id}): {literal_line(' / '.join(one.target))}"]
    for name, answer in ((task.reference or "", one.reference_answer), *one.answers.items()):
        lines.append(f"  - {literal_line(name)}: {literal_line(answer) or '(nothing)'}")
    shown = [f"![{doc_id}]({picture.path})" for picture in pictures if picture.path and picture.is_image]
    return "\n".join([*lines, *(["", "  " + " ".join(shown)] if shown else []), ""])


# --------------------------------------------------------------------------------------------------------------------
# HTML


def html_page(report: EvaluationReport, pictures: dict[tuple[str, str, str], list[Picture]]) -> str:
    """One page with tables, figures and failures; pictures and recordings are in it."""
    from kvmm.analysis.report.files import Figure, Table, page
    from kvmm.eval.report.depth_plot import found_by_depth
    from kvmm.eval.report.plots import score_by_bits, score_differences

    tables, figures, failures = [], [], []
    for number, run in enumerate(report.runs):
        if len(run.tasks) > 1:
            text = f"{settings_of(run)}. {summary_legend(run)}"
            tables.append(Table(f"All tasks: {run.model}", text, *_tupled(summary_of(run))))
        for task in run.tasks:
            title, name = title_of(run, task), f"{number}-{task.task}"
            tables.append(Table(title, f"{settings_of(run)}. {legend(task)}", *_tupled(rows_of(task))))
            columns, rows = parts_of(task)
            if rows:
                tables.append(Table(f"{task.task} by part: {run.model}", "Points of 100.", columns, tuple(rows)))
            if any(one.bits_per_value and one.score is not None for one in task.policies):
                text = "Up and left is better. Bars: 95 % interval of the paired difference, around the score."
                figures.append(Figure(f"bits-{name}", f"Score against bits: {title}", text, score_by_bits(task)))
            if (heatmap := found_by_depth(task)) is not None:
                text = "Share of the needles that were found, by length and by depth; the number is the whole score."
                figures.append(Figure(f"depth-{name}", f"Needles found: {title}", text, heatmap))
            if any(one.difference is not None for one in task.policies):
                text = "Mean of the paired differences in points, with its 95 % interval; 0 is full precision."
                figures.append(Figure(f"difference-{name}", f"Difference: {title}", text, score_differences(task)))
            if task.failures:
                heading = f"{title}: right in {task.reference}, wrong in a policy"
                failures.append(f"<section><h2>{html.escape(heading)}</h2>")
                for one in task.failures:
                    thumbnails = pictures.get(picture_key(run, task, one), [])
                    failures.append(_html_failure(task, one, thumbnails))
                failures.append("</section>")
    text = page("Evaluation", figures, intro="Policies of the KV cache beside full precision.", tables=tables)
    return text.replace("</head>", f"{_STYLE}\n</head>", 1).replace(
        "\n</body>\n</html>\n", "\n" + "\n".join(failures) + "\n</body>\n</html>\n"
    )


def _tupled(
    table: tuple[tuple[str, ...], list[tuple[str, ...]]],
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    return table[0], tuple(table[1])


def _html_failure(task: TaskResult, one: Failure, pictures: Sequence[Picture]) -> str:
    shown = []
    for picture in pictures:
        if picture.is_image:
            shown.append(f'<img src="{picture.data_uri}" alt="page" loading="lazy">')
        else:
            shown.append(f'<audio controls preload="none" src="{picture.data_uri}"></audio>')
    items = [
        ("question", one.question or "(asked aloud)"),
        ("expected", " / ".join(one.target)),
        (task.reference or "", one.reference_answer),
        *((name, answer or "(nothing)") for name, answer in one.answers.items()),
    ]
    text = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in items)
    many = " many" if len(pictures) > 1 else ""
    return (
        f'<div class="failure" id="{html.escape(task.task)}-{html.escape(one.doc_id)}">'
        f'<div class="pages{many}">{"".join(shown)}</div><dl>{text}</dl></div>'
    )


__all__ = ["html_page", "markdown", "markdown_table", "rows_of", "summary_of", "summary_table", "table_of"]
