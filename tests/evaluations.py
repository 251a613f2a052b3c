"""Evaluations without a model, from random predictions that are often right."""

import numpy as np

from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.evaluate.run import Evaluator


def make_labels(names):
    counts = np.maximum(2000 // (np.arange(len(names)) + 1), 1).astype(np.int64)
    return LabelSet(tuple(names), counts)


def make_evaluation(names, *, n=200, seed=0, skill=0.6, n_examples=12, texts=None, config=None, **options):
    """`skill`: how often a true label is ranked first. The documents depend on nothing but `names`, `n` and `texts`."""
    labels = make_labels(names)
    truth, luck = np.random.default_rng(1), np.random.default_rng(seed)
    k = min(20, len(names))
    documents, ids = [], np.empty((n, k), dtype=np.int64)
    for i in range(n):
        true = truth.choice(len(names), size=min(3, len(names)), replace=False)
        found = true[luck.random(len(true)) < skill]
        rest = luck.permutation(np.setdiff1d(np.arange(len(names)), found))
        ids[i] = np.concatenate([found, rest])[:k]
        named = [names[j] for j in true] + (["<b>never seen</b>"] if i == 0 else [])
        text = texts[i % len(texts)] if texts else f"Text number {i} about {named[0]} and more."
        documents.append(Document(text, named, id=f"doc-{i}", line=i + 1))
    probs = np.sort(luck.random((n, k)), axis=1)[:, ::-1]
    cutoffs = (len(names) // 2,) if len(names) > 1 else ()
    evaluator = Evaluator(
        labels, n_documents=2500, cutoffs=cutoffs, n_examples=n_examples, config=config or {}, **options
    )
    for start in range(0, n, 64):
        block = slice(start, start + 64)
        evaluator.update(documents[block], ids[block], probs[block])
    return evaluator.finish()
