"""Guards `aplc evaluate`: what it prints and saves, and how much memory it needs."""

import json
import subprocess
import sys

import numpy as np
import pytest

from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.errors import AplcError, CorpusError
from aplc.evaluate.options import parse_propensity
from aplc.evaluate.report import render_report
from aplc.evaluate.run import Evaluator, evaluate
from aplc.evaluate.saved import load_evaluation, save_evaluation
from aplc.evaluate.table import render
from aplc.store.folder import load_tagger
from aplc.train.relabel import retire_labels
from aplc.train.run import train
from evaluations import make_evaluation, make_labels

NAMES = [f"label {i}" for i in range(40)]


def test_model_is_scored_with_bands_clusters_and_intervals(corpus, trained):
    evaluation = evaluate(load_tagger(trained), Corpus.open(corpus).documents("test"), n_examples=3)
    figures = json.loads(json.dumps(evaluation.to_dict()))
    assert figures["unseen_labels"] == 1
    assert [band["name"] for band in figures["bands"]] == ["head", "torso", "tail", "unseen"]
    assert [band["name"] for band in figures["clusters"]] == ["head", "tail 1", "not in the model"]
    assert sum(band["true"] for band in figures["clusters"]) == sum(band["true"] for band in figures["bands"])
    low, high = figures["intervals"]["P@1"]
    assert low <= figures["metrics"]["P@1"] <= high
    assert len(evaluation.examples) == 3
    printed = render(evaluation, n_examples=1)
    for words in (
        "60 documents",
        "P  ",
        "±",
        "micro-F1",
        "torso",
        "tail 1",
        "1 true labels are not among the model's; they",
        "a true label",
    ):
        assert words in printed


def test_options_reach_the_metrics(corpus, trained):
    folder, documents = load_tagger(trained), list(Corpus.open(corpus).documents("test"))
    usual = evaluate(folder, documents).metrics
    other = evaluate(folder, documents, propensity=(0.6, 2.6), threshold=0.01).metrics
    assert usual.result()["P@3"] == other.result()["P@3"]
    assert usual.result()["PSP@3"] != other.result()["PSP@3"]
    assert usual.result()["micro-F1"] != other.result()["micro-F1"]


def test_retired_label_keeps_its_weight_in_psp(corpus, trained):
    """It counts as missed, by the weight of its training documents and not as if training had never seen it."""
    tagger, documents = load_tagger(trained), list(Corpus.open(corpus).documents("test"))
    frequent = tagger.labels.names[0]
    evaluation = evaluate(retire_labels(tagger, [frequent]), documents)
    assert "1 true labels are retired; they count as missed." in evaluation.notes
    assert evaluation.n_unseen == 1
    stats = evaluation.metrics.label_stats(5)
    assert (stats.true[0] > 0, stats.hits[0]) == (True, 0)
    assert stats.train[0] == tagger.labels.counts[0]
    assert frequent not in {score.name for half in evaluation.best_and_worst for score in half}


def test_model_without_clusters_has_no_table_of_them(corpus, tmp_path):
    config = Config.from_preset("words").with_settings(["data.validation=0.2"])
    tagger = train(Source.from_corpus(Corpus.open(corpus)), config, tmp_path / "m")
    evaluation = evaluate(tagger, Corpus.open(corpus).documents("test"))
    assert evaluation.to_dict()["clusters"] == []
    assert "cluster" not in render(evaluation)
    assert "By cluster" not in render_report(evaluation, model="m", corpus="c", part="test")
    assert "layers" not in (tmp_path / "m" / "README.md").read_text()


@pytest.mark.parametrize("text", ["nonsense", "1", "1,2,3", "0.5,x", "-1,2", "0,0"])
def test_invalid_propensity_is_refused(text):
    with pytest.raises(AplcError, match="--propensity"):
        parse_propensity(text)


def test_propensities_by_name_and_number():
    assert parse_propensity("amazon") == "amazon"
    assert parse_propensity("0.5, 0.4") == (0.5, 0.4)


def test_no_documents_is_an_error():
    with pytest.raises(CorpusError, match="no documents"):
        Evaluator(make_labels(NAMES), n_documents=10).finish()


def test_fingerprint_depends_on_the_documents_only():
    assert make_evaluation(NAMES, seed=1).fingerprint == make_evaluation(NAMES, seed=2).fingerprint
    assert make_evaluation(NAMES, n=199).fingerprint != make_evaluation(NAMES).fingerprint
    assert make_evaluation(NAMES, texts=["other"]).fingerprint != make_evaluation(NAMES).fingerprint


def test_saved_evaluation_is_loaded_unchanged(tmp_path):
    evaluation = make_evaluation(NAMES)
    save_evaluation(tmp_path / "e.json", evaluation, model="m", corpus="c", part="test")
    loaded = load_evaluation(tmp_path / "e.json")
    scores = evaluation.metrics.document_scores()
    assert loaded.scores.names == scores.names
    assert np.array_equal(loaded.scores.numerators, scores.numerators)
    assert np.array_equal(loaded.scores.denominators, scores.denominators)
    assert loaded.metrics == evaluation.metrics.result()
    assert loaded.figures["corpus"] == "c"


def test_missing_and_mixed_up_files_are_refused(tmp_path):
    with pytest.raises(AplcError, match="aplc evaluate MODEL CORPUS --json"):
        load_evaluation(tmp_path / "nowhere.json")
    with pytest.raises(AplcError, match=r"no saved evaluation.*--json .*evaluation.json"):
        load_evaluation(tmp_path)
    (tmp_path / "junk.json").write_text("{}")
    with pytest.raises(AplcError, match="not an evaluation"):
        load_evaluation(tmp_path / "junk.json")
    for name, seed in (("a", 1), ("b", 2)):
        save_evaluation(tmp_path / f"{name}.json", make_evaluation(NAMES, seed=seed))
    (tmp_path / "b.npz").replace(tmp_path / "a.npz")
    with pytest.raises(AplcError, match="another evaluation"):
        load_evaluation(tmp_path / "a.json")


MEMORY = """
import resource
import numpy as np
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.evaluate.report import render_report
from aplc.evaluate.run import Evaluator
from aplc.models.calibration import DEPTH

n_labels, rng = 670_091, np.random.default_rng(0)
labels = LabelSet(tuple(f"label {i}" for i in range(n_labels)), np.maximum(n_labels // np.arange(1, n_labels + 1), 1))
labels.index
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
evaluator = Evaluator(labels, n_documents=1_000_000, cutoffs=(167_522, 335_045, 502_568), n_examples=12)
for block in range(15):
    base = rng.permutation(n_labels)[: 2000 * 100].reshape(2000, 100)
    probs = -np.sort(-rng.random((2000, DEPTH)), axis=1)
    documents = [
        Document(f"text {block} {i} " + "w " * 99, [f"label {j}" for j in row[rng.integers(0, 20, 5)]] + [f"new {i}"])
        for i, row in enumerate(base)
    ]
    evaluator.update(documents, base, probs)
evaluation = evaluator.finish()
evaluation.to_dict()
render_report(evaluation, model="m", corpus="c", part="test")
assert evaluation.metrics.n_evaluated == 30_000
print(before, peak())
"""


def test_memory_at_30_000_documents_and_670_091_labels():
    """Of metrics, baseline, findings, intervals and report; the label set is the model's."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    before, peak = map(float, done.stdout.split())
    assert peak - before < 1024, f"{peak - before:.0f} MB"
