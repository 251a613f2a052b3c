"""`aplc evaluate --report FILE.html`: an evaluation as one self-contained HTML page.

The template is `page.html`. The page has no script, and its content security policy forbids any: names and texts from
the corpus are escaped here, and could do no harm if they were not. Pictures are inline SVG in the page's colours.
"""

import datetime
import html
import string
import textwrap
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from aplc.evaluate import drawings
from aplc.evaluate.bands import Band, LabelScore
from aplc.evaluate.findings import Example
from aplc.evaluate.pictures import DARK, LIGHT, variables
from aplc.evaluate.run import AT, Evaluation, versions
from aplc.evaluate.table import PARTS, RANKING, part_rows, recalls
from aplc.files import output_stream

EXAMPLES = 12
"""Example documents on the page."""
CARDS = ("P@1", "P@3", "P@5", "nDCG@5", "R@5", "PSP@1", "PSP@5", "micro-F1")
TEXT = 500
"""Characters shown of a document."""


class Html(str):
    """Markup made here; any other string is text, and gets escaped."""


def write_report(path: Path, evaluation: Evaluation, *, model: str, corpus: str, part: str) -> None:
    """Write the page to `path`: all of it or nothing."""
    with output_stream(path) as out:
        out.write(render_report(evaluation, model=model, corpus=corpus, part=part).encode("utf-8"))


def render_report(evaluation: Evaluation, *, model: str, corpus: str, part: str) -> str:
    metrics, reliability = evaluation.metrics, evaluation.metrics.reliability(AT)
    template = string.Template(resources.files("aplc.evaluate").joinpath("page.html").read_text("utf-8"))
    best, worst = evaluation.best_and_worst
    fields = {
        "title": escape(f"{model} on {corpus}"),
        "subtitle": escape(
            f"{metrics.n_evaluated:,} documents of the {part} part, {evaluation.labels.n_in_use:,} labels, "
            f"evaluated {datetime.date.today().isoformat()} with aplc {versions()['aplc']}"
        ),
        "light": variables(LIGHT),
        "dark": variables(DARK),
        "cards": _cards(evaluation),
        "figures": _figures(evaluation),
        "figures_note": escape(_figures_note(evaluation)),
        "zipf": drawings.zipf_svg(_counts(evaluation), evaluation.cutoffs),
        "examples_picture": drawings.examples_svg(evaluation.by_examples),
        "bands_picture": drawings.bands_svg(evaluation.bands),
        "at": str(AT),
        "bands": _bands("By frequency band", evaluation.bands),
        "clusters": _bands("By cluster of the output layer", evaluation.clusters) if evaluation.clusters else "",
        "vocabulary": _vocabulary(evaluation),
        "reliability": drawings.reliability_svg(reliability),
        "trust": _trust(evaluation),
        "names_note": escape(_names_note(evaluation)),
        "best": _scores("Found best", best, evaluation),
        "worst": _scores("Found worst", worst, evaluation),
        "confusions_note": escape(_confusions_note(evaluation)),
        "confusions": _confusions(evaluation),
        "documents": "\n".join(_document(example, evaluation) for example in evaluation.examples[:EXAMPLES]),
        "candidates": _candidates(evaluation),
        "versions": _pairs(
            "Made with", [("model", model), ("corpus", corpus), ("part", part), *_provenance(evaluation)]
        ),
        "config": _config(evaluation),
    }
    return template.substitute(fields)


def _counts(evaluation: Evaluation) -> np.ndarray:
    """Falling counts; labels without documents have no place on logarithmic axes."""
    counts = np.sort(evaluation.labels.counts)[::-1]
    return counts[counts > 0]


def escape(value: object) -> str:
    return value if isinstance(value, Html) else html.escape(str(value))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, text: Sequence[int] = (0,)) -> Html:
    """Columns in `text` are left-aligned and may wrap. A table wider than the screen scrolls in its own box."""
    kinds = [' class="text"' if i in text else "" for i in range(len(head))]
    lines = ["<tr>" + "".join(f"<th{k}>{escape(h)}</th>" for k, h in zip(kinds, head, strict=True)) + "</tr>"]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td{k}>{escape(c)}</td>" for k, c in zip(kinds, row, strict=True)) + "</tr>")
    # Outside the box: it should wrap, not scroll.
    title = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    label = escape(caption or "table")
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>{"".join(lines)}</table></div>'
    return Html(f"<div>{title}{box}</div>")


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


