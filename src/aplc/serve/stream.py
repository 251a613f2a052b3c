"""`POST /tag` with newline-delimited JSON: any number of texts in one call, answered in order as they are ready.

    curl -sN -T texts.jsonl -X POST -H 'Content-Type: application/x-ndjson' localhost:8000/tag

Lines are read, tagged in groups and answered at the same time. At most `PENDING` groups of a call are under way; while
they are, nothing more is read, and the client's system makes it wait. So memory stays the same for a million texts. The
price: a client must read answers while it sends, or both wait for each other.

An ASGI layer and not a route: a route's body is read to its end and checked as a whole before it is called.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from aplc.predict.decide import Rule
from aplc.serve import schema
from aplc.serve.batcher import ClosedError, QueueFullError, Tags
from aplc.serve.guard import FAILED, MAX_DISCARDED, App, Message, Receive, RefusalError, Send
from aplc.serve.routes import result_of
from aplc.serve.served import ServedModel
from aplc.serve.service import Service, log

GROUP = 32
"""Texts that are submitted together."""
PENDING = 4
"""Groups of a call that wait for the model or for the client."""
IDLE = 60.0
"""Seconds without a byte after which a call ends."""
LINGER = 5.0
"""Seconds in which the rest of a call that the server ends is read and discarded, so that its client reads the end."""
CLOSING = "The server is shutting down; send the texts that have no answer again."


@dataclass(frozen=True)
class Line:
    """One line of a call: a text to tag, or what is wrong with it."""

    request: schema.StreamedText | None
    problem: str = ""
    id: Any = None

    @property
    def rule(self) -> Rule:
        assert self.request is not None
        return Rule(top_k=self.request.top_k, threshold=self.request.threshold)


class Lines:
    """Cuts what arrives into lines; of one longer than `limit` nothing is kept, and it is None."""

    def __init__(self, limit: int) -> None:
        self.limit, self._rest, self._too_long = limit, bytearray(), False

    def feed(self, part: bytes, *, last: bool) -> Iterator[bytes | None]:
        pieces = part.split(b"\n")
        for i, piece in enumerate(pieces):
            self._too_long = self._too_long or len(self._rest) + len(piece) > self.limit
            self._rest = bytearray() if self._too_long else self._rest + piece
            if i < len(pieces) - 1 or last:
                if self._too_long or self._rest.strip():
                    yield None if self._too_long else bytes(self._rest)
                self._rest, self._too_long = bytearray(), False


class TagStream:
    """Answers what is newline-delimited JSON for /tag; passes everything else on to `app`."""

    def __init__(self, app: App, service: Service, *, is_closing: Callable[[], bool]) -> None:
        self.app, self.service, self.is_closing = app, service, is_closing

    @staticmethod
    def takes(scope: MutableMapping[str, Any]) -> bool:
        kind = dict(scope["headers"]).get(b"content-type", b"").split(b";")[0].strip().lower()
        return scope["method"] == "POST" and scope["path"] == "/tag" and kind == b"application/x-ndjson"

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.takes(scope):
            await self.app(scope, receive, send)
            return
        model = self.service.model
        headers = [(b"content-type", b"application/x-ndjson"), (b"aplc-model", model.version.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        groups: asyncio.Queue[list[Line] | None] = asyncio.Queue(PENDING)
        reading = asyncio.create_task(self._read(receive, groups))
        try:
            pending: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(PENDING)
            submitting = asyncio.create_task(self._submit(model, groups, pending))
            while (group := await pending.get()) is not None:
                await send({"type": "http.response.body", "body": await group, "more_body": True})
            await submitting
            end = await reading
            if end:
                await send({"type": "http.response.body", "body": _encode({"detail": end}), "more_body": True})
                await _discard(receive)
            await send({"type": "http.response.body", "body": b""})
        finally:
            reading.cancel()
            submitting.cancel()

    async def _read(self, receive: Receive, groups: "asyncio.Queue[list[Line] | None]") -> str:
        """Read lines into groups until the body ends, or the call has to; returns why, if it was the latter."""
        lines, group, end, more = Lines(self.service.limits.body), list[Line](), "", True
        while more and not end:
            message = await self._next(receive)
            if isinstance(message, str):
                end = message
                break
            if message["type"] == "http.disconnect":
                break
            more = message.get("more_body", False)
            for line in lines.feed(message.get("body", b""), last=not more):
                group.append(_parse(line, self.service.limits.body))
                if len(group) == GROUP:
                    await groups.put(group)
                    group = []
            if group:  # nobody knows when the next line comes
                await groups.put(group)
                group = []
        await groups.put(None)
        return end

    async def _next(self, receive: Receive) -> Message | str:
        """What arrives next; or why the call ends here."""
        waiting = asyncio.ensure_future(receive())
        deadline = asyncio.get_running_loop().time() + IDLE
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=0.2)
                if waiting.done():
                    break
                if self.is_closing():
                    return CLOSING
                if asyncio.get_running_loop().time() > deadline:
                    return f"Nothing came for {IDLE:g} seconds; send the rest in another call."
            if self.is_closing():
                return CLOSING
            return waiting.result()
        finally:
            waiting.cancel()

    async def _submit(
        self,
        model: ServedModel,
        groups: "asyncio.Queue[list[Line] | None]",
        pending: "asyncio.Queue[asyncio.Task[bytes] | None]",
    ) -> None:
        while (group := await groups.get()) is not None:
            await pending.put(asyncio.create_task(self._answer(model, group)))
        await pending.put(None)

    async def _answer(self, model: ServedModel, group: list[Line]) -> bytes:
        """The lines that answer a group."""
        texts = [line.request.text for line in group if line.request]
        found: list[Tags | str] = []
        if texts:
            k = max(line.rule.limit for line in group if line.request)
            try:
                found = list(await self._tags(model, texts, k))
            except Exception:  # a text that breaks the model must not fail the other texts of its group
                found = [await self._alone(model, text, k) for text in texts]
        answers = iter(found)
        return b"".join(self._line(model, line, next(answers) if line.request else line.problem) for line in group)

    async def _tags(self, model: ServedModel, texts: list[str], k: int) -> list[Tags]:
        while True:
            try:
                future = self.service.batcher.submit(model, texts, k)
            except QueueFullError:  # a stream is patient
                await asyncio.sleep(0.05)
                continue
            except ClosedError:
                raise RefusalError(503, CLOSING) from None
            return await result_of(future)

    async def _alone(self, model: ServedModel, text: str, k: int) -> Tags | str:
        try:
            return (await self._tags(model, [text], k))[0]
        except RefusalError as refusal:
            return refusal.sentence
        except Exception:
            log.exception("a text of POST /tag failed")
            return FAILED

    def _line(self, model: ServedModel, line: Line, tags: Tags | str) -> bytes:
        own = {} if line.id is None else {"id": line.id}
        if isinstance(tags, str):
            return json.dumps({**own, "detail": tags}).encode() + b"\n"  # ASCII: see guard.refuse
        answer = model.answer(tags[: line.rule.limit], line.rule.threshold or 0.0)
        self.service.metrics.abstentions.inc(not answer["tags"])
        return _encode({**own, **answer})


def _parse(line: bytes | None, limit: int) -> Line:
    if line is None:
        return Line(None, f"The line is longer than {limit:,} bytes.")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Line(None, "The line can't be read as JSON in UTF-8.")
    try:
        request = schema.StreamedText.model_validate(value)
    except ValidationError as error:
        given = value.get("id") if isinstance(value, dict) else None
        return Line(None, schema.sentence(error.errors()), given if isinstance(given, str | int) else None)
    return Line(request, id=request.id)


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


async def _discard(receive: Receive) -> None:
    """Read the rest: if the connection were closed while the client still sends, it would not read the last line."""
    total = 0
    try:
        async with asyncio.timeout(LINGER):
            while total < MAX_DISCARDED:
                message = await receive()
                total += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
