"""Guards `Tagger` among scikit-learn's tools: parameters, clones, pipelines, grids, sparse labels, more documents."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from aplc import Tagger
from aplc.errors import AplcError, NotFittedError
from helpers import SMALL, topic_rows

ROWS = topic_rows(90, seed=5)
TEXTS, LABELS = [row["text"] for row in ROWS], [row["labels"] for row in ROWS]
QUICK = [*SMALL, "train.epochs=6", "train.patience=0"]


@pytest.fixture(scope="module")
def tagger(trained):
    return Tagger.from_pretrained(trained)


def test_parameters_and_clones():
    tagger = Tagger(settings=QUICK)
    assert tagger.get_params() == {"preset": "auto", "settings": QUICK, "device": None, "verbose": False}
    twin = clone(tagger.set_params(preset="eurlex-4k", verbose=True))
    assert twin.get_params() == tagger.get_params()
    with pytest.raises(NotFittedError):
        twin.predict_proba(["x"])


def test_pipeline_and_grid_search():
    lower = FunctionTransformer(lambda texts: [t.lower() for t in texts])
    pipeline = Pipeline([("shout", lower), ("tag", Tagger("tiny"))])
    grid = {"tag__settings": [[*SMALL, "train.epochs=1"], QUICK]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit([t.upper() for t in TEXTS], LABELS)
    assert search.best_params_["tag__settings"] == QUICK  # more epochs learn more
    scores = search.cv_results_["mean_test_score"]
    assert 0 < scores[0] < scores[1] <= 1
    (tags,) = search.predict(["CAT DOG PAW FUR"])
    assert len(tags) == 5
    assert 0 < search.score(TEXTS, LABELS) <= 1


def test_sparse_probabilities(tagger):
    texts = [*TEXTS[:20], "?"]
    probs = tagger.predict_proba(texts, top_k=3)
    assert sparse.issparse(probs)
    assert probs.format == "csr"
    assert probs.shape == (21, len(tagger.classes_))
    assert (np.diff(probs.indptr) == 3).all()
    for i, tags in enumerate(tagger.predict(texts, top_k=3)):
        row = probs[[i]].toarray()[0]
        assert {tagger.classes_[j]: pytest.approx(row[j]) for j in np.flatnonzero(row)} == dict(tags)
    assert tagger.predict_proba([]).shape == (0, 6)
    assert tagger.predict_proba("cat").shape == (1, 6)


def test_sparse_labels_train_the_same_model():
    names = sorted({name for row in LABELS for name in row})
    matrix = sparse.csr_matrix([[float(name in row) for name in names] for row in LABELS])
    by_matrix = Tagger(settings=QUICK).fit(TEXTS, matrix, label_names=names)
    by_lists = Tagger(settings=QUICK).fit(np.array(TEXTS), [tuple(row) for row in LABELS])
    assert by_matrix.predict(TEXTS[:9]) == by_lists.predict(TEXTS[:9])
    assert by_matrix.score(TEXTS, matrix, label_names=names) == by_lists.score(TEXTS, LABELS)
    with pytest.raises(AplcError, match="label_names has 2 names, labels 6 columns"):
        Tagger().fit(TEXTS, matrix, label_names=["a", "b"])
    for name in ("", "a\nb"):
        with pytest.raises(AplcError, match=r"label_names: label .* is empty or has a line break"):
            Tagger().fit(TEXTS, matrix, label_names=[name, *"bcdef"])


def test_columns_without_names_are_numbered():
    matrix = sparse.csr_array(np.eye(3))
    tagger = Tagger("tiny", settings=[*SMALL, "train.epochs=1"]).fit(["cat", "dog", "rain"], matrix)
    assert sorted(tagger.classes_) == ["0", "1", "2"]


def test_score_matches_evaluation(tagger, trained):
    from aplc.data.formats import Document
    from aplc.evaluate.run import evaluate

    evaluation = evaluate(tagger.trained, [Document(t, names) for t, names in zip(TEXTS, LABELS, strict=True)])
    assert tagger.score(TEXTS, LABELS) == pytest.approx(evaluation.metrics.result()["nDCG@5"])


def test_partial_fit_goes_on_and_adds_labels(trained):
    tagger = Tagger.from_pretrained(trained)
    before = tagger.trained
    assert tagger.partial_fit(["quark boson", "gluon lepton"] * 8, [["rare", "physics"], ["physics"]] * 8) is tagger
    assert "physics" in tagger.classes_
    assert tagger.trained.n_documents == before.n_documents + 16
    assert tagger.trained.labels.counts[-1] == 16
    assert "physics" in dict(tagger.predict("quark gluon", top_k=3))
    again = Tagger.from_pretrained(trained)
    assert again.predict(TEXTS[:5]) == Tagger.from_pretrained(trained).predict(TEXTS[:5])
    first = Tagger("tiny", settings=[*SMALL, "train.epochs=1"]).partial_fit(TEXTS, LABELS)
    assert len(first.predict("cat")) == 5


@pytest.mark.parametrize(
    ("texts", "labels", "words"),
    [
        ("one text", [["a"]], "not one string"),
        (["a", 3], [["a"], ["b"]], "number 1 is of type int"),
        (["a"], [[3]], "labels of text 0: label 3 must be a string"),
        (["a"], [["b\nc"]], "line break"),
        (["a"], [["\ud800"]], "not valid Unicode"),
        (["a\ud800"], [["b"]], "texts: number 0 is not valid Unicode"),
        (["a"], ["x"], "row 0 is the string"),
    ],
)
def test_what_is_no_training_data(texts, labels, words):
    with pytest.raises(AplcError, match=words):
        Tagger().fit(texts, labels)
