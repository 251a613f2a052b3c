"""The API: what each route does, and how everything that goes wrong becomes a status and a sentence.

`Service` is the part without HTTP; `make_app` puts routes and pages around it. What comes in is bounded in `guard.py`,
checked in `schema.py`, and reaches the model through `batcher.py`.
"""

import asyncio
import contextlib
import json
from bisect import bisect_right
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from aplc.data.formats import Document
from aplc.models.trained import TrainedTagger
from aplc.predict.decide import Rule
from aplc.predict.explain import MAX_PARTS, explain
from aplc.predict.search import name_tags, predict_documents
from aplc.serve import schema
from aplc.serve.batcher import Batcher, ClosedError, QueueFullError, Tags
from aplc.serve.guard import FAILED, Guard, Limits, RefusalError
from aplc.serve.metrics import ServerMetrics
from aplc.store.folder import load_tagger
from aplc.version import __version__

ANSWER_TIMEOUT = 60.0
"""Seconds a caller waits for the model before it is told to try again later."""
PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}


class Service:
    """What the routes do, without HTTP: a model, its queue, its metrics and an index of its labels."""

    def __init__(self, tagger: TrainedTagger, name: str, *, limits: Limits | None = None) -> None:
        self.tagger, self.name, self.limits = tagger, name, limits or Limits()
        self.metrics = ServerMetrics()
        self.batcher = Batcher(self._tag, batch_size=tagger.model.batch_size, capacity=self.limits.queue)
        self.metrics.queue_texts.set_function(lambda: self.batcher.waiting)
        # One string of all names: finding a part of a name in a million takes milliseconds.
        names = [name.casefold() for name in tagger.labels.names]
        self._haystack = "\n" + "\n".join(names) + "\n"
        self._starts = [0]
        for folded in names:
            self._starts.append(self._starts[-1] + len(folded) + 1)

    @classmethod
    def load(cls, model: Path, *, limits: Limits | None = None) -> Self:
        return cls(load_tagger(model), model.name or str(model), limits=limits)

    def _tag(self, texts: list[str], k: int) -> list[Tags]:
        tagger = self.tagger
        tags = [
            name_tags(tagger, ids[i], probs[i])
            for block, ids, probs in predict_documents(tagger, map(Document, texts), min(k, len(tagger.labels)))
            for i in range(len(block))
        ]
        self.metrics.batches.inc()
        self.metrics.texts.inc(len(texts))
        return tags

    def tagged(self, tags: Tags, threshold: float) -> dict[str, Any]:
        """The answer for one text, as `schema.Tagged` describes it."""
        ids = self.tagger.labels.index
        return {
            "tags": [
                {"label": label, "probability": round(p, 6), "cluster": self.tagger.cluster_name(ids[label])}
                for label, p in tags
                if p >= threshold
            ]
        }

    def search(self, query: str, limit: int, offset: int) -> dict[str, Any]:
        """Labels that contain the query, in any case: first those that begin with it, each group by frequency."""
        folded = query.casefold()
        first = self._find("\n" + folded)
        seen = set(first)
        labels = self.tagger.labels
        found = first + [i for i in self._find(folded) if i not in seen]
        found = [i for i in found if labels.active[i] and labels.stands_for[i] == i]
        shown = [
            {"name": labels.names[i], "documents": int(labels.counts[i]), "cluster": self.tagger.cluster_name(i)}
            for i in found[offset : offset + limit]
        ]
        return {"found": len(found), "labels": shown}

    def _find(self, part: str) -> list[int]:
        """Ids of the names that contain `part`; a leading line break matches the beginning of a name."""
        if "\n" in part[1:] or not part.strip("\n"):
            return [] if "\n" in part[1:] else list(range(len(self.tagger.labels)))
        found: list[int] = []
        at = self._haystack.find(part)
        while at >= 0:
            found.append(bisect_right(self._starts, at) - 1)
            at = self._haystack.find(part, self._starts[found[-1] + 1])
        return found


async def _result(future: "Future[Any]") -> Any:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_TIMEOUT)
    except TimeoutError:
        raise RefusalError(
            503, f"No answer within {ANSWER_TIMEOUT:g} seconds; try again later.", retry_after="10"
        ) from None


