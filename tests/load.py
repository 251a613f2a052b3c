"""A server process and many clients that check every answer against its text: for the tests and bench/serve.py."""

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

JSON = {"Content-Type": "application/json"}


@contextlib.contextmanager
def serving(model, *options, env=None):
    """`aplc serve` in a process of its own, on a free port; yields (process, port) and kills it in the end."""
    command = [sys.executable, "-m", "aplc", "serve", str(model), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}) as process:
        try:
            line = process.stderr.readline()
            address = re.search(r"at http://[\w.]+:(\d+)/", line)
            assert address, line + process.stderr.read()
            port = int(address.group(1))
            threading.Thread(target=process.stderr.read, daemon=True).start()  # else a full pipe would stop it
            wait_until_up(port)
            yield process, port
        finally:
            process.kill()


def wait_until_up(port, seconds=60):
    for _ in range(seconds * 20):
        with contextlib.suppress(OSError):
            if call(port, "GET", "/health")[0] == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not start")


def call(port, method, path, body=None, headers=JSON):
    """(status, content) of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def read_metrics(text):
    """What /metrics answers, as numbers by name."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def resident_memory(pid):
    """Bytes of memory a process has in use; None where the system has no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def workers_of(process):
    """Process ids of a server's workers; None where the system has no /proc."""
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return None


class Correcting:
    """Clients that send corrections, and remember which were confirmed."""

    def __init__(self, port, *, headers=JSON, clients=4, name=""):
        self.port, self.headers, self.name = port, headers, name
        self.confirmed, self.refused, self.stop = [], [], threading.Event()
        self.threads = [threading.Thread(target=self._send, args=(i,)) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def _send(self, client):
        for number in itertools.count():
            if self.stop.is_set():
                return
            own = f"{self.name}{client}-{number}"
            body = json.dumps({"text": f"cat {own}", "id": own, "accepted": ["animals"]})
            try:
                status, _ = call(self.port, "POST", "/feedback", body, self.headers)
            except (OSError, http.client.HTTPException):  # the worker or the server was killed
                time.sleep(0.05)
                continue
            (self.confirmed if status == 200 else self.refused).append(own)

    def end(self):
        """Ids of the corrections that were confirmed."""
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        return set(self.confirmed)


def stored(feedback):
    """Ids in a feedback file, of which every line must be whole."""
    data = Path(feedback).read_bytes()
    assert data[-1:] in (b"", b"\n")
    return {json.loads(line)["id"] for line in data.splitlines()}


@dataclass
class Load:
    """What the clients saw. `lost`: requests sent without a complete answer. `refused`: connections refused."""

    answered: int = 0
    wrong: list = field(default_factory=list)
    lost: list = field(default_factory=list)
    statuses: Counter = field(default_factory=Counter)
    refused: int = 0
    latencies: list = field(default_factory=list)
    seconds: float = 0.0


def run_load(port, texts, expected, *, clients, seconds, stop_pid=None, top_k=5, headers=JSON, or_else=None):
    """Send texts from many clients at once; with `stop_pid`, send that process SIGTERM after half the time.

    Every fourth client opens a connection for each request, the others keep theirs open. `expected`: the model's own
    tags of each text, and more of them than `top_k`; `or_else`: those of another model, which will do as well.
    """
    load, lock, numbers = Load(), threading.Lock(), itertools.count()
    end = time.monotonic() + seconds

    def client(keep_alive):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < end:
            i = next(numbers) % len(texts)
            start = time.monotonic()
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                with lock:
                    load.refused += 1
                return
            try:
                connection.request("POST", "/tag", json.dumps({"text": texts[i], "top_k": top_k}), headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                with lock:
                    load.lost.append(repr(error))
                return
            if not keep_alive:
                connection.close()
            with lock:
                load.latencies.append(time.monotonic() - start)
                load.statuses[answer.status] += 1
                load.answered += 1
                right = [expected[i]] if or_else is None else [expected[i], or_else[i]]
                tags = json.loads(content)["tags"] if answer.status == 200 else []
                if not any(matches(tags, one, top_k) for one in right):
                    load.wrong.append((texts[i], content))
        connection.close()

    threads = [threading.Thread(target=client, args=(i % 4 > 0,)) for i in range(clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    if stop_pid is not None:
        time.sleep(seconds / 2)
        os.kill(stop_pid, signal.SIGTERM)
    for thread in threads:
        thread.join()
    load.seconds = time.monotonic() - start
    return load


def matches(tags, expected, top_k, tolerance=1e-4):
    """Are these the text's tags? Rounding depends on the batch, so near ties may come in any order."""
    known = dict(expected)
    best = [p for _, p in expected[:top_k]]
    return (
        len(tags) == len(best)
        and all(abs(tag["probability"] - p) < tolerance for tag, p in zip(tags, best, strict=True))
        and all(abs(tag["probability"] - known.get(tag["label"], 2)) < tolerance for tag in tags)
    )
