"""What every request passes before the application sees it: number of requests, token, size and pace of the body.

An ASGI layer and not a dependency of each route, so that a body is never held beyond its limit, whatever the route, and
so that every answer is counted. A body that is too large is read on and thrown away for a while: a server that closes
while its client still sends takes the answer away from it.
"""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `Limits` can be imported without the extra; `server.py` says what is missing
    from aplc.serve.metrics import ServerMetrics

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

DRAIN = 64 << 20
"""Bytes of a body that is too large which are read and thrown away, so that the client gets to hear the answer."""
PATIENCE = 30.0
"""Seconds a body may take to arrive."""
FAILED = "The server failed on this request; its log says why."
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Limits:
    body: int = 2 << 20
    """Bytes of a request's body."""
    texts: int = 256
    """Texts of a call."""
    queue: int = 4096
    """Texts that may wait for the model."""
    requests: int = 1024
    """Requests under way at once."""


class RefusalError(Exception):
    """A status and a sentence instead of an answer."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Guard:
    """Wraps `app`. `open_paths` need no token; `known_paths` are counted by name, all others as "other"."""

    def __init__(
        self,
        app: App,
        *,
        limits: Limits,
        metrics: "ServerMetrics",
        token: str | None,
        open_paths: set[str],
        paths: set[str],
    ) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.expected = None if token is None else f"Bearer {token}".encode()
        self.open_paths, self.paths = open_paths, paths
        self.strangers = 0
        """Requests under way without the token, which take nobody's place."""
        self.closing = False
        """Answers from now on end their connection."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
                if self.closing:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, await self._admit(scope, receive), send_counted)
        except RefusalError as refusal:
            await refuse(refusal, send_counted)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await refuse(RefusalError(500, FAILED), send_counted)
        finally:
            self.metrics.in_flight -= 1
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.count_request(path, status, time.monotonic() - start)

    async def _admit(self, scope: MutableMapping[str, Any], receive: Receive) -> Receive:
        """Check everything but the content; the way to receive the body that has been read."""
        headers = dict(scope["headers"])
        too_large = f"The body is larger than {self.limits.body:,} bytes; send fewer texts a call."
        length = headers.get(b"content-length", b"")
        if b"expect" in headers and length.isdigit() and int(length) > self.limits.body:
            raise RefusalError(413, too_large)  # before it is sent at all
        given = headers.get(b"authorization", b"")
        trusted = not self.expected or hmac.compare_digest(given, self.expected)
        busy = self.metrics.in_flight - self.strangers > self.limits.requests
        self.strangers += not trusted
        body, total = bytearray(), 0
        try:
            async with asyncio.timeout(PATIENCE):
                more = True
                while more and total <= DRAIN:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    total += len(message.get("body", b""))
                    if total <= self.limits.body and trusted and not busy:  # else it is read, and not kept
                        body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusalError(
                408, f"The body did not arrive within {PATIENCE:g} seconds.", connection="close"
            ) from None
        finally:
            self.strangers -= not trusted
        if total > self.limits.body:
            raise RefusalError(413, too_large)
        if not trusted and scope["path"] not in self.open_paths:
            raise RefusalError(
                401, "Give the server's token in a header: Authorization: Bearer TOKEN.", www_authenticate="Bearer"
            )
        if busy:
            raise RefusalError(503, f"{self.limits.requests:,} requests are under way; try again.", retry_after="1")
        pending = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        return replay


async def refuse(refusal: RefusalError, send: Send) -> None:
    """Send a refusal. ASCII only: a sentence may quote a key with half a surrogate pair."""
    body = json.dumps({"detail": refusal.sentence}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
