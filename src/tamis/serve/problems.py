"""Errors as answers: `{"error": "what is wrong: the remedy"}` with the status that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tamis.errors import CorruptError, LockedError, StorageError, TamisError, UnknownDocumentError
from tamis.serve.work import Overloaded

RETRY_AFTER = "1"  # seconds: longer than a call of a stage, shorter than a person's patience
_OUR_TROUBLE = (CorruptError, LockedError, StorageError)  # other errors are for the client to mend


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """One line, whatever the message had."""
    return JSONResponse({"error": " ".join(message.split())}, status, dict(headers or {}))


def install(app: FastAPI) -> None:
    """Have every error answered alike."""

    @app.exception_handler(TamisError)
    async def on_own(request: Request, error: TamisError) -> Response:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return problem(422, in_words(error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        remedies = {404: "see /openapi.json for what there is", 405: "see /openapi.json for the right method"}
        default = error.detail in ("Not Found", "Method Not Allowed")
        message = f"{error.detail}: {remedies[error.status_code]}" if default else error.detail
        if error.status_code == 400:  # the framework's, where a body is nested too deep to be parsed
            message = "the body cannot be parsed: send a JSON object, not nested deeper than it must be"
        return problem(error.status_code, message, error.headers)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        # uvicorn closes the connection, whatever we say
        words = "something went wrong in the server: its log says what"
        return problem(500, words, {"connection": "close"})


def problem_of(error: TamisError) -> JSONResponse:
    """The answer to an error that tamis raised on purpose."""
    if isinstance(error, Overloaded):
        return problem(503, str(error), {"retry-after": RETRY_AFTER})
    if isinstance(error, UnknownDocumentError):
        return problem(404, str(error))
    return problem(500 if isinstance(error, _OUR_TROUBLE) else 422, str(error))


def in_words(error: Mapping[str, Any]) -> str:
    """A validation error in one line; what the client sent is not repeated, it may be long or not text.

    >>> in_words({"loc": ("body", "k"), "msg": "Input should be greater than or equal to 1", "type": "x"})
    'k: Input should be greater than or equal to 1'
    """
    if error["type"] == "json_invalid":
        return f"the body is not JSON ({error['ctx']['error']}): send a JSON object"
    if error["loc"] == ("body",) and error["type"] != "missing":
        # most often curl without a header: what is sent is JSON, and arrives as bytes
        return "the body is not a JSON object: send one, with the header content-type: application/json"
    where = ".".join(str(part) for part in error["loc"] if part not in ("body", "path"))
    if error["type"] in ("model_type", "model_attributes_type"):  # documents are the only objects within
        return f"{where}: give a text, or an object with a text: see /openapi.json"
    if error["type"] == "string_pattern_mismatch":  # the only pattern there is wants more than spaces
        return f"{where} is blank: write something"
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no such field: see /openapi.json"
    return f"{where}: {error['msg']}" if where else f"the body: {error['msg']}"
