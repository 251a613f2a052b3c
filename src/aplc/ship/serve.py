"""`aplc serve`: a model behind HTTP, and a page to try it on.

    aplc serve demo/model
    curl -d '{"text": "Evoked potentials in children."}' -H 'Content-Type: application/json' localhost:8000/tag

One process, one model, one thread that calls it (`batcher.py`); the event loop only talks. Everything that comes in is
bounded (`guard.py`) and checked (`schema.py`), and everything refused is refused with a sentence. When asked to stop,
the server takes no new connections, answers what it has accepted, tells clients that keep connections open to close
them, and goes.
"""

import asyncio
import contextlib
import json
import socket
from bisect import bisect_right
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from aplc.console import Screen
from aplc.data.formats import Document
from aplc.errors import AplcError
from aplc.predict.decide import Rule
from aplc.predict.explain import MAX_PARTS, explain
from aplc.predict.search import BATCH, name_tags, predict_documents
from aplc.ship.batcher import Batcher, ClosedError, QueueFullError, Tags
from aplc.ship.guard import FAILED, Guard, Limits, RefusalError
from aplc.ship.metrics import Metrics
from aplc.store.folder import TrainedTagger
from aplc.version import __version__

try:
    import uvicorn
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    from aplc.ship import schema
except ImportError as error:
    raise AplcError(f"aplc serve needs {error.name}: pip install fastapi uvicorn") from error

ANSWER_WITHIN = 60.0
"""Seconds after which a caller is told that the model is too busy."""
LAST_WORDS = 1.0
"""Seconds that open connections have for one more request when the server is to stop."""
PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Service:
    """What the routes do, without HTTP: a model, its queue and its label index."""

    def __init__(self, folder: TrainedTagger, name: str, *, limits: Limits | None = None) -> None:
        self.folder, self.name, self.limits = folder, name, limits or Limits()
        self.metrics = Metrics()
        self.batcher = Batcher(self._tag, batch_size=BATCH, capacity=self.limits.queue)
        self.bounds, self.n_tails = folder.model.clusters.bounds, len(folder.model.clusters.cutoffs)
        # One string of all names: finding a part of a name in a million takes milliseconds.
        names = [name.casefold() for name in folder.labels.names]
        self._haystack = "\n" + "\n".join(names) + "\n"
        self._starts = [0]
        for folded in names:
            self._starts.append(self._starts[-1] + len(folded) + 1)

    def _tag(self, texts: list[str], k: int) -> list[Tags]:
        folder = self.folder
        return [
            name_tags(folder, ids[i], probs[i])
            for block, ids, probs in predict_documents(folder, map(Document, texts), min(k, len(folder.labels)))
            for i in range(len(block))
        ]

    def cluster(self, label: str) -> str:
        i = bisect_right(self.bounds, self.folder.labels.index[label]) - 1
        if i > self.n_tails:
            return f"added {i - self.n_tails}"
        return f"tail {i}" if i else "head"

    def tagged(self, tags: Tags, threshold: float) -> dict[str, Any]:
        return {
            "tags": [
                {"label": label, "probability": round(p, 6), "cluster": self.cluster(label)}
                for label, p in tags
                if p >= threshold
            ]
        }

    def search(self, query: str, limit: int, offset: int) -> dict[str, Any]:
        """Labels that contain the query in any case: those that begin with it first, then by falling frequency."""
        folded = query.casefold()
        begins = self._find("\n" + folded)
        first = set(begins)
        labels = self.folder.labels
        found = begins + [i for i in self._find(folded) if i not in first]
        found = [i for i in found if labels.active[i] and labels.stands_for[i] == i]
        shown = [
            {"name": labels.names[i], "documents": int(labels.counts[i]), "cluster": self.cluster(labels.names[i])}
            for i in found[offset : offset + limit]
        ]
        return {"found": len(found), "labels": shown}

    def _find(self, part: str) -> list[int]:
        """Ids of the names that contain `part`; a leading line break stands for a name's beginning."""
        if "\n" in part[1:] or not part.strip("\n"):
            return [] if "\n" in part[1:] else list(range(len(self.folder.labels)))
        found: list[int] = []
        at = self._haystack.find(part)
        while at >= 0:
            found.append(bisect_right(self._starts, at) - 1)
            at = self._haystack.find(part, self._starts[found[-1] + 1])
        return found

    def render_metrics(self) -> str:
        batcher = self.batcher
        return self.metrics.render(
            queue_texts=batcher.waiting, texts_total=batcher.texts, batches_total=batcher.batches
        )


