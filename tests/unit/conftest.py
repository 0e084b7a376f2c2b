"""Fixtures that several files share."""

from tests.unit.serve.doubles import clock, load

__all__ = ["clock", "load"]
