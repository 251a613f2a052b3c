"""Guards the way to scikit-learn's scorers: an indicator matrix in, one with the same columns out."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer
from sklearn.utils import estimator_checks, get_tags

from aplc import IndicatorTagger, Tagger
from aplc import indicator as module
from aplc.errors import AplcError, NotFittedError
from helpers import topic_rows

ROWS = topic_rows(90, seed=5)
TEXTS, LABELS = [row["text"] for row in ROWS], [row["labels"] for row in ROWS]
BINARIZER = MultiLabelBinarizer()
Y = BINARIZER.fit_transform(LABELS)
NAMES = list(BINARIZER.classes_)
WORDS = Tagger("words")
FORMS = {"dense": Y, "sparse array": sparse.csr_array(Y), "sparse matrix": sparse.csr_matrix(Y)}


@pytest.fixture(scope="module")
def fitted():
    return IndicatorTagger(WORDS, label_names=NAMES).fit(TEXTS, Y)


def test_predicts_what_the_tagger_predicts(fitted):
    found = fitted.predict(TEXTS[:20])
    assert found.shape == (20, 6)
    assert fitted.label_names_.tolist() == NAMES
    tags = fitted.tagger_.predict(TEXTS[:20], threshold=0.5)
    assert [sorted(row) for row in BINARIZER.inverse_transform(found)] == [sorted(dict(row)) for row in tags]
    for rule in ({"threshold": 0.2}, {"top_k": 2}, {"expected_f1": True}, {"threshold": 0.1, "top_k": 1}):
        found = clone(fitted).set_params(**rule, tagger=FrozenEstimator(fitted.tagger_)).fit(TEXTS, Y)
        tags = fitted.tagger_.predict(TEXTS[:20], **rule)
        expected = BINARIZER.transform([list(dict(row)) for row in tags])
        assert (found.predict(TEXTS[:20]) == expected).all(), rule


def test_probabilities_of_all_labels(fitted):
    probs = fitted.predict_proba(TEXTS[:20])
    for row, tags in zip(probs, fitted.tagger_.predict(TEXTS[:20], top_k=6), strict=True):
        assert dict(zip(NAMES, row, strict=True)) == pytest.approx(dict(tags))
    assert fitted.predict_proba([]).shape == (0, 6)
    assert fitted.predict([]).shape == (0, 6)


@pytest.mark.parametrize("form", FORMS)
def test_predictions_have_the_form_of_the_labels(form):
    y = FORMS[form]
    found = IndicatorTagger(WORDS).fit(TEXTS, y).predict(TEXTS)
    assert sparse.issparse(found) == sparse.issparse(y)
    assert f1_score(y, found, average="micro") > 0.9


def test_cross_validation():
    scores = cross_val_score(IndicatorTagger(WORDS), TEXTS, Y, scoring="f1_micro", cv=3, error_score="raise")
    assert (scores > 0.8).all()
    found = cross_val_predict(IndicatorTagger(WORDS), TEXTS, Y, cv=3)
    by_hand = []
    for train, test in KFold(3).split(TEXTS):
        tagger = IndicatorTagger(WORDS).fit([TEXTS[i] for i in train], Y[train])
        by_hand.append(tagger.predict([TEXTS[i] for i in test]))
    assert (found == np.concatenate(by_hand)).all()


@pytest.mark.parametrize("form", FORMS)
def test_grids_take_sparse_labels(form):
    search = GridSearchCV(IndicatorTagger(WORDS), {"threshold": [0.4]}, scoring="f1_samples", cv=2, error_score="raise")
    assert search.fit(TEXTS, FORMS[form]).best_score_ > 0.8


def test_scorers():
    names = ["f1_micro", "f1_samples", "f1_macro", "accuracy", "average_precision"]
    scores = cross_validate(IndicatorTagger(WORDS), TEXTS, Y, scoring=names, cv=2, error_score="raise")
    for name in names:
        assert (scores[f"test_{name}"] > 0.4).all(), name
    found = cross_val_predict(IndicatorTagger(WORDS), TEXTS, Y, cv=2, method="predict_proba")
    assert found.shape == Y.shape
    assert average_precision_score(Y, found, average="micro") > 0.8
    assert (cross_val_score(IndicatorTagger(WORDS), TEXTS, Y, cv=2, error_score="raise") > 0.8).all()  # nDCG@5


def test_two_labels_are_not_taken_for_two_classes():
    y = Y[:, :2]
    tagger = IndicatorTagger(WORDS).fit(TEXTS, y)
    score = cross_val_score(IndicatorTagger(WORDS), TEXTS, y, scoring="average_precision", cv=2, error_score="raise")
    assert (score > 0.8).all()
    assert tagger.predict_proba(TEXTS).shape == (90, 2)


def test_columns_of_labels_without_training_documents(fitted):
    y = np.hstack([np.zeros((90, 1), dtype=int), Y])
    tagger = IndicatorTagger(WORDS).fit(TEXTS, y)
    for found, without in ((tagger.predict, fitted.predict), (tagger.predict_proba, fitted.predict_proba)):
        assert (found(TEXTS)[:, 0] == 0).all()
        assert (found(TEXTS)[:, 1:] == without(TEXTS)).all()
    order = np.argsort(Y[:, NAMES.index("rare")])  # one fold has all documents of a label
    texts, y = [TEXTS[i] for i in order], Y[order]
    found = cross_val_predict(IndicatorTagger(WORDS), texts, y, cv=10, method="predict_proba")
    assert (found[-9:, NAMES.index("rare")] == 0).all()
    assert (found[-9:].max(axis=1) > 0).all()


def test_pipeline_and_grid_search():
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = Pipeline([("lower", lower), ("tagger", IndicatorTagger(WORDS))])
    grid = [
        {"tagger__threshold": [0.3, 0.999], "tagger__tagger__settings": [[], ["words.ridge=2.0"]]},
        {"tagger__expected_f1": [True]},
    ]
    search = GridSearchCV(pipeline, grid, scoring="f1_micro", cv=2, error_score="raise")
    search.fit([text.upper() for text in TEXTS], Y)
    scores = search.cv_results_["mean_test_score"]
    assert len(scores) == 5
    assert search.best_params_.get("tagger__threshold") != 0.999
    assert search.predict(["CAT DOG PAW FUR"]).shape == (1, 6)
    assert search.predict_proba(["CAT DOG PAW FUR"]).argmax() == NAMES.index("animals")


def test_grids_over_a_tagger_with_a_matrix():
    search = GridSearchCV(WORDS, {"preset": ["words"]}, cv=2, error_score="raise").fit(TEXTS, Y, label_names=NAMES)
    assert search.best_score_ > 0.8  # labels of the test folds are named as fit's
    assert search.predict("cat dog paw")[0][0] == "animals"


def test_trained_models_can_be_judged(fitted, tmp_path):
    fitted.tagger_.save_pretrained(tmp_path)
    tagger = Tagger.from_pretrained(tmp_path)
    judged = IndicatorTagger(FrozenEstimator(tagger), label_names=NAMES).fit(TEXTS[:5], Y[:5])
    assert judged.tagger_.trained is tagger.trained
    assert (judged.predict(TEXTS) == fitted.predict(TEXTS)).all()
    with pytest.raises(AplcError, match="label_names: the model has no label '0'"):
        IndicatorTagger(FrozenEstimator(tagger)).fit(TEXTS, Y)


def test_parameters_clones_and_tags():
    tagger = IndicatorTagger(WORDS, threshold=0.3)
    assert tagger.get_params()["threshold"] == 0.3
    assert tagger.get_params()["tagger__preset"] == "words"
    assert clone(tagger.set_params(tagger__verbose=False, top_k=3)).get_params()["top_k"] == 3
    assert is_classifier(tagger)
    assert not is_classifier(WORDS)
    assert get_tags(tagger).classifier_tags.multi_label
    assert get_tags(tagger).input_tags.string
    for call in (tagger.predict, tagger.predict_proba, lambda texts: tagger.score(texts, Y)):
        with pytest.raises(NotFittedError, match="call fit"):
            call(TEXTS)


@pytest.mark.parametrize("estimator", [Tagger("words"), IndicatorTagger(Tagger("words"))], ids=["tagger", "indicator"])
@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_valid_tag_types",
        "check_estimator_tags_renamed",
        "check_mixin_order",
    ],
)
def test_scikit_learns_own_checks(estimator, check):
    """Those that pass no data: the others fit on numbers, which are no texts."""
    getattr(estimator_checks, check)(type(estimator).__name__, estimator)


def test_mistakes(fitted, monkeypatch):
    with pytest.raises(AplcError, match="MultiLabelBinarizer"):
        IndicatorTagger(WORDS).fit(TEXTS, LABELS)
    with pytest.raises(AplcError, match=r'pass Tagger\("words"\)'):
        IndicatorTagger("words").fit(TEXTS, Y)
    with pytest.raises(AplcError, match="not one string"):
        fitted.predict("cat")
    with pytest.raises(AplcError, match="can't be combined"):
        clone(fitted).set_params(threshold=0.3, expected_f1=True).fit(TEXTS, Y).predict(TEXTS)
    monkeypatch.setattr(module, "CELLS", 500)
    for call in (fitted.predict, fitted.predict_proba):
        with pytest.raises(AplcError, match="90 texts x 6 labels are too many for a dense result"):
            call(TEXTS)
    assert IndicatorTagger(WORDS).fit(TEXTS, sparse.csr_array(Y)).predict(TEXTS).shape == (90, 6)


def test_a_class_is_no_tagger():
    with pytest.raises(AplcError, match=r"tagger: pass Tagger\(\), not the class"):
        IndicatorTagger(Tagger).fit(TEXTS, Y)
