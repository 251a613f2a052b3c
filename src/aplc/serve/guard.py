"""Checks every request before the application sees it: token, host, number of requests, the body's size and time.

This is an ASGI layer and not a dependency of each route, so that no route can hold a body beyond its limit and every
answer is counted. The rest of a body that is too large is read and discarded: if the server closed the connection while
the client still sends, the client would never read the answer.
"""

import asyncio
import hmac
import json
import logging
import re
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

MAX_DISCARDED = 64 << 20
"""Bytes that are read beyond the limit of a body, so that the client gets to read the refusal."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
BODY_TIMEOUT = 30.0
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
    """Bytes in the body of a request."""
    texts: int = 256
    """Texts in a call."""
    queue: int = 4096
    """Texts that may wait for the model."""
    requests: int = 1024
    """Requests under way at once."""
    feedback: int = 600
    """Corrections a minute."""


class RefusalError(Exception):
    """A request that is refused, with a status and a sentence that says why."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Guard:
    """Wraps `app`. `open_paths` need no token; `paths` are counted by name, all others as "other".

    Requests that `streams` picks bound their bodies themselves. With `loopback_only`, requests must name this machine:
    a page of another host whose name is made to lead here (DNS rebinding) would else use the server from a browser.
    """

    def __init__(
        self,
        app: App,
        *,
        limits: Limits,
        metrics: "ServerMetrics",
        token: str | None,
        open_paths: set[str],
        paths: set[str],
        streams: Callable[[MutableMapping[str, Any]], bool] = lambda _: False,
        loopback_only: bool = False,
    ) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.expected = None if token is None else f"Bearer {token}".encode()
        self.open_paths, self.paths, self.streams = open_paths, paths, streams
        self.loopback_only = loopback_only
        self.without_token = 0
        """Requests under way that lack the token. They have the limit on requests for themselves."""
        self.closing = False
        """The server is shutting down: each answer also closes its connection."""

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
        """Check everything but the content; returns a `receive` that replays the body."""
        headers = dict(scope["headers"])
        if self.loopback_only and (host := _name(headers.get(b"host", b"localhost"))) not in LOOPBACK:
            raise RefusalError(
                403,
                f"The server answers on this machine alone, not as {host!a}; set APLC_TOKEN, or have a proxy send "
                "Host: localhost.",
                connection="close",
            )
        too_large = f"The body is larger than {self.limits.body:,} bytes; send fewer texts in a call."
        length = headers.get(b"content-length", b"")
        given = headers.get(b"authorization", b"")
        trusted = not self.expected or hmac.compare_digest(given, self.expected)
        busy = self.metrics.in_flight - self.without_token > self.limits.requests
        if trusted and not busy and self.streams(scope):
            return receive
        if b"expect" in headers and length.isdigit() and int(length) > self.limits.body:
            raise RefusalError(413, too_large)  # before it is sent at all
        if not trusted and self.without_token >= self.limits.requests:
            raise RefusalError(
                503,
                f"The server waits for the bodies of {self.limits.requests:,} requests without its token; send the "
                "token, or try again later.",
                connection="close",
                retry_after="10",
            )
        self.without_token += not trusted
        body, total = bytearray(), 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                more = True
                while more and total <= self.limits.body + MAX_DISCARDED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    total += len(message.get("body", b""))
                    if total <= self.limits.body and trusted and not busy:  # else it is discarded
                        body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusalError(
                408, f"The body did not arrive within {BODY_TIMEOUT:g} seconds.", connection="close"
            ) from None
        finally:
            self.without_token -= not trusted
        if total > self.limits.body:
            raise RefusalError(413, too_large)
        if not trusted and scope["path"] not in self.open_paths:
            raise RefusalError(
                401, "Send the server's token in the header Authorization: Bearer TOKEN.", www_authenticate="Bearer"
            )
        if busy:
            raise RefusalError(
                503,
                f"The server is busy with {self.limits.requests:,} requests; try again in a second.",
                retry_after="1",
            )
        pending = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        return replay


def _name(host: bytes) -> str:
    """The name in a Host header, without a port or the brackets of IPv6."""
    return re.sub(r":\d*$", "", host.decode("latin-1").strip().lower()).strip("[]")


async def refuse(refusal: RefusalError, send: Send) -> None:
    """Send a refusal. ASCII only: its sentence may quote a key that has half of a surrogate pair."""
    body = json.dumps({"detail": refusal.sentence}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
