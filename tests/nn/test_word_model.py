"""Guards models of words: features are scikit-learn's TF-IDF, logits the sparse product, strangers' tables checked."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfTransformer

from aplc.data.batches import Batch
from aplc.errors import ModelError
from aplc.nn import words
from aplc.words.model import PAIR_LENGTH, AllLabels, WordFeatures, WordModel, rising

N_LABELS = 7


def batch_of(words, counts):
    empty = torch.zeros(len(words), 0, dtype=torch.int64)
    return Batch(empty, empty, empty, empty, torch.as_tensor(words), torch.as_tensor(counts, dtype=torch.float32))


@pytest.fixture
def counts():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.4, (50, 30))
    counts[:, 29] = 0
    counts[0, 29] = 3  # in a single document: left out
    return counts


@pytest.fixture
def features(counts):
    return WordFeatures.choose((counts > 0).sum(0), len(counts))


@pytest.fixture
def model(features):
    """Every word has weights for some labels, some words for none."""
    rng = np.random.default_rng(1)
    dense = np.where(rng.random((len(features.row), N_LABELS)) < 0.4, rng.normal(size=(len(features.row), N_LABELS)), 0)
    dense[3] = 0
    word, label = dense.nonzero()
    model = WordModel(features, len(word), N_LABELS)
    model.start.copy_(torch.from_numpy(np.searchsorted(word, np.arange(len(features.row) + 1))))
    model.label.copy_(torch.from_numpy(label.astype(np.int32)))
    model.weight.data.copy_(torch.from_numpy(dense[word, label]))
    model.bias.data.copy_(torch.from_numpy(rng.normal(size=N_LABELS)))
    model.curve.data[1] = 1  # the score itself
    model.check()
    return model, dense


def tfidf_of(counts):
    kept = np.where((counts > 0).sum(0) > 1, counts, 0)
    return TfidfTransformer(sublinear_tf=True).fit(counts).transform(kept).toarray()[:, :29]


def test_features_are_tfidf_of_scikit_learn(features, counts):
    words = torch.arange(30).repeat(50, 1)
    columns, weights = features(words, torch.from_numpy(counts).float())
    found = torch.zeros(50, len(features.row)).scatter_add_(1, columns, weights)
    assert features.row.tolist() == list(range(29))
    assert torch.allclose(found, torch.from_numpy(tfidf_of(counts)).float(), atol=1e-6)


def test_pairs_are_chosen_by_how_many_documents_have_them(monkeypatch):
    monkeypatch.setattr(words, "ROWS", 4)
    found = WordFeatures.choose(np.array([1, 2, 90, 0, 2, 3, 20, 21]), 200)  # words, then pairs
    assert found.row.tolist() == [1, 2, 5, 6]
    assert torch.allclose(found.idf, torch.tensor([201 / 3, 201 / 91, 201 / 4, 201 / 21]).log() + 1)


def test_words_and_pairs_have_lengths_of_their_own(monkeypatch, counts):
    monkeypatch.setattr(words, "ROWS", 20)
    monkeypatch.setattr(words, "PAIR_MOST", 1.0)
    found = WordFeatures.choose((counts > 0).sum(0), len(counts))
    columns, weights = found(torch.arange(30).repeat(50, 1), torch.from_numpy(counts).float())
    dense = torch.zeros(50, len(found.row)).scatter_add_(1, columns, weights).numpy()
    kept = np.where((counts > 0).sum(0) > 1, counts, 0)
    parts = [TfidfTransformer(sublinear_tf=True).fit(c).transform(k).toarray() for c, k in _split(counts, kept)]
    assert np.allclose(dense, np.hstack([parts[0], PAIR_LENGTH * parts[1][:, :9]]), atol=1e-6)
    nothing = found(torch.tensor([[3, 25]]), torch.tensor([[2.0, 0.0]]))[1]
    assert nothing.tolist() == [[1, 0]]


def _split(*matrices):
    return zip(*((m[:, :20], m[:, 20:]) for m in matrices), strict=True)


def test_logits_are_the_product(model, counts):
    model, dense = model
    found = model.represent(batch_of(np.tile(np.arange(30), (50, 1)), counts))
    expected = tfidf_of(counts) @ dense + model.bias.numpy()
    assert np.allclose(found.numpy(), expected, atol=1e-5)


def test_padding_unknown_words_and_no_words(model):
    model, _ = model
    alone = model.represent(batch_of([[3, 4, 8]], [[1.0, 2.0, 1.0]]))
    together = model.represent(batch_of([[3, 4, 8, 999, 0], [0, 0, 0, 0, 0]], [[1.0, 2.0, 1.0, 5.0, 0.0], [0.0] * 5]))
    assert torch.equal(together[0], alone[0])  # bit by bit: other documents change nothing
    assert torch.equal(together[1], model.bias)
    assert torch.equal(model.represent(batch_of(np.zeros((2, 0), dtype=np.int64), np.zeros((2, 0))))[1], model.bias)


def test_topk_is_the_sorted_sigmoid_with_ties_to_the_lower_id():
    logits = torch.tensor([[0.0, 2.0, 2.0, -1.0], [5.0, 5.0, 5.0, 5.0]])
    probs, ids = AllLabels(4).topk(logits, 3)
    assert ids.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert torch.allclose(probs, logits.gather(1, ids).sigmoid())
    assert AllLabels(4).topk(logits, 9).ids.shape == (2, 4)
    allowed = torch.tensor([True, False, True, True])
    assert AllLabels(4).topk(logits, 2, allowed=allowed).ids.tolist() == [[2, 0], [0, 2]]


def test_probability_of_one_label(model, counts):
    model, _ = model
    batch = batch_of(np.tile(np.arange(30), (50, 1)), counts)
    assert torch.allclose(model.probability_of(batch, 2), model.represent(batch)[:, 2].sigmoid())


def test_curves_rise_everywhere():
    scores = torch.linspace(-2, 2, 41)[:, None].expand(41, 3).contiguous()
    curve = torch.tensor([[0.5, 0.5, 0.5], [3.0, 3.0, 3.0], [0.0, 1.0, -1.0]])  # straight; bent from -1 and up to 1
    found = rising(scores, curve)
    whole = curve[0] + curve[1] * scores + curve[2] * scores**2
    assert torch.equal(found[:, 0], whole[:, 0])
    assert torch.allclose(found[10:, 1], whole[10:, 1])
    assert torch.allclose(found[:31, 2], whole[:31, 2])
    assert bool((found.diff(dim=0) > 0.09).all())


@pytest.mark.parametrize("where", ["label", "start", "end", "row", "wrap"])
def test_a_table_that_points_outside_itself_is_refused(model, where):
    model, _ = model
    if where == "label":
        model.label[3] = N_LABELS
    elif where == "wrap":  # differences that are positive only because they overflow
        model.start[1:4] = torch.tensor([2**62, -(2**63), -(2**62)])
    elif where == "row":
        model.features.row[4] = 0
    else:
        model.start[1 if where == "start" else -1] = 10**9
    with pytest.raises(ModelError):
        model.check()
