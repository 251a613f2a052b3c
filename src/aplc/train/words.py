"""Fitting a model of words (`nn/words.py`): ridge regression in closed form, then what a score is worth.

With X the documents' TF-IDF (N x V) and Y their labels less each label's frequency (N x L), the weights are

    W = (X'X + r I)^-1 X'Y = X' (XX' + r I)^-1 Y,     r = words.ridge,

whichever of the two matrices is smaller. One Cholesky factor serves all labels, which are solved for a block at a time;
weights below `words.prune` are left out.

Where documents and words are more than `words.limit`, only the most frequent words are solved for. Each of the others,
x, is fitted by itself to what these leave unexplained of the labels, e:

    w = x'e / (x'x + r).

Rare words seldom meet, so that little is lost: on PubMed-MeSH with 4,096 of 22,000 words solved for, nothing.

A penalty holds a label's scores down the more the rarer it is. Ranked by them, rare labels lose. So a logistic
regression learns how probable a label with n training documents is at a score of s,

    logit = a + b s + c s^2,     a, b, c linear in log n: six numbers for all labels;

labels with many documents get three of their own. It learns from the training documents themselves, each with the
scores of the model that would have been fitted without it. These have a closed form, too: the document's fitted score
moves away from the truth y by its leverage h (all weights kept),

    (fitted - h y) / (1 - h),     h = x' (X'X + r I)^-1 x;

and a rare word's weight without the document has one term less above and below the line.

bench/LOG.md has what each part is worth.

Shapes: N documents, V words, F frequent and R rare ones, L labels, C labels of a block, M documents that curves are
learned from, K candidates.
"""

from dataclasses import asdict, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from aplc.config import Config
from aplc.console import Screen
from aplc.data.batches import Collator
from aplc.data.tokens import TokenCache
from aplc.data.words import WordHasher
from aplc.errors import CorpusError, RunError
from aplc.folder import ModelFolder
from aplc.nn.model import TaggingModel
from aplc.nn.words import WordFeatures, WordModel
from aplc.train.prepare import Prepared
from aplc.train.probe import memory_free

BLOCK, READ = 512, 64
"""Labels solved for, and documents read, at a time."""
FACTOR_BYTES = 8
"""Memory for each element of the matrix: itself and its factor."""
LEARN_FROM = 8_192
"""Documents that curves are learned from."""
CANDIDATES = 50
"""Labels of each of them, the best ones."""
OWN_CURVE, LEAST_HITS = 200, 50
"""A label has a curve of its own with so many hits among them; the others' is `PLAIN` with fewer hits in all."""
PLAIN = (-5.0, 10.0, 0.0)
"""The order of scores, and 0.5 where a score is."""

Floats = NDArray[np.floating]


def fit_words(prepared: Prepared, config: Config, screen: Screen) -> ModelFolder:
    """The model of words for the training rows."""
    train, rows, n_labels = prepared.train, prepared.train_rows, len(prepared.labels)
    hasher = WordHasher.of(prepared.tokenizer)
    counts = np.zeros(hasher.n_rows, dtype=np.int64)
    with screen.bar("counting words", len(rows)) as advance:
        for i in rows:
            counts[hasher(train.row(int(i))[0])[0]] += 1
            advance(1)
    features = WordFeatures.choose(counts, len(rows))
    if not len(features.row):
        raise CorpusError("no word occurs in two training documents; a model of words has nothing to learn from")
    collate = Collator(prepared.tokenizer.template, 0, hash_words=hasher)
    x_NV, y_NL = read_matrices(train, rows, collate, features, n_labels)
    size, by_document = equations(x_NV.shape, config.words.limit)
    screen.say(
        f"words: {x_NV.shape[1]:,} of two and more documents, {x_NV.nnz / x_NV.shape[0]:.0f} a document; "
        f"ridge regression of {n_labels:,} labels on {size:,} {'documents' if by_document else 'words'}"
    )
    learn_from = np.sort(np.random.default_rng(config.train.seed).permutation(len(rows))[:LEARN_FROM])
    weight_VL, mean_L, curves = solve(x_NV, y_NL, learn_from, **asdict(config.words), screen=screen)
    curve_L3 = curves.finish(np.log(prepared.labels.counts))
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
        ends = np.cumsum([0, *known_BW.sum(1)])
        shape = (len(tokens), len(features.row))
        x_parts.append(sparse.csr_array((value_BW[known_BW], column_BW[known_BW], ends), shape=shape))
        own = [np.unique(ids) for ids in labels]
        ids, ends = np.concatenate(own), np.cumsum([0, *map(len, own)])
        y_parts.append(sparse.csr_array((np.ones(len(ids), np.float32), ids, ends), shape=(len(tokens), n_labels)))
    return sparse.vstack(x_parts, format="csr"), sparse.vstack(y_parts, format="csr")


def equations(shape: tuple[int, int], limit: int) -> tuple[int, bool]:
    """How many to solve, and whether there is one for each document; else for each word, as many as allowed."""
    n_documents, n_words = shape
    by_document = n_documents <= min(n_words, limit)
    return (n_documents if by_document else min(n_words, limit)), by_document


