"""Starts and stops the server: a socket to listen on, uvicorn, and a stop that loses no request.

    aplc serve demo/model
    curl -d '{"text": "Evoked potentials in children."}' -H 'Content-Type: application/json' localhost:8000/tag

One process, one model, one thread that calls it (`batcher.py`); the event loop does the HTTP. With several workers
(`workers.py`) each of them is such a process. When asked to stop, the server accepts no new connections, answers every
request it has received, and tells clients that keep a connection open to close it.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from aplc.console import Screen
from aplc.errors import AplcError, needs

try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn
except ImportError as error:
    raise AplcError(needs("aplc serve", error.name or "", "fastapi", "uvicorn", "prometheus-client")) from error

from aplc.serve.feedback import FeedbackFile
from aplc.serve.guard import LOOPBACK, Guard
from aplc.serve.reload import About, Reloader
from aplc.serve.settings import Settings

BACKLOG = 2048
"""Connections that the system holds for us."""

DRAIN_TIME = 1.0
"""Seconds that an open connection has for one more request after the signal to stop."""


class Server(uvicorn.Server):
    """uvicorn that stops without losing a request, and then exits with 0.

    `background` runs while it serves. With a shared socket, it accepts one connection at a time, so that the other
    workers get theirs.
    """

    def __init__(
        self, guard: Guard, *, background: Sequence[Callable[[], Awaitable[None]]] = (), shares_socket: bool = False
    ) -> None:
        config = uvicorn.Config(
            guard,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_keep_alive=75,
            backlog=1 if shares_socket else BACKLOG,
        )
        super().__init__(config)
        self.guard, self.background = guard, background
        self._tasks: list[asyncio.Future[None]] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own raises the signal again after the shutdown, and the process would end as if killed.
        self.force_exit = self.should_exit  # a second signal stops it at once
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # asyncio takes the length of the system's queue for what it accepts at once
        self._tasks = [asyncio.ensure_future(work()) for work in self.background]

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
        for task in self._tasks:
            task.cancel()


def serve(
    settings: Settings, *, host: str = "127.0.0.1", port: int = 8000, workers: int = 1, screen: Screen | None = None
) -> None:
    """Serve a model folder until SIGTERM or Ctrl-C, from this process or from several workers."""
    screen = screen or Screen(quiet=True)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    settings.check()
    settings = replace(settings, loopback_only=settings.token is None and host in LOOPBACK)
    listener = listen(host, port)
    said = FeedbackFile.open(settings.feedback)[1] if settings.feedback else ""

    def started(about: About) -> None:
        shown = f"[{host}]" if ":" in host else host
        screen.say(
            f"serving {settings.model} ({about['labels']:,} labels) at http://{shown}:{port_of_listener}/, "
            f"{'with a token' if settings.token else 'without a token'}; Ctrl-C stops it"
        )
        for line in filter(None, (about["device"], said)):
            screen.say(line)
        if settings.token is None and not settings.loopback_only:
            uses = "use the model and store feedback" if settings.feedback else "use the model"
            screen.say(f"anyone who can reach this address can {uses}; set APLC_TOKEN to require a token")

    port_of_listener = listener.getsockname()[1]
    if workers > 1:
        from aplc.serve.workers import Supervisor

        async def supervise() -> None:
            await Supervisor(settings, listener, workers, screen.say).run(started)

        asyncio.run(supervise())
    else:
        _serve_alone(settings, listener, started, screen.say)
    screen.say("stopped")


def _serve_alone(
    settings: Settings, listener: socket.socket, started: Callable[[About], None], say: Callable[[str], None]
) -> None:
    from aplc.serve.app import Service, make_app  # imports torch, which a first process does without

    service = Service.open(settings)
    reloader = Reloader(settings.model, partial(service.take, settings.model), say)
    service.reload = reloader.reload
    started({**service.about(), "device": service.device})
    app = make_app(service, token=settings.token, loopback_only=settings.loopback_only)
    Server(app, background=[reloader.watch]).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        problem = f"can't listen on {host}, port {port} ({error.strerror}); choose another --host or --port"
        raise AplcError(problem) from None
    return listener
