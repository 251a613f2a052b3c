"""Options for files with other column names than ours, the same on every command that reads documents.

    @reads_columns
    def inspect(corpus: CorpusArgument, *, columns: Columns) -> None: ...

gives `inspect` the options below and hands them over as one `Columns`. Typer reads a command's options from its
signature, so that is what the decorator changes.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from aplc.data.columns import ID, LABELS, TEXT, Columns

OPTIONS: dict[str, tuple[Any, Any]] = {
    "text_column": (
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Column or key with the text, if not 'text'. Several are joined by a space: give it several times.",
        ),
    ),
    "labels_column": (str | None, typer.Option(metavar="NAME", help="Column or key with the labels, if not 'labels'.")),
    "label_separator": (
        str | None,
        typer.Option(metavar="CHARACTERS", help="What separates labels in one string, if not ';', e.g. ',' or '|'."),
    ),
    "id_column": (str | None, typer.Option(metavar="NAME", help="Column or key with the document's id, if not 'id'.")),
}


def as_options(columns: Columns) -> list[str]:
    """What to type for these columns; nothing for those of our own names."""
    given = [("--text-column", name) for name in columns.text if columns.text != (TEXT,)]
    given += [("--labels-column", columns.labels)] if columns.labels not in (LABELS, None) else []
    given += [("--label-separator", columns.separator)] if columns.separator is not None else []
    given += [("--id-column", columns.id)] if columns.id != ID else []
    return [word for option in given for word in option]


def reads_columns(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the four options in place of its parameter `columns`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        text, labels, separator, identity = (given.pop(name) for name in OPTIONS)
        command(
            **given,
            columns=Columns(
                text=tuple(text or (TEXT,)),
                labels=LABELS if labels is None else labels,
                separator=None if separator is None else separator.replace("\\t", "\t"),
                id=ID if identity is None else identity,
            ),
        )

    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "columns"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[type_, option])
        for name, (type_, option) in OPTIONS.items()
    ]
    with_options.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
    return with_options
