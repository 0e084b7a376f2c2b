"""The OpenAPI document, with the keys and roles that this server asks for."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from tamis.serve.access import Access, is_open
from tamis.serve.keys import required_role

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe_access(app: FastAPI, access: Access) -> None:
    """Have the document say which routes need a key, and which role it must have."""
    if access.keys is None:
        return
    plain = app.openapi

    def described() -> dict[str, Any]:
        document = plain()  # the same object each time
        document.setdefault("components", {})["securitySchemes"] = _SCHEMES
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if is_open(path) else [{name: []} for name in _SCHEMES]
                if (role := required_role(path)) is not None:
                    operation["x-required-role"] = role
        return document

    app.openapi = described  # type: ignore[method-assign]
