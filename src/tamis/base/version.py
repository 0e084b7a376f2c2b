"""The version of tamis, that of pyproject.toml."""

__version__ = "0.1.0"
