"""The model card: what a model folder says of itself to people and to the hub."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aplc.models.base import KINDS
from aplc.models.calibration import Calibration
from aplc.models.trained import TrainedTagger
from aplc.version import __version__

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "R@5", "PSP@5", "ECE@5", "micro-F1")
CHANGES = 20
"""Latest changes of the label set that are listed."""

TEMPLATE = """\
---
library_name: aplc
pipeline_tag: text-classification
tags: [extreme-multi-label, aplc-xlnet]
---

# A tagger of {n_labels:,} labels

{kind}, trained with aplc {version}.

```python
from aplc import Tagger

tagger = Tagger.from_pretrained("path/of/this/folder")  # or its name on the hub
tagger.predict("a text", top_k=5)  # [(label, probability), ...]
```

## Data

{n_documents:,} training documents. Label-set version {label_version}: {n_labels:,} labels in use (`labels.txt`).
The label in the middle of the frequency order has {median:,} training documents.
{vocabulary}{changes}
## How good it is

{metrics}

{calibration}

## Intended use

Suggesting labels of this set for texts like those it was trained on, for a person or a rule to accept: subject
indexing, product categories, routing. `aplc evaluate` measures it on your own documents; do that before relying on it.

## Limits

Only labels in `labels.txt` are ever predicted, and rare ones are found less often than frequent ones. Texts of another
kind, language or time than the training documents get worse labels with the same confidence. It repeats whatever habits
and gaps the training labels have. {reads}

## Configuration

| setting | value |
| --- | --- |
{settings}
"""

_READS = {
    "all": "Texts are read whole, however long they are.",
    "tokens": "A text beyond {length} tokens is {rest}.",
    "all and tokens": "The words part reads texts whole, however long they are; for the network a text beyond "
    "{length} tokens is {rest}.",
}
_LONG = {"truncate": "cut there", "memory": "read on in segments", "windows": "read in windows that are averaged"}


def model_card(trained: TrainedTagger) -> str:
    """The text of README.md in a model folder."""
    labels, data, kind = trained.labels, trained.config.data, KINDS[trained.config.model.kind]
    counts = sorted(labels.counts[labels.active & (labels.counts > 0)].tolist())
    return TEMPLATE.format(
        n_labels=labels.n_in_use,
        version=__version__,
        n_documents=trained.n_documents,
        label_version=labels.version,
        median=counts[len(counts) // 2] if counts else 0,
        vocabulary=_vocabulary(trained),
        changes=_changes(trained),
        metrics=_metrics(trained.held_out, trained.evaluation),
        calibration=_calibration(trained.calibration),
        kind=kind.what,
        reads=_READS[kind.reads].format(length=data.max_length, rest=_LONG[data.long_text]),
        settings="\n".join(
            f"| {section}.{name} | {_cell(value)} |"
            for section, values in trained.config.to_dict().items()
            if section in kind.sections
            for name, value in values.items()
        ),
    )


def _vocabulary(trained: TrainedTagger) -> str:
    if trained.vocabulary is None:
        return ""
    labels, entries = trained.labels, trained.vocabulary.entries
    n_entries, n_without = sum(name in entries for name in labels.names), len(labels) - labels.n_seen
    return (
        f"A vocabulary (`vocabulary.jsonl`) has entries for {n_entries:,} of the labels; "
        f"{n_without:,} labels have no training document.\n"
    )


def _changes(trained: TrainedTagger) -> str:
    history = trained.labels.history
    if not history:
        return ""
    lines = ["", "Changes since training:", ""]
    for entry in history[-CHANGES:]:
        names = [trained.shown(str(name)) for name in entry.get("labels", [])]
        some = ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
        to = f" to {entry['to']}" if "to" in entry else ""
        lines.append(f"- version {entry.get('version')} ({entry.get('date')}): {entry.get('change')} {some}{to}")
    return "\n".join(lines) + "\n"


def _metrics(held_out: Mapping[str, Any] | None, evaluation: Mapping[str, Any] | None) -> str:
    parts = []
    if evaluation:
        version = evaluation.get("label_set_version", 1)
        where = f"On {evaluation['documents']:,} documents of the {evaluation.get('part', 'test')} part"
        parts.append(_table(f"{where} (label-set version {version})", evaluation["metrics"], evaluation["bands"]))
    if held_out:
        where = f"On {held_out['documents']:,} documents held out of training, of whose labels only the model's count"
        parts.append(_table(where, held_out["metrics"], held_out["bands"]))
    return (
        "\n\n".join(parts)
        or "Not measured: no documents were held out of its last training, and no evaluation is saved."
    )


def _table(where: str, metrics: Mapping[str, float], bands: Sequence[Mapping[str, Any]]) -> str:
    shown = [name for name in SHOWN if name in metrics]
    lines = [f"{where}, in percent:", "", f"| {' | '.join(shown)} |", "| " + "---: | " * len(shown)]
    lines.append("| " + " | ".join(f"{100 * metrics[name]:.2f}" for name in shown) + " |")
    lines += ["", "| labels by training documents | labels | recall@5 | precision@5 |", "| --- | ---: | ---: | ---: |"]
    for band in bands:
        if band["labels"]:
            lines.append(
                f"| {band['name']} ({band['low']:,}-{band['high']:,}) | {band['labels']:,} | "
                f"{100 * band['recall']:.2f} | {100 * band['precision']:.2f} |"
            )
    return "\n".join(lines)


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return "Probabilities are the model's own, not calibrated."
    return (
        f"Probabilities are calibrated on {calibration.n_documents:,} held-out documents, cluster by cluster "
        f"(isotonic), so that `threshold` and `precision` can be used: `tagger.predict(text, precision=0.8)`."
    )


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def read_evaluation(path: Path) -> dict[str, Any] | None:
    """What `aplc evaluate --json` left in a model folder, if it is there and whole."""
    try:
        return sound(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def sound(figures: Any) -> dict[str, Any] | None:
    """The figures if a card can show them; None for anything else that an untrusted folder may hold."""
    try:
        _metrics(figures, figures)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return figures if isinstance(figures, dict) else None
