"""Guards how many labels a document gets: every rule, allow-lists and deny-lists, in Python and on the command line."""

import json
from collections import Counter

import numpy as np
import pytest

from aplc import Tagger
from aplc.data.labels import LabelSet
from aplc.errors import AplcError
from aplc.predict.decide import Decision, Rule, allowed_labels, best_f1_counts
from helpers import aplc, fails, ok, topic_rows
from reference import reference_f1_count

TEXTS = ["cat dog paw", "violin sonata opera", "rain snow", "cat rain engine soup", "."]


@pytest.fixture(scope="module")
def tagger(trained):
    return Tagger.from_pretrained(trained)


def test_expected_f1_matches_reference():
    rng = np.random.default_rng(0)
    probs = -np.sort(-(rng.random((300, 12)) ** rng.choice([1, 3, 30], size=(300, 1))), axis=1)
    counts = best_f1_counts(probs)
    assert counts.tolist() == [reference_f1_count(row.tolist()) for row in probs]
    assert {0, 1} < set(counts.tolist())


def test_rules_choose_from_the_same_list(tagger):
    everything = tagger.predict(TEXTS, top_k=6)
    assert [tags[:2] for tags in everything] == tagger.predict(TEXTS, top_k=2)
    for threshold in (0.0, 0.3, 0.9):
        chosen = [[(name, p) for name, p in tags if p >= threshold] for tags in everything]
        assert tagger.predict(TEXTS, threshold=threshold) == chosen
        assert tagger.predict(TEXTS, top_k=1, threshold=threshold) == [tags[:1] for tags in chosen]
    for whole, tags in zip(everything, tagger.predict(TEXTS, expected_f1=True), strict=True):
        assert tags == whole[: reference_f1_count([p for _, p in whole])]


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_text_without_content_gets_no_labels(tagger, text):
    """All a model knows of it is which labels are frequent."""
    assert tagger.predict([text, "rain snow"], top_k=2)[0] == []


def test_precision_is_the_held_out_threshold(tagger):
    calibration = tagger.trained.calibration
    reached = np.array(calibration.hits) / np.maximum(calibration.predicted, 1)
    target = float(reached[0]) + 1e-6  # a little more than predicting everything gives, from at least 50 predictions
    if calibration.predicted[0] < 50:
        with pytest.raises(AplcError, match="can't be learned"):
            tagger.predict(TEXTS, precision=target)
    else:
        try:
            threshold = calibration.threshold_for(target)
        except AplcError:
            with pytest.raises(AplcError, match="can't be met"):
                tagger.predict(TEXTS, precision=target)
        else:
            assert tagger.predict(TEXTS, precision=target) == tagger.predict(TEXTS, threshold=threshold)


def test_allow_and_deny(tagger):
    everything = tagger.predict(TEXTS, top_k=6)
    for names in (["food"], ["animals", "rare", "météo"]):
        kept = [[tag for tag in tags if tag[0] in names] for tags in everything]
        left = [[tag for tag in tags if tag[0] not in names] for tags in everything]
        assert tagger.predict(TEXTS, top_k=6, allow=names) == kept
        assert tagger.predict(TEXTS, top_k=6, deny=names) == left
        assert tagger.predict(TEXTS, top_k=2, deny=names) == [tags[:2] for tags in left]
    assert tagger.predict(TEXTS, allow=["food", "rare"], deny=["rare"]) == tagger.predict(TEXTS, allow=["food"])


def test_names_that_are_no_labels(tagger):
    with pytest.raises(AplcError, match="allow: no label 'Animal'; the nearest is 'animals'"):
        tagger.predict("x", allow=["food", "Animal"])
    with pytest.raises(AplcError, match="deny: no label 'vehicle'; the nearest is 'vehicles'"):
        tagger.predict("x", deny=["vehicle"])
    with pytest.raises(AplcError, match="not one string"):
        tagger.predict("x", deny="food")
    labels = LabelSet.from_counter(Counter("ab"))
    with pytest.raises(AplcError, match="empty"):
        allowed_labels(labels, [], ())
    with pytest.raises(AplcError, match="leaves no label"):
        allowed_labels(labels, None, ["a", "b"])
    assert allowed_labels(labels, ["a", "b"], ()) is None


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 0},
        {"threshold": 1.5},
        {"threshold": float("nan")},
        {"precision": 0.0},
        {"threshold": 0.5, "precision": 0.5},
        {"expected_f1": True, "threshold": 0.5},
    ],
)
def test_rules_that_make_no_sense(options):
    with pytest.raises(AplcError):
        Rule(**options)


def test_a_model_without_calibration(trained):
    from dataclasses import replace

    tagger = Tagger.from_pretrained(trained)
    tagger._trained = replace(tagger.trained, calibration=None)
    assert tagger.predict(TEXTS, threshold=0.2)
    with pytest.raises(AplcError, match=r"no calibration.json"):
        tagger.predict(TEXTS, precision=0.8)
    assert Decision.of(Rule(threshold=0.2), tagger.trained.labels, None).allowed is None


def test_command_marks_documents_it_abstains_from(trained, tmp_path):
    rows = topic_rows(20, seed=9)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "deny.txt").write_text("food\r\n\nmétéo\n", encoding="utf-8")
    arguments = ["predict", trained, tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl"]
    printed = ok(aplc(*arguments, "--threshold", 0.4, "--deny", tmp_path / "deny.txt"))
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    abstained = [row for row in found if row.get("abstained")]
    assert abstained == [row for row in found if not row["labels"]]
    assert f"{len(abstained)} of them without a label that qualifies" in printed
    assert {"food", "météo"}.isdisjoint(name for row in found for name in row["labels"])
    ok(aplc(*arguments, "--expected-f1"))
    fails(aplc(*arguments, "--threshold", 0.4, "--precision", 0.9), "give one of them")
    fails(aplc(*arguments, "--allow", tmp_path / "nowhere"), "list of labels")
    (tmp_path / "deny.txt").write_text("foot\n")
    fails(aplc(*arguments, "--deny", tmp_path / "deny.txt"), "'foot'", "'food'")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"top_k": 2.0}, "top_k = 2.0: must be a whole number"),
        ({"top_k": "3"}, "top_k = '3': must be a whole number"),
        ({"top_k": True}, "top_k = True: must be a whole number"),
        ({"threshold": "0.5"}, "threshold = '0.5': must be a number"),
        ({"threshold": True}, "threshold = True: must be a number"),
        ({"precision": [0.5]}, r"precision = \[0.5\]: must be a number"),
        ({"expected_f1": "yes"}, "expected_f1 = 'yes': must be True or False"),
    ],
)
def test_rules_of_another_type_are_refused(rule, message):
    with pytest.raises(AplcError, match=message):
        Rule(**rule)


def test_rules_of_numpys_numbers():
    assert Rule(top_k=np.int64(3), threshold=np.float32(0.5)).limit == 3
