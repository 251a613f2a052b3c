"""Commands that use a trained model: evaluate, compare, predict, export, serve."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aplc.cli.columns import reads_columns
from aplc.cli.common import (
    CorpusArgument,
    DeviceOption,
    ModelArgument,
    OnBadRow,
    check_outputs,
    open_corpus,
    say_rejects,
)
from aplc.cli.help import say_next
from aplc.cli.reviews import evaluate_feedback
from aplc.cli.rules import (
    AllowOption,
    BelowOption,
    DenyOption,
    ExpectedF1Option,
    InputArgument,
    KeepOption,
    LabelsAsOption,
    NotSchemeOption,
    PrecisionOption,
    SchemeOption,
    TagsOption,
    ThresholdOption,
    TopKOption,
)
from aplc.data.columns import Columns
from aplc.errors import AplcError

if TYPE_CHECKING:  # torch takes seconds to import; --help should not
    from aplc.evaluate.run import Evaluation
    from aplc.models.trained import TrainedTagger
    from aplc.predict.decide import Rule


@reads_columns
def evaluate(
    model: ModelArgument,
    corpus: CorpusArgument,
    part: Annotated[Literal["test", "dev", "train"], typer.Option(help="Which part of the corpus.")] = "test",
    report: Annotated[
        Path | None, typer.Option(help="Also write a page of pictures and tables, .html; - for standard output.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the figures, for programs and aplc compare; - for standard output."),
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Show this many documents with their labels.")] = 0,
    propensity: Annotated[str, typer.Option(help="For PSP: default, wikipedia, amazon, or numbers A,B.")] = "default",
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="For F1: labels of at least this probability count as predicted.")
    ] = 0.5,
    at: Annotated[
        str, typer.Option(metavar="K,K,...", help="Lengths of lists to measure at; 1, 3 and 5 are always among them.")
    ] = "1,3,5",
    device: DeviceOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Score a model on a corpus' test part, beside always predicting the most frequent labels.

    On a file of feedback: how often reviewers accepted what was proposed, and what this model says of the same labels.
    """
    from aplc.console import Screen
    from aplc.data.corpus import Corpus
    from aplc.data.formats import BadRows
    from aplc.evaluate.options import parse_at, parse_propensity
    from aplc.evaluate.report import EXAMPLES
    from aplc.evaluate.run import evaluate as evaluate_run
    from aplc.evaluate.table import render
    from aplc.files import STDOUT
    from aplc.models.base import say_how
    from aplc.store.folder import load_tagger
    from aplc.store.safety import EVALUATION
    from aplc.train.run_folder import was_trained_on

    ab, ks, screen = parse_propensity(propensity), parse_at(at), Screen()
    if report and report != STDOUT and report.suffix.lower() not in (".html", ".htm"):
        raise AplcError(f"{report}: the report is a page for a browser; give it a name that ends in .html")
    messages_to = check_outputs(
        report, json_file=json_file, models=[model], corpora=[corpus], replaces=model / EVALUATION
    )
    if Corpus.open(corpus, BadRows("skip"), columns).is_feedback(part):
        evaluate_feedback(model, corpus, part, report, json_file, threshold, on_bad_row, columns, messages_to)
        return
    with open_corpus(corpus, on_bad_row, Path("rejects.jsonl"), columns) as opened, screen.bar("evaluating") as advance:
        documents = opened.documents(part)
        if opened.is_file and was_trained_on(model, opened):
            part = "train"
            screen.say(f"{corpus}: the model was trained on these documents, so the figures flatter it")
        drawn = max(examples, EXAMPLES if report else 0)
        trained = load_tagger(model)
        say_how(trained.model.kind, screen)
        evaluation = evaluate_run(
            trained, documents, n_examples=drawn, propensity=ab, threshold=threshold, at=ks, advance=advance
        )
    print(render(evaluation, n_examples=examples), file=messages_to)
    _write(evaluation, trained, json_file, report, model=str(model), corpus=str(corpus), part=part)
    say_next("predict", model, "FILE", "--out", "tags.jsonl")


def _write(
    evaluation: "Evaluation",
    trained: "TrainedTagger",
    json_file: Path | None,
    report: Path | None,
    *,
    model: str,
    corpus: str,
    part: str,
) -> None:
    """The figures and the page of an evaluation, where they are asked for."""
    from aplc.evaluate.report import write_report
    from aplc.evaluate.saved import save_evaluation
    from aplc.files import STDOUT
    from aplc.store.card import read_evaluation
    from aplc.store.folder import save_card
    from aplc.store.safety import EVALUATION

    if json_file:
        save_evaluation(json_file, evaluation, model=model, corpus=corpus, part=part)
        if json_file.resolve() == (Path(model) / EVALUATION).resolve():  # then the card shows it
            save_card(replace(trained, evaluation=read_evaluation(json_file)), Path(model))
    if report:
        write_report(report, evaluation, model=model, corpus=corpus, part=part)
        if report != STDOUT:
            print(f"report: {report}", file=sys.stderr)


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN ...", help="Files of aplc evaluate --json, or model folders.")
    ],
    picture: Annotated[Path | None, typer.Option(help="Also draw it, .svg or .png.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file; - for standard output.")
    ] = None,
) -> None:
    """Put runs side by side, and test each against the first on the same documents (paired bootstrap)."""
    from aplc.evaluate.comparison import compare_runs
    from aplc.files import output_json

    messages_to = check_outputs(picture, json_file=json_file, models=runs)
    comparison = compare_runs(runs)
    if picture:
        comparison.draw(picture)
    print(comparison.render(), file=messages_to)
    if json_file:
        output_json(json_file, comparison.to_dict())
    say_next("serve", "MODEL")


