"""The routes of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tamis import __version__
from tamis.serve import schemas
from tamis.serve.access import Access
from tamis.serve.bodies import Bodies
from tamis.serve.cors import Cors
from tamis.serve.guard import Gate, Guard
from tamis.serve.keys import ROUTES
from tamis.serve.limits import QUERY
from tamis.serve.metrics import CONTENT_TYPE
from tamis.serve.openapi import describe_access
from tamis.serve.page import PageFiles, page
from tamis.serve.pipelines import NoIndexError
from tamis.serve.problems import install, problem
from tamis.serve.reading import Part
from tamis.serve.rerank_api import ForeignAnswer, ForeignRequest
from tamis.serve.service import Answer, Service
from tamis.serve.streams import EVENTS, EventStream, left, wants_events

_ABOUT = "Multi-stage text ranking: search an index, or rerank your own candidates, stage by stage."
_RERANKS = "Multi-stage text ranking: rerank your own candidates, stage by stage."
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "description": description}
    for status, description in {
        401: "the API key is missing or wrong",
        403: "the Host header does not name this server, or the key lacks the role",
        413: "the body is too large",
        422: "the request cannot be carried out",
        429: "too many requests: retry after `Retry-After` seconds",
        503: "overloaded: retry after `Retry-After` seconds",
    }.items()
}
_LONGEST = 2**53  # characters: more than any text has
_LEFT = 499  # seen only in /metrics: nginx's status for clients that have left
_NO_DOCUMENT: dict[int | str, dict[str, Any]] = {
    404: {"model": schemas.Problem, "description": "the index has no such document"}
}
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {EVENTS: {"schema": schemas.inline(schemas.StreamedAnswer)}}}
}


class _Exactly(PathConvertor):
    """All that follows: the framework's own stops at the end of a line."""

    regex = r"[\s\S]*"


register_url_convertor("exactly", _Exactly())


