"""Several runs side by side, each tested against the first on the same documents.

The paired bootstrap resamples documents, so a hard document is hard for both runs. It does not cover variation between
training seeds. With many runs or metrics, expect some small p-values by chance.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aplc.data.checks import count
from aplc.errors import AplcError
from aplc.evaluate.bootstrap import Difference, Interval, compare, intervals
from aplc.evaluate.saved import SavedEvaluation, load_evaluation
from aplc.store.safety import EVALUATION

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "R@5", "PSP@1", "PSP@3", "PSP@5", "PSnDCG@5", "micro-F1")
DRAWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "micro-F1")
LEVEL = 0.05
"""A p-value below it earns a star."""


@dataclass(frozen=True)
class Comparison:
    names: list[str]
    n_documents: int
    intervals: list[dict[str, Interval]]
    """Of each run."""
    differences: list[dict[str, Difference]]
    """Of each run but the first: the run minus the first."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.n_documents,
            "runs": [
                {"name": name, "metrics": {metric: asdict(interval) for metric, interval in run.items()}}
                for name, run in zip(self.names, self.intervals, strict=True)
            ],
            "against_first": [
                {"name": name, "metrics": {metric: asdict(difference) for metric, difference in run.items()}}
                for name, run in zip(self.names[1:], self.differences, strict=True)
            ],
        }

    def render(self) -> str:
        """Figures in percent, one column per run; then each run's difference from the first."""
        width = max(8, *(len(label) for label in self._labels())) + 2
        lines = [count(self.n_documents, "document"), ""]
        if self._labels() != self.names:
            lines += [*(f"{label}  {name}" for label, name in zip(self._labels(), self.names, strict=True)), ""]
        lines += [f"{'percent':<10}" + "".join(f"{label:>{width}}" for label in self._labels())]
        for metric in SHOWN:
            lines.append(f"{metric:<10}" + "".join(f"{100 * run[metric].value:>{width}.2f}" for run in self.intervals))
        for label, run in zip(self._labels()[1:], self.differences, strict=True):
            lines += ["", f"{label} minus {self._labels()[0]}", f"{'':<10}{'':>8}{'95 % interval':>18}{'p':>9}"]
            for metric in SHOWN:
                d = run[metric]
                bounds = f"{100 * d.low:+.2f} to {100 * d.high:+.2f}"
                star = " *" if d.p_value < LEVEL else ""
                lines.append(f"{metric:<10}{100 * d.difference:>+8.2f}{bounds:>18}{d.p_value:>9.3f}{star}")
        lines += [
            "",
            f"* p < {LEVEL:g} (paired bootstrap over documents; variation between training seeds is not included)",
        ]
        return "\n".join(lines)

    def draw(self, path: Path) -> None:
        """Left: each run with its interval. Right: differences from the first, with a line at 0."""
        from aplc.evaluate.pictures import LIGHT, LINES, MARKERS, SERIES, check_kind, figure, save_picture, style

        check_kind(path)
        rows = np.arange(len(DRAWN))[::-1]
        with style():
            made, (left, right) = figure(2, height=2.4 + 0.16 * len(DRAWN) * len(self.names) ** 0.5)
            offsets = np.linspace(0.25, -0.25, len(self.names))
            for i, run in enumerate(self.intervals):
                looks = {"color": SERIES[i % 4], "fmt": MARKERS[(i + i // 4) % 4], "label": self._labels()[i]}
                points = [run[metric] for metric in DRAWN]
                _bars(left, points, rows + offsets[i], looks)
                if i:
                    changes = [self.differences[i - 1][metric] for metric in DRAWN]
                    values = [Interval(d.difference, d.low, d.high) for d in changes]
                    _bars(right, values, rows + offsets[i], looks)
            right.axvline(0, color=LIGHT["muted"], linestyle=LINES[1], linewidth=1)
            for axes in (left, right):
                axes.set_yticks(rows, DRAWN)
                axes.grid(False, axis="y")
            left.set(xlabel="percent, with 95 % intervals")
            right.set(xlabel=f"percentage points above {self._labels()[0]}")
            made.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=4)
        save_picture(made, path)

    def _labels(self) -> list[str]:
        """Names for columns: the last part of each path, or "run 1", ... where these are long or not distinct."""
        names = [Path(name).stem if name.endswith(".json") else Path(name).name for name in self.names]
        unsuitable = len(set(names)) < len(names) or max(map(len, names)) > 16
        return [f"run {i + 1}" for i in range(len(names))] if unsuitable else names


def compare_runs(paths: list[Path]) -> Comparison:
    """Read saved evaluations and compare each with the first."""
    if len(paths) < 2:
        raise AplcError("compare needs two runs or more: files of aplc evaluate --json, or model folders that have one")
    runs = [load_evaluation(path) for path in paths]
    first = runs[0]
    for run in runs[1:]:
        _check_comparable(first, run)
    return Comparison(
        names=[str(run.path.parent if run.path.name == EVALUATION else run.path) for run in runs],
        n_documents=len(first.scores.n_true),
        intervals=[intervals(run.scores) for run in runs],
        differences=[compare(run.scores, first.scores) for run in runs[1:]],
    )


def _check_comparable(first: SavedEvaluation, run: SavedEvaluation) -> None:
    pair = f"{first.path} and {run.path}"
    if first.figures["fingerprint"] != run.figures["fingerprint"]:
        corpora = " and ".join(f"{x.figures.get('corpus')} ({x.figures.get('part')})" for x in (first, run))
        raise AplcError(
            f"{pair}: evaluated on different documents, {corpora}; evaluate both on the same corpus and part: "
            "aplc evaluate MODEL CORPUS --json EVALUATION"
        )
    if first.scores.names != run.scores.names:
        raise AplcError(f"{pair}: evaluated at lists of different lengths; evaluate both with the same --at")
    for name in ("propensity", "threshold"):
        if first.figures[name] != run.figures[name]:
            raise AplcError(
                f"{pair}: --{name} was {first.figures[name]} and {run.figures[name]}; evaluate both with the same"
            )


def _bars(axes: Any, points: list[Interval], rows: np.ndarray, looks: dict[str, Any]) -> None:
    value, low, high = (100 * np.array([getattr(p, name) for p in points]) for name in ("value", "low", "high"))
    axes.errorbar(value, rows, xerr=[np.maximum(value - low, 0), np.maximum(high - value, 0)], **looks)
