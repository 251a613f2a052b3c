"""What several commands share: arguments, options, and how a corpus is opened."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aplc.config import preset_names

if TYPE_CHECKING:  # torch takes seconds to import; --help should not
    from aplc.data.columns import Columns
    from aplc.data.corpus import Corpus
    from aplc.data.formats import BadRows

CorpusArgument = Annotated[Path, typer.Argument(help="A folder with train, dev and test files, or one file.")]
ModelArgument = Annotated[Path, typer.Argument(help="A model folder.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write the changed model here, instead of in its own folder.")
]
PresetOption = Annotated[str, typer.Option(help=f"One of {', '.join(preset_names())}; or a TOML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.NAME=VALUE", help="Change a setting, e.g. train.seed=1. Can be given several times."
    ),
]
OnBadRow = Annotated[
    Literal["stop", "skip"],
    typer.Option(help="A row that can't be read: stop, or write it to a rejects file and go on."),
]


@contextlib.contextmanager
def open_corpus(
    path: Path, on_bad_row: Literal["stop", "skip"], rejects: Path, columns: "Columns"
) -> "Iterator[Corpus]":
    """The corpus; afterwards, a line on the rows that could not be read."""
    from aplc.data.corpus import Corpus
    from aplc.data.formats import BadRows

    bad_rows = BadRows(on_bad_row, rejects)
    yield Corpus.open(path, bad_rows, columns)
    say_rejects(bad_rows)


def say_rejects(bad_rows: "BadRows") -> None:
    if bad_rows.count:
        print(f"{bad_rows.count:,} rows could not be read: see {bad_rows.rejects}", file=sys.stderr)