@reads_columns
def predict(
    model: ModelArgument,
    input_: InputArgument,
    out: TagsOption,
    top_k: TopKOption = None,
    threshold: ThresholdOption = None,
    precision: PrecisionOption = None,
    expected_f1: ExpectedF1Option = False,
    allow: AllowOption = None,
    deny: DenyOption = None,
    scheme: SchemeOption = None,
    not_scheme: NotSchemeOption = None,
    below: BelowOption = None,
    labels_as: LabelsAsOption = "label",
    keep: KeepOption = None,
    device: DeviceOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Tag documents: each output row has the labels and their probabilities, in the order of the input."""
    from aplc.console import Screen
    from aplc.data.checks import count
    from aplc.data.formats import BadRows, read_documents
    from aplc.files import STDOUT
    from aplc.models.base import say_how
    from aplc.predict.decide import Rule, read_names
    from aplc.predict.search import predict_file
    from aplc.predict.writers import check_kept
    from aplc.store.folder import load_tagger

    rule = Rule(
        top_k=top_k,
        threshold=threshold,
        precision=precision,
        expected_f1=expected_f1,
        allow=read_names(allow) if allow else None,
        deny=read_names(deny) if deny else (),
        scheme=scheme or (),
        not_scheme=not_scheme or (),
        below=below or (),
    )
    messages_to = check_outputs(out, models=[model], inputs=[Path(input_), allow, deny])
    bad_rows = BadRows(on_bad_row, Path("rejects.jsonl" if out == STDOUT else f"{out}.rejects.jsonl"))
    columns = replace(
        columns, labels=None, keep=("all",) if "all" in (keep or []) else tuple(dict.fromkeys(keep or []))
    )
    trained, screen = load_tagger(model), Screen()
    say_how(trained.model.kind, screen)
    _say_threshold(trained, rule)
    with screen.bar("tagging") as advance:
        documents = check_kept(input_, read_documents(input_, bad_rows, columns), columns.keep)
        n, n_abstained = predict_file(
            trained, documents, out, rule, advance, separator=columns.separator, labels_as=labels_as
        )
    say_rejects(bad_rows)
    abstained = f", {n_abstained:,} of them without a label that qualifies" if n_abstained else ""
    print(f"tagged {count(n, 'document')}{abstained}" + ("" if out == STDOUT else f": {out}"), file=messages_to)
    if out != STDOUT:
        say_next("serve", model)


def _say_threshold(trained: "TrainedTagger", rule: "Rule") -> None:
    """What `--precision` comes to."""
    from aplc.data.checks import count
    from aplc.predict.decide import Decision

    if rule.precision is None or not trained.calibration:
        return
    chosen = Decision.of(rule, trained.labels, trained.calibration, trained.vocabulary).threshold
    found, held_out = trained.calibration.recall_at(chosen), count(trained.calibration.n_documents, "held-out document")
    print(
        f"threshold {chosen:g}: on {held_out} {rule.precision:.0%} of the labels above it were right, and these were "
        f"{found:.1%} of all right labels",
        file=sys.stderr,
    )


@reads_columns
def export(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(help="Folder for the exported model; predict and serve read it like any other.")],
    int8: Annotated[bool, typer.Option("--int8", help="Store each weight in one byte.")] = False,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Compare both models on this corpus' test part; without it, on texts of random label names."),
    ] = None,
    *,
    columns: Columns,
) -> None:
    """Export a model to ONNX, and measure how far the result is from the original."""
    from aplc.console import Screen
    from aplc.predict.export import export as export_model

    parity = export_model(model, out, int8=int8, corpus=corpus, columns=columns, screen=Screen())
    print(parity.render())
    print(f"exported: {out}")
    say_next("serve", out)


def serve(
    model: ModelArgument,
    host: Annotated[
        str, typer.Option(help="Address to listen on. With 0.0.0.0 other machines reach it: set a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one, which is printed.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="APLC_TOKEN",
            help="Token that callers must send; better set in the environment, where other users can't see it.",
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes a request may have.")] = 2 << 20,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts a call may have.")] = 256,
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that may wait for the model.")] = 4096,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that answer requests; the limits hold for each of them.")
    ] = 1,
    worker_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without a sign of life after which a worker is replaced.")
    ] = 30,
    feedback: Annotated[
        Path | None,
        typer.Option(help="Take corrections, on the page and at /feedback, and append them to this file (.jsonl)."),
    ] = None,
    review: Annotated[
        Path | None,
        typer.Option(help="A queue of aplc review to go through on the page. Documents in --feedback count as done."),
    ] = None,
    max_feedback: Annotated[
        int, typer.Option(min=1, help="Corrections that all callers together may send in a minute.")
    ] = 600,
    device: DeviceOption = None,
) -> None:
    """Serve a model over HTTP, with a page to try it on at /, and its API described at /docs."""
    from aplc.console import Screen
    from aplc.serve.guard import Limits
    from aplc.serve.server import serve as serve_model
    from aplc.serve.settings import Settings

    limits = Limits(body=max_body, texts=max_texts, queue=max_queue, feedback=max_feedback)
    settings = Settings(
        model=model,
        token=token,
        limits=limits,
        feedback=feedback,
        review=review,
        worker_timeout=worker_timeout,
        device=device,
    )
    serve_model(settings, host=host, port=port, workers=workers, screen=Screen())
