"""What clients send, and what they get: the shapes of the HTTP interface, with an example each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.json_schema import SkipJsonSchema

from tamis.core.query_syntax import QuerySyntax
from tamis.serve.limits import BRIEF, LONGEST_DEADLINE, PIPELINE, QUERY, RESULTS, TEXT, WHERE

QueryText = Annotated[str, StringConstraints(min_length=1, max_length=QUERY, pattern=r"\S")]
PipelineText = Annotated[str, StringConstraints(min_length=1, max_length=PIPELINE)]
Milliseconds = Annotated[int, Field(ge=1, le=round(LONGEST_DEADLINE * 1000))]
WhereText = Annotated[str, StringConstraints(min_length=1, max_length=WHERE)]
Count = Annotated[int, Field(ge=1, le=RESULTS)]
_WHERE = (
    "find only documents that satisfy this condition, such as `year >= 2020 and lang in (en, fr)`: fields of "
    'the metadata, `id` and `title`, and `contains "a phrase"`'
)
_SYNTAX = '`simple`: the query may have "phrases", +required and -excluded words; `plain`: words'
_TEXTS = "give the texts too, and the places of the query's words in them"
_PARTIAL = "accept the ranking of an earlier stage if there is no time for all stages; false: a 503 at once"


def _with_example(example: dict[str, Any]) -> ConfigDict:
    """Of our own requests: strict, so that a misspelt field is an error and not ignored."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class SearchRequest(BaseModel):
    """A query for the index."""

    model_config = _with_example({"query": "who wrote killing the blues", "k": 3, "trace": True})

    query: QueryText
    k: Count = Field(10, description="how many results")
    where: WhereText | None = Field(None, description=_WHERE)
    syntax: QuerySyntax = Field("plain", description=_SYNTAX)
    pipeline: PipelineText | None = Field(None, description="the stages; the server's own if left out")
    deadline_ms: Milliseconds | None = Field(None, description="the server's own if left out")
    trace: bool = Field(False, description="give the ranking after each stage")
    texts: bool = Field(False, description=_TEXTS)
    partial: bool = Field(True, description=_PARTIAL)
    stream: bool = Field(
        False, description="send the ranking after each stage as an event, as with Accept: text/event-stream"
    )


def as_object(sent: Any) -> Any:
    """A document given as a plain text, as an object."""
    return {"text": sent} if isinstance(sent, str) else sent


def _as_identity(sent: Any) -> Any:
    """A numeric id, as databases and files of documents have them."""
    return str(sent) if isinstance(sent, int) and not isinstance(sent, bool) else sent


SentIdentity = Annotated[str, BeforeValidator(_as_identity, json_schema_input_type=str | int)]


class Candidate(BaseModel):
    """A document to rank."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(max_length=TEXT)
    id: SentIdentity | None = Field(
        None, description="its place in the list, from 0, if left out; need not differ from the others'"
    )
    title: str | None = None


SentDocument = Annotated[Candidate, BeforeValidator(as_object, json_schema_input_type=str | Candidate)]


class RerankRequest(BaseModel):
    """A query with the client's own candidates."""

    model_config = _with_example(
        {"query": "a fine sieve", "documents": ["A tamis is a drum sieve.", {"id": "b", "text": "Soup."}]}
    )

    query: QueryText
    documents: list[SentDocument] = Field(min_length=1, fail_fast=True)
    pipeline: PipelineText | None = Field(None, description="stages that do not search, such as `mono`")
    k: Count | None = Field(None, description="how many results; all if left out")
    deadline_ms: Milliseconds | None = None
    trace: bool = False
    texts: bool = Field(False, description=_TEXTS)
    partial: bool = Field(True, description=_PARTIAL)


class ExplainRequest(BaseModel):
    """Why a document stands where it does."""

    model_config = _with_example({"query": "who wrote killing the blues", "id": "d001"})

    query: QueryText
    id: str = Field(min_length=1)
    where: WhereText | None = Field(None, description="as for /search")
    syntax: QuerySyntax = Field("plain", description="as for /search")
    pipeline: PipelineText | None = None
    deadline_ms: Milliseconds | None = None


class Place(BaseModel):
    """A document in a ranking."""

    id: str
    rank: int
    score: float


_WITH_TEXTS = "only if the request has `texts`"


class Evidence(BaseModel):
    """A passage that earned a score, in whole sentences: characters start to end (code points) of the
    document's text."""

    start: int
    end: int
    score: float


class Snippet(BaseModel):
    """A few lines of a document, from its character `start` on, with the places of the query's words and of
    the best passage in them. `source` says where they are from: the best `passage` by the model, what the
    model has `read`, or `unread`, where only a part that the model has not read has words of the query;
    `text` if no model has read the document, or it is not known what it has read."""

    start: int
    text: str
    highlights: list[tuple[int, int]]
    best: tuple[int, int] | None
    source: Literal["passage", "read", "unread", "text"]


class Read(BaseModel):
    """The last stage with a model, and how many characters of the text it has read, from the start."""

    stage: str
    characters: int


