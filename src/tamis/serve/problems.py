"""Errors as answers: `{"error": "what is wrong: the remedy"}` with the matching status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tamis.base.errors import CorruptError, LockedError, StorageError, TamisError, UnknownDocumentError
from tamis.index.opensearch.errors import ClusterError
from tamis.serve.pipelines import NoIndexError
from tamis.serve.record import request_id
from tamis.serve.work import Overloaded

_LOG = logging.getLogger("tamis.serve")
_OUR_TROUBLE = (CorruptError, LockedError, StorageError)  # other errors are for the client to mend

_CLUSTER_RETRY = "5"  # seconds, in which another node may have taken the place of a lost one
_QUOTED = 100  # characters of what a client has sent

_NOT_WHOLE = "{where} is not a whole number: send one, in digits and without quotes"
_NOT_BOOLEAN = "{where} is not true or false: send one of them, without quotes"
_NOT_DOCUMENT = "{where}: give a text, or an object with a text: see /openapi.json"
#: pydantic's kinds of error, as far as the shapes of requests can have them.
_WORDS = {
    "missing": "{where} is missing: send it (see /openapi.json)",
    "extra_forbidden": "{where} is not a known field: see /openapi.json",
    "string_type": "{where} is not a text: send one, in quotes",
    "string_unicode": "{where} holds half a character (a lone surrogate): send whole ones, as UTF-8",
    "string_too_short": "{where} is empty: write something",  # every text that has a least length has 1
    "string_pattern_mismatch": "{where} is blank: write something",  # the only pattern: more than spaces
    "string_too_long": "{where} is longer than {max_length:,} characters: shorten it",
    "int_type": _NOT_WHOLE,
    "int_parsing": _NOT_WHOLE,
    "int_parsing_size": _NOT_WHOLE,
    "int_from_float": _NOT_WHOLE,
    "greater_than_equal": "{where} is less than {ge:,}: use {ge:,} or more",
    "less_than_equal": "{where} is more than {le:,}: use {le:,} or less",
    "bool_type": _NOT_BOOLEAN,
    "bool_parsing": _NOT_BOOLEAN,
    "literal_error": "{where} is not {expected}: send one of them, in quotes",
    "list_type": "{where} is not a list: send one, in square brackets",
    "too_short": "{where} has {actual_length:,} items: send {min_length:,} or more",
    "model_type": _NOT_DOCUMENT,  # documents are the only objects within
    "model_attributes_type": _NOT_DOCUMENT,
}
#: The same where the value is null. All numbers and all that is true or false may be left out.
_WORDS_FOR_NULL = {
    "int_type": "{where} is null: send a whole number, or leave it out",
    "bool_type": "{where} is null: send true or false, or leave it out",
}


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The message in one line, and the id of the request, as in the log."""
    answer = {"error": " ".join(message.split())}
    if (doc_id := request_id()) is not None:
        answer["request_id"] = doc_id
    return JSONResponse(answer, status, dict(headers or {}))


def bug() -> JSONResponse:
    """The answer to an unexpected error."""
    words = "internal error: see the log of the server"
    return problem(500, words, {"connection": "close"})  # uvicorn closes it in any case


def install(app: FastAPI) -> None:
    """Answer all errors in the same way."""

    @app.exception_handler(TamisError)
    async def on_own(request: Request, error: TamisError) -> Response:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return problem(422, in_words(error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        remedies = {
            404: "see /openapi.json for the paths that exist",
            405: "see /openapi.json for the right method",
        }
        default = error.detail in ("Not Found", "Method Not Allowed")
        message = f"{error.detail}: {remedies[error.status_code]}" if default else error.detail
        if error.status_code == 400:  # the framework's, where what parses the body raises
            message = _unparsed(error.__cause__)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers = {"allow": _methods(headers.get("Allow", "GET"))}
        return problem(error.status_code, message, headers)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        return bug()


def _methods(allowed: str) -> str:
    """What a path answers, for the header Allow: HEAD is answered wherever GET is.

    >>> _methods("POST, GET")
    'GET, HEAD, POST'
    """
    methods = {each.strip() for each in allowed.split(",")}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _unparsed(cause: BaseException | None) -> str:
    """The problem with a body that cannot be parsed at all."""
    if isinstance(cause, UnicodeDecodeError):
        return f"the body is not UTF-8 (byte {cause.object[cause.start]:#04x}): send JSON as UTF-8"
    if isinstance(cause, ValueError):  # of Python's int, which takes 4,300 digits
        return "the body holds a number of thousands of digits: send a shorter one"
    return "the body cannot be parsed: send a JSON object with less nesting"


def problem_of(error: TamisError) -> JSONResponse:
    """The answer to an error that tamis raised on purpose."""
    if isinstance(error, Overloaded):
        return problem(503, str(error), {"retry-after": str(error.retry_after)})
    if isinstance(error, ClusterError):  # where the cluster is, and what it says, is for the log
        _LOG.warning("%s", error)
        words = "the cluster that has the index does not answer as it should: try again later"
        return problem(503, words, {"retry-after": _CLUSTER_RETRY})
    if isinstance(error, UnknownDocumentError | NoIndexError):
        return problem(404, str(error))
    return problem(500 if isinstance(error, _OUR_TROUBLE) else 422, str(error))


def shortened(sent: str) -> str:
    """What a client has sent, for a message to it: the names of fields may be as long as a body.

    >>> shortened("documents.0.text"), len(shortened("x" * 1_000_000))
    ('documents.0.text', 100)
    """
    return sent if len(sent) <= _QUOTED else f"{sent[: _QUOTED - 3]}..."


def in_words(error: Mapping[str, Any]) -> str:
    """A validation error in one line; what the client sent is not repeated, it may be long or not text.

    >>> in_words({"loc": ("body", "k"), "type": "greater_than_equal", "ctx": {"ge": 1}, "msg": "..."})
    'k is less than 1: use 1 or more'
    >>> in_words({"loc": ("body", "documents", 0, "text"), "type": "missing", "msg": "Field required"})
    'documents.0.text is missing: send it (see /openapi.json)'
    """
    kind, ctx = error["type"], error.get("ctx", {})
    if kind == "json_invalid":
        return f"the body is not JSON ({ctx['error']}): send a JSON object"
    where = shortened(".".join(map(str, error["loc"][1:])))  # the first is "body"
    if len(error["loc"]) == 1 and kind != "string_unicode":  # that one is of a field's name
        if kind == "missing":
            return "the body is missing: send a JSON object, with the header content-type: application/json"
        # usually curl without the header: the body is JSON, and arrives as bytes
        return "the body is not a JSON object: send one, with the header content-type: application/json"
    words = _WORDS.get(kind, "{where} is not valid ({msg}): see /openapi.json")
    if error.get("input", "") is None:
        words = _WORDS_FOR_NULL.get(kind, words)
    return words.format(where=where or "the body", msg=error["msg"], **ctx)
