"""Fitting a words model: features from text, ridge regression (`ridge.py`), then calibrating scores (`curves.py`).

bench/LOG.md has the figures of each part. Shapes: N documents, V words and pairs, L labels.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc import native
from aplc.config import Config, WordsConfig
from aplc.console import Screen
from aplc.data.cache import DocumentCache
from aplc.data.checks import count
from aplc.data.labels import LabelSet
from aplc.data.source import TrainingData
from aplc.data.vocabulary import Vocabulary
from aplc.errors import CorpusError, RunError
from aplc.files import digest
from aplc.nn.distributed import world
from aplc.words.blocks import Blocks
from aplc.words.choice import FEWEST, choose, sample_of
from aplc.words.curves import Curves, Floats, Scored, n_left_out
from aplc.words.index import Index, rising
from aplc.words.matrices import stacked
from aplc.words.model import WordFeatures, WordsModel
from aplc.words.names import MENTION, Known, Names, learn_worth, mention_worth
from aplc.words.names import VERSION as NAMES_VERSION
from aplc.words.reviewed import Reviewed
from aplc.words.ridge import n_equations, solve
from aplc.words.text import AGAIN, BUCKETS, ENTRY, VERSION, entries_of

SHORT = 200
"""Characters of a text, on average, below which runs of characters are read: titles have some 70, abstracts 1,000."""
FEW_REVIEWED = 10
"""Documents of a label that only reviewed ones have, up to which a mention of its name counts more than their words, as
it does for labels that come later (bench/LOG.md)."""
READ_AT_ONCE = 4_096
"""Documents whose features are made at a time."""


def fit_words(data: TrainingData, config: Config, screen: Screen, blocks: Blocks | None = None) -> WordsModel:
    """The words model of the training documents. `blocks` keeps what is finished; under torchrun it must be given."""
    runs = data.n_characters < SHORT * data.n_documents if config.words.runs == "auto" else config.words.runs == "on"
    names, cache, of_names = _read_texts(data, config, screen, runs=runs)
    n_labels, n_seen = len(data.labels), data.labels.n_seen
    features = WordFeatures.choose(count_documents(cache, data.train_rows), len(data.train_rows))
    if not len(features.bucket):
        raise CorpusError("the training texts have no words; a words model has nothing to learn from")
    rows = np.setdiff1d(data.train_rows, cache.partial)
    if not len(rows):
        raise CorpusError("all training documents are feedback, which can only correct a corpus; give it as --more")
    ridge, features = _suited(cache, rows, features, n_labels, config, screen)
    x_NV, y_NL = read_matrices(cache, rows, features, n_labels)
    reviewed = read_reviewed(cache, data.train_rows, features, n_seen, len(rows), screen)
    size = n_equations(x_NV.shape, config.words.limit)
    direct = size == len(rows)
    how = "in closed form" if direct else f"by conjugate gradients, {size:,} words and pairs at once"
    screen.say(
        f"{'words, word pairs and runs of characters' if runs else 'words and word pairs'}: {x_NV.shape[1]:,}, "
        f"{x_NV.nnz / x_NV.shape[0]:.0f} a document; "
        f"ridge regression of {n_seen:,} labels {how}"
    )
    native.tell(screen, "SciPy multiplies sparse matrices, which takes several times as long")
    learned = n_left_out(len(rows), direct=direct)
    learn_from = np.sort(np.random.default_rng(config.train.seed).permutation(len(rows))[:learned])
    mentions_NL = _mentions(of_names, rows, n_labels)
    limit, prune = config.words.limit, config.words.prune
    weight_VL, mean_L, curves = solve(
        x_NV, y_NL[:, :n_seen], learn_from, limit=limit, ridge=ridge, prune=prune, screen=screen, blocks=blocks,
        mentions_ML=mentions_NL[learn_from][:, :n_seen].tocsc(), reviewed=reviewed,
    )  # fmt: skip
    if not weight_VL.nnz and prune > WordsConfig.prune:  # below, there is nothing to learn: all documents are alike
        raise RunError(
            f"words.prune = {prune:g}: no weight is as large; choose a lower one, such as {WordsConfig.prune}"
        )
    weight_VL.resize(x_NV.shape[1], n_labels)
    count_L = np.bincount(y_NL.indices, minlength=n_labels)
    if reviewed:
        count_L[:n_seen] += reviewed.counts
    curve_L3 = curves.finish(count_L)
    screen.say(
        f"weights: {weight_VL.nnz:,} of at least {prune:g}, {weight_VL.nnz / n_seen:,.0f} a label; "
        f"{count(len(curves.own), 'label')} frequent enough for a calibration curve of their own"
    )
    learned_16, known_L = learn_names(curves, curve_L3, y_NL, mentions_NL, learn_from, n_seen, direct=direct)
    if not len(names.label):
        learned_16, worth_3L = np.zeros(0, dtype=np.float32), np.zeros((3, n_labels), dtype=np.float32)
    else:
        worth_3L = mention_worth(learned_16, known_L)
    worth_3L[:, (known_L.n == 0) & (count_L > FEW_REVIEWED)] = [[0], [1], [0]]  # only reviewed documents have them
    if mentions_NL.nnz:
        right = (mentions_NL * y_NL).nnz / mentions_NL.nnz
        screen.say(
            f"names: documents mention {mentions_NL.nnz / len(rows):.1f} labels each by name, {right:.0%} of them "
            "rightly; how much a mention is worth is learned from that"
        )
    return WordsModel(
        features=features,
        index=Index.of(weight_VL),
        bias_L=np.concatenate([mean_L, np.zeros(n_labels - n_seen, dtype=np.float32)]),
        curve_3L=np.ascontiguousarray(curve_L3.T),
        names=names,
        worth_3L=worth_3L,
        n_seen=n_seen,
        learned=learned_16,
        ridge=ridge,
        prune=prune,
    )


def _suited(
    cache: DocumentCache,
    rows: NDArray[np.int64],
    features: WordFeatures,
    n_labels: int,
    config: Config,
    screen: Screen,
) -> tuple[float, WordFeatures]:
    """The penalty and the way to count the lead that suit these documents (`choice.py`)."""
    sample, words = rows[sample_of(len(rows), config.train.seed)], config.words
    with screen.bar("choosing penalty and lead"):
        chosen = choose(lambda lead: read_matrices(cache, sample, replace(features, lead=lead), n_labels), words)
    found = [f"words.ridge = {chosen.ridge:g}"] if not words.ridge else []
    found += [f"words.lead = {'on' if chosen.lead else 'off'}"] if words.lead == "auto" else []
    if found and len(rows) >= FEWEST:
        screen.say(f"chosen by leave-one-out scores: {', '.join(found)}")
    return chosen.ridge, replace(features, lead=chosen.lead)


def _read_texts(
    data: TrainingData, config: Config, screen: Screen, *, runs: bool
) -> tuple[Names, DocumentCache, DocumentCache | None]:
    """Labels' names, and the training documents as words and, if names count, as the labels they mention.

    Of two processes on a machine, each begins with another of the two caches, and waits for what the other is building.
    """
    called = names_of(data.labels, data.vocabulary) if config.words.names == "auto" else []
    names = Names.of(called)
    read = partial(data.source.encoded, "train", labels=data.labels, screen=screen, total=data.n_documents)
    words = partial(
        read, partial(entries_of, runs=runs), ENTRY, name=f"words {VERSION}" + (" with runs" if runs else "")
    )
    if not called:
        return names, words(), None
    encode = partial(names.entries_of, n_labels=len(data.labels))
    mentions = partial(read, encode, MENTION, name=f"mentions {NAMES_VERSION} {digest(called)}")
    if world().local_rank % 2:
        mentions()
    return names, words(), mentions()


def names_of(labels: LabelSet, vocabulary: Vocabulary | None) -> list[tuple[str, ...]]:
    """Of every label: what the vocabulary calls it, or else the label itself."""
    entries = vocabulary.entries if vocabulary else {}
    called = ((label, entries.get(label)) for label in labels.names)
    return [((entry.name or label, *entry.names) if entry else (label,)) for label, entry in called]


def _mentions(cache: DocumentCache | None, rows: NDArray[np.int64], n_labels: int) -> sparse.csr_array:
    """log(1 + place) of the labels that these documents mention by name, (N, L)."""
    if cache is None:
        return sparse.csr_array((len(rows), n_labels), dtype=np.float32)
    found = [cache.document(int(i))[0] for i in rows]
    joined, ends = np.concatenate(found), np.cumsum([0, *map(len, found)])
    return sparse.csr_array((joined["place"], joined["label"], ends), shape=(len(rows), n_labels))


def learn_names(
    curves: Curves,
    curve_L3: Floats,
    y_NL: sparse.csr_array,
    mentions_NL: sparse.csr_array,
    learn_from: NDArray[np.int64],
    n_seen: int,
    *,
    direct: bool,
) -> tuple[Floats, Known]:
    """How much a mention is worth, from what left-out documents mention (`learn_worth`), and what is known of labels.

    A document must not know its own labels. With leave-one-out scores (`direct`), it is taken out of what is known of
    the labels it mentions; else documents that were left out for good are not in it at all.
    """
    n_labels = y_NL.shape[1]

    def known(rows: NDArray[np.int64] | slice) -> Known:
        mentioned, own = (x_NL[rows].astype(bool) for x_NL in (mentions_NL, y_NL))
        right, all_, n = (np.bincount(x.indices, minlength=n_labels) for x in (mentioned * own, mentioned, own))
        return Known(n, right, all_ - right)

    document, label = mentions_NL[learn_from].tocoo().coords
    document, label = document[label >= n_seen], label[label >= n_seen]
    none = np.zeros(len(label), dtype=np.int64)
    unseen = Scored(document, label, none.astype(np.float32), none.astype(bool), none)
    scored = Scored(*map(np.concatenate, zip(*curves.mentioned, unseen, strict=True)))
    whole = known(slice(None))
    hit, label = scored.hit, scored.label
    if direct:
        of_mention = Known(scored.n, whole.right[label] - hit, whole.wrong[label] - ~hit)
    else:
        rest = known(np.setdiff1d(np.arange(y_NL.shape[0]), learn_from))
        of_mention = Known(scored.n, rest.right[label], rest.wrong[label])
    z = np.where(scored.n > 0, rising(scored.score, curve_L3[label].T), 0)
    place = np.asarray(mentions_NL[learn_from][scored.document, label]).ravel()
    return learn_worth(of_mention, z, place, hit), whole


def read_reviewed(
    cache: DocumentCache,
    train_rows: NDArray[np.int64],
    features: WordFeatures,
    n_labels: int,
    n_documents: int,
    screen: Screen,
) -> Reviewed | None:
    """The partly reviewed documents of a cache; None if there are none."""
    rows = np.intersect1d(train_rows, cache.partial)
    if not len(rows):
        return None
    x_PV, has_PL = read_matrices(cache, rows, features, n_labels)
    rejected = map(cache.rejected, rows.tolist())
    ids = [np.unique(own[own < n_labels]) for own in rejected if own is not None]  # others are rare enough already
    joined, ends = np.concatenate(ids), np.cumsum([0, *map(len, ids)])
    wrong_PL = sparse.csr_array((np.ones(len(joined), np.float32), joined, ends), shape=has_PL.shape)
    reviewed = Reviewed.of(x_PV, has_PL, wrong_PL, n_documents)
    if (kept := reviewed.x_PV.shape[0]) < len(rows):
        screen.say(f"feedback: the latest {kept:,} of {len(rows):,} documents are learned from; more would need memory")
    return reviewed


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
        bucket, often = np.unique(np.concatenate(chunk), return_counts=True)
        counts[bucket] += often
    return counts


def read_matrices(
    cache: DocumentCache, rows: NDArray[np.int64], features: WordFeatures, n_labels: int
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """X (N x V) and Y (N x L, ones) of some documents of a cache."""
    y_parts, table = [], features.table()

    def x_parts() -> Iterator[sparse.csr_array]:
        for start in range(0, len(rows), READ_AT_ONCE):
            entries, labels = zip(*(cache.document(int(i)) for i in rows[start : start + READ_AT_ONCE]), strict=True)
            joined, ends = np.concatenate(entries), np.cumsum([0, *map(len, entries)])
            often = joined["count"].astype(np.float32)
            if features.lead:
                often += AGAIN * joined["lead"]
            counts = sparse.csr_array((often, joined["bucket"], ends), shape=(len(entries), BUCKETS))
            ids, ends = np.concatenate(labels), np.cumsum([0, *map(len, labels)])
            y = sparse.csr_array((np.ones(len(ids), np.float32), ids, ends), shape=(len(labels), n_labels))
            y.sum_duplicates()
            y.data[:] = 1
            y_parts.append(y)
            yield features(counts, table)

    x_NV = stacked(x_parts(), len(features.bucket), int(cache.lengths[rows].sum()))
    return x_NV, stacked(y_parts, n_labels, sum(part.nnz for part in y_parts))
