"""The page at `/`: files of this package, served as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "page"
#: By our own table: a machine's may say that scripts are plain text, and browsers then refuse them.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_FRESH = {"cache-control": "no-cache"}  # revalidated each time, and not sent again if unchanged


class PageFiles(StaticFiles):
    """The files under `/static`."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, check_dir=False)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        suffix = Path(str(arguments[0])).suffix
        if suffix in _TYPES:
            response.headers["content-type"] = _TYPES[suffix]
        response.headers.update(_FRESH)
        return response


def page(name: str) -> Response:
    """The page itself, or another."""
    path = FOLDER / name
    if not path.is_file():
        raise HTTPException(404, "this installation has no page: use the API, see /openapi.json")
    return FileResponse(path, media_type=_TYPES[".html"], headers=_FRESH)
