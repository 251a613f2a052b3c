"""Guards evaluation on feedback: only reviewed labels count, then and now, in the terminal, the JSON and the page."""

import datetime
import json
import random
import re

import pytest

from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.evaluate.feedback import BANDS, FeedbackEvaluation
from aplc.evaluate.feedback_table import render
from helpers import aplc, fails, ok, write_rows

LABELS = LabelSet.from_counter({"often": 500, "some": 50, "few": 5, "one": 1})


def evaluation(*reviews):
    found = FeedbackEvaluation(LABELS, 0.5)
    for labels, rejected, proposed, now, time in reviews:
        kept = {"time": time}
        found.update(Document("x", labels, rejected=rejected, partial=True, kept=kept), proposed, now)
    return found


def counts(tally):
    return tally.right, tally.wrong, tally.missing


def test_unmentioned_proposals_are_neither_right_nor_wrong():
    found = evaluation((["often"], ("some",), {"often": 0.9, "some": 0.4, "few": 0.8}, {"few": 0.9}, None))
    assert counts(found.proposed) == (1, 1, 0)
    assert counts(found.now) == (0, 0, 1)
    assert found.reviewed == 2
    assert "few" not in found.by_label


def test_tallies_match_a_count_by_hand():
    rng, names = random.Random(0), [*LABELS.names, "new"]
    reviews = []
    for _ in range(60):
        right = [name for name in names if rng.random() < 0.4]
        wrong = tuple(name for name in names if name not in right and rng.random() < 0.5)
        proposed = {name: rng.random() for name in names if rng.random() < 0.7}
        now = {name: rng.random() for name in LABELS.names}
        reviews.append((right, wrong, proposed, now, None))
    found = evaluation(*reviews)

    def by_hand(given, only=lambda name: True):
        pairs = [
            (given(name, proposed, now), name in right)
            for right, wrong, proposed, now, _ in reviews
            for name in [*right, *wrong]
            if only(name) and (given is is_now or proposed)
        ]
        return pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True))

    def is_now(name, proposed, now):
        return now.get(name, 0) >= 0.5

    def was_proposed(name, proposed, now):
        return name in proposed

    assert counts(found.proposed) == by_hand(was_proposed)
    assert counts(found.now) == by_hand(is_now)
    for band, members in zip(BANDS, ({"often"}, {"some"}, {"few", "one"}, {"new"}), strict=True):
        assert counts(found.by_band[band][0]) == by_hand(was_proposed, members.__contains__)
        assert counts(found.by_band[band][1]) == by_hand(is_now, members.__contains__)
    assert sum(t.right for t in found.by_probability) == found.proposed.right
    assert sum(t.wrong for t in found.by_probability) == found.proposed.wrong
    assert found.proposed.accepted == pytest.approx(
        found.proposed.right / (found.proposed.right + found.proposed.wrong)
    )


def test_acceptance_over_time_is_by_day_and_for_long_times_by_week():
    def at(*days):
        return evaluation(*((["often"], (), {"often": 0.9}, {}, f"{day}T23:00:00Z") for day in days)).over_time

    assert {start: tally.right for start, tally in at("2026-11-18", "2026-11-18", "2026-11-20").items()} == {
        "2026-11-18": 2,
        "2026-11-20": 1,
    }
    weeks = at("2026-11-18", "2026-11-20", "2026-12-31")
    assert {start: (tally.right, tally.documents) for start, tally in weeks.items()} == {
        "2026-11-16": (2, 2),
        "2026-12-28": (1, 1),
    }
    assert datetime.date.fromisoformat("2026-11-16").weekday() == 0


def test_labels_that_cost_most_come_first_and_shares_of_nothing_are_dashes():
    found = evaluation(
        (["often"], ("some",), {"some": 0.9}, {}, None), ([], ("some",), {"some": 0.9}, {"some": 0.9}, None)
    )
    assert [name for name, *_ in found.most_wrong] == ["some", "often"]
    line = next(line for line in render(found).splitlines() if line.startswith("as proposed  "))
    assert line.split()[2:] == ["0", "2", "1", "0.0", "0.0"]
    assert re.search(r"as proposed +0 +0 +0 +- +-", render(evaluation()))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    rows = [{"text": f"{word} {i % 7}", "labels": [word]} for i, word in enumerate(["cat", "car", "soup"] * 20)]
    write_rows(folder / "c.jsonl", rows)
    ok(aplc("train", folder / "c.jsonl", "--preset", "words", "--out", folder / "m"))
    return folder


def test_evaluate_and_inspect_on_feedback(words, tmp_path):
    model, path = words / "m", tmp_path / "f.jsonl"
    proposed, time = [["cat", 0.9], ["car", 0.3]], "2026-11-18T04:10:00Z"
    rows = [
        {"text": "cat 1", "accepted": ["cat"], "rejected": ["car"], "added": [], "proposed": proposed, "time": time},
        {"text": "cat 2", "accepted": [], "rejected": [], "added": ["<b>new"], "proposed": proposed},
        {"text": "cat 3", "accepted": ["cat"]},
    ]
    write_rows(path, rows)
    page, figures = tmp_path / "r.html", tmp_path / "f.json"
    shown = ok(aplc("evaluate", model, path, "--json", figures, "--report", page))
    assert "3 reviewed documents, 4 reviewed labels, 2026-11-18 to 2026-11-18; 1 lines don't say" in shown
    found = json.loads(figures.read_text())
    assert (found["kind"], found["documents"]) == ("feedback", 3)
    assert [found["proposed"][name] for name in ("right", "wrong", "missing")] == [1, 1, 1]
    assert [found["now"][name] for name in ("right", "wrong", "missing")] == [2, 0, 1]
    assert "&lt;b&gt;new" in page.read_text()
    assert "<b>new" not in page.read_text()
    inspected = ok(aplc("inspect", path))
    assert re.search(r"partly reviewed documents \(feedback\) +3", inspected)
    assert "no label" not in inspected


def test_what_is_wrong_with_feedback_is_one_line(words, tmp_path):
    model, path = words / "m", tmp_path / "f.jsonl"
    write_rows(path, [{"text": "cat", "accepted": ["cat"]}, {"text": "cat", "labels": ["cat"]}])
    fails(aplc("evaluate", model, path), "f.jsonl, line 2: not feedback, as the first line is")
    write_rows(path, [{"text": "cat", "labels": ["cat"]}, {"text": "cat", "accepted": ["cat"]}])
    fails(aplc("evaluate", model, path), "line 2 is feedback")
    for wrong, words_ in (({"proposed": ["cat"]}, "'proposed' must be"), ({"time": "yesterday"}, "'time' must be")):
        write_rows(path, [{"text": "cat", "accepted": ["cat"], **wrong}])
        fails(aplc("evaluate", model, path), f"f.jsonl, line 1: {words_}")
    write_rows(path, [{"text": "cat", "accepted": ["cat"]}])
    fails(aplc("evaluate", model, path, "--json", model / "evaluation.json"), "give feedback's figures another name")
