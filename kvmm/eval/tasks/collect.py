"""From rows to a set of samples: ids, duplicates, the limit, and what was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvmm.errors import KVMMError
from kvmm.eval.tasks.base import Sample, SampleSet
from kvmm.eval.tasks.rows import BadItem, Row


def collect(
    name: str,
    source: str,
    rows: Iterable[Row | tuple[str, str]],
    doc_id: Callable[[Row], str],
    sample: Callable[[Row, str], Sample],
    limit: int | None = None,
) -> SampleSet:
    """Make a sample of each row until ``limit`` are there.

    Args:
        doc_id: the id of a row; may raise :class:`BadItem`.
        sample: the sample of a row and its id; raises :class:`BadItem` with the reason when the row cannot be used.

    Raises:
        KVMMError: not one item can be used, or the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise KVMMError(f"The limit is {limit}: ask for at least 1 sample.")
    samples: list[Sample] = []
    skipped: list[tuple[str, str]] = []
    seen: set[str] = set()
    for row in rows:
        if isinstance(row, tuple):
            skipped.append(row)
            continue
        key = f"item {row.number}"
        try:
            key = doc_id(row)
            if key in seen:
                raise BadItem(f"duplicate id: item {row.number}")
            samples.append(sample(row, key))
            seen.add(key)
        except BadItem as reason:
            skipped.append((key, str(reason)))
        except (TypeError, ValueError, AttributeError, KeyError) as error:  # a field of another type than the format's
            skipped.append((key, f"wrong field: {error}"))
        if limit is not None and len(samples) >= limit:
            break
    if not samples:
        reason = f"{len(skipped)} left out, the first: {skipped[0][1]}" if skipped else "it is empty"
        raise KVMMError(f"{source} holds no usable item for {name} ({reason}): check the file and its format.")
    return SampleSet(name, source, tuple(neighbours(samples)), tuple(skipped))


def neighbours(samples: Iterable[Sample]) -> list[Sample]:
    """The samples of a group brought together where its first one stands; the order is kept otherwise."""
    groups: dict[str, list[Sample]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(f"g{sample.group}" if sample.group is not None else f"i{index}", []).append(sample)
    return [sample for group in groups.values() for sample in group]
