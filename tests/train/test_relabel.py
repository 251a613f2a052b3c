"""Guards label sets that change after training: what is not changed keeps its predictions to the last digit."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from aplc import Tagger
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.errors import AplcError, ModelError
from aplc.evaluate.run import evaluate
from aplc.store.folder import load_tagger, replace_folder, save_tagger
from aplc.train.new_labels import leave_one_out, regress
from aplc.train.relabel import add_labels, merge_labels, rename_label, retire_labels
from helpers import aplc, fails, ok, topic_rows, write_rows

TEXTS = [row["text"] for row in topic_rows(40, seed=7)]
NEW = {"chemistry": "acid base salt molecule", "sailing": "boat anchor mast harbour"}


@pytest.fixture(scope="module")
def folder(trained):
    return load_tagger(trained)


@pytest.fixture(scope="module")
def examples():
    rng = random.Random(0)
    documents = [Document(row["text"], row["labels"]) for row in topic_rows(80, seed=4)]
    for i in range(30):
        name = list(NEW)[i % 2]
        documents.append(Document(" ".join(rng.choices(NEW[name].split(), k=6)), [name]))
    return documents


@pytest.fixture(scope="module")
def added(folder, examples):
    return add_labels(folder, examples, list(NEW))


def tags(folder, **options):
    tagger = Tagger()
    tagger._trained = folder
    return tagger.predict(TEXTS, **options)


def test_regression_matches_scikit_learn():
    rng = np.random.default_rng(0)
    hidden, weights = rng.normal(size=(200, 5)), rng.integers(1, 4, size=200)
    truth = [[j for j in range(3) if rng.random() < 1 / (1 + np.exp(1 - 2 * row[j]))] for row in hidden]
    ours, bias = regress(torch.tensor(hidden, dtype=torch.float32), truth, torch.tensor(weights).float(), 3)
    for j in range(3):
        judge = LogisticRegression(C=1.0, tol=1e-8).fit(hidden, [j in row for row in truth], sample_weight=weights)
        assert ours[j].numpy() == pytest.approx(judge.coef_[0], abs=2e-3)
        assert float(bias[j]) == pytest.approx(float(judge.intercept_[0]), abs=2e-3)


def test_added_labels_are_found_and_old_ones_keep_their_digits(folder, added):
    assert tags(added, top_k=6, deny=list(NEW)) == tags(folder, top_k=6)
    tagger = Tagger()
    tagger._trained = added
    # the little tokenizer has never met these words: what can be learned is that they are strange
    assert {tagger.predict(NEW[name], top_k=2, allow=list(NEW))[0][0] for name in NEW} <= set(NEW)
    chosen = [tagger.predict(words, top_k=2) for words in NEW.values()]
    assert all(set(NEW) & {name for name, _ in tags_} for tags_ in chosen)
    assert added.labels.version == 2
    assert added.labels.counts[-2:].tolist() == [15, 15]


def test_labels_of_too_few_examples_are_named(folder):
    """Three examples that have nothing in common teach little."""
    said = []
    others = [Document(row["text"], row["labels"]) for row in topic_rows(200, seed=5)]
    few = [Document(text, ["air fryer"]) for text in ("cook bread", "rail apple wind", "opera paw soup")]
    add_labels(folder, [*others, *few], ["air fryer"], say=said.append)
    (line,) = said
    assert line.startswith("air fryer: too few examples (3)")
    assert "add more examples" in line
    probability = float(line.split("probability of ")[1].split(",")[0])
    assert 0 < probability < 0.5


def test_leave_one_out_is_a_regression_without_the_example():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(30, 4, generator=generator)
    truth = [[0] if i in (3, 7, 29) else [1] if i in (5, 28) else [] for i in range(30)]  # the last of each: its name
    weights = torch.ones(30)
    expected = []
    for i in (3, 7):
        rest = [j for j in range(30) if j != i]
        weight, bias = regress(hidden[rest], [[0] if truth[j] == [0] else [] for j in rest], weights[rest], 1)
        expected.append(float(torch.sigmoid(hidden[i] @ weight[0] + bias[0])))
    found = leave_one_out(hidden, truth, weights, 2)
    assert found[0] == pytest.approx(np.mean(expected), abs=1e-3)
    assert set(found) == {0, 1}


def test_second_addition_leaves_the_first(added, examples):
    again = add_labels(added, [], ["from its name alone"])
    assert tags(again, top_k=8, deny=["from its name alone"]) == tags(added, top_k=8)
    assert again.model.clusters.options["added"] == [2, 1]
    assert [entry["change"] for entry in again.labels.history] == ["add", "add"]


def test_rename(folder):
    renamed = rename_label(folder, "food", "Foodstuffs")
    before, after = tags(folder, top_k=6), tags(renamed, top_k=6)
    assert [[(n.replace("Foodstuffs", "food"), p) for n, p in row] for row in after] == before
    assert renamed.labels.encode(["food", "Foodstuffs"]) == folder.labels.encode(["food"])
    assert rename_label(renamed, "Foodstuffs", "food").labels.names == folder.labels.names
    with pytest.raises(AplcError, match="stands for 'Foodstuffs' already"):
        rename_label(renamed, "food", "x")


def test_merge_takes_the_highest(folder):
    merged = merge_labels(folder, ["food", "rare"], "animals")
    parts = {"food", "rare", "animals"}
    for before, after in zip(tags(folder, top_k=6), tags(merged, top_k=6), strict=True):
        best = max(p for name, p in before if name in parts)
        expected = [(name, p) for name, p in before if name not in parts] + [("animals", best)]
        assert sorted(after) == sorted(expected)
    assert merged.labels.n_in_use == 4
    assert all(len(row) == 2 for row in tags(merged, top_k=2))
    twice = merge_labels(merged, ["animals"], "vehicles")
    assert twice.labels.encode(["food"]) == twice.labels.encode(["vehicles"])
    evaluation = evaluate(merged, [Document("bread cheese", ["food", "animals"])])
    assert evaluation.metrics.label_stats(5).true.sum() == 1


def test_retire(folder):
    retired = retire_labels(folder, ["animals", "food"])
    left = [[tag for tag in row if tag[0] not in {"animals", "food"}] for row in tags(folder, top_k=6)]
    assert tags(retired, top_k=6) == left
    assert tags(retired, top_k=1) == [row[:1] for row in left]
    with pytest.raises(AplcError, match="'food' is retired"):
        tags(retired, allow=["food"])
    assert tags(retired, deny=["food"], top_k=6) == left, "an old list of labels not to predict stays good"
    with pytest.raises(AplcError, match="retired"):
        add_labels(retired, [], ["food"])
    with pytest.raises(AplcError, match="no label to predict"):
        retire_labels(folder, list(folder.labels.names))
    gone = retire_labels(merge_labels(folder, ["rare"], "animals"), ["animals"])
    assert {"rare", "animals"}.isdisjoint(name for row in tags(gone, top_k=6) for name, _ in row)


def test_changes_that_make_no_sense(folder):
    for change, words in [
        (lambda: add_labels(folder, [], ["food"]), "has a label 'food' already"),
        (lambda: add_labels(folder, [], []), "no new label"),
        (lambda: add_labels(folder, [], ["a\nb"]), "line break"),
        (lambda: rename_label(folder, "foot", "x"), "nearest is 'food'"),
        (lambda: rename_label(folder, "food", "rare"), "already"),
        (lambda: merge_labels(folder, ["food"], "food"), "into itself"),
        (lambda: merge_labels(folder, ["food"], "meals"), "no label 'meals'.*; merge into a label that the model has"),
        (lambda: retire_labels(folder, ["nothing"]), "no label 'nothing'"),
    ]:
        with pytest.raises(AplcError, match=words):
            change()


def test_more_examples_than_training_documents(folder, corpus):
    """The baseline's probability of such a label is no more than 1."""
    many = add_labels(folder, [Document(f"opera {i}", ["opera"]) for i in range(300)], ["opera"])
    assert evaluate(many, Corpus.open(corpus).documents("test")).metrics.n_evaluated == 60


