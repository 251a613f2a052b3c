"""Commands for people who review a model's labels: what to look at next, and how often the model was right."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from aplc.cli.columns import reads_columns
from aplc.cli.common import DeviceOption, ModelArgument, OnBadRow, check_outputs, open_corpus, say_rejects
from aplc.cli.help import say_next
from aplc.data.columns import Columns
from aplc.errors import AplcError

if TYPE_CHECKING:  # torch takes seconds to import; --help should not
    from aplc.data.corpus import Part


@reads_columns
def review(
    model: ModelArgument,
    input_: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="Documents as for predict; labels in it are not read; - for standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Queue to write, .jsonl, most useful documents first; - for stdout.")],
    top_k: Annotated[int, typer.Option(min=1, help="Labels proposed for a document.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many documents.")] = None,
    done: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FEEDBACK",
            help="Leave out documents that were reviewed in this file. Can be given several times.",
        ),
    ] = None,
    device: DeviceOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Queue documents for review in the order in which a person's time is worth most: where the model is least sure."""
    from aplc.console import Screen
    from aplc.data.checks import count
    from aplc.data.formats import BadRows, read_documents
    from aplc.files import STDOUT
    from aplc.models.base import say_how
    from aplc.predict.review import reviewed_keys, write_queue
    from aplc.store.folder import load_tagger

    if out != STDOUT and out.suffix.lower() != ".jsonl":
        raise AplcError(f"--out {out}: the queue is JSON Lines; give a name that ends in .jsonl, or - for stdout")
    messages_to = check_outputs(out, models=[model], inputs=[Path(input_), *(done or [])])
    bad_rows = BadRows(on_bad_row, Path("rejects.jsonl" if out == STDOUT else f"{out}.rejects.jsonl"))
    reviewed = {key for path in done or [] for key in reviewed_keys(read_documents(path, bad_rows))}
    trained, screen = load_tagger(model), Screen()
    say_how(trained.model.kind, screen)
    if trained.calibration is None:
        screen.say(f"{model}: not calibrated, so that its probabilities say less about how sure it is")
    with screen.bar("reading") as advance:
        documents = read_documents(input_, bad_rows, replace(columns, labels=None))
        queued = write_queue(trained, documents, out, top_k=top_k, limit=limit, done=reviewed, advance=advance)
    say_rejects(bad_rows)
    left_out = {"reviewed before": queued.done, "repeated": queued.repeated, "without text": queued.empty}
    note = "".join(f", {n:,} {what}" for what, n in left_out.items() if n)
    print(f"queued {count(queued.written, 'document')}{note}" + ("" if out == STDOUT else f": {out}"), file=messages_to)
    if out != STDOUT:
        say_next("serve", model, "--review", out, "--feedback", "feedback.jsonl")


def evaluate_feedback(
    model: Path,
    corpus: Path,
    part: "Part",
    report: Path | None,
    json_file: Path | None,
    threshold: float,
    on_bad_row: Literal["stop", "skip"],
    columns: Columns,
    messages_to: TextIO,
) -> None:
    """`aplc evaluate` on a file of feedback."""
    from aplc.console import Screen
    from aplc.evaluate.feedback import KEPT
    from aplc.evaluate.feedback import evaluate_feedback as evaluate_reviews
    from aplc.evaluate.feedback_table import render, write_report
    from aplc.files import output_json
    from aplc.models.base import say_how
    from aplc.store.folder import load_tagger
    from aplc.store.safety import EVALUATION

    if json_file and json_file.resolve() == (model / EVALUATION).resolve():
        raise AplcError(f"--json {json_file}: is for an evaluation on a corpus; give feedback's figures another name")
    keeping, trained, screen = replace(columns, keep=KEPT), load_tagger(model), Screen()
    say_how(trained.model.kind, screen)
    with (
        open_corpus(corpus, on_bad_row, Path("rejects.jsonl"), keeping) as opened,
        screen.bar("evaluating") as advance,
    ):
        found = evaluate_reviews(trained, opened, part, threshold=threshold, advance=advance)
    print(render(found), file=messages_to)
    if json_file:
        output_json(json_file, {"model": str(model), "corpus": str(corpus)} | found.to_dict())
    if report:
        write_report(report, found, model=str(model), corpus=str(corpus))
    say_next("train", "CORPUS", "--more", corpus, "--out", "newer")