def solve(
    x_NV: sparse.csr_array,
    y_NL: sparse.csr_array,
    learn_from: NDArray[np.int64],
    *,
    limit: int,
    ridge: float,
    prune: float,
    screen: Screen,
) -> tuple[sparse.csr_array, Floats, "Curves"]:
    """Weights (V x L) without the small ones, each label's share of the documents (L,), and the curves' material."""
    n_documents, n_labels = y_NL.shape
    size, by_document = equations(x_NV.shape, limit)
    available = memory_free()
    if (need := FACTOR_BYTES * size**2) > available:
        raise RunError(
            f"ridge regression on {size:,} {'documents' if by_document else 'words'} needs {need / 1e9:.1f} GB, "
            f"{available / 1e9:.1f} GB are free; solve for fewer words, "
            f"e.g. --set words.limit={int((available / FACTOR_BYTES / 2) ** 0.5)}"
        )
    mean_L = np.asarray(y_NL.sum(axis=0), dtype=np.float32).ravel() / n_documents
    y_ML, y_NL = y_NL[learn_from].tocsc(), y_NL.tocsc()
    curves, columns = Curves(len(learn_from)), []
    with screen.bar("solving", n_labels, unit="labels") as advance:
        fit = (ByDocument if by_document else ByWord)(x_NV, learn_from, size, ridge)
        for start in range(0, n_labels, BLOCK):
            block = slice(start, min(start + BLOCK, n_labels))
            y_MC = y_ML[:, block].toarray()
            weight_VC, score_MC = fit(y_NL[:, block], mean_L[block], y_MC)
            curves.add(start, score_MC, y_MC > 0)
            weight_VC[np.abs(weight_VC) < prune] = 0
            columns.append(sparse.csc_array(weight_VC))
            advance(y_MC.shape[1])
    return sparse.hstack(columns, format="csr"), mean_L, curves


class ByDocument:
    """Ridge regression with an equation for each document."""

    def __init__(self, x_NV: sparse.csr_array, learn_from: NDArray[np.int64], size: int, ridge: float) -> None:
        self.x_VN, self.x_MV = x_NV.T.tocsr(), x_NV[learn_from]
        self.factor = _factor(x_NV, self.x_VN, ridge)
        parts = []
        for start in range(0, len(learn_from), BLOCK):
            place_B = learn_from[start : start + BLOCK]
            unit_NB = np.zeros((size, len(place_B)), dtype=np.float32)
            unit_NB[place_B, np.arange(len(place_B))] = 1
            parts.append(1 - ridge * _solve(self.factor, unit_NB)[place_B, np.arange(len(place_B))])
        self.leverage_M = _leverages(parts)

    def __call__(self, y_NC: sparse.csc_array, mean_C: Floats, y_MC: Floats) -> tuple[Floats, Floats]:
        """The weights of a block of labels, (V, C), and the scores of documents (M, C) without themselves."""
        weight_VC = self.x_VN @ _solve(self.factor, y_NC.toarray() - mean_C)
        return weight_VC, left_out(self.x_MV @ weight_VC, y_MC - mean_C, self.leverage_M) + mean_C


class ByWord:
    """Ridge regression with an equation for each of the `size` most frequent words, and the other words after it."""

    def __init__(self, x_NV: sparse.csr_array, learn_from: NDArray[np.int64], size: int, ridge: float) -> None:
        order_V = np.argsort(-np.bincount(x_NV.indices, minlength=x_NV.shape[1]), kind="stable")
        self.place_F, self.place_R, self.learn_from = np.sort(order_V[:size]), np.sort(order_V[size:]), learn_from
        self.x_NF = x_NV[:, self.place_F]
        self.x_FN, self.x_MF = self.x_NF.T.tocsr(), self.x_NF[learn_from]
        self.sum_F = np.asarray(self.x_NF.sum(axis=0), dtype=np.float32).ravel()
        self.factor = _factor(self.x_FN, self.x_NF, ridge)
        blocks = (self.x_MF[start : start + BLOCK].toarray() for start in range(0, len(learn_from), BLOCK))
        self.leverage_M = _leverages([(x_BF * _solve(self.factor, x_BF.T).T).sum(1) for x_BF in blocks])

        x_NR = x_NV[:, self.place_R]
        self.x_RN, self.x_MR = x_NR.T.tocsr(), x_NR[learn_from]
        self.below_R = np.asarray((x_NR**2).sum(axis=0), dtype=np.float32).ravel() + ridge
        room = self.below_R[self.x_MR.indices] - self.x_MR.data**2
        own = sparse.csr_array((self.x_MR.data**2 / room, self.x_MR.indices, self.x_MR.indptr), shape=self.x_MR.shape)
        self.own_M = np.asarray(own.sum(axis=1), dtype=np.float32).ravel()
        self.x_MR.data = self.x_MR.data / room

    def __call__(self, y_NC: sparse.csc_array, mean_C: Floats, y_MC: Floats) -> tuple[Floats, Floats]:
        """As `ByDocument`'s."""
        weight_VC = np.empty((len(self.place_F) + len(self.place_R), len(mean_C)), dtype=np.float32)
        weight_FC = _solve(self.factor, (self.x_FN @ y_NC).toarray() - np.outer(self.sum_F, mean_C))
        weight_VC[self.place_F] = weight_FC
        score_MC = left_out(self.x_MF @ weight_FC, y_MC - mean_C, self.leverage_M) + mean_C
        if len(self.place_R):
            unexplained_NC = y_NC.toarray() - mean_C - self.x_NF @ weight_FC
            above_RC = self.x_RN @ unexplained_NC
            weight_VC[self.place_R] = above_RC / self.below_R[:, None]
            score_MC += self.x_MR @ above_RC - self.own_M[:, None] * unexplained_NC[self.learn_from]
        return weight_VC, score_MC


