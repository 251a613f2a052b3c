"""Guards the API: answers are the model's own, every limit has its status and a sentence, the token is required."""

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from aplc import Tagger
from aplc.data.vocabulary import Vocabulary
from aplc.serve import app as app_module
from aplc.serve import guard
from aplc.serve.app import Service, make_app
from aplc.serve.guard import Limits
from aplc.store.folder import load_tagger
from load import read_metrics

LIMITS = Limits(body=20_000, texts=8, queue=10, requests=4)


@pytest.fixture(scope="module")
def service(trained):
    return Service(load_tagger(trained), "topics", limits=LIMITS)


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


async def status_of(app, method, path, receive, headers):
    """Call the ASGI application without a client, so that a test decides when the parts of a body arrive."""
    answers = []

    async def send(message):
        answers.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": encoded, "query_string": b""}
    await app(scope, receive, send)
    return answers[0]["status"]


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
def test_number_of_labels_is_that_of_predict(client, tagger, rule):
    """Five by default, but all six of the model with a threshold of zero."""
    answer = client.post("/tag", json={"text": "cat on rail", **rule}).json()
    assert pairs(answer["tags"]) == close_to(tagger.predict("cat on rail", **rule))


def test_top_k_beyond_the_number_of_labels_gives_all(client):
    assert len(client.post("/tag", json={"text": "cat", "top_k": 1000}).json()["tags"]) == 6


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body"),
        (b"nope", "not JSON"),
        (b'{"text": "cat"', "not JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"text": "caf\xe9"}', "not UTF-8; send UTF-8"),
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
def test_invalid_input_is_refused_with_a_sentence(client, body, words):
    answer = client.post("/tag", content=body, headers={"Content-Type": "application/json"})
    assert words in sentence(answer, 422)
    assert client.get("/health").status_code == 200


def test_missing_content_type_is_named(client):
    answer = client.post(
        "/tag", content=b'{"text": "cat"}', headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert "Content-Type: application/json" in sentence(answer, 422)


def test_limits_have_their_own_status(client):
    assert "20,000 bytes" in sentence(client.post("/tag", json={"text": "a" * 20_000}), 413)
    assert "9 texts, a call may have 8" in sentence(client.post("/tag", json={"texts": ["a"] * 9}), 422)

    def chunks():  # no Content-Length to go by
        yield from [b"a" * 10_000] * 3

    sentence(client.post("/tag", content=chunks(), headers={"Content-Type": "application/json"}), 413)


def test_body_within_a_large_limit_is_read_to_its_end(service, monkeypatch):
    monkeypatch.setattr(guard, "MAX_DISCARDED", 1)
    parts = [b'{"text": ', b'"violin', b'"}']

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    assert (
        asyncio.run(status_of(make_app(service), "POST", "/tag", receive, {"content-type": "application/json"})) == 200
    )


def test_full_queue_is_429_and_too_many_requests_503(service, client):
    entered, gate = threading.Event(), threading.Event()

    def hold():
        entered.set()
        gate.wait(10)

    held = service.batcher.submit_alone(hold, 1)
    assert entered.wait(10)
    filling = service.batcher.submit(service.model, ["cat"] * LIMITS.queue, 1)
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


def test_explanation_finds_the_word_that_speaks_for_a_label(client):
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
    assert set(names(query="s")) == {name for name in service.model.tagger.labels.names if "s" in name}
    assert names(query="a")[0] == "animals"  # begins with it; the others only contain it
    assert names(query="c, c") == names(query="music, classical") == ["music, classical"]
    assert names(query="o\nf") == names(query="x\n") == names(query="zebra") == []
    assert names() == list(service.model.tagger.labels.names)
    assert names(limit=2, offset=1) == list(service.model.tagger.labels.names[1:3])
    assert client.get("/labels", params={"query": "s", "limit": 1}).json()["found"] == len(names(query="s"))
    (found,) = client.get("/labels", params={"query": "rare"}).json()["labels"]
    about = {"label": "rare", "name": "rare", "matched": "rare"}
    assert found == {**about, "documents": 8, "cluster": "tail 1"}
    sentence(client.get("/labels", params={"limit": 0}), 422)


def test_health_and_metrics(client):
    assert client.get("/health").json()["labels"] == 6
    client.get("/no/such/page")
    before = read_metrics(client.get("/metrics").text)
    client.post("/tag", json={"texts": ["cat", "rain"]})
    after = read_metrics(client.get("/metrics").text)
    assert after['aplc_requests_total{path="other",status="404"}'] == 1
    assert after['aplc_requests_total{path="/health",status="200"}'] >= 1
    assert after['aplc_request_seconds_bucket{le="+Inf"}'] == after["aplc_request_seconds_count"]
    assert after["aplc_texts_total"] == before["aplc_texts_total"] + 2
    assert after["aplc_batches_total"] == before["aplc_batches_total"] + 1
    assert after["aplc_in_flight"] == 1  # the request for these figures
    assert after["aplc_queue_texts"] == 0
    assert after["process_resident_memory_bytes"] > 0


def test_services_of_one_process_count_apart(client, trained):
    client.post("/tag", json={"text": "cat"})
    service = Service.load(trained)
    with TestClient(make_app(service)) as other:
        assert read_metrics(other.get("/metrics").text)["aplc_texts_total"] == 0


def test_token_is_required(service):
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
        sentence(client.post("/tag", json=body), 401)  # also while it is busy
        service.metrics.in_flight -= LIMITS.requests
        assert client.post("/tag", json=body, headers=good).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"token": []}]


