"""Guards the review queue: least sure first, spread over labels, and nothing that was reviewed already."""

import json

import numpy as np
import pytest
from scipy import sparse

from aplc.predict import review
from aplc.predict.review import most_valuable
from helpers import aplc, fails, ok, topic_rows, write_rows
from reference import review_order


def random_doubts(n, n_labels, seed):
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((n, n_labels)) < 0.3, rng.random((n, n_labels)) / 2, 0)
    dense[:, 0] = rng.random(n) / 2  # one that all documents have
    return dense


@pytest.mark.parametrize("limit", [1, 17, 60])
def test_order_matches_reference(limit):
    dense = random_doubts(60, 12, seed=limit)
    found = list(most_valuable(sparse.csr_array(dense), limit))
    expected = review_order([{j: row[j] for j in np.flatnonzero(row)} for row in dense], limit)
    assert [i for i, _ in found] == [i for i, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected])
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True)


def test_documents_of_one_label_do_not_crowd_out_others():
    dense = np.zeros((6, 3))
    dense[:4, 0], dense[4, 1], dense[5, 2] = 0.5, 0.4, 0.3
    assert [i for i, _ in most_valuable(sparse.csr_array(dense))] == [0, 4, 5, 1, 2, 3]


def test_beyond_the_greedy_part_the_rest_follows_by_value(monkeypatch):
    monkeypatch.setattr(review, "SPREAD", 5)
    dense = random_doubts(30, 8, seed=2)
    found = list(most_valuable(sparse.csr_array(dense), 20))
    expected = review_order([{j: row[j] for j in np.flatnonzero(row)} for row in dense], 5)
    assert [i for i, _ in found[:5]] == [i for i, _ in expected]
    assert len({i for i, _ in found}) == 20
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("review")
    write_rows(folder / "c.jsonl", topic_rows(200, seed=1))
    ok(aplc("train", folder / "c.jsonl", "--preset", "words", "--set", "data.validation=0.3", "--out", folder / "m"))
    return folder / "m"


def queue(model, path, out, *options):
    shown = ok(aplc("review", model, path, "--out", out, *options))
    return shown, [json.loads(line) for line in out.read_text().splitlines()]


def test_queue_is_ordered_and_goes_on_where_reviewers_stopped(model, tmp_path):
    documents = [{"text": row["text"], "id": f"n{i}"} for i, row in enumerate(topic_rows(30, seed=5))]
    path = tmp_path / "new.jsonl"
    write_rows(path, [*documents, documents[3], {"text": "  "}, {"text": "a text without id"}])
    shown, rows = queue(model, path, tmp_path / "q.jsonl", "--top-k", 4)
    assert "queued 31 documents, 1 repeated, 1 without text" in shown
    priorities = [row["priority"] for row in rows]
    assert priorities == sorted(priorities, reverse=True)
    assert priorities[0] > priorities[-1]
    assert all(len(row["proposed"]) == 4 for row in rows)
    assert {row["text"] for row in rows} == {row["text"] for row in documents} | {"a text without id"}
    first = max(sum(min(p, 1 - p) for _, p in row["proposed"] if 0.01 <= p <= 0.99) for row in rows)
    assert rows[0]["priority"] == pytest.approx(first, abs=1e-3)

    feedback = tmp_path / "f.jsonl"
    reviewed = [*[row for row in rows if "id" in row][:2], *(row for row in rows if "id" not in row)]
    write_rows(feedback, [{k: row[k] for k in ("id", "text") if k in row} | {"accepted": []} for row in reviewed])
    shown, rest = queue(model, path, tmp_path / "q.jsonl", "--top-k", 4, "--done", feedback, "--limit", 10)
    assert "queued 10 documents, 3 reviewed before" in shown
    assert not {row["text"] for row in rest} & {row["text"] for row in reviewed}


def test_queue_goes_to_standard_output_and_comes_from_standard_input(model, tmp_path):
    done = aplc("review", model, "-", "--out", "-", "--limit", 1, stdin='{"text": "cat dog car"}\n{"text": "soup"}\n')
    (row,) = map(json.loads, ok(done).splitlines())
    assert set(row) == {"text", "proposed", "priority"}


def test_bad_outputs_are_refused(model, tmp_path):
    path = tmp_path / "new.jsonl"
    write_rows(path, [{"text": "cat"}])
    fails(aplc("review", model, path, "--out", tmp_path / "q.csv"), "the queue is JSON Lines")
    fails(aplc("review", model, path, "--out", path), "new.jsonl")
    fails(aplc("review", model, path, "--out", tmp_path / "q.jsonl", "--done", tmp_path / "no.jsonl"), "no such file")
