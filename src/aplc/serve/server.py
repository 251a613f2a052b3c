"""Starts and stops the server: a socket to listen on, uvicorn, and a stop that loses no request.

    aplc serve demo/model
    curl -d '{"text": "Evoked potentials in children."}' -H 'Content-Type: application/json' localhost:8000/tag

One process, one model, one thread that calls it (`batcher.py`); the event loop does the HTTP. When asked to stop, the
server accepts no new connections, answers every request it has received, and tells clients that keep a connection open
to close it.
"""

import asyncio
import contextlib
import socket
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from aplc.console import Screen
from aplc.errors import AplcError

try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn
except ImportError as error:
    raise AplcError(f"aplc serve needs {error.name}: pip install fastapi uvicorn prometheus-client") from error

from aplc.models.base import say_device, tell_speed
from aplc.serve.app import Service, make_app
from aplc.serve.guard import Guard, Limits

DRAIN_TIME = 1.0
"""Seconds that an open connection has for one more request after the signal to stop."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Server(uvicorn.Server):
    """uvicorn that stops without losing a request, and then exits with 0."""

    def __init__(self, guard: Guard) -> None:
        config = uvicorn.Config(
            guard, log_level="warning", access_log=False, server_header=False, lifespan="on", timeout_keep_alive=75
        )
        super().__init__(config)
        self.guard = guard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own raises the signal again after the shutdown, and the process would end as if killed.
        self.force_exit = self.should_exit  # a second signal stops it at once
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections that wait, stop listening, and give every connection time for one last request.

        uvicorn's own resets connections that wait, and closes idle ones while a request is on its way.
        """
        self.guard.closing = True
        loop = asyncio.get_running_loop()
        accepted = []
        for listener in sockets or []:
            with contextlib.suppress(BlockingIOError):
                while True:
                    accepted.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        for connection in accepted:
            connection.setblocking(False)
            protocol: Any = self.config.http_protocol_class
            make = partial(protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(make, connection)
        deadline = loop.time() + DRAIN_TIME
        while self.server_state.connections and loop.time() < deadline and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    screen: Screen | None = None,
) -> None:
    """Serve a model folder until SIGTERM or Ctrl-C. `token`: what callers must send; None lets everyone in."""
    screen = screen or Screen(quiet=True)
    if token is not None and (not token.isascii() or not token.strip()):
        raise AplcError("--token: a token must be ASCII and not empty")
    listener = listen(host, port)
    service = Service.load(model, limits=limits)
    say_device(service.tagger.model.kind, screen.say)
    tell_speed(service.tagger.model.kind, screen)
    shown = f"[{host}]" if ":" in host else host
    screen.say(
        f"serving {model} ({service.tagger.labels.n_in_use:,} labels) at http://{shown}:{listener.getsockname()[1]}/, "
        f"{'with a token' if token else 'without a token'}; Ctrl-C stops it"
    )
    if token is None and host not in LOOPBACK:
        screen.say("anyone who can reach this address can use the model; set APLC_TOKEN to require a token")
    Server(make_app(service, token=token)).run(sockets=[listener])
    screen.say("stopped")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        problem = f"can't listen on {host}, port {port} ({error.strerror}); choose another --host or --port"
        raise AplcError(problem) from None
    return listener
