"""Guards newline-delimited JSON: each line its answer, in order, with few texts held at a time."""

import asyncio
import http.client
import json
import threading
import time

import pytest
from starlette.testclient import TestClient
from test_server import Running

from aplc import Tagger
from aplc.serve import stream
from aplc.serve.app import Service, make_app
from aplc.serve.guard import Limits
from aplc.store.folder import load_tagger

NDJSON = {"Content-Type": "application/x-ndjson"}
LIMITS = Limits(body=2_000, queue=100)


@pytest.fixture(scope="module")
def service(trained):
    return Service(load_tagger(trained), "topics", limits=LIMITS)


@pytest.fixture(scope="module")
def client(service):
    with TestClient(make_app(service)) as client:
        yield client


def lines_of(answer):
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.content.splitlines()]


def test_answers_are_the_models_own(client, trained):
    texts = ["violin", "rain snow", "cat " * 50, "rail"] * 20
    body = "".join(json.dumps({"text": text, "id": i, "top_k": 1 + i % 3}) + "\n" for i, text in enumerate(texts))
    answers = lines_of(client.post("/tag", content=body, headers=NDJSON))
    assert [answer["id"] for answer in answers] == list(range(80))
    for i, (answer, tags) in enumerate(zip(answers, Tagger.from_pretrained(trained).predict(texts), strict=True)):
        found = [(tag["label"], tag["probability"]) for tag in answer["tags"]]
        assert found == [(label, pytest.approx(p, abs=1e-4)) for label, p in tags[: 1 + i % 3]]


def test_bad_lines_are_answered_in_their_place(client):
    bad = [
        (b"nope", "JSON"),
        (b"[1]", "JSON object"),
        (b'{"text": "", "id": 3}', "empty"),
        (b'{"text": "caf\xe9"}', "UTF-8"),
        (b'{"text": "cat", "topk": 1}', "topk"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b'{"text": 5, "id": "\\ud800"}', "text"),
        (b'{"text": "' + b"a" * 3_000 + b'"}', "longer than 2,000"),
        (b"[" * 1_500, "JSON"),
    ]
    body = b"\n\n".join(line for pair in bad for line in (pair[0], b'{"text": "cat"}'))  # empty lines don't count
    answers = lines_of(client.post("/tag", content=body, headers=NDJSON))
    assert len(answers) == 2 * len(bad)
    for (_, words), answer, good in zip(bad, answers[::2], answers[1::2], strict=True):
        assert words in answer["detail"]
        assert len(good["tags"]) == 5
    assert answers[4]["id"] == 3


def test_text_that_breaks_the_model_fails_alone(trained, monkeypatch):
    service = Service(load_tagger(trained), "topics")
    tag = type(service.model).tag

    def fragile(self, texts, k):
        if "poison" in texts:
            raise RuntimeError
        return tag(self, texts, k)

    monkeypatch.setattr(type(service.model), "tag", fragile)
    with TestClient(make_app(service)) as client:
        body = "\n".join(json.dumps({"text": text}) for text in ("cat", "poison", "dog"))
        answers = lines_of(client.post("/tag", content=body, headers=NDJSON))
    assert ["tags" in answer for answer in answers] == [True, False, True]


def test_closed_service_asks_to_send_the_texts_again(trained):
    service = Service(load_tagger(trained), "topics")
    with TestClient(make_app(service)) as client:
        service.batcher.close()
        (answer,) = lines_of(client.post("/tag", content=b'{"text": "cat", "id": 1}', headers=NDJSON))
    assert answer == {"id": 1, "detail": stream.CLOSING}


class Endless:
    """A call with many texts, whose client takes each answer as it comes; counts how far reading runs ahead."""

    def __init__(self, n, parts_of=50):
        self.n, self.parts_of = n, parts_of
        self.sent = self.answered = self.ahead = 0
        self.numbers = []

    async def receive(self):
        stop = min(self.n, self.sent + self.parts_of)
        body = "".join(f'{{"text": "text {i}", "id": {i}, "top_k": 1}}\n' for i in range(self.sent, stop))
        self.sent = stop
        self.ahead = max(self.ahead, self.sent - self.answered)
        return {"type": "http.request", "body": body.encode(), "more_body": stop < self.n}

    async def send(self, message):
        for line in message.get("body", b"").splitlines():
            answer = json.loads(line)
            assert answer["tags"][0]["label"] == f"text {answer['id']}"
            self.numbers.append(answer["id"])
            self.answered += 1
        await asyncio.sleep(0)


def test_30_000_texts_are_answered_in_order_with_few_held_at_a_time(service, monkeypatch):
    monkeypatch.setattr(type(service.model), "tag", lambda self, texts, k: [[(text, 0.5)] * k for text in texts])
    monkeypatch.setattr(
        type(service.model), "answer", lambda self, tags, _: {"tags": [{"label": label} for label, _ in tags]}
    )
    call = Endless(30_000)
    scope = {"type": "http", "method": "POST", "path": "/tag", "query_string": b""}
    scope["headers"] = [(b"content-type", b"application/x-ndjson; charset=utf-8")]
    asyncio.run(make_app(service)(scope, call.receive, call.send))
    assert call.numbers == list(range(30_000))
    assert call.ahead <= (2 * stream.PENDING + 4) * call.parts_of


def test_client_that_sends_slowly_gets_each_answer_at_once(trained):
    with Running(trained) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        connection.putrequest("POST", "/tag")
        connection.putheader("Content-Type", "application/x-ndjson")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        for text in ("cat", "rain"):
            line = json.dumps({"text": text}).encode() + b"\n"
            connection.send(b"%x\r\n%s\r\n" % (len(line), line))
            if text == "cat":
                answer = connection.response_class(connection.sock, method="POST")
                answer.begin()
            assert json.loads(answer.readline())["tags"]
        running.server.should_exit = True  # a stop ends the call with a line that says so
        last = json.loads(answer.readline())
        assert "shutting down" in last["detail"]
        connection.send(b"0\r\n\r\n")
        assert answer.read() == b""
        running.thread.join(10)
        assert not running.thread.is_alive()


def test_silent_client_is_told_and_let_go(service, monkeypatch):
    monkeypatch.setattr(stream, "IDLE", 0.1)
    monkeypatch.setattr(stream, "LINGER", 0.1)
    sent, parts = [], [{"type": "http.request", "body": b'{"text": "cat"}\n', "more_body": True}]

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/tag", "headers": [(b"content-type", b"application/x-ndjson")]}
    asyncio.run(make_app(service)(scope, receive, send))
    answers = [json.loads(line) for message in sent for line in message.get("body", b"").splitlines()]
    assert len(answers[0]["tags"]) == 5
    assert "Nothing came" in answers[1]["detail"]


def test_token_is_required(trained):
    with TestClient(make_app(Service(load_tagger(trained), "topics"), token="secret")) as client:
        assert client.post("/tag", content=b'{"text": "cat"}\n', headers=NDJSON).status_code == 401


def test_full_queue_makes_a_stream_wait(service, client):
    gate = threading.Event()
    held = service.batcher.submit_alone(lambda: gate.wait(10), 1)
    while service.batcher.waiting:
        time.sleep(0.001)
    filling = service.batcher.submit(service.model, ["cat"] * LIMITS.queue, 1)
    threading.Timer(0.2, gate.set).start()
    assert len(lines_of(client.post("/tag", content=b'{"text": "cat"}\n', headers=NDJSON))) == 1
    assert held.result(10)
    assert filling.result(10)
