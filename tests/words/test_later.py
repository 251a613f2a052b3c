"""Guards labels and documents that come later to words models and both: learned, saved, and others left as they are."""

import numpy as np
import pytest
from scipy import sparse

from aplc import Tagger
from aplc.data.formats import Document
from aplc.errors import RunError
from aplc.store.folder import load_tagger, save_tagger
from aplc.train.relabel import add_labels
from aplc.words import later, matrices
from aplc.words.later import Correction

WORDS = {"cats": "cat purr whiskers", "dogs": "dog bark leash", "trains": "rail locomotive wagon"}


def rows_of(n, topics, seed=0):
    rng = np.random.default_rng(seed)
    drawn = rng.choice(sorted(topics), n)
    other = [*(f"w{i}" for i in range(30)), "plane", "wing", "airport", "hamster", "wheel"]
    filler = [" ".join(rng.choice(other, 6)) for _ in drawn]
    return [f"{topics[t]} {rest}" for t, rest in zip(drawn, filler, strict=True)], [[str(t)] for t in drawn]


def tagger_of(kind):
    settings = ["train.epochs=1", "model.layers=1", "model.width=16", "model.heads=2", "model.inner_width=16"]
    preset = "words" if kind == "words" else "tiny"
    more = [] if kind == "words" else ["model.kind=both", "data.vocab_size=100", *settings]
    return Tagger(preset, settings=["data.validation=0", *more]).fit(*rows_of(200, WORDS))


def test_weights_move_as_ridge_regression_towards_the_old_ones_would():
    rng = np.random.default_rng(0)
    x = sparse.random_array((6, 20), density=0.4, rng=rng, format="csr", dtype=np.float32)
    old, y = rng.normal(size=(20, 3)), rng.normal(size=(6, 3))
    found = old + Correction(x, 0.7)(y - x @ old)
    dense = x.toarray()
    expected = np.linalg.solve(dense.T @ dense + 0.7 * np.eye(20), dense.T @ y + 0.7 * old)
    assert np.allclose(found, expected, atol=1e-5)


def test_weights_are_the_same_one_label_at_a_time(monkeypatch):
    def found():
        tagger = tagger_of("words").partial_fit(["plane wing", "rail dog"], [["planes", "cats"], ["trains", "dogs"]])
        return tagger.trained.model.index.matrix

    together = found()
    monkeypatch.setattr(matrices, "LARGEST", 1)
    assert together.nnz
    assert abs(together - found()).max() < 1e-4


def test_more_documents_than_memory_has_room_for_are_refused(monkeypatch):
    tagger = tagger_of("words")
    monkeypatch.setattr(later, "free_bytes", lambda: 100)
    with pytest.raises(RunError, match="give at most 2 at a time"):
        tagger.partial_fit(["plane", "wing", "rail"], [["cats"], ["dogs"], ["trains"]])
    tagger.partial_fit(["plane", "wing"], [["cats"], ["dogs"]])


@pytest.mark.parametrize("kind", ["words", "both"])
def test_a_label_that_comes_later_is_found_and_others_stay(kind, tmp_path):
    """From three examples; then from a name alone."""
    trained, texts = tagger_of(kind).trained, rows_of(20, WORDS, seed=1)[0]
    before = trained.model.topk(trained.model.read(trained.model.prepare(texts)), 3)
    planes = [Document(f"plane wing airport w{i}", ["planes"]) for i in range(3)]
    others = [Document(text, ["cats"]) for text in texts[:5]]
    grown = add_labels(add_labels(trained, [*planes, *others], ["planes"]), [], ["ships"])
    save_tagger(grown, tmp_path / "model")
    again = load_tagger(tmp_path / "model")
    assert again.labels.names[-2:] == ("planes", "ships")
    assert again.labels.counts[-2:].tolist() == [3, 0]
    old = np.arange(len(again.labels)) < 3
    ids, probs = again.model.topk(again.model.read(again.model.prepare(texts)), 3, old)
    assert (ids.tolist(), probs.tolist()) == (before[0].tolist(), before[1].tolist())
    states = again.model.read(again.model.prepare(["an airport for a plane", texts[0]]))
    there, elsewhere = again.model.probability_of(states, 3)
    assert there > 10 * elsewhere


def test_partial_fit_moves_the_labels_it_is_given_and_no_others():
    tagger = tagger_of("words")
    texts = ["hamster wheel", "hamster w1"]
    before = {text: dict(tagger.predict(text, top_k=3)) for text in texts}
    tagger.partial_fit(texts, [["cats"], ["cats"]])
    after = {text: dict(tagger.predict(text, top_k=3)) for text in texts}
    for text in texts:
        assert after[text]["cats"] > before[text]["cats"]
        assert after[text]["trains"] == before[text]["trains"]
    labels = tagger.trained.labels
    assert labels.counts.sum() == 202
    assert tagger.trained.n_documents == 202


def test_partial_fit_takes_new_labels_too():
    tagger = tagger_of("words").partial_fit(["plane wing", "plane airport"], [["planes"], ["planes", "cats"]])
    assert "planes" in tagger.classes_
    assert dict(tagger.predict("plane", top_k=4))["planes"] > dict(tagger.predict("rail", top_k=4))["planes"]


def test_a_label_of_the_vocabulary_is_found_once_it_has_documents():
    """And gives no useless curve to labels that come after it."""
    tagger = Tagger("words", settings=["data.validation=0"]).fit(*rows_of(200, WORDS), vocabulary={"X1": "zeppelin"})
    tagger.partial_fit(["plane wing"] * 20, [["X1"]] * 20)
    assert dict(tagger.predict("plane wing", top_k=4))["X1"] > 0.1
    tagger.partial_fit(["hamster wheel"] * 20, [["Y"]] * 20)
    assert dict(tagger.predict("hamster wheel", top_k=5))["Y"] > 0.1
