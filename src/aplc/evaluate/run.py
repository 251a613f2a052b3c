"""Scoring a model on a corpus part, beside the obvious baseline: always the most frequent labels."""

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aplc.data.formats import Document
from aplc.errors import CorpusError
from aplc.evaluate.metrics import Metrics
from aplc.folder import ModelFolder
from aplc.predict import name_tags, predict_documents

DEPTH = 100
"""Predictions kept a document, for F1 at a threshold; ranking metrics use the first five."""


@dataclass(frozen=True)
class Example:
    text: str
    predicted: list[tuple[str, float]]
    true: list[str]


@dataclass(frozen=True)
class Evaluation:
    metrics: Metrics
    baseline: Metrics
    """Of always predicting the most frequent labels."""
    n_unseen: int
    """True labels that never occurred in training."""
    examples: list[Example]

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.metrics.n_evaluated,
            "unseen_labels": self.n_unseen,
            "metrics": self.metrics.result(),
            "baseline": self.baseline.result(),
        }

    def render(self) -> str:
        """For the terminal: figures in percent, then the examples."""
        result, baseline = self.metrics.result(), self.baseline.result()
        ks = self.metrics.ks
        lines = [f"{self.metrics.n_evaluated:,} documents", ""]
        lines.append(f"{'percent':<10}" + "".join(f"{f'@{k}':>8}" for k in ks) + "   most frequent labels:")
        for name in ("P", "nDCG", "R", "RP", "PSP", "PSnDCG"):
            ours = "".join(f"{100 * result[f'{name}@{k}']:8.2f}" for k in ks)
            lines.append(f"{name:<10}{ours}   " + "".join(f"{100 * baseline[f'{name}@{k}']:8.2f}" for k in ks))
        if self.n_unseen:
            lines += ["", f"{self.n_unseen:,} true labels never occurred in training; they count as missed"]
        for example in self.examples:
            lines += ["", textwrap.shorten(example.text, 300, placeholder=" ..."), ""]
            true = set(example.true)
            lines += [f"  {p:6.1%}  {'*' if name in true else ' '} {name}" for name, p in example.predicted]
            missed = [name for name in example.true if name not in {name for name, _ in example.predicted}]
            if missed:
                lines.append(f"  {'also:':>6}    {'; '.join(missed)}")
        if self.examples:
            lines += ["", "* a true label; also: true labels not among the first five"]
        return "\n".join(lines)


def evaluate(
    folder: ModelFolder,
    documents: Iterable[Document],
    *,
    n_examples: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Stream `documents` through the model. Labels never seen in training count as true labels that were missed."""
    labels = folder.labels
    metrics = Metrics(labels.counts, n_documents=folder.n_documents)
    baseline = Metrics(labels.counts, n_documents=folder.n_documents)
    k = min(DEPTH, len(labels))
    prior = labels.counts[:k] / folder.n_documents
    unseen: dict[str, int] = {}
    examples: list[Example] = []
    for block, ids, probs in predict_documents(folder, documents, k):
        truth = [labels.encode_all(document.labels, unseen) for document in block]
        indptr = np.cumsum([0, *map(len, truth)])
        flat = np.array([i for row in truth for i in row], dtype=np.int64)
        metrics.update(ids, probs, indptr, flat)
        baseline.update(np.tile(np.arange(k), (len(block), 1)), np.tile(prior, (len(block), 1)), indptr, flat)
        for i in range(min(n_examples - len(examples), len(block))):
            examples.append(Example(block[i].text, name_tags(folder, ids[i, :5], probs[i, :5]), block[i].labels))
        advance(len(block))
    if metrics.n_evaluated == 0:
        raise CorpusError("no documents to evaluate")
    return Evaluation(metrics, baseline, len(unseen), examples)