class Shown(Place):
    """A document in its place, with the length of its text in `characters`. If the request has `texts`, also
    the `text`, which ends early where it is long (`cut`), and in `highlights` the places of the query's words
    in it. All places are in code points."""

    title: str
    title_highlights: list[tuple[int, int]]
    snippet: Snippet
    characters: int
    read: Read | None = Field(description="null if no model has read it from its start")
    evidence: list[Evidence]
    text: SkipJsonSchema[None] | str = Field(None, description=_WITH_TEXTS)
    cut: SkipJsonSchema[None] | bool = Field(None, description=_WITH_TEXTS)
    highlights: SkipJsonSchema[None] | list[tuple[int, int]] = Field(None, description=_WITH_TEXTS)


class Result(Shown):
    """A document of the index, with the metadata that it was indexed with."""

    metadata: dict[str, Any]
    metadata_cut: bool = Field(description=f"fields are left out: those beyond {BRIEF:,} characters")


class StageReport(BaseModel):
    """What a stage did for a request. `ranking` is all that it ranked, of which the first `kept` went on.
    `truncated` is the number of texts of which its model read the beginning only."""

    stage: str
    expression: str
    ms: float
    waited_ms: float
    kept: int
    inferences: int
    truncated: int
    ranking: Sequence[Place] | None = None


class _Answer(BaseModel):
    """What a search and a rerank are both answered."""

    query: str
    pipeline: str
    kind: str = Field(description="the kind of the scores")
    note: str | None = Field(description="why nothing was found, where the query can find nothing")
    complete: bool
    finished: str
    ms: float


class SearchAnswer(_Answer):
    """Results, best first. Where the time was too short for all stages, `complete` is false and the results
    are those of the stage `finished`. `query` is the plain words; what must and must not be there is in
    `where`."""

    where: str | None = Field(
        description="the condition in its printed form, with that of the query's syntax"
    )
    results: Sequence[Result]
    stages: Sequence[StageReport]
    suggestion: str | None = Field(
        description="the query with similar words in place of those that no document has; null without any"
    )


class StreamedAnswer(SearchAnswer):
    """The data of an event: the answer after so many stages. The last has `final`, and is complete unless
    the time was too short; then `retry_after` says after how many seconds all stages would fit, if ever."""

    after: int = Field(description="how many of the planned stages this ranking is after")
    expected: int = Field(description="how many of them are expected to finish in time")
    planned: Sequence[str] = Field(description="the names of all stages of the pipeline")
    final: bool
    retry_after: int | None


_INDEX = Field(description="the place of the document in the request, from 0")


class RerankPlace(Place):
    """A document of the client's own in a ranking."""

    index: int = _INDEX


class RerankResult(Shown):
    """A document of the client's own in its place, as `Shown` has it."""

    index: int = _INDEX


class RerankStageReport(StageReport):
    """What a stage did for a request, as `StageReport` has it."""

    ranking: Sequence[RerankPlace] | None = None


class RerankAnswer(_Answer):
    """Results, best first, as in `SearchAnswer`. `index` says which document of the request it is: ids are as
    they were sent, so two may be alike."""

    results: Sequence[RerankResult]
    stages: Sequence[RerankStageReport]


class StoredDocument(BaseModel):
    """A document as it was indexed, or a part of it: `text` begins at the character `start` of the
    `characters` that it has. `matches` are the places of the words of a query, in the whole text."""

    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    start: int
    characters: int
    matches: list[tuple[int, int]] = Field(description="the first 10,000; none without a query")


class TermReport(BaseModel):
    """What a query term adds to the score of the search."""

    term: str
    weight: float
    tf: int
    df: int
    contribution: float


class StagePlace(BaseModel):
    """Where a stage put the document; no rank where it left it out."""

    stage: str
    expression: str
    rank: int | None
    score: float | None
    kind: str


class Explanation(BaseModel):
    """Where each stage put a document, what the query's terms add, and the passages that earned its score."""

    id: str
    query: str
    where: str | None = Field(description="the condition, as in an answer of /search")
    satisfied: bool | None = Field(description="whether the document satisfies it; null without one")
    pipeline: str
    complete: bool
    stages: list[StagePlace]
    terms: list[TermReport]
    evidence: list[Evidence]


class StageInfo(BaseModel):
    """A stage that a pipeline may have."""

    name: str
    role: str = Field(description="what it is for")
    options: list[str]
    package: str | None = Field(description="the package that brings it; null for our own")


class Info(BaseModel):
    """What this server is."""

    version: str
    pipeline: str
    named: dict[str, str] = Field(description="names that stand for a whole pipeline, and that pipeline")
    documents: int | None = Field(description="in the index; null without one")
    fields: list[str] = Field(description="of the metadata of the first documents, for conditions")
    aggregations: list[str]
    stages: list[StageInfo] = Field(description="the stages that a pipeline may have")
    models: dict[str, str] = Field(description="the models that a pipeline may name, and their stages")
    examples: list[str]
    limits: dict[str, int]


class Problem(BaseModel):
    """What is wrong, and what to do about it; by `request_id` the server's log knows the request."""

    error: str
    request_id: str


def inline(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a model for a place where the framework takes none; what it consists of must be part of
    the document already."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {name: value for name, value in schema.items() if name != "$defs"}
