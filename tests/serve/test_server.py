"""Guards starting and stopping: refusals in one line, and a stop that loses no request where uvicorn's own would."""

import http.client
import json
import socket
import sys
import threading
import time

import pytest

from aplc.serve.app import Service, make_app
from aplc.serve.server import Server, listen
from helpers import aplc
from load import JSON

BODY = '{"text": "violin"}'


class Running:
    """A server in a thread of this process."""

    def __init__(self, trained, kind=Server):
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.server = kind(make_app(Service.load(trained)))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(10)

    def stop(self):
        """Ask it to stop, and wait until it no longer listens."""
        self.server.should_exit = True
        while self.listener.fileno() >= 0 and self.listens():
            time.sleep(0.01)

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def answer_to(connection):
    answer = connection.getresponse()
    return answer.status, len(json.loads(answer.read())["tags"]), answer.getheader("connection")


def test_request_on_an_open_connection_after_the_signal_is_answered(trained):
    """uvicorn's own shutdown closes an idle connection at once, while the client's next request is on its way."""
    with Running(trained) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        connection.request("POST", "/tag", BODY, JSON)
        assert answer_to(connection) == (200, 5, None)
        running.stop()
        connection.request("POST", "/tag", BODY, JSON)
        assert answer_to(connection) == (200, 5, "close")
        running.thread.join(10)
        assert not running.thread.is_alive()


def test_connection_that_waits_to_be_accepted_is_answered(trained):
    """uvicorn's own shutdown closes the listening socket, and with it connections that only the system has accepted."""
    waiting = []

    class LateConnection(Server):
        async def shutdown(self, sockets=None):
            connection = http.client.HTTPConnection(*sockets[0].getsockname(), timeout=10)
            connection.request("POST", "/tag", BODY, JSON)
            waiting.append(connection)
            await super().shutdown(sockets)

    with Running(trained, LateConnection) as running:
        running.stop()
        assert answer_to(waiting[0]) == (200, 5, "close")
        running.thread.join(10)
        assert not running.thread.is_alive()


def test_idle_connections_do_not_hold_up_the_stop(trained):
    with Running(trained) as running, socket.create_connection(("127.0.0.1", running.port), timeout=10) as idle:
        start = time.monotonic()
        running.stop()
        assert idle.recv(1) == b""
        running.thread.join(10)
        assert not running.thread.is_alive()
        assert time.monotonic() - start < 5


def test_port_in_use_and_missing_model_are_one_line(trained, tmp_path, unused_port):
    done = aplc("serve", tmp_path / "none", "--port", unused_port)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = aplc("serve", trained, "--port", other.getsockname()[1])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "in use" in done.stderr
    done = aplc("serve", trained, "--host", "no.such.host.invalid")
    assert done.returncode == 2
    assert "--host" in done.stderr


@pytest.mark.parametrize("token", ["schlüssel", ""])
def test_token_that_no_header_can_hold_is_refused(trained, token):
    done = aplc("serve", trained, "--token", token)
    assert done.returncode == 2
    assert "ASCII" in done.stderr


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client"])
def test_missing_extra_is_one_line_with_the_command_to_type(trained, monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("aplc.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    done = aplc("serve", trained)
    assert done.returncode == 2
    assert done.stderr == f"aplc: aplc serve needs {missing}: pip install fastapi uvicorn prometheus-client\n"
