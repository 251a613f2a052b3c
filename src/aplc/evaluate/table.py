"""An evaluation as text for the terminal."""

import textwrap
from collections.abc import Callable, Mapping, Sequence

from aplc.data.checks import count
from aplc.evaluate.bands import Band
from aplc.evaluate.findings import Example
from aplc.evaluate.hierarchy import Near
from aplc.evaluate.run import Evaluation

RANKING = ("P", "nDCG", "R", "RP", "PSP", "PSnDCG")
PARTS = ("P@1", "P@3", "P@5", "RP@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
"""What is shown of a model's parts."""


def render(evaluation: Evaluation, *, n_examples: int | None = None) -> str:
    """Figures in percent beside the baseline's, then results by band and cluster, then examples (all by default)."""
    lines = [f"{count(evaluation.metrics.n_evaluated, 'document')}, {count(evaluation.labels.n_in_use, 'label')}", ""]
    lines += _figures(evaluation)
    if evaluation.parts:
        lines += ["", *_parts(evaluation)]
    longer = evaluation.longer
    lines += ["", *_bands("band", evaluation.bands, {k: evaluation.bands_at(k) for k in longer})]
    if longer:
        more = {k: evaluation.by_examples_at(k) for k in longer}
        lines += ["", *_bands("documents a label", evaluation.by_examples, more)]
    if evaluation.clusters:
        lines += ["", *_bands("cluster", evaluation.clusters)]
    if evaluation.schemes:
        lines += ["", *_bands("scheme", evaluation.schemes)]
    if evaluation.near:
        lines += ["", *_near(evaluation.near)]
    if evaluation.notes:
        lines += ["", *evaluation.notes]
    return "\n".join(lines + _examples(evaluation.examples[:n_examples], evaluation.shown))


def _figures(evaluation: Evaluation) -> list[str]:
    metrics, intervals = evaluation.metrics, evaluation.intervals
    result, baseline, ks = metrics.result(), evaluation.baseline.result(), metrics.ks

    def cell(name: str) -> str:
        interval = intervals[name]
        half = max(interval.high - interval.value, interval.value - interval.low)
        return f"{100 * result[name]:8.2f} ±{100 * half:4.2f}"

    lines = [f"{'percent':<11}" + "".join(f"{f'@{k}':>8}      " for k in ks) + "   most frequent labels:"]
    for name in RANKING:
        ours = "".join(cell(f"{name}@{k}") for k in ks)
        lines.append(f"{name:<11}{ours}   " + "".join(f"{100 * baseline[f'{name}@{k}']:8.2f}" for k in ks))
    for name in ("coverage", "ECE"):
        ours = "".join(f"{100 * result[f'{name}@{k}']:8.2f}      " for k in ks)
        lines.append(f"{name:<11}{ours}   " + "".join(f"{100 * baseline[f'{name}@{k}']:8.2f}" for k in ks))
    if evaluation.before:
        before = "".join(f"{100 * evaluation.before[f'ECE@{k}']:8.2f}      " for k in ks)
        lines.append(f"{'  before':<11}{before}   (expected calibration error before calibration)")
    lines.append(f"{'micro-F1':<11}{cell('micro-F1')}   (labels with a probability of {metrics.threshold:g} or more)")
    lines.append(f"{'macro-F1':<11}{100 * result['macro-F1']:8.2f}")
    return [*lines, "± half of the 95 % interval (1,000 bootstrap resamples of the documents)"]


def part_rows(evaluation: Evaluation) -> list[tuple[str, dict[str, float]]]:
    """(name, metrics) of each part of the model alone, then of the whole."""
    rows = [(f"{name} alone", part.result()) for name, part in evaluation.parts.items()]
    return [*rows, ("both", evaluation.metrics.result())]


def _parts(evaluation: Evaluation) -> list[str]:
    lines = [f"{'percent':<15}" + "".join(f"{name:>9}" for name in PARTS)]
    for name, metrics in part_rows(evaluation):
        lines.append(f"{name:<15}" + "".join(f"{100 * metrics[shown]:>9.2f}" for shown in PARTS))
    best = evaluation.best_part
    gains = evaluation.gains[best]
    for word, bound in ((f"above {best}", "difference"), ("  from", "low"), ("  to", "high")):
        lines.append(f"{word:<15}" + "".join(f"{100 * getattr(gains[shown], bound):>+9.2f}" for shown in PARTS))
    return [*lines, "alone: before calibration; from, to: the 95 % interval of the difference (paired bootstrap)"]


def _bands(title: str, bands: Sequence[Band], longer: Mapping[int, Sequence[Band]] | None = None) -> list[str]:
    """Results by band; `longer` has the same bands for longer lists, of which recall is shown."""
    longer, width = longer or {}, max([18, *(min(len(band.name), 40) for band in bands)])
    more = "".join(f"{f'recall@{k}':>11}" for k in longer)
    lines = [
        f"{title:<{width}}  {'training docs':>13}{'labels':>10}{'true':>10}{'recall@5':>10}{'precision@5':>13}{more}"
    ]
    for band in bands:
        if band.labels:
            bounds = f"{band.low:,}-{band.high:,}" if band.low < band.high else f"{band.low:,}"
            others = (recalls(found).get(band.name, 0.0) for found in longer.values())
            lines.append(
                f"{band.name[:width]:<{width}}  {bounds:>13}{band.labels:>10,}{band.true:>10,}"
                f"{100 * band.recall:>10.2f}{100 * band.precision:>13.2f}"
                + "".join(f"{100 * recall:>11.2f}" for recall in others)
            )
    return lines


def recalls(bands: Sequence[Band]) -> dict[str, float]:
    """By name: labels that are only predicted may be in a band of longer lists, or of shorter ones, alone."""
    return {band.name: band.recall for band in bands}


def _near(near: Sequence[Near]) -> list[str]:
    """Predictions next to a true label, in percent of all predictions."""
    lines = [f"{'percent of predictions':<24}" + "".join(f"{f'@{n.k}':>8}" for n in near)]
    for name in ("broader", "narrower"):
        shares = (getattr(n, name) / max(n.predicted, 1) for n in near)
        lines.append(f"{f'{name} than a true one':<24}" + "".join(f"{100 * share:>8.2f}" for share in shares))
    lines.append(f"{'right or next to it':<24}" + "".join(f"{100 * n.share:>8.2f}" for n in near))
    return lines


def _examples(examples: Sequence[Example], shown_as: Callable[[str], str]) -> list[str]:
    lines: list[str] = []
    for example in examples:
        lines += ["", textwrap.shorten(example.text, 300, placeholder=" ..."), ""]
        true, shown = set(example.true), example.predicted[:5]
        lines += [f"  {p:6.1%}  {'*' if label in true else ' '} {shown_as(label)}" for label, p in shown]
        missed = [name for name in example.true if name not in {name for name, _ in shown}]
        if missed:
            lines.append(f"  {'also:':>6}    {'; '.join(map(shown_as, missed))}")
    if lines:
        lines += ["", "* a true label; also: true labels not among the first five"]
    return lines
