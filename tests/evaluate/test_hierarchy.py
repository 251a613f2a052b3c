"""Guards results that know the vocabulary: near hits, schemes, longer lists, and names in the page and the table."""

import json
import random

import numpy as np
import pytest

from aplc.data.vocabulary import Vocabulary
from aplc.errors import AplcError
from aplc.evaluate.comparison import compare_runs
from aplc.evaluate.hierarchy import NearCounter
from aplc.evaluate.options import parse_at
from aplc.evaluate.report import render_report
from aplc.evaluate.saved import save_evaluation
from aplc.evaluate.table import render
from evaluations import make_evaluation, make_labels

NAMES = [f"t:{i}" for i in range(40)]
VOCABULARY = Vocabulary.of(
    {
        label: {
            "name": f"<Topic> {i}",
            "broader": [NAMES[i // 3]] if i else [],
            "scheme": ["even", "all"] if i % 2 == 0 else ["all"],
        }
        for i, label in enumerate(NAMES[:30])
    }
)
ABOUT = {"model": "m", "corpus": "c", "part": "test"}


@pytest.fixture(scope="module")
def evaluation():
    return make_evaluation(NAMES, vocabulary=VOCABULARY, at=[20])


def test_near_hits_match_a_count_by_hand():
    rng = random.Random(3)
    labels, ks = make_labels(NAMES), (1, 3, 5)
    counter = NearCounter(labels, VOCABULARY, ks)
    ids = np.array([rng.sample(range(40), 6) for _ in range(200)])
    ids[::7, 4:] = -1
    truth = [rng.sample(range(43), 3) for _ in ids]  # three labels that the model does not have
    counter.update(ids[:90], truth[:90])
    counter.update(ids[90:], truth[90:])
    for near in counter.finish():
        kinds = [
            "hit" if a in true
            else "broader" if any(NAMES[a] in broader_of(b) for b in true)
            else "narrower" if any(b < 40 and NAMES[b] in broader_of(a) for b in true)
            else "wrong"
            for row, true in zip(ids.tolist(), truth, strict=True)
            for a in row[: near.k]
            if a >= 0
        ]  # fmt: skip
        assert near.predicted == len(kinds)
        assert [near.hits, near.broader, near.narrower] == [kinds.count(x) for x in ("hit", "broader", "narrower")]
        assert min(near.hits, near.broader, near.narrower) > 0


def broader_of(label):
    return VOCABULARY.entries[NAMES[label]].broader if label < 30 else ()


def test_results_by_scheme_are_those_of_its_labels(evaluation):
    everything, even, rest = evaluation.schemes
    stats = evaluation.metrics.label_stats(5)
    assert (everything.name, even.name, rest.name) == ("all", "even", "no scheme")
    assert everything.labels == 30
    assert even.hits == stats.hits[np.arange(0, 30, 2)].sum()
    assert rest.true == stats.true[30:40].sum()


def test_longer_lists_find_more(evaluation):
    result = evaluation.metrics.result()
    assert result["R@20"] > result["R@5"]
    at = evaluation.to_dict()["at"]["20"]
    assert [band["recall"] for band in at["bands"]] != [band.recall for band in evaluation.bands]
    shown = render(evaluation)
    assert "recall@20" in shown
    assert "documents a label" in shown
    assert "right or next to it" in shown
    assert "scheme" in shown


def test_lists_of_other_lengths_change_no_other_figure():
    plain, longer = (make_evaluation(NAMES, **options) for options in ({}, {"at": [20]}))
    result = longer.metrics.result()
    assert plain.metrics.result() == {name: value for name, value in result.items() if "@20" not in name}
    assert plain.to_dict()["at"] == {}
    assert plain.schemes == plain.near == []
    assert "recall@20" not in render(plain)
    assert parse_at("1,20") == [1, 20]
    for text in ("0", "a", "", "101"):
        with pytest.raises(AplcError, match="--at"):
            parse_at(text)


def test_people_see_names_and_programs_labels(evaluation):
    page = render_report(evaluation, **ABOUT)
    assert "&lt;Topic&gt; 0 (t:0)" in page
    assert "<Topic>" not in page
    assert "By scheme of the vocabulary" in page
    assert "recall@20" in page
    assert "<Topic> 24 (t:24)" in render(evaluation, n_examples=12)
    figures = evaluation.to_dict()
    assert all(score["name"].startswith("t:") for score in figures["best_labels"])
    assert figures["names"][figures["confusions"][0]["missed"]].startswith("<Topic>")


def test_evaluations_at_other_lengths_are_not_compared(tmp_path, evaluation):
    save_evaluation(tmp_path / "a.json", evaluation, **ABOUT)
    save_evaluation(tmp_path / "b.json", make_evaluation(NAMES), **ABOUT)
    assert json.loads((tmp_path / "a.json").read_text())["near"][0]["k"] == 1
    with pytest.raises(AplcError, match="evaluate both with the same --at"):
        compare_runs([tmp_path / "a.json", tmp_path / "b.json"])
