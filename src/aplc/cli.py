"""The `aplc` command: one short function per subcommand, over the same functions the Python API uses.

Results go to standard output, everything else to standard error. An error is one line and exit code 2.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aplc import __version__
from aplc.errors import AplcError

if TYPE_CHECKING:  # torch takes seconds to import; --help should not
    from aplc.data.corpus import Corpus
    from aplc.data.formats import BadRows
    from aplc.folder import ModelFolder

app = typer.Typer(
    name="aplc",
    help="Tag texts with the right few labels out of ten thousand to a million.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

CorpusArgument = Annotated[Path, typer.Argument(help="A folder with train, dev and test files, or one file.")]
ModelArgument = Annotated[Path, typer.Argument(help="A model folder.")]
OnBadRow = Annotated[
    Literal["stop", "skip"], typer.Option(help="A row that can't be read: stop, or write it to a rejects file and go on.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"aplc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command()
def data(
    name: Annotated[Literal["pubmed-mesh"], typer.Argument(help="Which corpus.")],
    out: Annotated[Path, typer.Option(help="Folder to write train.jsonl and test.jsonl to.")],
    abstracts_only: Annotated[bool, typer.Option(help="Leave out citations without an abstract.")] = False,
) -> None:
    """Fetch the demo corpus: PubMed citations indexed by hand with MeSH headings."""
    from aplc.console import Screen
    from aplc.data.samples import N_CITATIONS, write_pubmed_mesh

    screen = Screen()
    with screen.bar("fetching and reading citations", N_CITATIONS) as advance:
        counts = write_pubmed_mesh(out, abstracts_only=abstracts_only, advance=advance)
    print(f"{name}: {counts['train']:,} training and {counts['test']:,} test documents in {out}")


@app.command()
def inspect(corpus: CorpusArgument, on_bad_row: OnBadRow = "stop") -> None:
    """Show a corpus' statistics (the paper's Table 1) and its label distribution (Figure 2)."""
    from aplc.console import Screen
    from aplc.inspect import inspect_corpus

    with _corpus(corpus, on_bad_row, Path("rejects.jsonl")) as opened, Screen().bar("reading") as advance:
        inspection = inspect_corpus(opened, advance)
    print(inspection.render())


@app.command()
def train(
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option(help="Folder for the model, its checkpoints and metrics.jsonl.")],
    preset: Annotated[str, typer.Option(help="A preset's name, or a TOML file.")] = "tiny",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: section.name=value.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest good checkpoint in --out.")] = False,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Train a model on a corpus' train part."""
    from aplc.config import Config
    from aplc.console import Screen

    config = Config.from_preset(preset).with_settings(set_ or [])
    with _corpus(corpus, on_bad_row, out / "rejects.jsonl") as opened:
        from aplc.train.prepare import Source
        from aplc.train.run import train as train_run

        train_run(Source.from_corpus(opened), config, out, resume=resume, screen=Screen())
    print(f"model: {out}")


@app.command()
def evaluate(
    model: ModelArgument,
    corpus: CorpusArgument,
    part: Annotated[Literal["test", "dev", "train"], typer.Option(help="Which part of the corpus.")] = "test",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="Show so many documents with their labels.")] = 0,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Score a model on a corpus' test part, beside always predicting the most frequent labels."""
    from aplc.console import Screen
    from aplc.data.formats import read_documents
    from aplc.evaluate.run import evaluate as evaluate_run
    from aplc.files import write_json

    with _corpus(corpus, on_bad_row, Path("rejects.jsonl")) as opened, Screen().bar("evaluating") as advance:
        documents = read_documents(opened.file(part), opened.bad_rows)
        evaluation = evaluate_run(_load(model), documents, n_examples=examples, advance=advance)
    print(evaluation.render())
    if json_file:
        write_json(json_file, {"model": str(model), "corpus": str(corpus), "part": part} | evaluation.to_dict())


@app.command()
def predict(
    model: ModelArgument,
    input_: Annotated[str, typer.Argument(metavar="INPUT", help="A file of texts, or - for JSON Lines on standard input.")],
    out: Annotated[Path, typer.Option(help="JSON Lines to write, a row a document.")],
    top_k: Annotated[int, typer.Option(min=1, help="At most so many labels a document.")] = 5,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Leave out labels less probable than this.")] = 0.0,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Tag documents: each output row has the labels and their probabilities, in the order of the input."""
    from aplc.console import Screen
    from aplc.data.formats import BadRows, read_documents
    from aplc.predict import predict_file

    bad_rows = BadRows(on_bad_row, Path(f"{out}.rejects.jsonl"))
    folder = _load(model)
    with Screen().bar("tagging") as advance:
        n = predict_file(folder, read_documents(input_, bad_rows), out, top_k, threshold, advance)
    _say_rejects(bad_rows)
    print(f"tagged {n:,} documents: {out}")


@contextlib.contextmanager
def _corpus(path: Path, on_bad_row: Literal["stop", "skip"], rejects: Path) -> "Iterator[Corpus]":
    """The corpus; afterwards, a word on the rows that were set aside."""
    from aplc.data.corpus import Corpus
    from aplc.data.formats import BadRows

    bad_rows = BadRows(on_bad_row, rejects)
    yield Corpus.open(path, bad_rows)
    _say_rejects(bad_rows)


def _say_rejects(bad_rows: "BadRows") -> None:
    if bad_rows.count:
        print(f"{bad_rows.count:,} rows could not be read: see {bad_rows.rejects}", file=sys.stderr)


def _load(path: Path) -> "ModelFolder":
    from aplc.folder import ModelFolder, pick_device

    folder = ModelFolder.load(path)
    folder.model.to(pick_device())
    return folder


def main() -> None:
    """Run the command line; every expected failure is one line on standard error and exit code 2."""
    try:
        code = typer.main.get_command(app).main(prog_name="aplc", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        # typer brings its own copy of click, older ones share click's: both give usage errors a format_message.
        usage = getattr(error, "format_message", None)
        if usage is None and not isinstance(error, AplcError | OSError):
            raise
        message = f"{usage()} (see aplc --help)" if usage else str(error)
        print(f"aplc: {' '.join(message.split())}", file=sys.stderr)
        code = 2
    sys.exit(code)
