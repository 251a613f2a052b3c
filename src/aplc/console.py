"""Messages and progress bars on standard error; bars only on a terminal.

`Screen(quiet=True)`, the Python API's default, prints nothing.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from aplc.machine import is_main_process

Advance = Callable[..., None]
"""`advance(n=1, note="")`: n more done, and what to show beside the bar."""


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {task.fields['unit']}/s")


class Screen:
    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet or not is_main_process()
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        if not self.quiet:
            self.console.print(message, markup=False)

    @contextlib.contextmanager
    def bar(self, what: str, total: int | None = None, *, unit: str = "docs", done: int = 0) -> Iterator[Advance]:
        """A progress bar with rate and time left; nothing at all where standard error is not a terminal."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
        )
        disable = self.quiet or not self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, disable=disable) as progress:
            task = progress.add_task(what, total=total, completed=done, unit=unit, note="")

            def advance(n: int = 1, note: str = "") -> None:
                progress.update(task, advance=n, note=note)

            yield advance