def left_out(fitted_MC: Floats, y_MC: Floats, leverage_M: Floats) -> Floats:
    """Each document's scores by the model that was fitted without it."""
    return (fitted_MC - leverage_M[:, None] * y_MC) / (1 - leverage_M[:, None])


def _factor(x_SR: sparse.csr_array, x_RS: sparse.csr_array, ridge: float) -> Tensor:
    """The Cholesky factor of X X' + r I, (S, S); in blocks, because as a sparse matrix the product is larger."""
    size = x_SR.shape[0]
    gram = torch.empty(size, size)
    for start in range(0, size, BLOCK):
        gram[start : start + BLOCK] = torch.from_numpy((x_SR[start : start + BLOCK] @ x_RS).toarray())
    gram.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed:
        raise RunError(f"words.ridge = {ridge:g} is too small for these documents; try --set words.ridge=0.1")
    return factor


def _leverages(parts: list[Floats]) -> Floats:
    return np.minimum(np.concatenate(parts), 0.999).astype(np.float32)


def _solve(factor: Tensor, right: Floats) -> Floats:
    return torch.cholesky_solve(torch.from_numpy(np.ascontiguousarray(right)), factor).numpy()


class Curves:
    """Learns what scores are worth from those of M documents, a block of labels at a time."""

    def __init__(self, n_documents: int) -> None:
        self.own: dict[int, Floats] = {}
        """Labels with a curve of their own."""
        self.score_MK = np.full((n_documents, CANDIDATES), -np.inf, dtype=np.float32)
        self.label_MK = np.zeros((n_documents, CANDIDATES), dtype=np.int64)
        self.hit_MK = np.zeros((n_documents, CANDIDATES), dtype=bool)

    def add(self, start: int, score_MC: Floats, hit_MC: NDArray[np.bool_]) -> None:
        """Take in labels `start`, `start + 1`, ...: their scores, and whether documents have them."""
        for j in np.flatnonzero(hit_MC.sum(0) >= OWN_CURVE):
            s, hit = score_MC[:, j], hit_MC[:, j]
            curve = PLAIN if hit.all() else _regress(np.stack([s, s**2], 1), hit)
            self.own[start + int(j)] = np.array(curve, dtype=np.float32)
        labels_MC = np.broadcast_to(start + np.arange(score_MC.shape[1]), score_MC.shape)
        scores = np.concatenate([self.score_MK, score_MC], 1)
        best_MK = np.argpartition(-scores, CANDIDATES - 1, axis=1)[:, :CANDIDATES]
        self.score_MK = np.take_along_axis(scores, best_MK, 1)
        self.label_MK = np.take_along_axis(np.concatenate([self.label_MK, labels_MC], 1), best_MK, 1)
        self.hit_MK = np.take_along_axis(np.concatenate([self.hit_MK, hit_MC], 1), best_MK, 1)

    def finish(self, log_n_L: NDArray[np.float64]) -> Floats:
        """a, b and c of every label, (L, 3); the common curve is learned without the labels that have their own."""
        found = np.isfinite(self.score_MK) & ~np.isin(self.label_MK, list(self.own))
        s, log_n, hit = self.score_MK[found], log_n_L[self.label_MK[found]], self.hit_MK[found]
        curve_L3 = np.tile(np.array(PLAIN, dtype=np.float32), (len(log_n_L), 1))
        if min(hit.sum(), (~hit).sum()) >= LEAST_HITS:
            a0, a1, b0, b1, c0, c1 = _regress(np.stack([log_n, s, log_n * s, s**2, log_n * s**2], 1), hit)
            curve_L3[:] = np.stack([a0 + a1 * log_n_L, b0 + b1 * log_n_L, c0 + c1 * log_n_L], 1)
        for label, curve in self.own.items():
            curve_L3[label] = curve
        return curve_L3


def _regress(x: NDArray, hit: NDArray[np.bool_]) -> Floats:
    """Intercept and coefficients of a logistic regression, (1 + columns,)."""
    learned = LogisticRegression(C=100.0, max_iter=1_000).fit(x, hit)
    return np.concatenate([learned.intercept_, learned.coef_[0]]).astype(np.float32)