def test_every_operation_but_health_requires_the_token(service):
    with TestClient(make_app(service, token="secret")) as client:
        paths = client.get("/openapi.json").json()["paths"]
        operations = [(method, path) for path, methods in paths.items() for method in methods]
        open_ones = {
            (method, path) for method, path in operations if client.request(method, path, json={}).status_code != 401
        }
    assert open_ones == {("get", "/health")}
    assert len(operations) == 8


def test_pages_load_nothing_from_other_servers(client):
    for path in ("/", "/docs", "/page.css", "/page.js", "/corrections.js", "/docs.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "//" not in answer.text.replace("://${", "").replace("// ", ""), path
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "innerHTML" not in "".join(client.get(f"/{name}.js").text for name in ("page", "corrections", "docs"))


def test_api_description_has_every_path_and_status(client):
    api = client.get("/openapi.json").json()
    others = {"/feedback", "/review", "/admin/reload"}
    assert set(api["paths"]) == {"/tag", "/explain", "/labels", "/health", "/metrics", *others}
    assert {"413", "422", "429", "503"} <= set(api["paths"]["/tag"]["post"]["responses"])
    assert json.dumps(api).count("HTTPValidationError") == 0


def test_closed_service_answers_503(trained):
    service = Service(load_tagger(trained), "topics")
    with TestClient(make_app(service)) as client:
        service.batcher.close()
        assert "shutting down" in sentence(client.post("/tag", json={"text": "cat"}), 503)


def test_health_tells_of_a_model_that_does_not_return(trained, monkeypatch):
    monkeypatch.setattr(app_module, "STUCK", 0.0)
    service = Service(load_tagger(trained), "topics")
    gate = threading.Event()
    with TestClient(make_app(service)) as client:
        assert client.get("/health").status_code == 200
        held = service.batcher.submit_alone(lambda: gate.wait(10), 1)
        while not service.batcher.busy:
            time.sleep(0.001)
        assert "has not returned" in sentence(client.get("/health"), 503)
        gate.set()
        assert held.result(10)
        while service.batcher.busy:
            time.sleep(0.001)
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/health"])
def test_requests_without_the_token_have_a_limit_of_their_own(service, path):
    """As many as it allows, whose bodies never end: the next is refused, and one with the token still answered."""
    app = make_app(service, token="secret")

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def answered():
        endless = asyncio.Event().wait
        waiting = [asyncio.create_task(status_of(app, "GET", path, endless, {})) for _ in range(LIMITS.requests)]
        await asyncio.sleep(0)
        assert app.without_token == LIMITS.requests
        refused = await status_of(app, "GET", path, endless, {})
        status = await status_of(app, "GET", path, receive, {"authorization": "Bearer secret"})
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return refused, status, app.without_token

    assert asyncio.run(answered()) == (503, 200, 0)


def test_server_of_this_machine_alone_refuses_other_hosts(trained):
    """DNS rebinding: a page of another host, whose name was made to lead here."""
    with TestClient(make_app(Service(load_tagger(trained), "topics"), loopback_only=True)) as client:
        for method, path in (("GET", "/"), ("GET", "/health"), ("POST", "/tag")):
            for kind in ("application/json", "application/x-ndjson"):
                line = {"content": b'{"text": "cat"}', "headers": {"Content-Type": kind}}
                for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
                    assert client.request(method, f"http://{host}{path}", **line).status_code == 200
                for host in ("evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"):
                    assert "APLC_TOKEN" in sentence(client.request(method, f"http://{host}{path}", **line), 403)


def test_labels_are_found_by_their_other_names(trained):
    tagger = load_tagger(trained)
    entries = {"animals": {"name": "Fauna", "names": ["Tiere", "<b>animaux</b>"]}, "food": {"name": "Fare"}}
    service = Service(replace(tagger, vocabulary=Vocabulary.of(entries)), "topics")

    def found(query):
        return [(one["label"], one["name"], one["matched"]) for one in service.model.search(query, 9, 0)["labels"]]

    assert found("tier") == [("animals", "Fauna", "Tiere")]
    assert sorted(found("FA")) == [("animals", "Fauna", "Fauna"), ("food", "Fare", "Fare")]
    assert found("animals") == [("animals", "Fauna", "animals")]  # each label once, whatever matches
    assert found("météo") == [("météo", "météo", "météo")]
