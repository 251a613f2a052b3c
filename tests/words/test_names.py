"""Guards labels' names: rows of the ridge regression that are no documents, and used only where they say something."""

import numpy as np
import pytest
from scipy import sparse

from aplc import Tagger
from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.train.run import train
from aplc.words import ridge, systems
from aplc.words.names import tell, with_names
from aplc.words.ridge import solve
from helpers import Recorder, write_rows

QUIET = Screen(quiet=True)


@pytest.fixture(scope="module")
def matrices():
    rng = np.random.default_rng(0)
    x = sparse.random_array((60, 40), density=0.2, rng=rng, format="csr", dtype=np.float32)
    y = (rng.random((60, 6)) < 0.2).astype(np.float32)
    names = sparse.random_array((6, 40), density=0.1, rng=rng, format="csr", dtype=np.float32)
    return x, sparse.csr_array(y), names


def test_every_name_with_a_known_word_becomes_a_row(matrices):
    x, y, names = matrices
    names = names.tolil()
    names[2] = 0
    all_x, all_y = with_names(x, y, sparse.csr_array(names))
    assert all_x.shape == (65, 40)
    assert all_y[60:].toarray().argmax(1).tolist() == [0, 1, 3, 4, 5]
    assert (all_y[:60] != y).nnz == 0
    assert np.allclose(all_x[62].toarray(), names[3].toarray())


@pytest.mark.parametrize("limit", [1_000, 10])
def test_a_name_is_a_row_that_says_nothing_of_other_labels(matrices, monkeypatch, limit):
    """Means are of documents; a name's target is 1 for its label, and the mean for others."""
    monkeypatch.setattr(systems, "TOLERANCE", 1e-6)
    monkeypatch.setattr(ridge, "RARE", 0)
    x, y, names = matrices
    all_x, all_y = with_names(x, y, names)
    found, mean, _ = solve(all_x, all_y, np.arange(9), limit=limit, ridge=0.7, prune=0.0, screen=QUIET, n_documents=60)
    dense, target = all_x.toarray().astype(np.float64), all_y.toarray().astype(np.float64)
    assert np.allclose(mean, target[:60].mean(0))
    target[:60] -= target[:60].mean(0)
    expected = np.linalg.solve(dense.T @ dense + 0.7 * np.eye(40), dense.T @ target)
    assert np.allclose(found.toarray(), expected, atol=1e-5)


def test_names_tell_where_documents_have_their_words(matrices):
    x, y, _ = matrices
    assert not tell(x, y, sparse.csr_array(np.eye(6, 40, dtype=np.float32)), seed=0)
    assert not tell(x, y, sparse.csr_array((6, 40), dtype=np.float32), seed=0)
    separate = sparse.csr_array(np.kron(np.eye(6), np.ones((10, 4))).astype(np.float32))  # every label has its words
    labels = sparse.csr_array(np.kron(np.eye(6), np.ones((10, 1))).astype(np.float32))
    assert tell(separate, labels, sparse.csr_array(np.kron(np.eye(6), np.ones((1, 4))).astype(np.float32)), seed=0)


def rows_of(names):
    """Thirty documents of two frequent labels; in every tenth, a rare label whose name is a word of the text."""
    rows = []
    for i in range(300):
        topic = i % 2
        rare = names[i // 10 % len(names)] if i % 10 == 0 else None
        text = f"{'rain wind snow' if topic else 'violin opera sonata'} {rare or 'other'} item number {i % 7}"
        rows.append({"text": text, "labels": [["weather", "music"][1 - topic], *([rare] if rare else [])]})
    return rows


@pytest.mark.parametrize(("coded", "used"), [(False, True), (True, False)])
def test_names_are_learned_from_unless_they_are_codes(tmp_path, coded, used):
    words = ["apricot", "basalt", "comet", "dolphin", "ember", "falcon", "geyser", "hamster", "iris", "jasmine"]
    rows = rows_of(words)
    for row in rows:
        row["labels"] = [f"c-{sum(map(ord, label))}-{len(label)}" if coded else label for label in row["labels"]]
    write_rows(tmp_path / "train.jsonl", rows)
    screen = Recorder()
    train(Source.from_corpus(Corpus.open(tmp_path)), Config.from_preset("words"), tmp_path / "m", screen=screen)
    assert ("names: " in screen.text) is used
    if used:
        assert Tagger.from_pretrained(tmp_path / "m").predict("a falcon", top_k=3)[0][0] == "falcon"
    off = Config.from_preset("words").with_settings(["words.names=off"])
    screen = Recorder()
    train(Source.from_corpus(Corpus.open(tmp_path)), off, tmp_path / "off", screen=screen)
    assert "names: " not in screen.text
