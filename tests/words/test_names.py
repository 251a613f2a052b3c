"""Guards labels' names: which labels a text mentions, what a mention is worth, and labels that no document has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from aplc import Tagger
from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.evaluate.metrics import Metrics
from aplc.predict.search import predict_documents
from aplc.train.run import train
from aplc.words.names import Known, Names, is_plain, learn_worth, mention_worth, stem
from aplc.words.text import words_of
from helpers import Recorder, write_rows
from reference import mentions_of

QUIET = Screen(quiet=True)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("cells", "cell"), ("biopsies", "biopsy"), ("processes", "process"), ("boxes", "box"), ("branches", "branch")]
    + [(word, word) for word in ("gas", "mass", "glass", "cell", "bus", "2020s"[:4])],
)
def test_a_stem_is_a_word_without_a_plurals_ending(word, expected):
    assert stem(word) == expected


def test_a_text_mentions_labels_of_whose_names_it_has_all_words():
    names = Names.of([["Anemia, Sickle Cell", "drepanocytosis"], ["Cells"], ["Blood Cells"], ["!"], []])
    texts = ["Sickle cells, an anemia of cells", "", "drepanocytosis: blood", "cell, blood"]
    found = names.mentions([words_of(text) for text in texts], 5)
    pairs = dict(zip(zip(found.document.tolist(), found.label.tolist(), strict=True), found.place, strict=True))
    assert set(pairs) == {(0, 0), (0, 1), (2, 0), (3, 1), (3, 2)}
    assert pairs[0, 0] == pytest.approx(np.log(1 + 4))  # complete with the fourth word
    assert pairs[0, 1] == pytest.approx(np.log(1 + 2))
    assert pairs[2, 0] == pytest.approx(np.log(1 + 1))  # of two names, the earlier


WORDS = st.lists(st.sampled_from(["a", "b", "cats", "cat", "dogs", "dog", "mass"]), max_size=5)


@given(st.lists(st.lists(WORDS.map(" ".join), max_size=3), min_size=1, max_size=5), st.lists(WORDS, max_size=4))
def test_mentions_match_reference(names, texts):
    found = Names.of(names).mentions(texts, len(names))
    expected = mentions_of(texts, [[words_of(name) for name in own] for own in names])
    assert list(zip(found.document.tolist(), found.label.tolist(), strict=True)) == sorted(expected)
    assert np.allclose(found.place, [expected[pair] for pair in sorted(expected)])


def test_forgetting_words_changes_no_mention(monkeypatch):
    names, texts = Names.of([["cat"], ["dogs and cats"]]), [words_of("Cats and other animals, dogs and a cat")] * 2
    expected = names.mentions(texts, 2)
    monkeypatch.setattr("aplc.words.names.MOST_WORDS", 2)
    again = Names.of([["cat"], ["dogs and cats"]])
    found = again.mentions(texts, 2)
    assert len(again._places) <= 2
    assert all(map(np.array_equal, found, expected))
    assert found.label.tolist() == [0, 1, 0, 1]


def test_worth_of_a_mention_is_found():
    """Mentions that were mostly wrong so far count less than those that were mostly right; labels without documents
    have no other signal."""
    rng = np.random.default_rng(0)
    n_labels, each = 400, 60
    n = np.where(rng.random(n_labels) < 0.3, 0, rng.integers(1, 50, n_labels))
    wrong = rng.integers(0, 200, n_labels)
    labels = Known(n, np.zeros_like(n), wrong)
    label = np.repeat(np.arange(n_labels), each)
    z, place = rng.normal(-2, 2, len(label)) * (n[label] > 0), rng.uniform(1, 5, len(label))
    truth = 3 - np.log1p(wrong[label]) + 0.5 * z - 0.4 * place
    hit = rng.random(len(label)) < expit(truth)
    worth = mention_worth(learn_worth(Known(*(x[label] for x in labels)), z, place, hit), labels)
    found = worth[0, label] + worth[1, label] * z + worth[2, label] * place
    assert np.abs(expit(found) - expit(truth)).mean() < 0.03
    assert (worth[1, n == 0] == 0).all()


def test_few_mentions_teach_one_number():
    few = Known(*(np.ones(150, dtype=np.int64) for _ in range(3)))
    hit = np.arange(150) < 90
    learned = learn_worth(few, np.zeros(150), np.ones(150), hit)
    assert is_plain(learned)
    a, b, c = mention_worth(learned, Known(np.array([0, 7]), np.array([0, 2]), np.array([9, 9])))
    assert a == pytest.approx([np.log(91 / 63), 0])
    assert b.tolist() == [0, 1]
    assert c.tolist() == [0, 0]


TOPICS = ["anemia", "asthma", "malaria", "rabies", "tetanus", "cholera", "measles", "typhoid", "gout", "scurvy"]


def rows_of(n, seed, *, coded=False, without=()):
    """Texts that mention one topic, which is their label, and a second in passing, late."""
    rng = np.random.default_rng(seed)
    kept = [topic for topic in TOPICS if topic not in without]
    rows = []
    for _ in range(n):
        first, second = rng.choice(kept if without else TOPICS, 2, replace=False)
        filler = " ".join(f"w{i}" for i in rng.integers(0, 300, 20))
        label = f"D{TOPICS.index(first):03d}" if coded else first
        rows.append({"text": f"On {first}. {filler} unlike {second}", "labels": [label]})
    return rows


@pytest.mark.parametrize(("coded", "used"), [(False, True), (True, False)])
def test_names_are_learned_from_unless_they_are_codes(tmp_path, coded, used):
    write_rows(tmp_path / "train.jsonl", rows_of(400, 0, coded=coded))
    screen = Recorder()
    source = Source.from_corpus(Corpus.open(tmp_path))
    train(source, Config.from_preset("words"), tmp_path / "model", screen=screen)
    assert ("names: " in screen.text) is used
    screen = Recorder()
    off = Config.from_preset("words").with_settings(["words.names=off"])
    train(source, off, tmp_path / "off", screen=screen)
    assert "names: " not in screen.text


@pytest.mark.parametrize("limit", [8_192, 60])
def test_labels_without_documents_are_found_by_their_names(tmp_path, limit):
    """In closed form and by conjugate gradients; codes have names in the vocabulary."""
    unseen = TOPICS[-3:]
    rows = rows_of(600, 0, coded=True, without=unseen)
    rows += [{"text": f"On {topic}. Rare", "labels": [f"D9{i:02d}"]} for i, topic in enumerate("abcdefghij")]
    vocabulary = {f"D{i:03d}": {"name": topic, "names": [topic.upper()]} for i, topic in enumerate(TOPICS)}
    settings = [f"words.limit={limit}", "data.validation=0"]
    tagger = Tagger("words", settings=settings).fit(
        [row["text"] for row in rows], [row["labels"] for row in rows], vocabulary=vocabulary
    )
    labels = tagger.trained.labels
    assert [labels.counts[labels.index[f"D{TOPICS.index(topic):03d}"]] for topic in unseen] == [0, 0, 0]
    mentioned = dict(tagger.predict(f"On {unseen[0]}. w1 w2", top_k=len(labels)))
    other = dict(tagger.predict("On w3. w1 w2", top_k=len(labels)))
    label = f"D{TOPICS.index(unseen[0]):03d}"
    assert other[label] < 1e-3 < mentioned[label]
    again = tagger.trained.model
    assert again.n_labels == len(labels)


def test_names_lift_rare_labels(tmp_path):
    """Labels of one document each, which texts mention: without names they can't be told apart."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("bcdfgklmnprstv"), 6)) for _ in range(200)]
    rows = [{"text": f"{word} x{i % 7} y{i % 5}", "labels": [word.title()]} for i, word in enumerate(words * 2)]
    found = {}
    for names in "auto", "off":
        tagger = Tagger("words", settings=[f"words.names={names}", "data.validation=0"])
        tagger.fit([row["text"] for row in rows[:200]], [row["labels"] for row in rows[:200]])
        trained = tagger.trained
        metrics = Metrics(trained.labels.counts, n_documents=200)
        documents = list(Corpus.open(write_rows(tmp_path / f"{names}.jsonl", rows[200:])).documents("test"))
        for block, ids, probs in predict_documents(trained, documents, 5):
            metrics.update_lists(ids, probs, [trained.labels.encode(d.labels) for d in block])
        found[names] = metrics.result()["P@1"]
    assert found["auto"] >= found["off"]
