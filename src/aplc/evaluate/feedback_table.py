"""An evaluation on feedback as text for the terminal, and as a page."""

import datetime
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from aplc.evaluate.feedback import EDGES, FeedbackEvaluation, Tally
from aplc.evaluate.pictures import DARK, LIGHT, variables
from aplc.evaluate.report import escape, table
from aplc.evaluate.run import versions
from aplc.files import output_stream

HEAD = ("right", "wrong", "missing", "precision", "recall")
EXPLAINED = (
    "right: predicted, and accepted by the reviewer; wrong: predicted and rejected; missing: accepted or added, but "
    "not predicted; precision: right / (right + wrong); recall: right / (right + missing). Labels that nobody reviewed "
    "are not counted."
)


def tables_of(evaluation: FeedbackEvaluation) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(title, rows), each row a name and the cells of `HEAD`."""
    found = [("all", [("as proposed", cells(evaluation.proposed)), ("this model", cells(evaluation.now))])]
    if times := [(start, cells(tally)) for start, tally in evaluation.over_time.items()]:
        found.append(("as proposed, by date", times))
    bands = [
        (f"{name}, {when}", cells(tally))
        for name, pair in evaluation.by_band.items()
        for when, tally in zip(("as proposed", "this model"), pair, strict=True)
        if tally.right or tally.wrong or tally.missing
    ]
    found.append(("by frequency", bands))
    uppers = (*EDGES[1:], 1.0)
    found.append(
        (
            "as proposed, by probability",
            [
                (f"{low:.0%} to {high:.0%}", cells(tally, found=False))
                for low, high, tally in zip(EDGES, uppers, evaluation.by_probability, strict=True)
                if tally.right + tally.wrong
            ],
        )
    )
    labels = [(evaluation.shown(label), cells(then)) for label, then, _ in evaluation.most_wrong]
    found.append(("most corrected labels, as proposed", labels))
    return [(title, rows) for title, rows in found if rows]


def cells(tally: Tally, *, found: bool = True) -> list[str]:
    shares = [tally.accepted, tally.found if found else None]
    missing = f"{tally.missing:,}" if found else "-"
    return [f"{tally.right:,}", f"{tally.wrong:,}", missing, *("-" if x is None else f"{100 * x:.1f}" for x in shares)]


def summary(evaluation: FeedbackEvaluation) -> str:
    days, n = sorted(evaluation.by_day), evaluation.without_proposals
    when = f", {days[0]} to {days[-1]}" if days else ""
    unsaid = f"; {n:,} lines don't say what was proposed" if n else ""
    return (
        f"{evaluation.documents:,} reviewed documents, {evaluation.reviewed:,} reviewed labels{when}{unsaid}. "
        f"This model gives a label from a probability of {evaluation.threshold:g} on"
    )


def render(evaluation: FeedbackEvaluation) -> str:
    lines = [summary(evaluation)]
    for title, rows in tables_of(evaluation):
        width = max(40, *(min(len(name), 60) for name, _ in rows))
        lines += ["", f"{title:<{width}}" + "".join(f"{name:>10}" for name in HEAD)]
        lines += [f"{_short(name, width):<{width}}" + "".join(f"{cell:>10}" for cell in row) for name, row in rows]
    return "\n".join([*lines, "", EXPLAINED])


def write_report(path: Path, evaluation: FeedbackEvaluation, *, model: str, corpus: str) -> None:
    """The same as one self-contained page, without scripts."""
    page = resources.files("aplc.evaluate").joinpath("page.html").read_text("utf-8")
    head = string.Template(page.partition("<nav")[0]).substitute(
        title=escape(f"{model} on feedback {corpus}"),
        subtitle=escape(f"{summary(evaluation)}; {datetime.date.today().isoformat()}, aplc {versions()['aplc']}"),
        light=variables(LIGHT),
        dark=variables(DARK),
    )
    tables = "\n".join(_table(title, rows) for title, rows in tables_of(evaluation))
    with output_stream(path) as out:
        out.write(f"{head}<main>\n{tables}\n<p>{escape(EXPLAINED)}</p>\n</main>\n</body>\n</html>\n".encode())


def _table(title: str, rows: Sequence[tuple[str, list[str]]]) -> str:
    return table(title, ["", *HEAD], [[name, *row] for name, row in rows])


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 3]}..."
