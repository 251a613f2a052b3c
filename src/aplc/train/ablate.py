"""The paper's two ablations on any corpus: P@1 against the number of clusters, and against their proportions.

Each setting is trained with several seeds (a cell each) and scored on the test part; the best epoch of a cell is chosen
on held-out training data, as `aplc train` does. A cell is a model folder with its `evaluation.json`: finished ones are
not run again, a half-trained one goes on from its checkpoint. Figure, table and JSON are written after every cell, so a
study that is stopped leaves what it has.
"""

import csv
import io
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.errors import CorpusError, RunError
from aplc.evaluate.run import evaluate
from aplc.evaluate.saved import load_evaluation, save_evaluation
from aplc.files import atomic_write, write_json
from aplc.models.base import require
from aplc.store.safety import EVALUATION
from aplc.train.checkpoint import FOLDER as CHECKPOINTS
from aplc.train.run import train

Study = Literal["clusters", "partition"]

CLUSTERS = (1, 2, 3, 4, 5, 6)
"""Figure 4 has 2 to 6 clusters of equal size; 1 is the flat layer, for reference."""
PARTITIONS = ((0.7, 0.2, 0.1), (0.33, 0.33, 0.34), (0.1, 0.2, 0.7))
"""Figure 5."""
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "micro-F1")
AXES = {"clusters": "number of clusters", "partition": "share of the labels in head, tail 1, tail 2"}


@dataclass(frozen=True)
class Cell:
    """One training run of a study."""

    setting: str
    """As the figure names it: "3", or "0.7, 0.2, 0.1"."""
    proportions: tuple[float, ...]
    seed: int
    folder: Path


@dataclass(frozen=True)
class Row:
    """A setting with its scores in percent, a list of one a seed for each metric."""

    setting: str
    scores: dict[str, list[float]]

    def mean(self, metric: str) -> float:
        return fmean(self.scores[metric])

    def spread(self, metric: str) -> float:
        """Standard deviation over seeds; 0 with one seed, of which nothing is known."""
        values = self.scores[metric]
        return stdev(values) if len(values) > 1 else 0.0


def cells(study: Study, out: Path, seeds: int) -> list[Cell]:
    """Seed by seed, so that a study that is stopped has every setting as often as can be."""
    settings: list[tuple[str, str, tuple[float, ...]]]
    if study == "clusters":
        settings = [(f"{n}", f"clusters-{n}", (1 / n,) * n) for n in CLUSTERS]
    else:
        settings = [
            (", ".join(f"{p:g}" for p in shares), f"partition-{'-'.join(f'{p:g}' for p in shares)}", shares)
            for shares in PARTITIONS
        ]
    return [
        Cell(setting, proportions, seed, out / name / f"seed-{seed}")
        for seed in range(seeds)
        for setting, name, proportions in settings
    ]


def ablate(study: Study, corpus: Corpus, config: Config, out: Path, *, seeds: int, screen: Screen) -> list[Row]:
    """Run or finish the study in `out`; returns its rows."""
    if corpus.is_file:
        raise CorpusError(
            f"{corpus.path}: a single file has no test part; make a folder with train.jsonl and test.jsonl"
        )
    require(config.model.kind, "clusters")
    corpus.file("test")  # before an hour of training, not after it
    plan = cells(study, out, seeds)
    done: list[tuple[Cell, dict[str, float]]] = []
    with screen.bar("training", len(plan), unit="runs") as advance:
        for i, cell in enumerate(plan, start=1):
            began = time.monotonic()
            scores, fresh = run_cell(cell, corpus, config)
            done.append((cell, scores))
            took = f"{time.monotonic() - began:.0f} s" if fresh else "done before"
            found = f"{study} {cell.setting}, seed {cell.seed}: P@1 {100 * scores['P@1']:.2f}"
            screen.say(f"{i}/{len(plan)}  {found} ({took})")
            if fresh or i == len(plan):
                write_study(study, out, rows_of(done), config)
            advance()
    return rows_of(done)


