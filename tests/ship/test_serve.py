"""Guards the API in this process: the model's own answers, every limit with its status and a sentence, the token."""

import asyncio
import json
import threading

import pytest
from starlette.testclient import TestClient

from aplc import Tagger
from aplc.ship.guard import Limits
from aplc.ship.serve import Service, make_app
from aplc.store.folder import TrainedTagger
from test_cli import aplc

LIMITS = Limits(body=20_000, texts=8, queue=10, requests=4)


@pytest.fixture(scope="module")
def service(trained):
    return Service(TrainedTagger.load(trained), "topics", limits=LIMITS)


@pytest.fixture(scope="module")
def client(service):
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def tagger(trained):
    return Tagger.from_pretrained(trained)


def sentence(answer, status):
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    assert isinstance(detail, str)
    assert detail.endswith(".")
    assert "Traceback" not in detail
    return detail


def pairs(tags):
    return [(tag["label"], tag["probability"]) for tag in tags]


def close_to(tags):
    return [(label, pytest.approx(p, abs=1e-5)) for label, p in tags]


def test_one_text_is_tagged_as_the_model_tags_it(client, tagger):
    answer = client.post("/tag", json={"text": "violin and rain", "top_k": 3}).json()
    assert pairs(answer["tags"]) == close_to(tagger.predict("violin and rain", top_k=3))
    assert {tag["cluster"] for tag in answer["tags"]} <= {"head", "tail 1"}


def test_several_texts_keep_their_order(client, tagger):
    texts = ["violin", "rain snow", "cat " * 300, "rail"]
    answer = client.post("/tag", json={"texts": texts, "top_k": 6, "threshold": 0.1}).json()
    assert len(answer["results"]) == 4
    for result, tags in zip(answer["results"], tagger.predict(texts, top_k=6, threshold=0.1), strict=True):
        assert pairs(result["tags"]) == close_to(tags)


@pytest.mark.parametrize("rule", [{}, {"threshold": 0.0}, {"threshold": 0.0, "top_k": 2}])
def test_how_many_labels_as_predict_has_it(client, tagger, rule):
    """Five by default, but no such limit beside a threshold: the model has six labels."""
    answer = client.post("/tag", json={"text": "cat on rail", **rule}).json()
    assert pairs(answer["tags"]) == close_to(tagger.predict("cat on rail", **rule))


def test_more_labels_than_there_are(client):
    assert len(client.post("/tag", json={"text": "cat", "top_k": 1000}).json()["tags"]) == 6


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body"),
        (b"nope", "not JSON"),
        (b'{"text": "cat"', "not JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 5000, "JSON"),
        (b"null", "body"),
        (b"[]", "body"),
        (b'"cat"', "body"),
        (b"{}", "either text"),
        (b'{"text": "cat", "texts": ["dog"]}', "either text"),
        (b'{"text": ""}', "empty"),
        (b'{"text": " \\n\\u00a0"}', "empty"),
        (b'{"text": "a\\u0000b"}', "null character"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b'{"texts": ["cat", "\\udfff x"]}', "surrogate"),
        (b'{"text": "cat", "\\ud800": 1}', "surrogate"),
        (b'{"text": 5}', "body.text"),
        (b'{"text": ["cat"]}', "body.text"),
        (b'{"texts": "cat"}', "body.texts"),
        (b'{"texts": []}', "body.texts"),
        (b'{"texts": ["cat", null]}', "body.texts.1"),
        (b'{"texts": ["cat", ""]}', "empty"),
        (b'{"text": "cat", "top_k": 0}', "body.top_k"),
        (b'{"text": "cat", "top_k": 1001}', "body.top_k"),
        (b'{"text": "cat", "top_k": "5"}', "body.top_k"),
        (b'{"text": "cat", "top_k": 1e400}', "body.top_k"),
        (b'{"text": "cat", "top_k": true}', "body.top_k"),
        (b'{"text": "cat", "threshold": NaN}', "body.threshold"),
        (b'{"text": "cat", "threshold": 1.1}', "body.threshold"),
        (b'{"text": "cat", "topk": 5}', "body.topk: there is no such field"),
    ],
)
def test_wrong_input_gets_a_sentence(client, body, words):
    answer = client.post("/tag", content=body, headers={"Content-Type": "application/json"})
    assert words in sentence(answer, 422)
    assert client.get("/health").status_code == 200


