"""Ranking over HTTP: `tamis serve IDX`. Importing this package imports no web framework."""
