"""Fitting a words model: features from text, ridge regression (`ridge.py`), then calibrating scores (`curves.py`).

bench/LOG.md has the figures of each part. Shapes: N documents, V words and pairs, L labels.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc import native
from aplc.config import Config, WordsConfig
from aplc.console import Screen
from aplc.data.cache import DocumentCache
from aplc.data.source import TrainingData
from aplc.errors import CorpusError, RunError
from aplc.nn.distributed import world
from aplc.words.blocks import Blocks
from aplc.words.curves import n_left_out
from aplc.words.index import Index
from aplc.words.model import WordFeatures, WordsModel
from aplc.words.names import tell, with_names
from aplc.words.penalty import choose_ridge
from aplc.words.ridge import equations, solve
from aplc.words.text import BUCKETS, ENTRY, VERSION, count_words, entries_of

SHORT = 200
"""Characters of a text, on average, below which runs of characters are read: titles have some 70, abstracts 1,000."""
READ_AT_ONCE = 4_096
"""Documents whose features are made at a time."""


def fit_words(data: TrainingData, config: Config, screen: Screen, blocks: Blocks | None = None) -> WordsModel:
    """The words model of the training documents. `blocks` keeps what is finished; under torchrun it must be given."""
    runs = data.n_characters < SHORT * data.n_documents if config.words.runs == "auto" else config.words.runs == "on"
    name = f"words {VERSION}" + (" with runs" if runs else "")
    encode = partial(entries_of, runs=runs)
    with world().main_first():
        cache = data.source.encoded(
            "train", encode, ENTRY, data.labels, name=name, screen=screen, total=data.n_documents
        )
    rows, n_labels = data.train_rows, len(data.labels)
    features = WordFeatures.choose(count_documents(cache, rows), len(rows))
    if not len(features.bucket):
        raise CorpusError("the training texts have no words; a words model has nothing to learn from")
    x_NV, y_NL = read_matrices(cache, rows, features, n_labels)
    names_LV = features(count_words(data.labels.names, runs=runs))
    named = config.words.names != "off" and (
        config.words.names == "on" or tell(x_NV, y_NL, names_LV, config.train.seed)
    )
    count_L, n_documents = np.bincount(y_NL.indices, minlength=n_labels), len(rows)
    all_NV, all_NL = with_names(x_NV, y_NL, names_LV) if named else (x_NV, y_NL)
    if named:
        screen.say(f"names: {all_NV.shape[0] - n_documents:,} labels' names say something of their documents")
    size = equations(all_NV.shape, config.words.limit)
    how = "in closed form" if size == all_NV.shape[0] else f"by conjugate gradients, {size:,} words and pairs at once"
    screen.say(
        f"{'words, word pairs and runs of characters' if runs else 'words and word pairs'}: {x_NV.shape[1]:,}, "
        f"{x_NV.nnz / x_NV.shape[0]:.0f} a document; "
        f"ridge regression of {n_labels:,} labels {how}"
    )
    if native.library() is None:
        screen.say("no C compiler: SciPy multiplies sparse matrices, which takes several times as long")
    learned = n_left_out(n_documents, direct=size == all_NV.shape[0])
    learn_from = np.sort(np.random.default_rng(config.train.seed).permutation(n_documents)[:learned])
    ridge, limit, prune = config.words.ridge, config.words.limit, config.words.prune
    if not ridge:
        with screen.bar("choosing the penalty"):
            ridge = choose_ridge(x_NV, y_NL, config.train.seed)
        screen.say(f"penalty: words.ridge = {ridge:g}, by leave-one-out scores")
    weight_VL, mean_L, curves = solve(
        all_NV, all_NL, learn_from, limit=limit, ridge=ridge, prune=prune, screen=screen, blocks=blocks,
        n_documents=n_documents,
    )  # fmt: skip
    if not weight_VL.nnz and prune > WordsConfig.prune:  # below, there is nothing to learn: all documents are alike
        raise RunError(
            f"words.prune = {prune:g}: no weight is as large; choose a lower one, such as {WordsConfig.prune}"
        )
    curve_L3 = curves.finish(count_L)
    screen.say(
        f"weights: {weight_VL.nnz:,} of at least {prune:g}, {weight_VL.nnz / n_labels:.0f} a label; "
        f"{len(curves.own):,} labels have curves of their own"
    )
    return WordsModel(features, Index.of(weight_VL), mean_L, np.ascontiguousarray(curve_L3.T))


def without_effect(config: Config) -> list[str]:
    """Settings that were changed although a words model does not know them."""
    given, usual = config.to_dict(), Config().to_dict()
    unknown = {"data": {"max_length", "long_text", "tokenizer", "vocab_size"}}
    unknown |= {section: given[section].keys() - {"kind", "seed"} for section in ("model", "clusters", "train")}
    return [
        f"{section}.{name}"
        for section, names in unknown.items()
        for name in sorted(names)
        if given[section][name] != usual[section][name]
    ]


def count_documents(cache: DocumentCache, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of these documents have each bucket."""
    counts = np.zeros(BUCKETS, dtype=np.int64)
    for start in range(0, len(rows), READ_AT_ONCE):
        chunk = [cache.document(int(i))[0]["bucket"] for i in rows[start : start + READ_AT_ONCE]]
        bucket, count = np.unique(np.concatenate(chunk), return_counts=True)
        counts[bucket] += count
    return counts


def read_matrices(
    cache: DocumentCache, rows: NDArray[np.int64], features: WordFeatures, n_labels: int
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """X (N x V) and Y (N x L, ones) of some documents of a cache."""
    x_parts, y_parts = [], []
    for start in range(0, len(rows), READ_AT_ONCE):
        entries, labels = zip(*(cache.document(int(i)) for i in rows[start : start + READ_AT_ONCE]), strict=True)
        joined, ends = np.concatenate(entries), np.cumsum([0, *map(len, entries)])
        counts = sparse.csr_array(
            (joined["count"].astype(np.float32), joined["bucket"], ends), shape=(len(entries), BUCKETS)
        )
        x_parts.append(features(counts))
        own = [np.unique(ids) for ids in labels]
        ids, ends = np.concatenate(own), np.cumsum([0, *map(len, own)])
        y_parts.append(sparse.csr_array((np.ones(len(ids), np.float32), ids, ends), shape=(len(own), n_labels)))
    return sparse.vstack(x_parts, format="csr"), sparse.vstack(y_parts, format="csr")
