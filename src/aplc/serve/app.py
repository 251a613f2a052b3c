"""The application: routes (`routes.py`), pages, and how everything that goes wrong becomes a status and a sentence.

`Service` (`service.py`) is the part without HTTP. What comes in is bounded in `guard.py`, checked in `schema.py`, and
reaches the model through `batcher.py`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from importlib import resources

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from aplc.serve import schema
from aplc.serve.batcher import STUCK
from aplc.serve.guard import FAILED, Guard, RefusalError
from aplc.serve.routes import add_corrections, add_feedback, add_lookup, add_tagging, answer_json
from aplc.serve.service import Service
from aplc.serve.stream import TagStream
from aplc.version import __version__

__all__ = ["Service", "make_app"]

PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/corrections.js": ("corrections.js", "text/javascript; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}


def make_app(service: Service, *, token: str | None = None, loopback_only: bool = False) -> Guard:
    """The ASGI application of a service; with `loopback_only`, for requests that name this machine as their host."""
    guard: Guard

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="aplc",
        version=__version__,
        summary=f"Tags texts with the right few of {service.model.tagger.labels.n_in_use:,} labels.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    for add in (add_tagging, add_lookup, add_feedback):
        add(app, service)
    add_corrections(app, service, has_token=token is not None)
    _add_refusals(app)
    _add_pages(app)

    @app.get("/health", response_model=schema.Health, responses=schema.problems(503))
    async def health() -> Response:
        """Is the server up and taking requests, and which model does it have?"""
        if guard.closing:
            raise RefusalError(503, "The server is shutting down.")
        if service.batcher.busy > STUCK:  # with workers, the first process replaces this one
            raise RefusalError(503, f"The model has not returned for {service.batcher.busy:.0f} seconds.")
        can = {"feedback": service.feedback is not None, "review": service.review is not None}
        about = {**service.about(), "version": __version__, **can, "warnings": service.drift.warnings()}
        return answer_json({"status": "ok", **about})

    if token is not None:
        _describe_token(app)
    stream = TagStream(app, service, is_closing=lambda: guard.closing)
    api = {"/tag", "/explain", "/labels", "/feedback", "/review", "/admin/reload", "/metrics"}
    open_paths = {"/health", "/openapi.json", *PAGES}
    guard = Guard(
        stream,
        limits=service.limits,
        metrics=service.metrics,
        token=token,
        open_paths=open_paths,
        paths=api | open_paths,
        streams=stream.takes,
        loopback_only=loopback_only,
    )
    return guard


def _add_refusals(app: FastAPI) -> None:
    async def refuse_error(request: Request, error: Exception) -> Response:
        return _refusal_response(error)

    for kind in (RequestValidationError, HTTPException, RefusalError, Exception):
        app.add_exception_handler(kind, refuse_error)


def _refusal_response(error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        refusal = RefusalError(422, schema.sentence(error.errors()))
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