def _cards(evaluation: Evaluation) -> str:
    baseline = evaluation.baseline.result()
    cards = []
    for name in CARDS:
        interval = evaluation.intervals[name]
        cards.append(
            f'<div class="card"><span>{name}</span><b>{percent(interval.value, 1)}</b>'
            f"<span>{percent(interval.low, 1)} to {percent(interval.high, 1)}</span>"
            f"<span>baseline {percent(baseline[name], 1)}</span></div>"
        )
    return "".join(cards)


def _figures(evaluation: Evaluation) -> Html:
    result, baseline = evaluation.metrics.result(), evaluation.baseline.result()
    ks = evaluation.metrics.ks

    def cell(name: str) -> str:
        if name not in evaluation.intervals:
            return percent(result[name])
        interval = evaluation.intervals[name]
        return Html(f"{percent(result[name])} <small>[{percent(interval.low, 1)}, {percent(interval.high, 1)}]</small>")

    names = (*RANKING, "coverage", "ECE")
    rows = [
        [name, *(cell(f"{name}@{k}") for k in ks), *(percent(baseline[f"{name}@{k}"]) for k in ks)] for name in names
    ]
    head = ["", *(f"@{k}" for k in ks), *(f"baseline @{k}" for k in ks)]
    figures = table("With 95 % intervals; the baseline always predicts the most frequent labels", head, rows)
    f1 = [[name, cell(name), percent(baseline[name])] for name in ("micro-F1", "macro-F1")]
    title = f"Labels with a probability of {evaluation.metrics.threshold:g} or more"
    return Html(figures + _parts(evaluation) + table(title, ["", "model", "baseline"], f1))


def _parts(evaluation: Evaluation) -> Html:
    if not evaluation.parts:
        return Html("")
    rows: list[list[str]] = []
    for name, metrics in part_rows(evaluation):
        rows.append([name, *(percent(metrics[shown]) for shown in PARTS)])
    best = evaluation.best_part
    gains = [evaluation.gains[best][shown] for shown in PARTS]
    rows.append([f"above {best}", *(f"{100 * g.difference:+.2f}" for g in gains)])
    rows.append(["95 % interval", *(f"{100 * g.low:+.2f} to {100 * g.high:+.2f}" for g in gains)])
    return table("The model's parts alone, before calibration, and both together", ["", *PARTS], rows)


def _figures_note(evaluation: Evaluation) -> str:
    a, b = evaluation.metrics.propensity
    note = f"Propensities with A = {a:g}, B = {b:g}. Intervals: 1,000 bootstrap resamples of the documents."
    return " ".join([note, *evaluation.notes])


def _bands(caption: str, bands: Sequence[Band]) -> Html:
    head = [
        "",
        "training documents",
        "labels",
        "true pairs",
        "recall",
        "precision",
        "F1",
        "labels found",
        "predictions",
        "truth",
    ]
    rows = [
        [
            band.name,
            f"{band.low:,} to {band.high:,}" if band.low < band.high else f"{band.low:,}",
            f"{band.labels:,}",
            f"{band.true:,}",
            *(percent(x) for x in (band.recall, band.precision, band.f1, band.coverage)),
            f"{percent(band.share, 1)} %",
            f"{percent(band.share_true, 1)} %",
        ]
        for band in bands
        if band.labels
    ]
    return table(f"{caption}, first {AT} predictions; the last two columns are shares of all", head, rows)


def _vocabulary(evaluation: Evaluation) -> Html:
    """Results at longer lists, by scheme, and predictions next to a true label."""
    found = []
    if evaluation.longer:
        longer = [recalls(evaluation.by_examples_at(k)) for k in evaluation.longer]
        rows = [
            [band.name, *(percent(share) for share in (band.recall, *(other.get(band.name, 0.0) for other in longer)))]
            for band in evaluation.by_examples
        ]
        head = ["training documents", f"recall@{AT}", *(f"recall@{k}" for k in evaluation.longer)]
        found.append(table("Recall by number of training documents, at longer lists", head, rows))
    if evaluation.schemes:
        found.append(_bands("By scheme of the vocabulary", evaluation.schemes))
    if evaluation.near:
        rows = [
            [f"first {n.k}", *(percent(x / max(n.predicted, 1)) for x in (n.hits, n.broader, n.narrower, n.near))]
            for n in evaluation.near
        ]
        head = ["", "right", "broader than a true one", "narrower", "right or next to it"]
        caption = "Predictions next to a true label in the hierarchy, in percent of all predictions"
        found.append(table(caption, head, rows))
    return Html("".join(found))