async def _result(future: "Future[Any]") -> Any:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_WITHIN)
    except TimeoutError:
        raise RefusalError(
            503, f"No answer within {ANSWER_WITHIN:g} seconds; try again later.", retry_after="10"
        ) from None


@contextlib.contextmanager
def _queue_errors() -> Any:
    try:
        yield
    except QueueFullError:
        raise RefusalError(429, "The queue is full; try again in a second.", retry_after="1") from None
    except ClosedError:
        raise RefusalError(503, "The server is shutting down; ask another one.", retry_after="5") from None


def _json(value: Any) -> Response:
    return Response(json.dumps(value, ensure_ascii=False).encode(), media_type="application/json")


def make_app(service: Service, *, token: str | None = None) -> Guard:
    """The ASGI application of a service."""
    guard: Guard

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.close)

    app = FastAPI(
        title="aplc",
        version=__version__,
        summary=f"Tags texts with the right few of {service.folder.labels.n_in_use:,} labels.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    _add_routes(app, service)
    _add_pages(app)

    @app.get("/health", response_model=schema.Health, responses=schema.problems(503))
    async def health() -> Response:
        """Is the server up and taking requests?"""
        if guard.closing:
            raise RefusalError(503, "The server is shutting down.")
        about = {"model": service.name, "labels": service.folder.labels.n_in_use, "version": __version__}
        return _json({"status": "ok", **about})

    if token is not None:
        _describe_token(app)
    paths = {"/tag", "/explain", "/labels", "/health", "/metrics", "/openapi.json", *PAGES}
    open_paths = {"/health", "/openapi.json", *PAGES}
    guard = Guard(app, limits=service.limits, metrics=service.metrics, token=token, open_paths=open_paths, paths=paths)
    return guard


def _add_routes(app: FastAPI, service: Service) -> None:
    refused = schema.problems(401, 408, 413, 422, 429, 503)
    labels = service.folder.labels

    @app.post("/tag", response_model=schema.Tagged | schema.TaggedMany, responses=refused)
    async def tag(request: schema.TagRequest) -> Response:
        """Tag one text (`text`, answered with `tags`) or several (`texts`, answered with `results`)."""
        texts = [request.text] if request.text is not None else request.texts or []
        if len(texts) > service.limits.texts:
            raise RefusalError(
                422,
                f"body.texts has {len(texts):,} texts, at most {service.limits.texts:,} a call; send several calls.",
            )
        rule = Rule(top_k=request.top_k, threshold=request.threshold)
        with _queue_errors():
            future = service.batcher.submit(texts, rule.limit)
        tagged = [service.tagged(tags, rule.threshold or 0.0) for tags in await _result(future)]
        return _json({"results": tagged} if request.text is None else tagged[0])

    @app.post("/explain", response_model=schema.Explained, responses={**refused, **schema.problems(404)})
    async def explain_label(request: schema.ExplainRequest) -> Response:
        """Which words of a text speak for a label: each is left out in turn (docs/serving.md)."""
        if request.label not in labels.index:
            raise RefusalError(404, "The model has no such label; GET /labels finds those it has.")
        with _queue_errors():
            work = partial(explain, service.folder, request.text, request.label)
            future = service.batcher.submit_alone(work, MAX_PARTS)
        explanation = await _result(future)
        words = [
            {"start": part.start, "stop": part.stop, "effect": round(part.effect, 4)} for part in explanation.parts
        ]
        about = {"label": request.label, "probability": round(explanation.probability, 6), "read": explanation.read}
        return _json({**about, "words": words})

    @app.get("/labels", response_model=schema.Labels, responses=schema.problems(401, 422))
    def find_labels(
        query: Annotated[str, Query(max_length=200, description="A part of the name, in any case.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    ) -> Response:
        """Find labels by a part of their name."""
        return _json(service.search(query, limit, offset))

    @app.get("/metrics", response_class=Response, responses=schema.problems(401))
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(service.render_metrics(), media_type="text/plain; version=0.0.4")

    async def refuse_error(request: Request, error: Exception) -> Response:
        return _refusal_response(error)

    for kind in (RequestValidationError, HTTPException, RefusalError, Exception):
        app.add_exception_handler(kind, refuse_error)


def _refusal_response(error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        refusal = RefusalError(422, _sentence(error))
    elif isinstance(error, HTTPException):
        cures = {
            404: "There is no such page; /docs lists what there is.",
            405: "Not with this method; /docs lists what there is.",
        }
        status, words = error.status_code, cures.get(error.status_code, str(error.detail))
        if status == 400:  # bytes that are no UTF-8, or brackets beyond the parser's depth
            status, words = 422, "The body can't be read as JSON."
        refusal = RefusalError(status, words, **(error.headers or {}))
    elif isinstance(error, RefusalError):
        refusal = error
    else:
        refusal = RefusalError(500, FAILED)
    body = json.dumps({"detail": refusal.sentence})  # ASCII: see guard.refuse
    return Response(body, refusal.status, dict(refusal.headers), "application/json")


def _sentence(error: RequestValidationError) -> str:
    """What is wrong with a request, without repeating its texts."""
    parts = []
    for problem in error.errors()[:3]:
        if problem["type"] == "json_invalid":
            return f"The body is not JSON ({problem['ctx']['error']} at character {problem['loc'][-1]})."
        where = ".".join(str(place)[:40] for place in problem["loc"])
        what = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "string_unicode":
            what = "half of a surrogate pair is no Unicode"
        elif problem["type"] == "model_attributes_type":
            what = "must be a JSON object, sent with the header Content-Type: application/json"
        elif problem["type"] == "extra_forbidden":
            what = "there is no such field; /docs lists those there are"
        parts.append(f"{where}: {what}")
    return "; ".join(parts) + "."


def _add_pages(app: FastAPI) -> None:
    for path, (name, media_type) in PAGES.items():
        content = (resources.files("aplc.ship") / "page" / name).read_bytes()

        def page(content: bytes = content, media_type: str = media_type) -> Response:
            return Response(content, media_type=media_type)

        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)


def _describe_token(app: FastAPI) -> None:
    described = app.openapi()
    described.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"token": []}]


class Server(uvicorn.Server):
    """uvicorn that stops without losing a request, and exits with 0 then."""

    def __init__(self, guard: Guard, listener: socket.socket) -> None:
        config = uvicorn.Config(
            guard, log_level="warning", access_log=False, server_header=False, lifespan="on", timeout_keep_alive=75
        )
        super().__init__(config)
        self.guard, self.listener = guard, listener

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # the second time at once
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, but first take what the system has accepted for us; then one last answer a connection."""
        self.guard.closing = True
        loop = asyncio.get_running_loop()
        taken = []
        with contextlib.suppress(BlockingIOError):
            while True:
                taken.append(self.listener.accept()[0])
        for server in self.servers:
            server.close()
        for connection in taken:
            connection.setblocking(False)
            protocol: Any = self.config.http_protocol_class
            made = partial(protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(made, connection)
        deadline = loop.time() + LAST_WORDS
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
    """Serve a model folder until SIGTERM or Ctrl-C."""
    screen = screen or Screen(quiet=True)
    if token is not None and (not token.isascii() or not token.strip()):
        raise AplcError("--token: must be ASCII and not empty")
    listener = _listen(host, port)
    service = Service(TrainedTagger.load(model), model.name or str(model), limits=limits)
    shown = f"[{host}]" if ":" in host else host
    screen.say(
        f"serving {model} ({service.folder.labels.n_in_use:,} labels) at http://{shown}:{listener.getsockname()[1]}/, "
        f"{'with a token' if token else 'without a token'}; Ctrl-C stops it"
    )
    if token is None and host not in LOOPBACK:
        screen.say("anyone who reaches this address can use the model: set APLC_TOKEN to ask for a token")
    Server(make_app(service, token=token), listener).run(sockets=[listener])
    screen.say("stopped")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        raise AplcError(f"can't listen on {host}, port {port} ({error.strerror}); pass --host and --port") from None
    return listener
