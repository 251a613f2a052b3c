"""The `aplc` command: one short function per subcommand, over the same functions the Python API uses.

Results go to standard output, everything else to standard error. An error is one line and exit code 2.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aplc import __version__, cli_labels
from aplc.config import preset_names
from aplc.errors import AplcError
from aplc.files import n_processes

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

app.add_typer(cli_labels.app, name="labels")

CorpusArgument = Annotated[Path, typer.Argument(help="A folder with train, dev and test files, or one file.")]
ModelArgument = Annotated[Path, typer.Argument(help="A model folder.")]
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


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"aplc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


@app.command()
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
        return
    with screen.bar("fetching and reading citations", N_CITATIONS) as advance:
        counts = write_pubmed_mesh(out, abstracts_only=abstracts_only, advance=advance)
    print(f"{name}: {counts['train']:,} training and {counts['test']:,} test documents in {out}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder with the other project's files.")],
    from_: Annotated[
        Literal["attentionxml", "pecos", "aplc-xlnet", "xml-repository"],
        typer.Option("--from", help="Whose files they are."),
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


@app.command()
def inspect(
    corpus: CorpusArgument,
    picture: Annotated[Path | None, typer.Option(help="Also draw the label distribution, .svg or .png.")] = None,
    preset: Annotated[str, typer.Option(help="Say how much of the texts this preset would not read.")] = "tiny",
    max_length: Annotated[int | None, typer.Option(min=3, help="Tokens, instead of the preset's.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Model folder to count tokens with; without it, words are counted.")
    ] = None,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Show a corpus' statistics (the paper's Table 1), its label distribution (Figure 2), and what is wrong with it."""
    from aplc.config import WORDS, Config
    from aplc.console import Screen
    from aplc.data.tokenizer import Tokenizer
    from aplc.inspect import Length, inspect_corpus
    from aplc.pictures import check_kind

    if picture:
        check_kind(picture)
    config = Config.from_preset(preset)
    reads = None if config.model.encoder == WORDS else config.data.max_length
    length = Length(max_length or reads, Tokenizer.load(tokenizer) if tokenizer else None)
    with _corpus(corpus, on_bad_row, Path("rejects.jsonl")) as opened, Screen().bar("reading") as advance:
        inspection = inspect_corpus(opened, length, advance)
    if picture:
        inspection.draw(picture)
    print(inspection.render())


