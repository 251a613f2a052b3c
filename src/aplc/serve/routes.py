"""The routes: each checks what only it can check, hands the work to the service, and describes the answer."""

import asyncio
import contextlib
import json
from concurrent.futures import Future
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response

from aplc.errors import AplcError
from aplc.predict.decide import Rule
from aplc.predict.explain import MAX_PARTS, explain
from aplc.serve import schema
from aplc.serve.batcher import ClosedError, QueueFullError, Tags
from aplc.serve.feedback import NO_ROOM
from aplc.serve.guard import RefusalError
from aplc.serve.served import ServedModel
from aplc.serve.service import PROPOSED, Service, log

ANSWER_TIMEOUT = 60.0
"""Seconds a caller waits for the model before it is told to try again later."""
REFUSED = schema.problems(401, 408, 413, 422, 429, 503)


async def result_of(future: "Future[Any]") -> Any:
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


def answer_json(value: Any, model: ServedModel | None = None) -> Response:
    headers = {"aplc-model": model.version} if model else None
    return Response(json.dumps(value, ensure_ascii=False).encode(), headers=headers, media_type="application/json")


async def _tags_of(service: Service, model: ServedModel, texts: list[str], k: int) -> list[Tags]:
    with _queue_errors():
        future = service.batcher.submit(model, texts, k)
    return await result_of(future)


async def _tags_within(service: Service, model: ServedModel, texts: list[str], rule: Rule) -> list[Tags]:
    """By a part of the vocabulary: between two batches, whose texts may have any label."""
    with _queue_errors():
        future = service.batcher.submit_alone(partial(model.tag_within, texts, rule), len(texts))
    try:
        return await result_of(future)
    except AplcError as error:
        raise RefusalError(422, f"body.{error}.") from None


def add_tagging(app: FastAPI, service: Service) -> None:
    """What the model says of texts."""

    @app.post("/tag", response_model=schema.Tagged | schema.TaggedMany, responses=REFUSED)
    async def tag(request: schema.TagRequest) -> Response:
        """Tag one text (`text`, answered with `tags`) or several (`texts`, answered with `results`).

        Any number of texts can be sent as newline-delimited JSON, with Content-Type: application/x-ndjson: a line
        {"text": ...} for each, with its own `id`, `top_k` and `threshold` if you like. Each is answered with a line,
        {"tags": ...} or {"detail": ...}, in the same order and as soon as it is ready.
        """
        model = service.model
        texts = [request.text] if request.text is not None else request.texts or []
        if len(texts) > service.limits.texts:
            raise RefusalError(
                422,
                f"body.texts has {len(texts):,} texts, a call may have {service.limits.texts:,}; send several calls, "
                "or newline-delimited JSON.",
            )
        rule = Rule(
            top_k=request.top_k,
            threshold=request.threshold,
            scheme=request.scheme,
            not_scheme=request.not_scheme,
            below=request.below,
        )
        if rule.is_narrow:
            found = await _tags_within(service, model, texts, rule)
        else:
            found = await _tags_of(service, model, texts, rule.limit)
        tagged = [model.answer(tags, rule.threshold or 0.0) for tags in found]
        service.metrics.abstentions.inc(sum(not answer["tags"] for answer in tagged))
        return answer_json({"results": tagged} if request.text is None else tagged[0], model)

    @app.post("/explain", response_model=schema.Explained, responses={**REFUSED, **schema.problems(404)})
    async def explain_label(request: schema.ExplainRequest) -> Response:
        """Which words of a text speak for a label: each is left out in turn, and the change is measured."""
        model = service.model
        if request.label not in model.tagger.labels.index:
            raise RefusalError(404, "The model has no such label; GET /labels finds those it has.")
        with _queue_errors():
            work = partial(explain, model.tagger, request.text, request.label)
            future = service.batcher.submit_alone(work, MAX_PARTS)
        explanation = await result_of(future)
        words = [
            {"start": part.start, "stop": part.stop, "effect": round(part.effect, 4)} for part in explanation.parts
        ]
        about = {"probability": round(explanation.probability, 6), "read": explanation.read}
        return answer_json({**model.named(request.label), **about, "words": words}, model)


def add_lookup(app: FastAPI, service: Service) -> None:
    """What labels there are, and how the server is doing."""

    @app.get("/labels", response_model=schema.Labels, responses=schema.problems(401, 422))
    def find_labels(
        query: Annotated[str, Query(max_length=200, description="Part of a name, in upper or lower case.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    ) -> Response:
        """Find labels by a part of a name: the label itself, its name, or another name it has."""
        return answer_json(service.model.search(query, limit, offset))

    @app.get("/metrics", response_class=Response, responses=schema.problems(401))
    async def metrics() -> Response:
        """Metrics for Prometheus, of all workers together."""
        service.metrics.queue_texts.set(service.batcher.waiting)
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")


def add_feedback(app: FastAPI, service: Service) -> None:
    """What people say of labels."""

    @app.post("/feedback", response_model=schema.Stored, responses={**REFUSED, **schema.problems(404, 507)})
    async def feedback(request: schema.Correction) -> Response:
        """Store which labels of a text are right, which are wrong and which are missing.

        One JSON line in the server's feedback file, on the disk before the answer is sent. A label can be given by a
        name that no other label has, in upper or lower case. `new_labels` has what is neither: such become labels when
        the model is trained with the file.
        """
        if service.feedback is None:
            raise RefusalError(404, "This server takes no feedback; start it with aplc serve --feedback FILE.")
        if wait := service.rate.take():
            raise RefusalError(429, "Too many corrections; try again later.", retry_after=str(int(wait) + 1))
        model, entry = service.model, request.entry()
        try:
            new = model.resolve(entry)
        except AplcError as error:
            raise RefusalError(422, f"body: {error}.") from None
        (proposed,) = await _tags_of(service, model, [request.text], PROPOSED)
        try:
            await service.store(model, entry, proposed)
        except OSError as error:
            log.error("feedback was not stored: %s: %s", service.feedback.path, error.strerror)
            if error.errno in NO_ROOM:
                raise RefusalError(507, "The server's disk is full; the correction was not stored.") from None
            raise RefusalError(503, "The feedback file can't be written; the correction was not stored.") from None
        return answer_json({"stored": True, "new_labels": new}, model)


def add_corrections(app: FastAPI, service: Service, *, has_token: bool) -> None:
    """What only people who look after the model use."""

    @app.get("/review", response_model=schema.Review, responses=schema.problems(401, 404, 422))
    def review(
        after: Annotated[int, Query(ge=-1, le=2**31, description="Position of the document that was last shown.")] = -1,
    ) -> Response:
        """The next document of the queue that has not been reviewed."""
        if service.review is None:
            raise RefusalError(404, "This server has no queue; start it with aplc serve --review QUEUE.jsonl.")
        return answer_json(service.review.following(after))

    @app.post("/admin/reload", response_model=schema.Reloaded, responses=schema.problems(401, 403, 409, 503))
    async def reload() -> Response:
        """Load the model folder again. The old model answers until the new one is loaded and has tagged a probe."""
        if not has_token:
            raise RefusalError(403, "This server has no token, so reloading is not open to callers; send it SIGHUP.")
        if service.reload is None:
            raise RefusalError(503, "This server can't load its model again.")
        try:
            return answer_json(await service.reload())
        except AplcError as error:
            raise RefusalError(409, f"The new model was refused, the old one stays: {error}.") from None