def _trust(evaluation: Evaluation) -> Html:
    caption, head = "Mean gap between probability and share that is true (expected calibration error)", ["", "gap"]
    result, before = evaluation.metrics.result(), evaluation.before
    rows = [[f"first {k}" if k > 1 else "first", f"{percent(result[f'ECE@{k}'])} %"] for k in evaluation.metrics.ks]
    if before:
        head = ["", "gap", "before calibration"]
        rows = [[*row, f"{percent(before[f'ECE@{k}'])} %"] for row, k in zip(rows, evaluation.metrics.ks, strict=True)]
    return table(caption, head, rows)


def _names_note(evaluation: Evaluation) -> str:
    return (
        f"By F1 of predictions with a probability of {evaluation.metrics.threshold:g} or more, among labels that at "
        "least five documents of this part have (one, where there are few such labels). With few documents, chance "
        "plays a part."
    )


def _scores(caption: str, scores: Sequence[LabelScore], evaluation: Evaluation) -> Html:
    rows = [
        [
            evaluation.shown(s.name),
            f"{s.train:,}",
            f"{s.true:,}",
            *(percent(x, 0) for x in (s.precision, s.recall, s.f1)),
        ]
        for s in scores
    ]
    return table(caption, ["label", "training", "true", "precision", "recall", "F1"], rows)


def _confusions_note(evaluation: Evaluation) -> str:
    note = (
        "The left label was missed where the right one was predicted wrongly, in lists as long as the document's own. "
        "Sorted by how much more often that happened than by chance."
    )
    return note if evaluation.findings.pairs.exact else f"{note} Counts of rare pairs may be too low."


def _confusions(evaluation: Evaluation) -> Html:
    rows = [
        (evaluation.shown(c.missed), evaluation.shown(c.predicted), f"{c.documents:,}", f"{c.expected:,.1f}")
        for c in evaluation.findings.confusions()
    ]
    if not rows:
        return Html("<p>No pair of labels was confused more often than by chance.</p>")
    return table("", ["missed", "predicted instead", "documents", "by chance"], rows, text=(0, 1))


def _document(example: Example, evaluation: Evaluation) -> str:
    true = set(example.true)
    tags = []
    for name, probability in example.predicted:
        kind, mark, words = ("true", "✓", "right") if name in true else ("wrong", "✗", "wrong")
        tags.append(
            f'<li><span class="p">{probability:.0%}</span>'
            f'<span class="bar"><i style="width:{probability:.0%}"></i></span>'
            f'<span><span class="{kind}" role="img" aria-label="{words}">{mark}</span> '
            f"{escape(evaluation.shown(name))}</span></li>"
        )
    missed = [name for name in example.true if name not in {name for name, _ in example.predicted}]
    also = (
        f'<p class="muted">Its other labels: {escape("; ".join(map(evaluation.shown, missed)))}</p>' if missed else ""
    )
    return (
        f'<article><p><span class="muted">{escape(example.name)}</span> {escape(_short(example.text))}</p>'
        f'<ul class="tags">{"".join(tags)}</ul>{also}</article>'
    )


def _candidates(evaluation: Evaluation) -> Html:
    rows = [
        (
            f"{c.probability:.1%}",
            evaluation.shown(c.label),
            _short(c.text, 200),
            "; ".join(map(evaluation.shown, c.true)) or "none",
            c.name,
        )
        for c in evaluation.findings.candidates
    ]
    if not rows:
        return Html(f"<p>No absent label has a probability of {evaluation.metrics.threshold:g} or more.</p>")
    return table("", ["probability", "absent label", "document", "its labels", "name"], rows, text=(1, 2, 3, 4))


def _provenance(evaluation: Evaluation) -> list[tuple[str, object]]:
    return [("documents' fingerprint", evaluation.fingerprint), *versions().items()]


def _config(evaluation: Evaluation) -> Html:
    rows = [
        (f"{section}.{name}", value if not isinstance(value, list | tuple) else ", ".join(f"{v:g}" for v in value))
        for section, values in evaluation.config.items()
        for name, value in values.items()
    ]
    return _pairs("Settings of the training run", rows)


def _pairs(caption: str, rows: Iterable[tuple[str, object]]) -> Html:
    return table(caption, ["", ""], rows, text=(0, 1))


def _short(text: str, width: int = TEXT) -> str:
    # shorten works on words, and would leave nothing of a text without spaces
    return textwrap.shorten(text, width, placeholder=" …") if " " in text[:width] else text[:width]
