"""`aplc labels`: what a model's label set holds, and changes to it that need no new training."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aplc.cli.columns import reads_columns
from aplc.cli.common import DeviceOption, ModelArgument, OutOption
from aplc.cli.help import EXAMPLES, Command, say_next
from aplc.data.columns import Columns

if TYPE_CHECKING:
    from aplc.data.formats import Document
    from aplc.data.labels import LabelSet
    from aplc.models.trained import TrainedTagger

app = typer.Typer(
    help="List, add, rename, merge and retire a model's labels. Probabilities of all other labels stay the same.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list", cls=Command, epilog=EXAMPLES["list"])
def list_(
    model: ModelArgument,
    search: Annotated[
        str, typer.Option(help="Only labels that contain this, or whose name does, in upper or lower case.")
    ] = "",
    history: Annotated[bool, typer.Option("--history", help="Show the label set's changes instead.")] = False,
) -> None:
    """Print the labels, a line each: training documents, label, its name where the vocabulary has another one, and
    whether it was merged, renamed or retired."""
    from aplc.data.vocabulary import Vocabulary
    from aplc.store.folder import read_labels

    labels, vocabulary = read_labels(model), Vocabulary.load(model)
    print(f"label-set version {labels.version}: {labels.n_in_use:,} labels in use")
    if history:
        for entry in labels.history:
            names = ", ".join(entry.get("labels", []))
            to = f" to {entry['to']}" if "to" in entry else ""
            print(f"{entry.get('version')}\t{entry.get('date')}\t{entry.get('change')} {names}{to}")
        say_next("labels", "list", model)
        return
    for label, count in zip(labels.names, labels.counts.tolist(), strict=True):
        name = vocabulary.name_of(label) if vocabulary else label
        if search.casefold() in f"{label}\n{name}".casefold():
            state = "retired" if label in labels.retired else ""
            state = f"merged into {labels.aliases[label]}" if label in labels.aliases else state
            print("\t".join([str(count), label, *([name] if vocabulary else []), *([state] if state else [])]))
    for old, name in labels.aliases.items():
        if old not in labels.names and search and search.casefold() in old.casefold():
            print(f"-\t{old}\trenamed to {name}")
    say_next("labels", "rename", model, "OLD", "NEW")


@app.command(cls=Command, epilog=EXAMPLES["add"])
@reads_columns
def add(
    model: ModelArgument,
    examples: Annotated[
        Path | None,
        typer.Argument(help="A corpus with documents that carry the new labels, and others that don't."),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(help="File of new labels, one a line. By default all labels of EXAMPLES that are new."),
    ] = None,
    out: OutOption = None,
    device: DeviceOption = None,
    *,
    columns: Columns,
) -> None:
    """Add labels, learned from examples without training again; a label without an example starts from its name."""
    from aplc.console import Screen
    from aplc.data.by_name import ByName
    from aplc.data.checks import count
    from aplc.data.corpus import Corpus
    from aplc.errors import AplcError
    from aplc.models.base import say_how
    from aplc.predict.decide import read_names
    from aplc.train.relabel import add_labels

    if examples is None and names is None:
        raise AplcError("labels add: give a corpus with examples, or --names FILE")
    corpus = None if examples is None else Corpus.open(examples, columns=columns)

    with _open(model, out) as trained:
        known = trained.labels.index.keys() | trained.labels.retired
        by_name = ByName(trained.vocabulary, known) if trained.vocabulary else None

        def documents() -> "Iterable[Document]":
            found: Iterable[Document] = [] if corpus is None else corpus.documents("train")
            return map(by_name, found) if by_name else found

        screen = Screen()
        if names:
            new = read_names(names)
        else:
            carried = list(dict.fromkeys(name for document in documents() for name in document.labels))
            new = [name for name in carried if name not in known]
            if waiting := _waiting(trained.labels, carried, examples):
                if not new:
                    raise AplcError(f"labels: no new label to add; {waiting}")
                screen.say(waiting)
        say_how(trained.model.kind, screen)
        with screen.bar("encoding examples") as advance:
            changed = add_labels(trained, documents(), new, advance=advance, say=screen.say)
        lacking = int((changed.labels.counts[-len(new) :] == 0).sum())
        note = f", {lacking:,} of them from their names alone" if lacking else ""
        _save(model, trained, changed, out, f"added {count(len(new), 'label')}{note}")


@app.command(cls=Command, epilog=EXAMPLES["rename"])
def rename(
    model: ModelArgument,
    old: Annotated[str, typer.Argument(help="The label's name.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
    out: OutOption = None,
) -> None:
    """Give a label another name. The old name still works in corpora and lists."""
    from aplc.train.relabel import rename_label

    with _open(model, out) as trained:
        _save(model, trained, rename_label(trained, old, new), out, f"renamed {old} to {new}")


@app.command(cls=Command, epilog=EXAMPLES["merge"])
def merge(
    model: ModelArgument,
    names: Annotated[list[str], typer.Argument(help="Labels to merge; they are no longer predicted.")],
    into: Annotated[str, typer.Option(help="The label that stays; it gets the highest probability among them.")],
    out: OutOption = None,
) -> None:
    """Make labels part of another one. This can't be undone: keep the old model by giving --out."""
    from aplc.train.relabel import merge_labels

    with _open(model, out) as trained:
        _save(model, trained, merge_labels(trained, names, into), out, f"merged {', '.join(names)} into {into}")


@app.command(cls=Command, epilog=EXAMPLES["retire"])
def retire(
    model: ModelArgument,
    names: Annotated[list[str], typer.Argument(help="Labels that are never predicted again.")],
    out: OutOption = None,
) -> None:
    """Stop predicting labels. This can't be undone: keep the old model by giving --out."""
    from aplc.train.relabel import retire_labels

    with _open(model, out) as trained:
        _save(model, trained, retire_labels(trained, names), out, f"retired {', '.join(names)}")


def _waiting(labels: "LabelSet", carried: list[str], examples: Path | None) -> str:
    """A line on labels of the model that no document has taught it, and that examples don't teach here; or ""."""
    from aplc.data.checks import named, shorten

    waiting = [shorten(name) for name in carried if name in labels.index and labels.counts[labels.index[name]] == 0]
    if not waiting:
        return ""
    return (
        f"in the model already, without training documents: {named(waiting)}; their examples are not learned here, but "
        f"by training again: aplc train CORPUS --more {examples} --out newer"
    )


@contextlib.contextmanager
def _open(path: Path, out: Path | None) -> "Iterator[TrainedTagger]":
    """The tagger to change; one that is changed in its place is locked, against a run or another change."""
    from aplc.store.folder import load_tagger
    from aplc.train.lock import locked

    in_place = out is None and path.is_dir()
    with locked(path) if in_place else contextlib.nullcontext():
        yield load_tagger(path)


def _save(path: Path, before: "TrainedTagger", after: "TrainedTagger", out: Path | None, what: str) -> None:
    from aplc.store.folder import replace_folder

    replace_folder(path, before, after, out)
    print(f"{what}; label-set version {after.labels.version}, {after.labels.n_in_use:,} labels in use: {out or path}")
    say_next("labels", "list", out or path, "--history")
