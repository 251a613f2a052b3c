"""What several commands share: arguments, options, and how a corpus is opened."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from aplc.config import preset_names
from aplc.errors import AplcError

if TYPE_CHECKING:  # torch takes seconds to import; --help should not
    from aplc.data.columns import Columns
    from aplc.data.corpus import Corpus
    from aplc.data.formats import BadRows

CorpusArgument = Annotated[Path, typer.Argument(help="A folder with train, dev and test files, or one file.")]
ModelArgument = Annotated[Path, typer.Argument(help="A model folder.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write the changed model here, instead of in its own folder.")
]
NetworkPresetOption = Annotated[str, typer.Option(help="A preset with a network, or a TOML file.")]
PresetOption = Annotated[
    str,
    typer.Option(
        help=f"One of {', '.join(['auto', *preset_names()])}; or a TOML file. auto: what is best on this machine."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.NAME=VALUE", help="Change a setting, e.g. train.seed=1. Can be given several times."
    ),
]
VocabularyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What labels are called, and labels that no document has: .jsonl, .json, .csv, .tsv, or SKOS as .ttl, "
        ".rdf, .nt; otherwise vocabulary.* in the corpus folder.",
    ),
]
LanguageOption = Annotated[
    str | None,
    typer.Option(metavar="TAG", help="The language of names in SKOS and in Annif's CSV: en, ..."),
]


def _use_device(context: typer.Context, name: str | None) -> None:
    """From here to the command's end, networks go to this device."""
    if name is not None or os.environ.get("APLC_DEVICE"):
        from aplc.nn.device import using_device

        context.with_resource(using_device(name))


DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        callback=_use_device,
        help="Where networks compute: cpu, cuda, cuda:1, ...; if not given, APLC_DEVICE, or a GPU if there is one.",
    ),
]
"""Commands need not look at it: parsing it is enough."""
OnBadRow = Annotated[
    Literal["stop", "skip"],
    typer.Option(help="A row that can't be read: stop, or write it to a rejects file and go on."),
]


def check_outputs(
    *others: Path | None,
    json_file: Path | None = None,
    models: Iterable[Path] = (),
    corpora: Iterable[Path] = (),
    inputs: Iterable[Path | None] = (),
    replaces: Path | None = None,
) -> TextIO:
    """Refuse outputs that would replace what the command reads; returns the stream for messages.

    Of a folder these are the names of a model's files or of a corpus' parts, whether they are there yet or not: a new
    calibration.json or test.json would be read the next time. `replaces` is an exception.
    """
    from aplc.data.corpus import PARTS
    from aplc.data.entry_files import SUFFIXES as VOCABULARIES
    from aplc.data.formats import SUFFIXES
    from aplc.files import STDOUT, messages
    from aplc.store.safety import MODEL_FILES, RUN_FILE

    reads = {path: "a file that this command reads" for path in (*models, *corpora, *inputs) if path}
    reads |= {
        folder / name: f"a file of the model {folder}"
        for folder in models
        for name in (*(file.name for file in MODEL_FILES), RUN_FILE)
    }
    reads |= {
        folder / f"{part}{suffix}": f"a part of the corpus {folder}"
        for folder in corpora
        for part in PARTS
        for suffix in SUFFIXES
    }
    reads |= {
        folder / f"vocabulary{suffix}": f"the vocabulary of the corpus {folder}"
        for folder in corpora
        for suffix in VOCABULARIES
    }
    if replaces:
        del reads[replaces]
    messages_to = messages(*others, json_file, reads=reads)
    if json_file and json_file != STDOUT and json_file.suffix.lower() != ".json":
        raise AplcError(f"--json {json_file}: give a name that ends in .json, or - for standard output")
    return messages_to


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
        from aplc.data.checks import count

        print(f"{count(bad_rows.count, 'row')} could not be read: see {bad_rows.rejects}", file=sys.stderr)
