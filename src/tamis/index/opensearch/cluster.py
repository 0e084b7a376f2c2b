"""Requests to a cluster that return complete answers only.

When a shard does not answer, the request is repeated while a replica takes over or the node comes back; after
that it is an error. A partial answer is never used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tamis.base.errors import InputError
from tamis.base.interrupt import check, remaining
from tamis.index.opensearch.connection import Connection, pause
from tamis.index.opensearch.errors import ClusterError, reason_of, refused

_PATIENCE = 60.0  # seconds in which another node may take a lost one's place
_MARGIN = 0.05  # seconds beyond a deadline
_CHECK = "check the cluster: `GET _cluster/health` says what is missing"
_SHARDS = "error", "status", "timed_out", "_shards"
Body = Mapping[str, Any]


class Cluster:
    """Requests to the index of a connection, within the deadline of the search (`tamis.base.interrupt`)."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def place(self) -> str:
        return str(self.connection.address)

    def health(self) -> str:
        """`green`; `yellow` where copies of shards are missing; `red` where shards are."""
        path = f"/_cluster/health/{self.connection.address.index}"
        return str(self.connection.request("GET", path)["status"])

    def request(
        self,
        method: str,
        what: str,
        body: Body | Sequence[Body] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Any:
        """The answer to one request to the index."""
        path = f"/{self.connection.address.index}/{what}"
        try:
            return self.connection.request(method, path, body, params=params, patience=_PATIENCE)
        except ClusterError:
            if remaining() == 0:  # those who wait should hear of the deadline, and not of this
                time.sleep(_MARGIN)
                check()
            raise

    def search(self, bodies: Sequence[Body], read: str, *, copies: Sequence[str] | None = None) -> list[Any]:
        """The answers to several searches in one request, with the parts that are `read`; `copies` choose
        among the copies of the shards."""
        answers: list[Any] = [None] * len(bodies)
        waiting = list(range(len(bodies)))
        heads = [_head(copies[place] if copies else "tamis") for place in waiting]
        params = {"filter_path": ",".join(f"responses.{each}" for each in (*_SHARDS, *read.split(",")))}

        def ask() -> ClusterError | None:
            lines = [line for place in waiting for line in (heads[place], bodies[place])]
            found = self.request("POST", "_msearch", lines, params=params)["responses"]
            problems = []
            for place, answer in zip(list(waiting), found, strict=True):
                if (problem := shards_problem(answer, self.place)) is None:
                    answers[place] = answer
                    waiting.remove(place)
                else:
                    problems.append(problem)
            return next(
                (each for each in problems if not each.is_temporary), problems[0] if problems else None
            )

        self.until_whole(ask)
        return answers

    def documents(self, ids: Sequence[str], *, texts: bool) -> Iterator[tuple[str, Any]]:
        """Each id with what is there, with or without the texts."""
        answer: list[Any] = []

        def ask() -> ClusterError | None:
            asked = {"_source": str(texts).lower()}
            answer[:] = self.request("POST", "_mget", {"ids": list(ids)}, params=asked)["docs"]
            failed = next((each for each in answer if "error" in each), None)
            return None if failed is None else refused(503, failed, self.place)

        self.until_whole(ask)
        return zip(ids, answer, strict=True)

    def until_whole(self, ask: Callable[[], ClusterError | None]) -> None:
        """Call `ask` until it returns no error; raise one that is permanent, or that lasts too long."""
        started, tries = time.monotonic(), 0
        while (problem := ask()) is not None:
            tries += 1
            seconds = pause(tries)
            if not problem.is_temporary or time.monotonic() + seconds - started > _PATIENCE:
                raise problem
            left = remaining()
            time.sleep(seconds if left is None else min(seconds, left + _MARGIN))
            check()


def _head(copies: str) -> Body:
    """What stands before a search: all shards must answer, and score with the statistics of all."""
    return {
        "search_type": "dfs_query_then_fetch",
        "allow_partial_search_results": False,
        "preference": copies,
    }


def shards_problem(answer: Mapping[str, Any], place: str) -> ClusterError | None:
    """Why an answer is not whole; None if it is.

    >>> shards = {"total": 3, "successful": 2, "failed": 1}
    >>> print(shards_problem({"timed_out": False, "_shards": shards}, "opensearch://host:9200/docs"))
    only 2 of 3 shards of opensearch://host:9200/docs have answered: check the cluster: `GET _cluster/health`
    says what is missing
    """
    if "error" in answer:
        if "maxClauseCount" in str(answer["error"]):
            problem = "the query has more terms than the cluster takes"
            remedy = "ask in fewer words, or raise its indices.query.bool.max_clause_count"
            raise InputError(problem, remedy=remedy)
        status = int(answer.get("status", 500))
        kind, _ = reason_of(answer)
        if status < 500 or kind != "search_phase_execution_exception":
            return refused(status, answer, place)
        why = next((reason_of(each["reason"])[1] for each in answer["error"].get("failed_shards", ())), "")
        problem = f"not all shards of {place} have answered{f' ({why})' if why else ''}"
        return ClusterError(problem, remedy=_CHECK, status=503)
    shards = answer["_shards"]
    if shards["failed"] or shards["successful"] < shards["total"] or answer["timed_out"]:
        late = " in time" if answer["timed_out"] else ""
        whole = f"{shards['successful']} of {shards['total']} shards of {place}"
        return ClusterError(f"only {whole} have answered{late}", remedy=_CHECK, status=503)
    return None
