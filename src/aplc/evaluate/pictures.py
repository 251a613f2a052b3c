"""Drawing with matplotlib in one style, readable in light and dark mode and by the colour-blind.

Colours are Okabe and Ito's, and series differ in marker and line as well. The colours of an SVG are CSS variables:
inside a page the page defines them, a file of its own defines them for light and dark mode. A PNG is light. Text in an
SVG stays text, and the same data gives the same bytes.
"""

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from aplc.errors import AplcError
from aplc.files import output_stream

LIGHT = {
    "ink": "#1c2128",
    "muted": "#57606b",
    "grid": "#d9dee5",
    "paper": "#fffffe",
    "series-1": "#0072b2",
    "series-2": "#d55e00",
    "series-3": "#009e73",
    "series-4": "#cc79a7",
}
DARK = {
    "ink": "#e4e8ee",
    "muted": "#a3adb9",
    "grid": "#3a424d",
    "paper": "#161a20",
    "series-1": "#56b4e9",
    "series-2": "#e69f00",
    "series-3": "#2fc79a",
    "series-4": "#e3a2c7",
}
SERIES = [LIGHT[f"series-{i}"] for i in range(1, 5)]
MARKERS, LINES = "osD^", ["-", "--", "-.", ":"]
SUFFIXES = (".svg", ".png")

_STYLE: Any = {
    "svg.fonttype": "none",  # text as text: small, selectable, in the page's font
    "svg.hashsalt": "aplc",
    "text.parse_math": False,  # a $ in a name is not TeX
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "errorbar.capsize": 3,
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": "none",
    "grid.color": LIGHT["grid"],
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["ink"],
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
}


def style() -> AbstractContextManager[None]:
    """Draw inside `with style():`."""
    return mpl.rc_context(_STYLE)


def figure(panels: int = 1, *, height: float = 3.1, width: float = 4.7) -> tuple[Figure, list[Axes]]:
    """Panels side by side. Narrow, so that text is still readable on a phone."""
    made = Figure(figsize=(width * panels, height), layout="constrained")
    return made, [made.add_subplot(1, panels, i + 1) for i in range(panels)]


def variables(colours: dict[str, str]) -> str:
    """CSS declarations of the colours."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def inline_svg(made: Figure, name: str) -> str:
    """SVG for a page that defines the colour variables. `name` keeps the ids of several pictures apart."""
    buffer = io.StringIO()
    with style():
        made.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, value in LIGHT.items():
        svg = svg.replace(value, f"var(--{colour})")
    return svg.strip()


def save_picture(made: Figure, path: Path) -> None:
    """Write .svg or .png, by the name of the file."""
    check_kind(path)
    if path.suffix.lower() == ".png":
        with style(), output_stream(path) as out:
            made.savefig(out, format="png", dpi=160, metadata={"Software": None})
        return
    width, height = made.get_size_inches() * 96
    css = f":root {{ {variables(LIGHT)} }} @media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
    svg = inline_svg(made, "picture")
    opened = re.sub(r"^<svg", f'<svg width="{width:.0f}" height="{height:.0f}"', svg)
    text = re.sub(r"(<svg[^>]*>)", rf"\1<style>{css}</style>", opened, count=1)
    with output_stream(path) as out:
        out.write(text.encode("utf-8") + b"\n")


def check_kind(path: Path) -> None:
    """Call it before the work that leads to the picture."""
    if path.suffix.lower() not in SUFFIXES:
        raise AplcError(f"{path}: a picture's name must end in {' or '.join(SUFFIXES)}")


def thin(n: int, most: int = 400) -> np.ndarray:
    """Up to `most` of the indices 0..n-1, half of them evenly spaced on a log scale: enough for a million labels."""
    dense, even = np.geomspace(1, max(n, 1), most // 2), np.linspace(1, max(n, 1), most // 2)
    return np.unique(np.concatenate([dense, even]).round().astype(np.int64)) - 1


def plain_ticks(axis: Axis) -> None:
    """1,000 instead of 10^3."""
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_zipf(axes: Axes, counts: np.ndarray) -> None:
    """The paper's Figure 2: documents of each label, most frequent first, on logarithmic axes."""
    places = thin(len(counts))
    axes.plot(places + 1, counts[places], color=SERIES[0])
    axes.set(xscale="log", yscale="log", xlabel="label, by falling frequency", ylabel="training documents")
    axes.set_xlim(0.9, max(len(counts), 2) * 1.1)
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)


def draw_clusters(axes: Axes, counts: np.ndarray, cutoffs: Sequence[int]) -> None:
    """Figure 2 with the clusters: labels on a linear axis, so that a cluster's width is its number of labels."""
    places = thin(len(counts))
    axes.plot(places + 1, counts[places], color=SERIES[0], zorder=3)
    axes.set(yscale="log", xlabel="label, by falling frequency", ylabel="training documents")
    axes.set_xlim(0, len(counts) + 1)
    axes.set_ylim(0.8, counts[0] * 3)  # room for the names of the clusters
    plain_ticks(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    for i, (start, end) in enumerate(pairwise([0, *cutoffs, len(counts)])):
        axes.axvspan(start + 0.5, end + 0.5, color=SERIES[1], alpha=0.06 + 0.08 * (i % 2), linewidth=0)
        if i:
            axes.axvline(start + 0.5, color=SERIES[1], linestyle="--", linewidth=1.2)
        name = f"tail {i}" if i else "head"
        if end - start > 0.12 * len(counts):
            place = ((start + end) / 2, counts[0] * 2.4)
            axes.annotate(f"{name}\n{end - start:,}", place, ha="center", va="top", fontsize=9)


def draw_points(
    axes: Axes, names: Sequence[str], means: Sequence[float], spreads: Sequence[float], every: Sequence[Sequence[float]]
) -> None:
    """One column per setting: each seed's value as a small dot, mean and spread over seeds as a point with bars."""
    x = np.arange(len(names))
    for place, values in zip(x, every, strict=True):
        axes.scatter([place] * len(values), values, s=12, color=LIGHT["muted"], alpha=0.7, zorder=2)
    axes.errorbar(x + 0.12, means, yerr=spreads, fmt="o", color=SERIES[0], zorder=3)
    axes.set_xticks(x, names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(False, axis="x")
