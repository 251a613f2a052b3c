"""Guards training with a vocabulary: the model folder keeps it, and a run is not resumed with another one."""

import shutil

import pytest

from aplc import Tagger
from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.data.vocabulary import Vocabulary
from aplc.errors import ModelError
from aplc.store.folder import load_tagger
from helpers import TOPICS, aplc, fails, ok, topic_rows, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus with a vocabulary, and a words model of it."""
    path = tmp_path_factory.mktemp("vocabulary")
    write_rows(path / "train.jsonl", topic_rows(200, seed=1))
    names = {label: label.title() for label in TOPICS if label != "rare"}
    rows = [{"label": label, "name": name, "broader": ["things"]} for label, name in names.items()]
    rows += [{"label": "things"}, {"label": "sports", "name": "Football and tennis"}, {"label": "elsewhere"}]
    write_rows(path / "vocabulary.jsonl", rows)
    ok(aplc("train", path, "--preset", "words", "--out", path / "model"))
    return path


def test_the_model_folder_keeps_the_vocabulary(folder):
    trained = load_tagger(folder / "model")
    assert trained.vocabulary.entries == Vocabulary.read(folder / "vocabulary.jsonl").entries
    assert trained.labels.names[-3:] == ("elsewhere", "sports", "things")
    assert trained.labels.n_seen == len(TOPICS)
    card = (folder / "model" / "README.md").read_text()
    assert "has entries for 8 of the labels; 3 labels have no training document." in card


def test_a_changed_vocabulary_is_not_resumed_with(folder, tmp_path):
    again = ("train", folder, "--preset", "words", "--out", folder / "model", "--resume")
    assert "this run is finished" in aplc(*again).stderr
    write_rows(tmp_path / "other.jsonl", [{"label": "animals"}])
    fails(aplc(*again, "--vocabulary", tmp_path / "other.jsonl"), "can't resume, the vocabulary has changed")


def test_a_damaged_or_hostile_vocabulary_is_refused(folder, tmp_path):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    write_rows(model / "vocabulary.jsonl", [{"label": "a", "broader": ["a"]}])
    with pytest.raises(ModelError, match="has changed since the model was saved"):
        load_tagger(model)


def test_renaming_a_label_renames_its_entry(folder, tmp_path):
    ok(aplc("labels", "rename", folder / "model", "animals", "fauna", "--out", tmp_path / "renamed"))
    vocabulary = load_tagger(tmp_path / "renamed").vocabulary
    assert vocabulary.name_of("fauna") == "Animals"
    assert "fauna" in vocabulary.below("things")


def test_fit_takes_names_by_label(tmp_path):
    rows = topic_rows(60, seed=3)
    texts, labels = [row["text"] for row in rows], [row["labels"] for row in rows]
    tagger = Tagger("words").fit(texts, labels, vocabulary={"animals": "Beasts", "sports": {"names": ["tennis"]}})
    assert tagger.trained.vocabulary.name_of("animals") == "Beasts"
    assert tagger.classes_[-1] == "sports"
    tagger.save_pretrained(tmp_path / "model")
    assert Tagger.from_pretrained(tmp_path / "model").trained.vocabulary == tagger.trained.vocabulary
    Tagger("words").fit(texts, labels).save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model" / "vocabulary.jsonl").exists()


def test_no_vocabulary_changes_nothing(corpus):
    source = Source.from_corpus(Corpus.open(corpus))
    assert source.vocabulary is None
    assert source.identity == {"corpus": source.key, "more": None, "vocabulary": None}
    assert source.more_labels(Config().data) == ()


def test_both_knows_labels_without_documents_by_its_words_alone(tmp_path):
    """The network has the labels that documents have; blend, calibration and the saved folder know of the others."""
    rows = topic_rows(80, seed=3)
    texts, labels = [row["text"] for row in rows], [row["labels"] for row in rows]
    settings = ["model.kind=both", "train.epochs=1", "model.layers=1", "model.width=16", "model.heads=2"]
    settings += ["model.inner_width=16", "model.hidden_width=16", "data.vocab_size=200", "clusters.proportions=1"]
    tagger = Tagger("tiny", settings=settings).fit(texts, labels, vocabulary={"sports": "tennis", "animals": ""})
    model = tagger.trained.model
    n_seen = len({label for own in labels for label in own})
    assert (model.words.n_labels, model.network.n_labels) == (n_seen + 1, n_seen)
    assert model.blend.curve_3L[:, -1].tolist() == [0, 1, 0]
    tagger.save_pretrained(tmp_path / "model")
    again = Tagger.from_pretrained(tmp_path / "model")
    assert again.predict(texts[:3], top_k=9) == tagger.predict(texts[:3], top_k=9)
    assert "sports" in dict(again.predict("tennis", top_k=99))


def test_a_network_alone_leaves_labels_without_documents_out(tmp_path):
    rows = topic_rows(40, seed=3)
    tagger = Tagger("tiny", settings=["train.epochs=1", "model.layers=1", "data.vocab_size=200"])
    tagger.fit(
        [row["text"] for row in rows], [row["labels"] for row in rows], vocabulary={"sports": "tennis", "animals": ""}
    )
    assert "sports" not in tagger.classes_


def test_a_model_of_documents_that_carry_names(tmp_path):
    """From training to evaluation and feedback, each subject is one label, whatever documents call it."""
    uris = {label: f"http://example.org/{i}" for i, label in enumerate(TOPICS)}
    (tmp_path / "corpus").mkdir()
    write_rows(tmp_path / "corpus" / "train.jsonl", topic_rows(200, seed=1))
    test = topic_rows(40, seed=2)
    write_rows(tmp_path / "corpus" / "test.jsonl", test)
    write_rows(tmp_path / "v.jsonl", [{"label": uri, "name": label.title()} for label, uri in uris.items()])
    reviewed = [{"text": row["text"], "accepted": row["labels"], "rejected": ["Rare"]} for row in test[1:9]]
    write_rows(tmp_path / "feedback.jsonl", reviewed)
    run = ("train", tmp_path / "corpus", "--preset", "words", "--vocabulary", tmp_path / "v.jsonl")
    run = (*run, "--more", tmp_path / "feedback.jsonl", "--out", tmp_path / "model")
    done = aplc(*run)
    ok(done)
    assert "names: 7 labels of the documents are names in" in done.stderr  # Rare and rare
    assert set(load_tagger(tmp_path / "model").labels.names) == set(uris.values())
    assert "this run is finished" in aplc(*run, "--resume").stderr
    shown = ok(aplc("evaluate", tmp_path / "model", tmp_path / "corpus"))
    assert "Names that documents carry stand for the model's labels: 6 of them." in shown
    assert "not among the model's" not in shown
    shown = ok(aplc("evaluate", tmp_path / "model", tmp_path / "feedback.jsonl"))
    assert "unseen, this model" not in shown
    write_rows(tmp_path / "more.jsonl", [{"text": "telescope", "labels": ["Animals", "space"]}] * 3)
    ok(aplc("labels", "add", tmp_path / "model", tmp_path / "more.jsonl", "--out", tmp_path / "added"))
    assert load_tagger(tmp_path / "added").labels.names[len(uris) :] == ("space",)
    # What a person sees has names, and rejections count for the label that the name stands for.
    assert "Rare (http://example.org/5)" in shown_with_proposals(tmp_path)
    # A label of the vocabulary that no document had.
    write_rows(tmp_path / "v.jsonl", [{"label": "u:9", "name": "Space"}, {"label": uris["food"], "name": "food"}])
    run = ("train", tmp_path / "corpus", "--preset", "words", "--vocabulary", tmp_path / "v.jsonl")
    ok(aplc(*run, "--out", tmp_path / "space"))
    write_rows(tmp_path / "more.jsonl", [{"text": "telescope", "labels": ["food", "space"]}] * 3)
    add = ("labels", "add", tmp_path / "space", tmp_path / "more.jsonl")
    fails(aplc(*add), "in the model already, without training documents: u:9", "--more")


def shown_with_proposals(folder):
    row = {"text": "quark", "accepted": [], "rejected": ["rare"], "proposed": [["http://example.org/5", 0.9]]}
    write_rows(folder / "proposed.jsonl", [row])
    return ok(aplc("evaluate", folder / "model", folder / "proposed.jsonl"))
