"""Guards a served model with a vocabulary: names in answers, and texts tagged by a part of the vocabulary."""

import json

import pytest
from starlette.testclient import TestClient

from aplc import Tagger
from aplc.serve.app import Service, make_app
from aplc.serve.feedback import FeedbackFile
from helpers import TOPICS, topic_rows

VOCABULARY = {
    label: {"name": label.title() if label != "food" else "food", "broader": ["nature"] if label == "animals" else []}
    | {"scheme": "daily" if label in ("food", "vehicles") else "other"}
    | {"names": ["Weather", "Outdoors"] if label == "météo" else ["outdoors", "Beasts"] if label == "animals" else []}
    for label in TOPICS
}
TEXT = "cat dog bread cheese violin rain"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    rows = topic_rows(100, seed=5)
    tagger = Tagger("words").fit([r["text"] for r in rows], [r["labels"] for r in rows], vocabulary=VOCABULARY)
    path = tmp_path_factory.mktemp("names") / "feedback.jsonl"
    with TestClient(make_app(Service(tagger.trained, "m", feedback=FeedbackFile(path)))) as client:
        client.path = path
        yield client


def tags(client, **fields):
    return client.post("/tag", json={"text": TEXT, "top_k": 20, **fields}).json()["tags"]


def test_answers_have_names_where_labels_have_another(client):
    named = {tag["label"]: tag.get("name") for tag in tags(client)}
    assert named["animals"] == "Animals"
    assert named["food"] is None
    explained = client.post("/explain", json={"text": TEXT, "label": "animals"}).json()
    assert (explained["label"], explained["name"]) == ("animals", "Animals")


def test_texts_are_tagged_by_a_part_of_the_vocabulary(client):
    whole = {tag["label"]: tag["probability"] for tag in tags(client)}
    daily = {tag["label"]: tag["probability"] for tag in tags(client, scheme=["daily"])}
    assert daily == {label: whole[label] for label in ("food", "vehicles")}
    assert {tag["label"] for tag in tags(client, not_scheme=["daily"])} == whole.keys() - daily.keys()
    assert [tag["label"] for tag in tags(client, below=["nature"])] == ["animals"]
    many = client.post("/tag", json={"texts": [TEXT, "rain"], "scheme": ["daily"]}).json()["results"]
    assert [len(result["tags"]) for result in many] == [2, 2]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scheme": ["dayly"]}, "body.scheme: no scheme 'dayly' in the model's vocabulary; the nearest are 'daily'"),
        ({"below": ["x" * 201]}, "body.below.0"),
        ({"below": ["daily"], "scheme": ["daily"]}, "body.below: no label 'daily'"),
        ({"scheme": "daily"}, "body.scheme"),
    ],
)
def test_unknown_parts_are_refused_in_a_sentence(client, fields, words):
    answer = client.post("/tag", json={"text": TEXT, **fields})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_corrections_may_have_names(client):
    sent = {"text": TEXT, "accepted": ["ANIMALS", "food"], "rejected": ["weather"], "added": ["Outdoors", "Space"]}
    answer = client.post("/feedback", json=sent).json()
    assert answer == {"stored": True, "new_labels": ["Outdoors", "Space"]}  # two labels are called Outdoors
    stored = json.loads(client.path.read_text("utf-8").splitlines()[-1])
    assert {what: stored[what] for what in ("accepted", "rejected", "added")} == {
        "accepted": ["animals", "food"],
        "rejected": ["météo"],
        "added": ["Outdoors", "Space"],
    }
    refused = client.post("/feedback", json={"text": TEXT, "accepted": ["animals"], "rejected": ["Beasts"]})
    assert refused.status_code == 422
    assert "'animals' is in two of accepted, rejected and added" in refused.json()["detail"]