def test_saved_changes_are_read_again(added, tmp_path):
    changed = retire_labels(
        merge_labels(rename_label(added, "food", "Foodstuffs"), ["rare"], "Foodstuffs"), ["animals"]
    )
    save_tagger(changed, tmp_path / "model")
    loaded = load_tagger(tmp_path / "model")
    assert loaded.labels.state() == changed.labels.state()
    assert loaded.labels.version == 5
    assert tags(loaded, top_k=8) == tags(changed, top_k=8)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "Label-set version 5: 6 labels in use" in card
    assert "version 3" in card
    assert "rename food to Foodstuffs" in card


def test_a_change_is_all_or_nothing(trained, folder, tmp_path, monkeypatch):
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    changed = add_labels(folder, [], ["x"])

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(type(changed.model), "save_weights", fail)
        with pytest.raises(OSError, match="disk full"):
            replace_folder(model, folder, changed)
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    replace_folder(model, folder, changed)
    assert load_tagger(model).labels.names[-1] == "x"
    assert (model / "run.json").is_file()
    with pytest.raises(ModelError, match="changed by somebody else"):
        replace_folder(model, folder, changed)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_commands(trained, corpus, examples, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    rows = [{"text": document.text, "labels": document.labels} for document in examples]
    write_rows(tmp_path / "examples.jsonl", rows)
    assert "added 2 labels; label-set version 2" in ok(aplc("labels", "add", model, tmp_path / "examples.jsonl"))
    (tmp_path / "names.txt").write_text("opera\n")
    printed = ok(aplc("labels", "add", model, "--names", tmp_path / "names.txt", "--out", tmp_path / "other"))
    assert "from their names alone" in printed
    assert json.loads((tmp_path / "other" / "config.json").read_text())["label_set"]["version"] == 3
    ok(aplc("labels", "rename", model, "food", "Foodstuffs"))
    ok(aplc("labels", "merge", model, "rare", "--into", "Foodstuffs"))
    assert "label-set version 5" in ok(aplc("labels", "retire", model, "animals"))
    listed = ok(aplc("labels", "list", model))
    assert "6 labels in use" in listed
    assert "merged into Foodstuffs" in listed
    assert "animals\tretired" in listed
    assert "rename food to Foodstuffs" in ok(aplc("labels", "list", model, "--history"))
    assert "-\tfood\trenamed to Foodstuffs" in ok(aplc("labels", "list", model, "--search", "FOOD"))
    evaluated = ok(aplc("evaluate", model, corpus, "--examples", 60, "--json", model / "evaluation.json"))
    assert "added 1" in evaluated
    assert "1 true labels are not among the model's" in evaluated
    assert "1 true labels are retired" in evaluated
    assert "* Foodstuffs" in evaluated
    assert not any("rare" in line for line in evaluated.splitlines() if "also:" in line), "they are Foodstuffs now"
    ok(aplc("compare", model, model / "evaluation.json"))
    ok(aplc("labels", "retire", model, "vehicles"))
    fails(aplc("compare", model, model / "evaluation.json"), "labels have changed since", "aplc evaluate")
    fails(aplc("labels", "retire", model, "animal"), "no label 'animal'")
    fails(aplc("labels", "add", model), "--names")
    fails(aplc("labels", "add", model, tmp_path / "examples.jsonl"), "no new label")
    fails(aplc("train", corpus, "--out", model, "--resume"), "label-set version 6")
