"""Fixtures that several files share."""

from tests.unit.serve_work import clock, load

__all__ = ["clock", "load"]
