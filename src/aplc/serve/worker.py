"""One worker of `aplc serve --workers N`: a process with its own model, queue and event loop, and a shared socket.

    python -m aplc.serve.worker LISTENER CHANNEL        # numbers of open files; only `workers.py` starts it

It asks the first process for its settings, says when it is ready, and from then on does what it is asked. When the
first process has gone, it answers what it has received and ends.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
from types import FrameType
from typing import Any

from aplc.errors import AplcError
from aplc.serve.app import Service, make_app
from aplc.serve.channel import Channel, GoneError
from aplc.serve.server import Server
from aplc.serve.settings import METRICS_FOLDER, Settings


class WorkerServer(Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # However many signals come: the first process stops its workers over the channel, and whoever stops a whole
        # group of processes reaches both.
        self.should_exit = True


async def work(listener: socket.socket, end: socket.socket) -> int:
    stopping, server = False, None

    async def reload(_: Any) -> dict[str, Any]:
        return await service.take(settings.model)

    async def busy(_: Any) -> float:
        return service.batcher.busy

    async def stop(at_once: bool) -> None:
        nonlocal stopping
        stopping = True  # perhaps before there is a server
        if server is not None:
            server.should_exit = True
            server.force_exit = bool(at_once)

    channel = await Channel.over(end, {"reload": reload, "stop": stop, "busy": busy})
    running = asyncio.create_task(channel.run())
    try:
        settings = Settings.from_json(await channel.ask("settings"))
        service = await asyncio.to_thread(Service.open, settings)
    except GoneError:
        return 0
    except (AplcError, OSError) as error:
        await channel.ask("failed", str(error))
        return 2
    service.reload = lambda: channel.ask("reload")

    async def ready() -> None:
        with contextlib.suppress(GoneError):
            await channel.ask("ready", {**service.about(), "device": service.device})
        await running
        await stop(False)  # the first process has gone
        shutil.rmtree(os.environ[METRICS_FOLDER], ignore_errors=True)  # which would have done this

    app = make_app(service, token=settings.token, loopback_only=settings.loopback_only)
    server = WorkerServer(app, background=[ready], shares_socket=True)
    server.should_exit = stopping
    await server.serve(sockets=[listener])
    return 0


def main() -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process handles it
    listener, end = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    listener.setblocking(False)
    sys.exit(asyncio.run(work(listener, end)))


if __name__ == "__main__":
    main()
