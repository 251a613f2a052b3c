"""Scores of top-k files, and the table and the picture of all peers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from aplc.evaluate import Metrics, by_frequency, compare
from aplc.evaluate.pictures import LIGHT, SERIES, figure, plain_ticks, save_picture, style
from aplc.files import atomic_write, write_json
from peer.features import Prepared

RANKING = [*(f"{name}@{k}" for name in ("P", "nDCG", "PSP") for k in (1, 3, 5)), "RP@5"]
PAIRED = [f"{name}@{k}" for name in ("P", "PSP") for k in (1, 3, 5)]
AT = 5
MB = 1e6
WINDOW = 12
"""Points of P@5 that the picture shows below the best."""


def score(prepared: Prepared, top: Path, propensity: str | tuple[float, float]) -> dict[str, Any]:
    """Ranking metrics, frequency bands and each document's scores, by the code behind `aplc evaluate`."""
    with np.load(top) as arrays:
        ids, scores = arrays["ids"].astype(np.int64), arrays["scores"]
    metrics = Metrics(prepared.labels.counts, n_documents=prepared.n_train, propensity=propensity)
    # Only the order of a peer's scores counts here; some are margins, which are no probabilities.
    metrics.update(ids, np.clip(scores, 0, 1), *prepared.truth())
    result = metrics.result()
    bands = [asdict(band) for band in by_frequency(metrics.label_stats(AT))]
    ranking = {name: result[name] for name in RANKING}
    return {"metrics": ranking, "bands": bands, "documents": metrics.document_scores()}


def write_all(out: Path, results: Sequence[dict[str, Any]], failed: dict[str, str], about: dict[str, Any]) -> str:
    """peers.json, peers.md and peers.svg in `out`; returns the Markdown."""
    results = sorted(results, key=lambda result: -result["metrics"]["P@5"])
    about = about | {"paired": paired(results)}
    results = [{key: value for key, value in result.items() if key != "documents"} for result in results]
    text = markdown(results, failed, about)
    write_json(out / "peers.json", {**about, "results": results, "failed": failed})
    with atomic_write(out / "peers.md") as file:
        file.write(text.encode("utf-8"))
    if results:
        draw(out / "peers.svg", results)
    return text


def paired(results: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The best of ours less the best of the others by P@5, with 95 % intervals over the same resampled documents."""
    ours, others = ([result for result in results if result["ours"] is mine] for mine in (True, False))
    if not ours or not others:
        return None
    found = compare(ours[0]["documents"], others[0]["documents"])
    return {"ours": ours[0]["name"], "other": others[0]["name"]} | {name: asdict(found[name]) for name in PAIRED}


def markdown(results: Sequence[dict[str, Any]], failed: dict[str, str], about: dict[str, Any]) -> str:
    best = {name: max((r["metrics"][name] for r in results), default=0) for name in RANKING}

    def percent(result: dict[str, Any], name: str) -> str:
        value = result["metrics"][name]
        return f"**{100 * value:.2f}**" if value == best[name] else f"{100 * value:.2f}"

    lines = [
        f"{about['n_train']:,} training and {about['n_test']:,} test documents, {about['n_labels']:,} training labels; "
        f"PSP with A, B = {about['propensity'][0]:g}, {about['propensity'][1]:g}.",
        "",
        f"| percent | {' | '.join(RANKING)} |",
        f"| --- |{' ---: |' * len(RANKING)}",
        *(f"| {r['name']} | {' | '.join(percent(r, name) for name in RANKING)} |" for r in results),
        "",
    ]
    bands = [band["name"] for band in results[0]["bands"] if band["name"] != "unseen"] if results else []
    columns = [f"recall@{AT}, {name}" for name in bands]
    columns += ["training, s", "CPU s", "documents/s", "a CPU s", "model, MB", "memory, MB"]
    lines += [f"| | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for r in results:
        recall = [f"{100 * band['recall']:.2f}" for band in r["bands"] if band["name"] in bands]
        cost = [f"{r['train_seconds']:,.1f}", f"{r['train_cpu_seconds']:,.1f}"]
        cost += [f"{about['n_test'] / max(r[key], 1e-3):,.0f}" for key in ("predict_seconds", "predict_cpu_seconds")]
        cost += [f"{r['model_bytes'] / MB:,.1f}", f"{r['peak_bytes'] / MB:,.0f}"]
        lines.append(f"| {r['name']} | {' | '.join(recall + cost)} |")
    if about["paired"]:
        names = f"{about['paired']['ours']} less {about['paired']['other']}"
        gaps = (f"{name} {_points(**about['paired'][name])}" for name in PAIRED)
        lines += ["", f"{names}, points, 95 % paired over documents: {', '.join(gaps)}."]
    lines += [""] + [f"Not in the table: {name}, {reason}" for name, reason in failed.items()]
    return "\n".join(lines).rstrip() + "\n"


def _points(difference: float, low: float, high: float, **_: float) -> str:
    return f"{100 * difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def draw(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """P@5 against training time; the area of a point is the model's size. Names stand beside, in the order of P@5.

    Who is more than WINDOW points behind sits at the lower edge as a triangle, so that the others can be told apart.
    """
    results = sorted(results, key=lambda result: -result["metrics"]["P@5"])
    lowest = 100 * results[0]["metrics"]["P@5"] - WINDOW
    with style():
        made, (axes,) = figure(height=4.6, width=8.4)
        for rank, r in enumerate(results):
            p5 = 100 * r["metrics"]["P@5"]
            place = (max(r["train_seconds"], 0.1), max(p5, lowest))
            colour = SERIES[1] if r["ours"] else SERIES[0]
            area = min(14 + 1.6 * r["model_bytes"] / MB, 3000)
            axes.scatter(*place, s=area, color=colour, alpha=0.3, linewidths=0, zorder=2)
            axes.scatter(*place, s=14, color=colour, marker="o" if p5 >= lowest else "v", zorder=3)
            axes.annotate(
                f"{p5:.1f}  {r['name']}",
                place,
                (1.03, 0.98 - 0.96 * rank / max(len(results) - 1, 1)),
                textcoords="axes fraction",
                va="center",
                fontsize=8.5,
                color=SERIES[1] if r["ours"] else LIGHT["ink"],
                arrowprops={
                    "arrowstyle": "-",
                    "relpos": (0, 0.5),
                    "color": LIGHT["muted"],
                    "linewidth": 0.5,
                    "alpha": 0.6,
                },
            )
        axes.set(xscale="log", xlabel="training time, seconds (area: size of the model)", ylabel="P@5, percent")
        axes.set_ylim(lowest - 0.6, lowest + WINDOW + 2)
        axes.margins(x=0.08)
        plain_ticks(axes.xaxis)
        save_picture(made, path)


def load_result(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