@contextlib.contextmanager
def _queue_errors() -> Any:
    try:
        yield
    except QueueFullError:
        raise RefusalError(429, "The queue is full; try again in a second.", retry_after="1") from None
    except ClosedError:
        raise RefusalError(503, "The server is shutting down; try again later.", retry_after="5") from None


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
        summary=f"Tags texts with the right few of {service.tagger.labels.n_in_use:,} labels.",
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
        about = {"model": service.name, "labels": service.tagger.labels.n_in_use, "version": __version__}
        return _json({"status": "ok", **about})

    if token is not None:
        _describe_token(app)
    paths = {"/tag", "/explain", "/labels", "/health", "/metrics", "/openapi.json", *PAGES}
    open_paths = {"/health", "/openapi.json", *PAGES}
    guard = Guard(app, limits=service.limits, metrics=service.metrics, token=token, open_paths=open_paths, paths=paths)
    return guard


def _add_routes(app: FastAPI, service: Service) -> None:
    refused = schema.problems(401, 408, 413, 422, 429, 503)
    labels = service.tagger.labels

    @app.post("/tag", response_model=schema.Tagged | schema.TaggedMany, responses=refused)
    async def tag(request: schema.TagRequest) -> Response:
        """Tag one text (`text`, answered with `tags`) or several (`texts`, answered with `results`)."""
        texts = [request.text] if request.text is not None else request.texts or []
        if len(texts) > service.limits.texts:
            raise RefusalError(
                422,
                f"body.texts has {len(texts):,} texts, a call may have {service.limits.texts:,}; send several calls.",
            )
        rule = Rule(top_k=request.top_k, threshold=request.threshold)
        with _queue_errors():
            future = service.batcher.submit(texts, rule.limit)
        tagged = [service.tagged(tags, rule.threshold or 0.0) for tags in await _result(future)]
        return _json({"results": tagged} if request.text is None else tagged[0])

    @app.post("/explain", response_model=schema.Explained, responses={**refused, **schema.problems(404)})
    async def explain_label(request: schema.ExplainRequest) -> Response:
        """Which words of a text speak for a label: each is left out in turn, and the change is measured."""
        if request.label not in labels.index:
            raise RefusalError(404, "The model has no such label; GET /labels finds those it has.")
        with _queue_errors():
            work = partial(explain, service.tagger, request.text, request.label)
            future = service.batcher.submit_alone(work, MAX_PARTS)
        explanation = await _result(future)
        words = [
            {"start": part.start, "stop": part.stop, "effect": round(part.effect, 4)} for part in explanation.parts
        ]
        about = {"label": request.label, "probability": round(explanation.probability, 6), "read": explanation.read}
        return _json({**about, "words": words})

    @app.get("/labels", response_model=schema.Labels, responses=schema.problems(401, 422))
    def find_labels(
        query: Annotated[str, Query(max_length=200, description="Part of a name, in upper or lower case.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    ) -> Response:
        """Find labels by a part of their name."""
        return _json(service.search(query, limit, offset))

    @app.get("/metrics", response_class=Response, responses=schema.problems(401))
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")

    async def refuse_error(request: Request, error: Exception) -> Response:
        return _refusal_response(error)

    for kind in (RequestValidationError, HTTPException, RefusalError, Exception):
        app.add_exception_handler(kind, refuse_error)


def _refusal_response(error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        refusal = RefusalError(422, _sentence(error))
    elif isinstance(error, HTTPException):
        cures = {
            404: "There is no such page; /docs describes the API.",
            405: "This page does not accept this method; /docs lists the methods of each page.",
        }
        status, words = error.status_code, cures.get(error.status_code, str(error.detail))
        if status == 400:  # bytes that are not UTF-8, or brackets nested too deeply for the parser
            is_text = not isinstance(error.__cause__, UnicodeDecodeError)
            status, words = 422, "The body can't be read as JSON." if is_text else "The body is not UTF-8; send UTF-8."
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
            what = "half of a surrogate pair is not valid Unicode"
        elif problem["type"] == "model_attributes_type":
            what = "must be a JSON object, sent with the header Content-Type: application/json"
        elif problem["type"] == "extra_forbidden":
            what = "there is no such field; /docs lists the fields"
        parts.append(f"{where}: {what}")
    return "; ".join(parts) + "."


def _add_pages(app: FastAPI) -> None:
    for path, (name, media_type) in PAGES.items():
        content = (resources.files("aplc.serve") / "page" / name).read_bytes()

        def page(content: bytes = content, media_type: str = media_type) -> Response:
            return Response(content, media_type=media_type)

        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)


def _describe_token(app: FastAPI) -> None:
    described = app.openapi()
    described.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"token": []}]
