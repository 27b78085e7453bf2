"""Progress of a command on stderr: a spinner or a bar with the elapsed time.

stdout stays clean, and nothing is shown where stderr is no terminal.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """A line that says which step runs, while the ``with`` block does or until :meth:`stop`.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        # stdout is not redirected: rich would write it to the console of the bar, which is stderr.
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=quiet or not console.is_terminal,
        )
        self._task = None
        self._line = ""

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def say(self, line: str, done: float = 0, total: float | None = None) -> None:
        """Show a step; ``done`` of ``total`` as a bar, or a moving one where nobody knows how long it takes.

        Integers are also written out; a share of 1.0 is not.
        """
        count = f"{done} of {total}" if isinstance(total, int) else ""
        if self._task is None:
            self._bar.start()
        if self._task is not None and line == self._line:
            self._bar.update(self._task, completed=done, total=total, count=count)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task, self._line = self._bar.add_task(line, completed=done, total=total, count=count), line

    def stop(self) -> None:
        """Take the line away: stdout may be the same terminal. ``say`` shows it again."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task, self._line = None, ""
            self._bar.stop()


__all__ = ["Steps"]
