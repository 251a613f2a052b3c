"""Guards replacing a model: each request is answered by one model, and a broken one is refused."""

import asyncio
import json
import threading
import time

import pytest
from starlette.testclient import TestClient

from aplc.errors import AplcError, ModelError
from aplc.serve import reload
from aplc.serve.app import Service, make_app
from aplc.serve.reload import Reloader
from aplc.serve.served import ServedModel

TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def said():
    return []


@pytest.fixture
def client(place, said):
    service = Service.load(place.folder)

    async def replace():
        return await service.take(place.folder)

    reloader = Reloader(place.folder, replace, said.append)
    service.reload = reloader.reload
    with TestClient(make_app(service, token="secret"), headers=TOKEN) as client:
        client.service, client.reloader = service, reloader
        yield client


def labels(client):
    tags = client.post("/tag", json={"texts": ["cat", "rain"], "top_k": 3}).json()["results"]
    return [tag["label"] for result in tags for tag in result["tags"]]


def test_new_model_answers_after_the_reload_and_health_names_it(client, place, other_model, said):
    before = client.get("/health").json()
    assert labels(client)[0] == "animals"
    place.put(other_model)
    assert labels(client)[0] == "animals"  # nothing happens by itself
    answer = client.post("/admin/reload").json()
    assert labels(client)[0] == "ANIMALS"
    after = client.get("/health").json()
    assert after["model_version"] == answer["model_version"] != before["model_version"]
    assert (before["label_set_version"], after["label_set_version"]) == (1, 2)
    assert client.post("/tag", json={"text": "cat"}).headers["aplc-model"] == after["model_version"]
    assert [label["label"] for label in client.get("/labels?query=rar").json()["labels"]] == ["RARE"]
    assert said == [f"serving model {after['model_version']} (6 labels)"]


def test_broken_model_is_refused_and_the_old_one_stays(client, place, words_model, said):
    before = client.get("/health").json()
    place.put_broken(words_model)
    answer = client.post("/admin/reload")
    assert answer.status_code == 409
    assert "model.safetensors" in answer.json()["detail"]
    assert "the old one stays" in said[0]
    assert client.get("/health").json() == before
    assert labels(client)[0] == "animals"


@pytest.mark.parametrize("problem", ["raises", "nothing", "nan"])
def test_model_that_cannot_tag_a_probe_is_refused(place, monkeypatch, problem):
    def tag(self, texts, k):
        if problem == "raises":
            raise RuntimeError("no")
        return [[("a", float("nan"))] if problem == "nan" else []]

    monkeypatch.setattr(ServedModel, "tag", tag)
    with pytest.raises(ModelError, match="probe"):
        ServedModel.load(place.folder)


def test_folder_that_is_replaced_while_it_is_read_is_read_again(place, other_model, monkeypatch):
    """Files of two models must not end up in one."""
    module, calls = ServedModel.load.__func__.__globals__, []
    load = module["load_tagger"]

    def load_slowly(folder):
        calls.append(folder)
        tagger = load(folder)
        if len(calls) == 1:
            place.put(other_model)
        return tagger

    monkeypatch.setitem(module, "load_tagger", load_slowly)
    assert "ANIMALS" in ServedModel.load(place.folder).tagger.labels.names
    assert len(calls) == 2


def test_requests_under_way_keep_their_model(place, other_model):
    """Between the two texts of a stream the model is replaced."""
    service = Service.load(place.folder)
    place.put(other_model)
    parts, sent = [b'{"text": "rain"}\n', b'{"text": "cat"}\n'], []

    async def receive():
        if len(parts) == 1:
            await service.take(place.folder)
        return {"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}

    async def send(message):
        sent.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "path": "/tag", "headers": [(b"content-type", b"application/x-ndjson")]}
    asyncio.run(make_app(service)(scope, receive, send))
    best = [json.loads(line)["tags"][0]["label"] for line in b"".join(sent).splitlines()]
    assert best == ["animals", "météo"]
    assert "ANIMALS" in service.model.tagger.labels.names


def test_under_load_every_answer_is_of_one_model(client, place, words_model, other_model):
    mixed, failed, stop = [], [], threading.Event()

    def ask():
        while not stop.is_set():
            answer = client.post("/tag", json={"texts": ["cat", "rain", "soup"], "top_k": 3})
            if answer.status_code != 200:
                failed.append(answer.text)
                continue
            names = [tag["label"] for result in answer.json()["results"] for tag in result["tags"]]
            if len({name.isupper() for name in names}) != 1:
                mixed.append(names)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for thread in clients:
        thread.start()
    for i in range(6):
        place.put(words_model if i % 2 else other_model)
        assert client.post("/admin/reload").status_code == 200
    place.put_broken(words_model)
    assert client.post("/admin/reload").status_code == 409
    stop.set()
    for thread in clients:
        thread.join(10)
    assert (mixed[:1], failed[:1]) == ([], [])


def test_swapped_folder_is_noticed_and_a_broken_one_tried_once(place, other_model, words_model, said, monkeypatch):
    monkeypatch.setattr(reload, "EVERY", 0.05)
    service = Service.load(place.folder)

    async def replace():
        return await service.take(place.folder)

    reloader = Reloader(place.folder, replace, said.append)
    with TestClient(make_app(service)) as client:
        watching = client.portal.start_task_soon(reloader.watch)
        time.sleep(0.2)
        assert said == []
        place.put(other_model)
        wait_until(lambda: said)
        assert labels(client)[0] == "ANIMALS"
        place.put_broken(words_model)
        wait_until(lambda: len(said) == 2)
        time.sleep(0.3)
        assert len(said) == 2
        place.put(words_model)
        wait_until(lambda: len(said) == 3)
        assert labels(client)[0] == "animals"
        watching.cancel()


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_reloading_needs_a_token(place, client):
    headers = {"Authorization": "Bearer wrong"}
    assert client.post("/admin/reload", headers=headers).status_code == 401
    service = Service.load(place.folder)
    with TestClient(make_app(service)) as open_to_all:
        answer = open_to_all.post("/admin/reload")
    assert answer.status_code == 403
    assert "SIGHUP" in answer.json()["detail"]


def test_unreadable_folder_is_refused_with_its_name(place, client, said):
    place.folder.unlink()
    with pytest.raises(AplcError, match="served"):
        client.portal.call(client.reloader.reload)
    assert labels(client)[0] == "animals"