@app.command()
def plan(
    corpus: CorpusArgument,
    preset: PresetOption = "tiny",
    set_: SetOption = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
    memory: Annotated[
        float | None, typer.Option(min=0, help="GB to plan for; otherwise what this machine has.")
    ] = None,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Show what a training run will cost: clusters, parameters, memory and time per epoch."""
    from aplc.config import WORDS, Config
    from aplc.console import Screen
    from aplc.files import write_json

    config = Config.from_preset(preset).with_settings(set_ or [])
    with _corpus(corpus, on_bad_row, Path("rejects.jsonl")) as opened:
        from aplc.plan import plan as plan_network
        from aplc.plan_words import plan_words
        from aplc.train.prepare import Source

        limit = None if memory is None else memory * 1e9
        plan_run = plan_words if config.model.encoder == WORDS else plan_network
        planned = plan_run(Source.from_corpus(opened), config, memory=limit, screen=Screen())
    print(planned.render())
    if json_file:
        write_json(json_file, planned.to_dict())


@app.command()
def pretrain(
    corpus: Annotated[Path, typer.Argument(help="A corpus, a folder of text files, or one file. Never its test part.")],
    out: Annotated[Path, typer.Option(help="Folder for the encoder, its checkpoints and metrics.jsonl.")],
    preset: Annotated[str, typer.Option(help="A size: mini, small or base; or a TOML file.")] = "mini",
    set_: SetOption = None,
    encoder: Annotated[
        str | None, typer.Option(help="Go on from this XLNet, a folder or hub name; the same as --set model.encoder.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest good checkpoint in --out.")] = False,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Learn an encoder from plain text by permutation language modelling, for aplc train --set model.encoder=DIR."""
    from aplc.console import Screen
    from aplc.data.formats import BadRows
    from aplc.pretrain.config import PretrainConfig

    settings = [*(set_ or []), *([f"model.encoder={encoder}"] if encoder else [])]
    config = PretrainConfig.from_preset(preset).with_settings(settings)
    from aplc.pretrain.prepare import open_texts
    from aplc.pretrain.run import pretrain as pretrain_run

    bad_rows = BadRows(on_bad_row, out / "rejects.jsonl")
    pretrain_run(open_texts(corpus, bad_rows), config, out, resume=resume, screen=Screen())
    _say_rejects(bad_rows)
    print(f"encoder: {out}")


@app.command()
def train(
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option(help="Folder for the model, its checkpoints and metrics.jsonl.")],
    preset: PresetOption = "tiny",
    set_: SetOption = None,
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
    report: Annotated[Path | None, typer.Option(help="Also write a page of pictures and tables, .html.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here, for programs and aplc compare.")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Show so many documents with their labels.")] = 0,
    propensity: Annotated[str, typer.Option(help="For PSP: default, wikipedia, amazon, or numbers A,B.")] = "default",
    threshold: Annotated[float, typer.Option(min=0, max=1, help="For F1: labels at least so probable.")] = 0.5,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Score a model on a corpus' test part, beside always predicting the most frequent labels."""
    from aplc.card import read_evaluation
    from aplc.console import Screen
    from aplc.data.formats import read_documents
    from aplc.evaluate.report import EXAMPLES, write_report
    from aplc.evaluate.run import evaluate as evaluate_run
    from aplc.evaluate.run import parse_propensity
    from aplc.evaluate.saved import save_evaluation
    from aplc.evaluate.table import render
    from aplc.folder import EVALUATION
    from aplc.train.prepare import Source
    from aplc.train.run import was_trained_on

    ab = parse_propensity(propensity)
    if report and report.suffix.lower() not in (".html", ".htm"):
        raise AplcError(f"{report}: the report is a page for a browser; give it a name that ends in .html")
    for file in (report, json_file):
        if file and file.is_dir():
            raise AplcError(f"{file}: is a folder; give the name of a file")
    screen = Screen()
    with _corpus(corpus, on_bad_row, Path("rejects.jsonl")) as opened, screen.bar("evaluating") as advance:
        documents = read_documents(opened.file(part), opened.bad_rows)
        if opened.is_file and was_trained_on(model, Source.from_corpus(opened)):
            part = "train"
            screen.say(f"{corpus}: the model was trained on these documents, so the figures flatter it")
        drawn = max(examples, EXAMPLES if report else 0)
        folder = _load(model)
        evaluation = evaluate_run(
            folder, documents, n_examples=drawn, propensity=ab, threshold=threshold, advance=advance
        )
    about = {"model": str(model), "corpus": str(corpus), "part": part}
    print(render(evaluation, n_examples=examples))
    if json_file:
        save_evaluation(json_file, evaluation, **about)
        if json_file.resolve() == (model / EVALUATION).resolve():  # then the card shows it
            replace(folder, evaluation=read_evaluation(json_file)).save_card(model)
    if report:
        write_report(report, evaluation, **about)
        print(f"report: {report}", file=sys.stderr)


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN ...", help="Files of aplc evaluate --json, or model folders.")
    ],
    picture: Annotated[Path | None, typer.Option(help="Also draw it, .svg or .png.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Put runs side by side, and test each against the first on the same documents (paired bootstrap)."""
    from aplc.evaluate.comparison import compare_runs
    from aplc.files import write_json

    comparison = compare_runs(runs)
    if picture:
        comparison.draw(picture)
    print(comparison.render())
    if json_file:
        write_json(json_file, comparison.to_dict())


@app.command()
def ablate(
    study: Annotated[Literal["clusters", "partition"], typer.Argument(help="The paper's Figure 4, or 5.")],
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the figure.")],
    preset: PresetOption = "tiny",
    set_: SetOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Training runs of each setting.")] = 3,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Train with several numbers of clusters or several partitions; draw P@1 against them. Can be stopped and rerun."""
    from aplc.ablate import ablate as ablate_run
    from aplc.ablate import markdown
    from aplc.config import Config
    from aplc.console import Screen

    config = Config.from_preset(preset).with_settings(set_ or [])
    with _corpus(corpus, on_bad_row, out / "rejects.jsonl") as opened:
        rows = ablate_run(study, opened, config, out, seeds=seeds, screen=Screen())
    print(markdown(study, rows), end="")


@app.command()
def predict(
    model: ModelArgument,
    input_: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A .jsonl, .csv, .parquet or .txt file, without labels or with; - for JSON Lines on standard input.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="JSON Lines to write, a row a document. A file that is there is replaced.")],
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="At most so many labels a document: 5, or 100 with --threshold, --precision or --expected-f1.",
        ),
    ] = None,
    threshold: Annotated[float | None, typer.Option(min=0, max=1, help="Only labels at least so probable.")] = None,
    precision: Annotated[
        float | None, typer.Option(min=0, max=1, help="Only labels so sure that this share of them is right.")
    ] = None,
    expected_f1: Annotated[
        bool, typer.Option("--expected-f1", help="As many labels as promise the highest F1.")
    ] = False,
    allow: Annotated[Path | None, typer.Option(help="Only the labels in this file, one a line.")] = None,
    deny: Annotated[Path | None, typer.Option(help="None of the labels in this file, one a line.")] = None,
    on_bad_row: OnBadRow = "stop",
) -> None:
    """Tag documents: each output row has the labels and their probabilities, in the order of the input."""
    from aplc.console import Screen
    from aplc.data.formats import BadRows, read_documents
    from aplc.decide import Decision, Rule, read_names
    from aplc.predict import predict_file

    rule = Rule(
        top_k=top_k,
        threshold=threshold,
        precision=precision,
        expected_f1=expected_f1,
        allow=read_names(allow) if allow else None,
        deny=read_names(deny) if deny else (),
    )
    if out.resolve() == Path(input_).resolve():
        raise AplcError(f"{out}: is the input; give --out another name")
    bad_rows = BadRows(on_bad_row, Path(f"{out}.rejects.jsonl"))
    folder = _load(model)
    if precision is not None and folder.calibration:
        chosen = Decision.of(rule, folder.labels, folder.calibration).threshold
        found = folder.calibration.recall_at(chosen)
        print(
            f"threshold {chosen:g}: on held-out documents it finds {found:.1%} of the labels it knows", file=sys.stderr
        )
    with Screen().bar("tagging") as advance:
        n, n_abstained = predict_file(folder, read_documents(input_, bad_rows), out, rule, advance)
    _say_rejects(bad_rows)
    abstained = f", {n_abstained:,} of them without a label that qualifies" if n_abstained else ""
    print(f"tagged {n:,} documents{abstained}: {out}")


