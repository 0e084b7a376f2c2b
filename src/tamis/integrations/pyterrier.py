"""For PyTerrier: transformers that search an index and that rerank. They need no Java."""

from __future__ import annotations

from pathlib import Path

from tamis.base.documents import Query
from tamis.core.stage import Stage
from tamis.index.index import Index
from tamis.integrations import missing, reranker, searcher

try:
    import pandas as pd
    import pyterrier as pt
except ImportError as error:
    raise missing("python-terrier", "pyterrier") from error


class TamisRetriever(pt.Transformer):
    """Searches an index for each query of a frame. With `text=True` what is found has its text, which a
    reranker needs; `where` is a condition on the documents.

    >>> import tempfile, tamis
    >>> index = tamis.Index.build([tamis.Document("d1", "a sieve")], tempfile.mkdtemp() + "/idx")
    >>> TamisRetriever(index, "bm25").search("sieve")["docno"].tolist()
    ['d1']
    """

    def __init__(
        self,
        index: Index | str | Path | None = None,
        pipeline: str | Stage = "bm25 % 1000",
        *,
        text: bool = False,
        where: str | None = None,
    ) -> None:
        super().__init__()
        self.stage, self.text, self.where = searcher(index, pipeline), text, where

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Queries in, results out: docno, score and rank (from 0) beside what is known of the query."""
        pt.validate.query_frame(inp, extra_columns=["query"])
        found = ["docno", "docid", "score", "rank", "text"]  # of a search before
        queries = inp.drop(columns=found, errors="ignore").drop_duplicates("qid")
        asked = [Query(str(qid), text) for qid, text in zip(queries["qid"], queries["query"], strict=True)]
        frames = []
        run = self.stage.run(asked, where=self.where)
        for qid, ranking in zip(queries["qid"], run.values(), strict=True):
            columns = {"qid": qid, "docno": list(ranking.ids), "score": ranking.scores.astype("float64")}
            if self.text:
                columns["text"] = [each.text for each in ranking.documents()] if ranking.ids else []
            frames.append(pd.DataFrame({**columns, "rank": range(len(ranking))}))
        names = ["qid", "docno", "score", *(["text"] if self.text else []), "rank"]
        results = pd.concat(frames) if frames else pd.DataFrame(columns=names)
        return queries.merge(results, on="qid")

    def __repr__(self) -> str:
        return f"TamisRetriever({self.stage})"


class TamisReranker(pt.Transformer):
    """Reranks a frame of results that has their texts; `text` and `title` name the columns.

    >>> texts = ["Soup of the day", "A tamis is a fine sieve."]
    >>> results = pd.DataFrame({"qid": "1", "query": "what is a sieve", "docno": ["a", "b"], "text": texts})
    >>> TamisReranker()(results)["docno"].tolist()
    ['b', 'a']
    """

    def __init__(
        self, pipeline: str | Stage = "mono", *, text: str = "text", title: str | None = None
    ) -> None:
        super().__init__()
        self.stage, self.text, self.title = reranker(pipeline), text, title

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The results of each query in their new order, with new scores and ranks (from 0)."""
        columns = ["query", self.text, *([] if self.title is None else [self.title])]
        pt.validate.result_frame(inp, extra_columns=columns)
        ranked = [self._ranked(results) for _, results in inp.groupby("qid", sort=False)]
        if ranked:
            return pd.concat(ranked, ignore_index=True)
        return inp.assign(score=inp["docno"].astype("float64"), rank=inp["docno"].astype("int64"))

    def _ranked(self, results: pd.DataFrame) -> pd.DataFrame:
        query = results["query"].iloc[0]
        ranked = self.stage.rank(query, results, text=self.text, id="docno", title=self.title)
        kept = results.iloc[[each.position for each in ranked]]
        return kept.assign(score=[each.score for each in ranked], rank=range(len(ranked)))

    def __repr__(self) -> str:
        return f"TamisReranker({self.stage})"
