"""Questions and answers between a server's first process and its workers, as JSON lines over a pair of sockets.

Both sides may ask, and answer while they wait for an answer. When the other side has gone, `run` ends and everything
asked is answered with `GoneError`.
"""

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from socket import socket
from typing import Any, Self

from aplc.errors import AplcError

log = logging.getLogger(__name__)

Handler = Callable[[Any], Awaitable[Any]]
LONGEST = 1 << 20


class GoneError(AplcError):
    """The process at the other end has ended."""


class Channel:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Mapping[str, Handler]
    ) -> None:
        self.handlers = handlers
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._gone = False

    @classmethod
    async def over(cls, end: socket, handlers: Mapping[str, Handler]) -> Self:
        reader, writer = await asyncio.open_connection(sock=end, limit=LONGEST)
        return cls(reader, writer, handlers)

    async def ask(self, what: str, value: Any = None) -> Any:
        """The other side's answer; what it raised as `AplcError` is raised here."""
        if self._gone:
            raise GoneError("the process has ended")
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        await self._send({"ask": what, "number": number, "value": value})
        return await future

    async def run(self) -> None:
        """Read until the other side has gone."""
        with contextlib.suppress(OSError, ValueError):
            while line := await self._reader.readline():
                message = json.loads(line)
                if "ask" in message:
                    task = asyncio.create_task(self._answer(message))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif (future := self._asked.pop(message["number"], None)) and not future.done():
                    if "error" in message:
                        future.set_exception(AplcError(message["error"]))
                    else:
                        future.set_result(message["value"])
        self._gone = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(GoneError("the process has ended"))
        self._writer.close()

    async def _answer(self, message: Any) -> None:
        try:
            answer = {"value": await self.handlers[message["ask"]](message["value"])}
        except AplcError as error:
            answer = {"error": str(error)}
        except Exception as error:  # who asked must not wait for ever
            log.exception("%s failed", message["ask"])
            answer = {"error": f"{type(error).__name__}: {error}"}
        await self._send({"number": message["number"], **answer})

    async def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # `run` notices it, too
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()