def test_missing_header_is_said(client):
    answer = client.post(
        "/tag", content=b'{"text": "cat"}', headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert "Content-Type: application/json" in sentence(answer, 422)


def test_limits_have_their_own_status(client):
    assert "20,000 bytes" in sentence(client.post("/tag", json={"text": "a" * 20_000}), 413)
    assert "9 texts, at most 8" in sentence(client.post("/tag", json={"texts": ["a"] * 9}), 422)

    def chunks():  # no Content-Length to go by
        yield from [b"a" * 10_000] * 3

    sentence(client.post("/tag", content=chunks(), headers={"Content-Type": "application/json"}), 413)


def test_full_queue_is_429_and_too_many_requests_503(service, client):
    entered, gate = threading.Event(), threading.Event()

    def hold():
        entered.set()
        gate.wait(10)

    held = service.batcher.submit_alone(hold, 1)
    assert entered.wait(10)
    filling = service.batcher.submit(["cat"] * LIMITS.queue, 1)
    answer = client.post("/tag", json={"text": "cat"})
    assert "queue is full" in sentence(answer, 429)
    assert answer.headers["Retry-After"] == "1"
    sentence(client.post("/explain", json={"text": "cat", "label": "animals"}), 429)
    service.metrics.in_flight += LIMITS.requests
    answer = client.post("/tag", json={"text": "cat"})
    service.metrics.in_flight -= LIMITS.requests
    assert "try again" in sentence(answer, 503)
    gate.set()
    held.result(10)
    assert len(filling.result(10)) == LIMITS.queue
    assert client.post("/tag", json={"text": "cat"}).status_code == 200


def test_explanation_of_a_label(client):
    text = "😀 violin rain"
    answer = client.post("/explain", json={"text": text, "label": "météo"}).json()
    effects = {text[word["start"] : word["stop"]]: word["effect"] for word in answer["words"]}
    assert max(effects, key=effects.get) == "rain"
    assert answer["read"] == len(text)
    sentence(client.post("/explain", json={"text": text, "label": "no such"}), 404)
    sentence(client.post("/explain", json={"text": "", "label": "météo"}), 422)


def test_labels_are_found_by_parts_of_their_names(client, service):
    def names(**params):
        return [label["name"] for label in client.get("/labels", params=params).json()["labels"]]

    assert names(query="MÉ") == ["météo"]
    assert set(names(query="s")) == {name for name in service.folder.labels.names if "s" in name}
    assert names(query="a")[0] == "animals"  # begins with it; the others only contain it
    assert names(query="c, c") == names(query="music, classical") == ["music, classical"]
    assert names(query="o\nf") == names(query="x\n") == names(query="zebra") == []
    assert names() == list(service.folder.labels.names)
    assert names(limit=2, offset=1) == list(service.folder.labels.names[1:3])
    assert client.get("/labels", params={"query": "s", "limit": 1}).json()["found"] == len(names(query="s"))
    (found,) = client.get("/labels", params={"query": "rare"}).json()["labels"]
    assert found == {"name": "rare", "documents": 8, "cluster": "tail 1"}
    sentence(client.get("/labels", params={"limit": 0}), 422)


def test_health_and_metrics(client, service):
    assert client.get("/health").json()["labels"] == 6
    client.get("/no/such/page")
    lines = client.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['aplc_requests_total{path="other",status="404"}'] == "1"
    assert int(values['aplc_requests_total{path="/health",status="200"}']) >= 1
    assert values['aplc_request_seconds_bucket{le="+Inf"}'] == values["aplc_request_seconds_count"]
    assert int(values["aplc_texts_total"]) == service.batcher.texts > 0
    assert int(values["process_resident_memory_bytes"]) > 0


def test_token_is_asked_for(service):
    with TestClient(make_app(service, token="secret")) as client:
        body = {"text": "cat"}
        for headers in ({}, {"Authorization": "secret"}, {"Authorization": "Bearer wrong"}, {"Authorization": b"\xff"}):
            answer = client.post("/tag", json=body, headers=headers)
            assert "token" in sentence(answer, 401)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        for path in ("/labels", "/metrics", "/no/such/page"):
            assert client.get(path).status_code == 401
        for path in ("/", "/docs", "/health", "/openapi.json", "/page.js"):
            assert client.get(path).status_code == 200
        good = {"Authorization": "Bearer secret"}
        service.metrics.in_flight += LIMITS.requests
        assert client.post("/tag", json=body, headers=good).status_code == 503
        sentence(client.post("/tag", json=body), 401)  # however busy it is
        service.metrics.in_flight -= LIMITS.requests
        assert client.post("/tag", json=body, headers=good).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"token": []}]


def test_pages_ask_for_nothing_from_elsewhere(client):
    for path in ("/", "/docs", "/page.css", "/page.js", "/docs.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "//" not in answer.text.replace("://${", "").replace("// ", ""), path
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "innerHTML" not in client.get("/page.js").text + client.get("/docs.js").text


def test_api_description_matches_what_is_checked(client):
    api = client.get("/openapi.json").json()
    assert set(api["paths"]) == {"/tag", "/explain", "/labels", "/health", "/metrics"}
    assert {"413", "422", "429", "503"} <= set(api["paths"]["/tag"]["post"]["responses"])
    assert json.dumps(api).count("HTTPValidationError") == 0


def test_closed_service_says_503(trained):
    service = Service(TrainedTagger.load(trained), "topics")
    with TestClient(make_app(service)) as client:
        service.batcher.close()
        assert "shutting down" in sentence(client.post("/tag", json={"text": "cat"}), 503)


def test_port_in_use_and_missing_model_are_one_line(trained, tmp_path, unused_port):
    done = aplc("serve", tmp_path / "none", "--port", unused_port)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = aplc("serve", trained, "--host", "no.such.host.invalid")
    assert done.returncode == 2
    assert "--host" in done.stderr
    for token in ("schlüssel", ""):
        done = aplc("serve", trained, "--token", token)
        assert done.returncode == 2
        assert "ASCII" in done.stderr


@pytest.mark.parametrize("path", ["/metrics", "/health"])
def test_requests_without_the_token_take_no_places(service, path):
    """As many as there are places, whose bodies never end: one with the token is answered meanwhile."""
    app = make_app(service, token="secret")

    async def send_answers(answers, headers, body):
        async def receive():
            if body is None:
                await asyncio.sleep(60)
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            answers.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b""}
        await app(scope, receive, send)

    async def answered():
        strangers = [asyncio.create_task(send_answers([], [], None)) for _ in range(LIMITS.requests)]
        await asyncio.sleep(0)
        assert app.strangers == LIMITS.requests
        answers = []
        await send_answers(answers, [(b"authorization", b"Bearer secret")], b"")
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        return answers[0]["status"], app.strangers

    assert asyncio.run(answered()) == (200, 0)
