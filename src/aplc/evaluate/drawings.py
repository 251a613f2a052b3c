"""The pictures of an evaluation report, as inline SVG, and of a corpus' labels, as a file."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aplc.data.labels import LabelSet
from aplc.evaluate.bands import Band
from aplc.evaluate.metrics import Reliability
from aplc.evaluate.pictures import LIGHT, SERIES, draw_clusters, draw_zipf, figure, inline_svg, save_picture, style


def zipf_svg(counts: np.ndarray, cutoffs: Sequence[int]) -> str:
    """The paper's Figure 2 with the model's clusters."""
    with style():
        made, (axes,) = figure()
        draw_clusters(axes, counts, cutoffs)
        return inline_svg(made, "zipf")


def bands_svg(bands: Sequence[Band]) -> str:
    """Recall and precision of each band, as pairs of bars that differ in colour and hatching."""
    shown = [band for band in bands if band.labels]
    with style():
        made, (axes,) = figure()
        x = np.arange(len(shown))
        rows = [("recall", "", -0.2, SERIES[0]), ("precision", "///", 0.2, SERIES[1])]
        for name, hatch, shift, colour in rows:
            heights = [100 * getattr(band, name) for band in shown]
            axes.bar(x + shift, heights, 0.36, label=name, color=colour, hatch=hatch, edgecolor=LIGHT["paper"])
            for place, height in zip(x + shift, heights, strict=True):
                axes.annotate(f"{height:.0f}", (place, height), (0, 2), textcoords="offset points", ha="center")
        axes.set_xticks(x, [f"{band.name}\n{_bounds(band)}" for band in shown])
        k = shown[0].k if shown else 5
        axes.set(xlabel="training documents of a label", ylabel=f"percent at {k}", ylim=(0, 112))
        axes.grid(False, axis="x")
        axes.legend(loc="upper right", ncols=2)
        return inline_svg(made, "bands")


def examples_svg(bands: Sequence[Band]) -> str:
    """How many examples does a label need? Recall against training documents."""
    shown = [band for band in bands if band.true]
    with style():
        made, (axes,) = figure()
        x = np.arange(len(shown))
        axes.plot(x, [100 * band.recall for band in shown], "o-", color=SERIES[0], label="of all true pairs")
        mean = [100 * band.label_recall for band in shown]
        axes.plot(x, mean, "s--", color=SERIES[1], label="mean over labels")
        step = max(1, -(-len(shown) // 8))
        axes.set_xticks(x[::step], [band.name for band in shown[::step]], rotation=30, ha="right")
        k = shown[0].k if shown else 5
        axes.set(xlabel="training documents of a label", ylabel=f"recall at {k} (%)")
        axes.set_ylim(0, max(10, *axes.get_ylim()))
        axes.legend(loc="upper left")
        return inline_svg(made, "examples")


def reliability_svg(reliability: Reliability) -> str:
    """Predicted probability against the share that is true; the size of a point is the share of predictions."""
    full = reliability.pairs > 0
    share = reliability.pairs[full] / max(reliability.pairs.sum(), 1)
    with style():
        made, (axes,) = figure()
        axes.plot([0, 100], [0, 100], ":", color=LIGHT["muted"], label="perfectly calibrated")
        x, y = 100 * reliability.confidence[full], 100 * reliability.accuracy[full]
        axes.plot(x, y, "-", color=SERIES[0], linewidth=1)
        axes.scatter(x, y, s=12 + 300 * share, color=SERIES[0], alpha=0.8, label="the model")
        axes.set(xlabel="predicted probability (%)", ylabel="of these, true (%)", xlim=(-2, 102), ylim=(-2, 102))
        axes.legend(loc="upper left", markerscale=0.6)
        return inline_svg(made, "reliability")


def _bounds(band: Band) -> str:
    if band.name == "head":
        return f"{band.low:,}+"
    return f"{band.low:,}-{band.high:,}" if band.low < band.high else f"{band.low:,}"


def draw_labels(counter: Counter[str], path: Path) -> None:
    """The label distribution of a corpus as .svg or .png: the paper's Figure 2, and labels by number of documents."""
    counts = LabelSet.from_counter(counter).counts
    powers = np.arange(math.ceil(math.log2(counts[0])) + 1)
    highs = 2**powers
    lows = np.concatenate([[1], highs[:-1] + 1])
    sizes = [int(((counts >= low) & (counts <= high)).sum()) for low, high in zip(lows, highs, strict=True)]
    with style():
        made, (left, right) = figure(2)
        draw_zipf(left, counts)
        right.bar(powers, sizes, 0.85, color=SERIES[0], edgecolor=LIGHT["paper"])
        step = max(1, len(powers) // 6)
        names = [f"{a:,}-{b:,}" if a < b else f"{a:,}" for a, b in zip(lows, highs, strict=True)]
        right.set_xticks(powers[::step], names[::step], rotation=30, ha="right")
        right.set(xlabel="training documents of a label", ylabel="labels")
        right.grid(False, axis="x")
    save_picture(made, path)
