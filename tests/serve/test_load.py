"""Guards a server process under load: no lost, swapped or failed answer, constant memory, and a clean stop.

bench/serve.py is the long run with figures. schemathesis' long run: APLC_CASES=450 pytest -s -k schemathesis, which
ends with the number of requests by status.
"""

import json
import os
import socket
import threading
from collections import Counter
from itertools import product

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from aplc import Tagger
from aplc.serve.app import Service, make_app
from aplc.serve.feedback import FeedbackFile
from aplc.serve.guard import Limits
from aplc.serve.review import ReviewQueue
from aplc.store.folder import load_tagger
from helpers import topic_rows, write_rows
from load import JSON, call, read_metrics, resident_memory, run_load, serving

CASES = int(os.environ.get("APLC_CASES", "60"))
"""Requests that schemathesis makes up for each operation; a run by hand takes many more."""
HEADERS = {**JSON, "Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def texts():
    return [row["text"] for row in topic_rows(300, seed=5)]


@pytest.fixture(scope="module")
def expected(trained, texts):
    return Tagger.from_pretrained(trained).predict(texts, top_k=6)


@pytest.fixture(scope="module")
def server(trained):
    with serving(trained, env={"APLC_TOKEN": "secret"}) as (process, port):
        yield process, port


def test_64_clients_get_their_own_answers(server, texts, expected):
    process, port = server
    run_load(port, texts, expected, clients=64, seconds=1, headers=HEADERS)  # warm up: threads and buffers
    before = resident_memory(process.pid)
    load = run_load(port, texts, expected, clients=64, seconds=4, headers=HEADERS)
    assert load.answered > 64
    assert (load.wrong[:1], load.lost[:1], load.refused) == ([], [], 0)
    if before is not None:
        assert resident_memory(process.pid) < before + (20 << 20)
    metrics = read_metrics(call(port, "GET", "/metrics", headers=HEADERS)[1].decode())
    assert metrics["aplc_texts_total"] > 1.5 * metrics["aplc_batches_total"]  # batches did fill


def test_server_survives_large_and_broken_requests(server):
    _, port = server
    status, content = call(port, "POST", "/tag", b'{"text": "' + b"a" * 10_000_000 + b'"}', HEADERS)
    assert status == 413
    assert "bytes" in json.loads(content)["detail"]
    status, content = call(port, "POST", "/tag", json.dumps({"texts": ["a"] * 100_000}), HEADERS)
    assert status == 422
    assert "100,000 texts" in json.loads(content)["detail"]
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"POST /tag HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as garbage:
        garbage.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert garbage.recv(100).startswith(b"HTTP/1.1 400")
    assert call(port, "POST", "/tag", '{"text": "cat"}', HEADERS)[0] == 200


def test_server_listens_on_loopback_and_requires_the_token(server):
    _, port = server
    assert call(port, "POST", "/tag", '{"text": "cat"}', JSON)[0] == 401
    outside = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in outside:
        if not address.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=2)


def test_stop_under_load_answers_every_accepted_request(server, texts, expected):
    """Must be the last test of this server. The body of one request is still arriving when the signal comes."""
    process, port = server
    body = b'{"text": "violin sonata"}'
    head = "".join(f"{name}: {value}\r\n" for name, value in {**HEADERS, "Content-Length": len(body)}.items())
    with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
        slow.sendall(f"POST /tag HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body[:5])
        late = threading.Timer(2.0, lambda: slow.sendall(body[5:]))  # the signal comes after 1.5 s
        late.start()
        load = run_load(port, texts, expected, clients=32, seconds=3, stop_pid=process.pid, headers=HEADERS)
        answer = slow.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()
    assert process.wait(20) == 0
    assert load.answered > 32
    assert (load.wrong[:1], load.lost[:1]) == ([], [])
    assert load.refused > 0  # it did stop while they were asking


@pytest.fixture(scope="module")
def api(trained, tmp_path_factory):
    """With everything that a server can be started with."""
    folder = tmp_path_factory.mktemp("feedback")
    feedback = folder / "feedback.jsonl"
    queue = ReviewQueue(write_rows(folder / "queue.jsonl", [{"text": "cat"}, {"text": "dog", "id": 5}]), feedback)
    limits = Limits(feedback=1_000_000)
    service = Service(load_tagger(trained), "topics", limits=limits, feedback=FeedbackFile(feedback), review=queue)

    async def reload():
        return service.about()

    service.reload = reload
    close = service.close
    service.close = lambda: None  # the app is started and stopped many times
    yield schemathesis.openapi.from_asgi("/openapi.json", make_app(service, token="secret"), headers=HEADERS)
    close()
    print(f"\nschemathesis: {STATUSES.total():,} requests, by status {dict(sorted(STATUSES.items()))}")


REQUESTS = list(product(["POST /tag", "POST /explain", "POST /feedback", "GET /labels", "GET /review"], GenerationMode))
# Take no input, so there are no invalid requests.
REQUESTS += [
    (operation, GenerationMode.POSITIVE) for operation in ("GET /health", "GET /metrics", "POST /admin/reload")
]
STATUSES: Counter[int] = Counter()


@pytest.mark.parametrize(("operation", "mode"), REQUESTS)
def test_schemathesis_finds_no_server_error(api, operation, mode):
    """Valid and invalid requests, made from the API's description; answers must match it, too."""
    method, path = operation.split()
    checks = [not_a_server_error, response_schema_conformance, content_type_conformance, status_code_conformance]

    @settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def check(case):
        answer = case.call(headers=HEADERS)
        STATUSES[answer.status_code] += 1
        case.validate_response(answer, checks=checks)

    check()
