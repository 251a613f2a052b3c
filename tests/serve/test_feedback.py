"""Guards corrections: what is confirmed is in the file, whole, whatever happens to the process or the disk."""

import errno
import json
import multiprocessing
import os

import pytest
from starlette.testclient import TestClient

from aplc.data.feedback import key_of
from aplc.errors import AplcError
from aplc.serve import feedback
from aplc.serve.app import Service, make_app
from aplc.serve.feedback import FeedbackFile, Rate, Reviewed
from aplc.serve.guard import Limits
from aplc.serve.review import ReviewQueue
from aplc.store.folder import load_tagger
from helpers import aplc, fails
from load import read_metrics

CORRECTION = {"text": "violin and rain", "accepted": ["météo"], "rejected": ["food"], "added": ["weather"]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "feedback.jsonl"


@pytest.fixture
def client(trained, path):
    service = Service(load_tagger(trained), "topics", feedback=FeedbackFile(path), limits=Limits(feedback=50))
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        yield client


def entries(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_line_has_what_was_sent_and_what_the_model_proposes(client, path):
    proposed = client.post("/tag", json={"text": CORRECTION["text"], "top_k": 6}).json()["tags"]
    assert client.post("/feedback", json=CORRECTION | {"id": "7", "reviewer": "Zoë"}).json() == {
        "stored": True,
        "new_labels": ["weather"],
    }
    (entry,) = entries(path)
    assert entry.pop("time").endswith("+00:00")
    assert entry.pop("model") == {"version": "unsaved", "label_set_version": 1}
    stored = entry.pop("proposed")
    assert [label for label, _ in stored] == [tag["label"] for tag in proposed]
    assert [p for _, p in stored] == pytest.approx([tag["probability"] for tag in proposed], abs=1e-4)
    assert entry == CORRECTION | {"id": "7", "reviewer": "Zoë"}
    client.post("/feedback", json={"text": "cat"})
    assert "id" not in entries(path)[1]
    metrics = read_metrics(client.get("/metrics").text)
    assert (metrics["aplc_corrections_total"], metrics["aplc_labels_added_total"]) == (2, 1)
    assert (metrics["aplc_accepted_share_sum"], metrics["aplc_accepted_share_count"]) == (0.5, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rejected": ["météo"]}, "in two of"),
        ({"accepted": "météo"}, "body.accepted"),
        ({"added": ["a\nb"]}, "line break"),
        ({"added": ["\ud800"]}, "surrogate"),
        ({"added": ["a" * 1001]}, "body.added"),
        ({"id": "\ud800"}, "surrogate"),
        ({"text": " "}, "empty"),
        ({"tags": []}, "no such field"),
    ],
)
def test_invalid_corrections_are_refused(client, path, change, words):
    body = json.dumps(CORRECTION | change)
    answer = client.post("/feedback", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert not path.exists()


def test_page_of_another_site_cannot_write(client, path):
    """Browsers send such requests without asking first; they may not carry JSON's content type."""
    for kind in (None, "text/plain", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": kind} if kind else {}
        assert client.post("/feedback", content=json.dumps(CORRECTION), headers=headers).status_code == 422
    assert not path.exists()


def test_server_without_a_feedback_file_says_so(trained):
    with TestClient(make_app(Service(load_tagger(trained), "topics"))) as client:
        assert "--feedback" in client.post("/feedback", json=CORRECTION).json()["detail"]
        assert "--review" in client.get("/review").json()["detail"]
        assert client.get("/health").json()["feedback"] is False


def test_nothing_is_written_without_the_token(trained, path):
    service = Service(load_tagger(trained), "topics", feedback=FeedbackFile(path))
    with TestClient(make_app(service, token="secret")) as client:
        assert client.post("/feedback", json=CORRECTION).status_code == 401
        assert not path.exists()
        good = {"Authorization": "Bearer secret"}
        assert client.post("/feedback", json=CORRECTION, headers=good).status_code == 200


def test_full_disk_is_507_and_leaves_no_part_of_a_line(client, path, monkeypatch):
    client.post("/feedback", json=CORRECTION)
    before, write = path.read_bytes(), os.write

    def half(file, data):
        return write(file, data[: len(data) // 2])

    def full(file, data):
        raise OSError(errno.ENOSPC, "full")

    for replacement in (half, full):
        monkeypatch.setattr(feedback.os, "write", replacement)
        answer = client.post("/feedback", json=CORRECTION)
        monkeypatch.setattr(feedback.os, "write", write)
        assert answer.status_code == 507
        assert path.read_bytes() == before
    assert client.post("/feedback", json=CORRECTION).status_code == 200
    assert len(entries(path)) == 2


def test_file_that_cannot_be_written_is_503(client, path):
    path.mkdir()
    answer = client.post("/feedback", json=CORRECTION)
    assert answer.status_code == 503
    assert "can't be written" in answer.json()["detail"]
    path.rmdir()
    assert client.post("/feedback", json=CORRECTION).status_code == 200


def test_file_that_was_moved_away_is_made_anew(client, path):
    client.post("/feedback", json=CORRECTION)
    path.rename(path.with_name("to train on"))
    assert client.post("/feedback", json=CORRECTION).status_code == 200
    assert len(entries(path)) == 1


def test_too_many_corrections_are_429(client):
    statuses = [client.post("/feedback", json=CORRECTION).status_code for _ in range(52)]
    assert statuses[:50] == [200] * 50
    assert statuses[-1] == 429


def test_rate_allows_as_many_a_minute(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(feedback.time, "monotonic", lambda: now[0])
    rate = Rate(6)
    assert [rate.take() for _ in range(6)] == [0.0] * 6
    assert rate.take() == pytest.approx(10)
    now[0] = 10.01
    assert rate.take() == 0.0
    assert rate.take() > 9


def test_lines_of_several_processes_never_mix(path):
    """Long lines, so that a write takes a while; a process without the lock would tear others' lines."""

    def write(letter):
        for i in range(30):
            FeedbackFile(path).append({"text": letter * 100_000, "number": i})

    context = multiprocessing.get_context("fork")  # a new Python would import for seconds
    writers = [context.Process(target=write, args=(letter,)) for letter in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    found = [(entry["text"][0], entry["number"]) for entry in entries(path)]
    assert sorted(found) == [(letter, i) for letter in "abcd" for i in range(30)]


def test_torn_line_is_moved_aside_before_the_next_one(path):
    file = FeedbackFile(path)
    file.append({"text": "one"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"text": "tor')
    file.append({"text": "two"})
    assert [entry["text"] for entry in entries(path)] == ["one", "two"]
    assert path.with_name("feedback.jsonl.torn").read_bytes() == b'{"text": "tor\n'
    path.write_bytes(whole.rstrip(b"\n"))  # complete but for its line break, as an editor may leave it
    file.append({"text": "two"})
    assert [entry["text"] for entry in entries(path)] == ["one", "two"]


def test_opening_says_what_the_file_holds_and_what_was_mended(path, tmp_path):
    path.write_bytes(b'{"text": "a"}\nnonsense\n{"te')
    _, said = FeedbackFile.open(path)
    assert "1 correction and 1 line that can't be read as one" in said
    assert ".torn" in said
    assert path.read_bytes() == b'{"text": "a"}\nnonsense\n'
    with pytest.raises(AplcError, match="not a file"):
        FeedbackFile.open(tmp_path)
    with pytest.raises(AplcError, match="can't be written"):
        FeedbackFile.open(tmp_path / "none" / "feedback.jsonl")


def test_reviewed_reads_only_what_is_new_and_notices_another_file(path):
    file, reviewed = FeedbackFile(path), Reviewed(path)
    assert reviewed.keys() == set()
    file.append({"text": "a"})
    file.append({"text": "b", "id": "7"})
    assert reviewed.keys() == {key_of(None, "a"), key_of("7", "another text")}
    with path.open("ab") as half:
        half.write(b'{"text": "c"')
    assert len(reviewed.keys()) == 2
    with path.open("ab") as half:
        half.write(b"}\n")
    assert key_of(None, "c") in reviewed.keys()  # noqa: SIM118
    path.write_bytes(b'{"text": "d"}\n')
    assert reviewed.keys() == {key_of(None, "d")}


def test_queue_goes_on_where_the_feedback_file_ends(path, tmp_path):
    queue = tmp_path / "queue.jsonl"
    queue.write_text('{"text": "a", "id": 1, "proposed": []}\n\n{"text": "b"}\n{"text": "c", "id": "3"}\n')
    file = FeedbackFile(path)
    review = ReviewQueue(queue, path)
    assert review.following(-1) == {"total": 3, "done": 0, "position": 0, "id": "1", "text": "a"}
    assert review.following(0) == {"total": 3, "done": 0, "position": 1, "id": None, "text": "b"}  # 0 was skipped
    file.append({"text": "b"})
    assert review.following(1)["position"] == 2
    file.append({"text": "edited", "id": "3"})
    again = ReviewQueue(queue, path)  # another process, or the same server the next day
    assert again.following(2) == {"total": 3, "done": 2, "position": 0, "id": "1", "text": "a"}
    file.append({"text": "a", "id": "1"})
    assert again.following(-1) == {"total": 3, "done": 3, "position": None, "id": None, "text": None}


def test_queues_that_cannot_be_used_are_one_line(trained, tmp_path, path):
    bad = tmp_path / "queue.jsonl"
    bad.write_text('{"text": "a"}\n{"labels": []}\n')
    fails(aplc("serve", trained, "--port", 0, "--review", bad), "--feedback")
    fails(aplc("serve", trained, "--port", 0, "--review", bad, "--feedback", bad), "two files")
    fails(aplc("serve", trained, "--port", 0, "--review", bad, "--feedback", path), "queue.jsonl:2", "aplc review")
    bad.write_text("")
    fails(aplc("serve", trained, "--port", 0, "--review", bad, "--feedback", path), "no documents")
    fails(aplc("serve", trained, "--port", 0, "--feedback", tmp_path), "not a file")