def create_app(service: Service, access: Access | None = None) -> FastAPI:
    """The server as an ASGI application; `access` controls access (default: open to all)."""
    access = access or Access()

    bodies = Bodies(service.limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        bodies.close()
        await service.stop()

    app = FastAPI(
        title="tamis",
        version=__version__,
        description=_ABOUT if service.pipelines.searches else _RERANKS,
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # to wherever the Host header says
        responses=_PROBLEMS,
    )
    app.router.route_class = StrictRoute
    app.state.bodies = bodies
    app.add_middleware(Gate, access=access)
    if access.origins:
        app.add_middleware(Cors, origins=access.origins)
    app.add_middleware(Guard, metrics=service.metrics, bodies=bodies, access=access)
    install(app)
    if service.pipelines.searches:
        _add_searching(app, service)
    else:
        _add_no_index(app)
    _add_reranking(app, service)
    _add_state(app, service)
    app.mount("/static", PageFiles(), name="static")
    describe_access(app, access)
    return app


def _add_searching(app: FastAPI, service: Service) -> None:
    # answers are made by us, so they are sent as they are: the models are for the documentation

    @app.post("/search", response_model=schemas.SearchAnswer, responses=_STREAMED)
    async def search(body: schemas.SearchRequest, request: Request) -> Response:
        """Search the index. With `stream`, or where the Accept header prefers `text/event-stream`, the
        ranking after each stage is sent as an event `ranking` as soon as it is there, the last with `final`.
        What goes wrong before the first is answered with the status of the error; later it is an event
        `error`."""
        if body.stream or wants_events(request.headers.get("accept", "")):
            return await _while_wanted(request, _streamed(service, body))
        return await _while_wanted(request, _plain(service.search(body)))

    @app.post("/explain", response_model=schemas.Explanation, responses=_NO_DOCUMENT)
    async def explain(body: schemas.ExplainRequest, request: Request) -> Response:
        """Explain the rank of a document."""
        return await _while_wanted(request, _plain(service.explain(body)))

    @app.get("/documents", response_model=schemas.StoredDocument, responses=_NO_DOCUMENT)
    async def document(id: str, part: Annotated[Part, Depends(_part)]) -> Response:
        """A document of the index by any id: in a path, `.` and `..` would lead elsewhere. Whole, or the part
        of its text that is asked for; with a query also the places of its words in the whole text."""
        return Response(await service.document(id, part), media_type="application/json")

    @app.get(
        "/documents/{doc_id:exactly}",
        response_model=schemas.StoredDocument,
        responses=_NO_DOCUMENT,
        operation_id="document_by_path",
    )
    async def document_by_path(doc_id: str, part: Annotated[Part, Depends(_part)]) -> Response:
        """A document of the index, as by `/documents?id=`."""
        return Response(await service.document(doc_id, part), media_type="application/json")


def _add_no_index(app: FastAPI) -> None:
    """The same paths on a server without an index: whoever asks for them is told so."""

    async def no_index() -> None:
        raise NoIndexError

    for path in (path for path, role in ROUTES.items() if role == "search"):
        app.add_api_route(path, no_index, methods=["GET", "POST"], include_in_schema=False)


def _add_reranking(app: FastAPI, service: Service) -> None:
    @app.post("/rerank", response_model=schemas.RerankAnswer)
    async def rerank(body: schemas.RerankRequest, request: Request) -> Response:
        """Rank candidates of your own."""
        return await _while_wanted(request, _plain(service.rerank(body)))

    @app.post("/v1/rerank", response_model=ForeignAnswer, operation_id="rerank_v1")
    @app.post("/v2/rerank", response_model=ForeignAnswer, operation_id="rerank_v2")
    async def foreign_rerank(body: ForeignRequest, request: Request) -> Response:
        """Rank candidates, in the shapes of Cohere's and Jina's API."""
        return await _while_wanted(request, _plain(service.foreign_rerank(body)))


def _part(
    start: Annotated[int, Query(ge=0, le=_LONGEST, description="the first character")] = 0,
    length: Annotated[int | None, Query(ge=1, le=_LONGEST, description="all if left out")] = None,
    query: Annotated[str | None, Query(max_length=QUERY, description="find its words in the text")] = None,
) -> Part:
    """Which part of a document is wanted."""
    return Part(start, length, query)


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def start() -> Response:
        return page("index.html" if service.pipelines.searches else "rerank.html")

    @app.get("/info", response_model=schemas.Info)
    async def info() -> Response:
        """What this server is: its pipeline, models and limits."""
        return JSONResponse(await service.info())

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process is alive."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether requests are answered: the index, if there is one, is open and the models are loaded."""
        if service.is_ready:
            return JSONResponse({"status": "ready"})
        if service.trouble:
            return problem(503, service.trouble)
        state = "shutting down" if service.stopping else "loading the models"
        return problem(503, f"{state}: ask again", {"retry-after": "1"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters and histograms in the text format of Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type=CONTENT_TYPE)


async def _plain(work: Coroutine[Any, Any, Answer]) -> Response:
    made = await work
    wait = made.outcome.retry_after
    headers = None if wait is None else {"retry-after": str(wait)}
    return Response(made.body, media_type="application/json", headers=headers)


async def _streamed(service: Service, body: schemas.SearchRequest) -> Response:
    """A stream begins when its first event is there: until then, errors are answers as they always are."""
    answers = service.search_stages(body)
    return EventStream(await anext(answers), answers, service.longest_stream(body), service.metrics)


async def _while_wanted(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer; if the client leaves, the work is cancelled."""
    task = asyncio.create_task(work)
    leaving = asyncio.create_task(left(request.receive))
    leaving.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if not leaving.done():
            raise
        return Response(status_code=_LEFT)
    finally:
        leaving.cancel()


class StrictRequest(Request):
    """Its JSON is as the standard has it, and no more than a request may have."""

    async def json(self) -> Any:
        bodies: Bodies = self.app.state.bodies
        return await bodies.parse(await self.body())


class StrictRoute(APIRoute):
    """A route whose requests are `StrictRequest`s."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly
