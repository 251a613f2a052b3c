"""Fitting a model of words (`nn/words.py`): ridge regression (`ridge.py`), then what a score is worth (`curves.py`).

bench/LOG.md has what each part is worth. Shapes: N documents, V words and pairs of words, L labels.
"""

from dataclasses import asdict, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from aplc import native
from aplc.config import Config
from aplc.console import Screen
from aplc.data.batches import Collator
from aplc.data.tokens import TokenCache
from aplc.data.words import PAIR_ROWS, ROWS, WordHasher
from aplc.errors import CorpusError
from aplc.folder import ModelFolder
from aplc.nn.model import TaggingModel
from aplc.nn.words import WordFeatures, WordModel
from aplc.train.curves import LEARN_FROM
from aplc.train.prepare import Prepared
from aplc.train.ridge import equations, solve

READ = 64
"""Documents read at a time."""


def fit_words(prepared: Prepared, config: Config, screen: Screen) -> ModelFolder:
    """The model of words for the training rows."""
    train, rows, n_labels = prepared.train, prepared.train_rows, len(prepared.labels)
    if idle := without_effect(config):
        screen.say(f"without effect on a model of words: {', '.join(idle)}")
    hasher = WordHasher.of(prepared.tokenizer)
    counts = np.zeros(ROWS + PAIR_ROWS, dtype=np.int32)
    with screen.bar("counting words", len(rows)) as advance:
        for i in rows:
            counts[hasher(train.row(int(i))[0])[0]] += 1
            advance(1)
    features = WordFeatures.choose(counts, len(rows))
    if not len(features.row):
        raise CorpusError("no word occurs in two training documents; a model of words has nothing to learn from")
    collate = Collator(prepared.tokenizer.template, 0, hash_words=hasher)
    x_NV, y_NL = read_matrices(train, rows, collate, features, n_labels)
    size = equations(x_NV.shape, config.words.limit)
    how = "in closed form" if size == len(rows) else f"by conjugate gradients, {size:,} words and pairs at once"
    screen.say(
        f"words and pairs of words: {x_NV.shape[1]:,}, {x_NV.nnz / x_NV.shape[0]:.0f} a document; "
        f"ridge regression of {n_labels:,} labels {how}"
    )
    if native.library() is None:
        screen.say("no C compiler: SciPy multiplies sparse matrices, which takes two to four times as long")
    learn_from = np.sort(np.random.default_rng(config.train.seed).permutation(len(rows))[:LEARN_FROM])
    weight_VL, mean_L, curves = solve(x_NV, y_NL, learn_from, **asdict(config.words), screen=screen)
    curve_L3 = curves.finish(np.bincount(y_NL.indices, minlength=n_labels))
    screen.say(
        f"weights: {weight_VL.nnz:,} of at least {config.words.prune:g}, {weight_VL.nnz / n_labels:.0f} a label; "
        f"{len(curves.own):,} labels have curves of their own"
    )
    model = WordModel(features, weight_VL.nnz, n_labels)
    model.start.copy_(torch.from_numpy(weight_VL.indptr.astype(np.int64)))
    model.label.copy_(torch.from_numpy(weight_VL.indices.astype(np.int32)))
    model.weight.data.copy_(torch.from_numpy(weight_VL.data))
    model.bias.data.copy_(torch.from_numpy(mean_L))
    model.curve.data.copy_(torch.from_numpy(curve_L3.T))
    config = replace(config, clusters=replace(config.clusters, cutoffs=()))
    return ModelFolder(config, cast(TaggingModel, model), prepared.tokenizer, prepared.labels, prepared.n_documents)


def without_effect(config: Config) -> list[str]:
    """Settings that were changed although a model of words does not know them."""
    given, usual = config.to_dict(), Config().to_dict()
    unknown = {"data": {"max_length", "long_text"}}
    unknown |= {section: given[section].keys() - {"encoder", "seed"} for section in ("model", "clusters", "train")}
    return [
        f"{section}.{name}"
        for section, names in unknown.items()
        for name in sorted(names)
        if given[section][name] != usual[section][name]
    ]


def read_matrices(
    cache: TokenCache, rows: NDArray[np.int64], collate: Collator, features: WordFeatures, n_labels: int
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """X (N x V) and Y (N x L, ones) of some rows of a cache."""
    x_parts, y_parts = [], []
    for start in range(0, len(rows), READ):
        tokens, labels = zip(*(cache.row(int(i)) for i in rows[start : start + READ]), strict=True)
        batch = collate(tokens, labels)
        column_BW, value_BW = (x.numpy() for x in features(batch.words, batch.word_counts))
        known_BW = value_BW > 0
        ends = np.cumsum([0, *known_BW.sum(1)], dtype=np.int32)
        shape = (len(tokens), len(features.row))
        columns = column_BW[known_BW].astype(np.int32)
        x_parts.append(sparse.csr_array((value_BW[known_BW], columns, ends), shape=shape))
        own = [np.unique(ids) for ids in labels]
        ids, ends = np.concatenate(own), np.cumsum([0, *map(len, own)])
        y_parts.append(sparse.csr_array((np.ones(len(ids), np.float32), ids, ends), shape=(len(tokens), n_labels)))
    return sparse.vstack(x_parts, format="csr"), sparse.vstack(y_parts, format="csr")