def run_cell(cell: Cell, corpus: Corpus, config: Config) -> tuple[dict[str, float], bool]:
    """The cell's metrics, and whether it had to be run."""
    tree = config.to_dict()
    tree["clusters"] |= {"proportions": cell.proportions, "cutoffs": "proportions"}
    tree["train"]["seed"] = config.train.seed + cell.seed
    cell_config = Config.from_dict(tree)
    source = Source.from_corpus(corpus)
    identity = {"config": cell_config.to_dict(), "train": source.key, "test": corpus.fingerprint("test")}
    finished = cell.folder / "cell.json"
    if finished.is_file():
        before = json.loads(finished.read_text("utf-8"))
        if before != json.loads(json.dumps(identity)):
            raise RunError(f"{cell.folder}: was run with other settings or another corpus; use another --out")
        return load_evaluation(cell.folder).metrics, False
    trained = train(source, cell_config, cell.folder, resume=True, screen=Screen(quiet=True))
    evaluation = evaluate(trained, corpus.documents("test"))
    about = {"model": str(cell.folder), "corpus": str(corpus.path), "part": "test"}
    save_evaluation(cell.folder / EVALUATION, evaluation, **about)
    write_json(finished, identity)
    shutil.rmtree(cell.folder / CHECKPOINTS, ignore_errors=True)  # thrice the model's size, and never needed again
    return evaluation.metrics.result(), True


def rows_of(done: Sequence[tuple[Cell, dict[str, float]]]) -> list[Row]:
    rows: dict[str, Row] = {}
    for cell, scores in done:
        row = rows.setdefault(cell.setting, Row(cell.setting, {name: [] for name in SHOWN}))
        for name in SHOWN:
            row.scores[name].append(100 * scores[name])
    return list(rows.values())


def write_study(study: Study, out: Path, rows: list[Row], config: Config) -> None:
    """clusters.csv, .json, .md, .svg and .png, or the same for partition."""
    write_json(
        out / f"{study}.json",
        {"study": study, "config": config.to_dict(), "rows": [_as_dict(row) for row in rows]},
    )
    with atomic_write(out / f"{study}.csv") as stream:
        stream.write(_csv(rows).encode("utf-8"))
    with atomic_write(out / f"{study}.md") as stream:
        stream.write(markdown(study, rows).encode("utf-8"))
    _draw(study, out, rows)


def markdown(study: Study, rows: list[Row]) -> str:
    """A table of mean and spread over seeds, in percent."""
    lines = [f"| {AXES[study]} | seeds | {' | '.join(SHOWN)} |", "| --- " * (2 + len(SHOWN)) + "|"]
    for row in rows:
        seeds = len(row.scores[SHOWN[0]])
        figures = [f"{row.mean(name):.2f}" + (f" ± {row.spread(name):.2f}" if seeds > 1 else "") for name in SHOWN]
        lines.append(f"| {row.setting} | {seeds} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def _as_dict(row: Row) -> dict[str, Any]:
    summary = {name: {"mean": row.mean(name), "spread": row.spread(name)} for name in SHOWN}
    return {"setting": row.setting, "percent": summary, "seeds": row.scores}


def _csv(rows: list[Row]) -> str:
    """A line a cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["setting", "seed", *SHOWN])
    for row in rows:
        for seed, values in enumerate(zip(*(row.scores[name] for name in SHOWN), strict=True)):
            writer.writerow([row.setting, seed, *(f"{value:.4f}" for value in values)])
    return stream.getvalue()


def _draw(study: Study, out: Path, rows: list[Row]) -> None:
    from aplc.evaluate.pictures import draw_points, figure, save_picture, style

    with style():
        made, (axes,) = figure()
        names = [row.setting if study == "clusters" else f"({row.setting})" for row in rows]
        draw_points(
            axes,
            names,
            [row.mean("P@1") for row in rows],
            [row.spread("P@1") for row in rows],
            [row.scores["P@1"] for row in rows],
        )
        seeds = max(len(row.scores["P@1"]) for row in rows)
        axes.set(xlabel=AXES[study], ylabel="P@1 on the test part (%)")
        axes.set_title(f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed", loc="left")
        low, high = axes.get_ylim()
        if high - low < 2:  # a hair's breadth should look like one
            middle = (low + high) / 2
            axes.set_ylim(math.floor(10 * (middle - 1)) / 10, math.ceil(10 * (middle + 1)) / 10)
    for kind in (".svg", ".png"):
        save_picture(made, out / f"{study}{kind}")