@app.command()
def export(
    model: ModelArgument,
    out: Annotated[
        Path, typer.Option(help="Folder for the exported model, which predict and serve take as any other.")
    ],
    int8: Annotated[bool, typer.Option("--int8", help="Store weights in a byte each.")] = False,
    corpus: Annotated[
        Path | None, typer.Option(help="Compare both models on its test part; without it, on random word pieces.")
    ] = None,
) -> None:
    """Export a model to ONNX, and measure how far the result is from the original."""
    from aplc.console import Screen
    from aplc.ship.export import export as export_model

    parity = export_model(model, out, int8=int8, corpus=corpus, screen=Screen())
    print(parity.render())
    print(f"exported: {out}")


@app.command()
def serve(
    model: ModelArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all, and then better with a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one, which is printed.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="APLC_TOKEN", help="Ask callers for it; better in the environment, where ps can't see it."),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 2 << 20,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a call.")] = 256,
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that may wait for the model.")] = 4096,
) -> None:
    """Serve a model over HTTP, with a page to try it on at /, and its API described at /docs."""
    from aplc.console import Screen
    from aplc.serve.guard import Limits
    from aplc.serve.server import serve as serve_model

    limits = Limits(body=max_body, texts=max_texts, queue=max_queue)
    serve_model(model, host=host, port=port, token=token, limits=limits, screen=Screen())


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
    from aplc.folder import ModelFolder

    return ModelFolder.load(path)


@contextlib.contextmanager
def _processes() -> Iterator[None]:
    """Under `torchrun` or `accelerate launch`: join the other processes; only the first one prints."""
    if n_processes() == 1:
        yield
        return
    from aplc.distributed import launched

    with launched() as world, contextlib.ExitStack() as stack:
        if not world.is_main:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        yield


def main() -> None:
    """Run the command line; every expected failure is one line on standard error and exit code 2."""
    try:
        with _processes():
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
        command = getattr(getattr(error, "ctx", None), "command_path", "aplc")
        message = f"{usage()} (see {command} --help)" if usage else str(error)
        is_help = type(error).__name__ == "NoArgsIsHelpError"  # `aplc` alone
        print(usage() if usage and is_help else f"aplc: {' '.join(message.split())}", file=sys.stderr)
        code = 2
    sys.exit(code)
