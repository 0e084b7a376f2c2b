"""The two basic types: a document and a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamis.base.conditions import Condition


@dataclass(frozen=True, slots=True)
class Document:
    """A unit of ranking: a passage, a sentence, an article.

    >>> Document("d1", "A sieve for cooks.", title="Tamis").contents
    'Tamis\\nA sieve for cooks.'
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def contents(self) -> str:
        """The indexed text: the title, a line break, and the text."""
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Query:
    """The text given to the ranker; `fields` has a TREC topic's title, desc and narr. `where` is a condition
    on the documents that may be found, which every search for the query obeys.

    >>> Query("q1", "who wrote killing the blues").text
    'who wrote killing the blues'
    """

    id: str
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    where: Condition | None = None
