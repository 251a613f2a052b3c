"""Guards several workers behind one port: own answers, one file of feedback, added metrics, and nobody missed."""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from aplc import Tagger
from aplc.errors import AplcError
from aplc.serve import workers
from aplc.serve.channel import Channel
from aplc.serve.server import listen
from aplc.serve.settings import Settings
from helpers import aplc, fails, topic_rows
from load import JSON, Correcting, call, read_metrics, run_load, serving, stored, workers_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
HEADERS = {**JSON, "Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def texts():
    return [row["text"] for row in topic_rows(200, seed=5)]


@pytest.fixture(scope="module")
def expected(words_model, texts):
    return Tagger.from_pretrained(words_model).predict(texts, top_k=6)


@pytest.fixture
def server(place, tmp_path):
    feedback = tmp_path / "feedback.jsonl"
    options = ("--workers", "2", "--feedback", str(feedback), "--max-feedback", "1000000", "--worker-timeout", "6")
    with serving(place.folder, *options, env={"APLC_TOKEN": "secret"}) as (process, port):
        yield process, port, feedback


def metrics_of(port):
    return read_metrics(call(port, "GET", "/metrics", headers=HEADERS)[1].decode())


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_share_the_load_and_a_dead_one_is_replaced(server, texts, expected, place, other_model):
    process, port, feedback = server
    first = workers_of(process)
    assert len(first) == 2
    load = run_load(port, texts, expected, clients=16, seconds=2, headers=HEADERS)
    assert (load.wrong[:1], load.lost[:1], load.refused) == ([], [], 0)
    wait_until(lambda: metrics_of(port)['aplc_requests_total{path="/tag",status="200"}'] == load.answered)
    metrics = metrics_of(port)
    assert (metrics["aplc_texts_total"], metrics["aplc_workers"]) == (load.answered, 2)

    correcting = Correcting(port, headers=HEADERS)
    wait_until(lambda: len(correcting.confirmed) > 20)
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: len(set(workers_of(process)) - set(first)) == 1)
    before = len(correcting.confirmed)
    wait_until(lambda: len(correcting.confirmed) > before + 20)
    wait_until(lambda: metrics_of(port)["aplc_workers"] == 2)
    confirmed = correcting.end()
    assert confirmed <= stored(feedback)
    assert metrics_of(port)["aplc_texts_total"] >= load.answered  # those of the dead worker still count

    place.put(other_model)
    process.send_signal(signal.SIGHUP)
    for _ in range(2):  # one worker after the other
        wait_until(lambda: call(port, "GET", "/health")[1].count(b'"label_set_version": 2'))
    place.put_broken(other_model)
    status, content = call(port, "POST", "/admin/reload", headers=HEADERS)
    assert (status, b"refused" in content) == (409, True)

    load = run_load(port, texts, [[]] * len(texts), clients=8, seconds=1.5, stop_pid=process.pid, headers=HEADERS)
    assert (set(load.statuses), load.lost[:1]) == ({200}, [])
    assert process.wait(20) == 0
    assert load.refused > 0


def test_workers_end_with_the_first_process_and_lose_no_correction(server):
    process, port, feedback = server
    children = workers_of(process)
    correcting = Correcting(port, headers=HEADERS)
    wait_until(lambda: len(correcting.confirmed) > 20)
    process.kill()
    process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children))
    confirmed = correcting.end()
    assert confirmed <= stored(feedback)


def test_worker_that_hangs_is_replaced_and_holds_up_neither_a_reload_nor_the_stop(server):
    process, port, _ = server
    first = workers_of(process)
    os.kill(first[0], signal.SIGSTOP)
    assert call(port, "POST", "/admin/reload", headers=HEADERS)[0] == 200  # waits for all workers, until it is killed
    wait_until(lambda: len(set(workers_of(process)) - set(first)) == 1)
    assert first[1] in workers_of(process)
    wait_until(lambda: metrics_of(port)["aplc_workers"] == 2)
    os.kill(first[1], signal.SIGSTOP)
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_command_without_a_token_answers_this_machine_alone(words_model, workers):
    with serving(words_model, "--workers", workers, env={"APLC_TOKEN": ""}) as (_, port):
        assert call(port, "GET", "/health", headers={"Host": "evil.example"})[0] == 403
        assert call(port, "GET", "/health", headers={"Host": f"localhost:{port}"})[0] == 200
    with serving(words_model, "--workers", workers, env={"APLC_TOKEN": "secret"}) as (_, port):
        assert call(port, "GET", "/health", headers={"Host": "evil.example"})[0] == 200


BUSY = """
import json, socket, sys
channel = socket.socket(fileno=int(sys.argv[2])).makefile("rw")
def send(**message):
    channel.write(json.dumps(message) + "\\n")
    channel.flush()
send(ask="ready", number=0, value={})
for message in map(json.loads, channel):
    if message.get("ask") == "stop":
        break
    if message.get("ask") == "busy":
        send(number=message["number"], value=1000)
"""


def test_worker_whose_model_does_not_return_is_replaced(place, monkeypatch):
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-S", "-c", BUSY))
    said, settings = [], Settings(model=place.folder)

    async def supervise():
        supervisor = workers.Supervisor(settings, listen("127.0.0.1", 0), 1, said.append)
        running = asyncio.create_task(supervisor.run(lambda _: None))
        async with asyncio.timeout(60):
            while not said:
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    asyncio.run(supervise())
    assert "busy with one batch for 1000 seconds and was killed; another takes its place" in said[0]


def test_question_that_cannot_be_answered_fails_and_does_not_wait():
    async def fail(_):
        raise FileNotFoundError("gone")

    async def ask():
        ends = [await Channel.over(end, {"reload": fail}) for end in socket.socketpair()]
        running = [asyncio.create_task(end.run()) for end in ends]
        with pytest.raises(AplcError, match="FileNotFoundError: gone"):
            await asyncio.wait_for(ends[0].ask("reload"), 10)
        for task in running:
            task.cancel()

    asyncio.run(ask())


FAILING = """
import json, socket, sys
channel = socket.socket(fileno=int(sys.argv[2])).makefile("rw")
for what, value in (("settings", None), ("failed", "the model is damaged")):
    channel.write(json.dumps({"ask": what, "number": 0, "value": value}) + "\\n")
    channel.flush()
    channel.readline()
sys.exit(2)
"""


@pytest.mark.parametrize(("script", "words"), [(FAILING, "the model is damaged"), ("raise SystemExit(3)", "code 3")])
def test_worker_that_never_gets_ready_is_one_line(place, monkeypatch, script, words):
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-S", "-c", script))
    done = aplc("serve", place.folder, "--port", 0, "--workers", 2)
    fails(done, words)
    assert done.stderr.count("\n") == 1
