"""Write tests/assets/anserini_demo: what Lucene and Anserini find in the demo collection.

    ANSERINI_JAR=anserini.jar python bench/lucene_oracle/make_demo_runs.py --out tests/assets/anserini_demo

Anserini indexes the collection as it does by default. The runs come from Lucene's IndexSearcher, with
Anserini's queries and its sort order (score, then id): Anserini's own run files hold rounded scores. The
expanded queries of RM3 are Anserini's, and so is the order in which it finds documents with them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oracle import java_string, jpype, start

DEMO = Path(__file__).parents[2] / "src" / "tamis" / "demo_data"
SIMILARITIES = "org.apache.lucene.search.similarities"
# how many queries, and how many documents of each; the spot checks are shorter to keep the asset small
WHOLE = (60, 100)
SPOT = (40, 30)
RUNS: dict[str, tuple[str, Sequence[float], tuple[int, int]]] = {
    "bm25": ("BM25Similarity", (0.9, 0.4), WHOLE),
    "bm25-1.2-0.75": ("BM25Similarity", (1.2, 0.75), WHOLE),
    "bm25-k1-0": ("BM25Similarity", (0.0, 0.4), SPOT),
    "bm25-b-0": ("BM25Similarity", (0.9, 0.0), SPOT),
    "bm25-b-1": ("BM25Similarity", (0.9, 1.0), SPOT),
    "ql": ("LMDirichletSimilarity", (1000.0,), WHOLE),
    "ql-jelinek-mercer": ("LMJelinekMercerSimilarity", (0.1,), SPOT),
    "tfidf": ("ClassicSimilarity", (), SPOT),
}
FEEDBACK = (10, 10, 0.5)  # terms, documents, weight of the query


class Collection:
    """The demo collection, indexed by Anserini and searched by Lucene."""

    def __init__(self, folder: Path) -> None:
        start()
        (folder / "collection").mkdir()
        with (
            gzip.open(DEMO / "corpus.jsonl.gz", "rt", encoding="utf-8") as corpus,
            (folder / "collection" / "corpus.jsonl").open("w", encoding="utf-8") as file,
        ):
            for record in map(json.loads, corpus):
                contents = f"{record['title']}\n{record['text']}"
                file.write(json.dumps({"id": record["_id"], "contents": contents}) + "\n")
        index = str(folder / "index")
        options = "-collection JsonCollection -generator DefaultLuceneDocumentGenerator -threads 1"
        options += f" -optimize -storeDocvectors -input {folder / 'collection'} -index {index}"
        jpype.JClass("io.anserini.index.IndexCollection").main(options.split())
        self.anserini = jpype.JClass("io.anserini.search.SimpleSearcher")(index)
        lucene = "org.apache.lucene"
        directory = jpype.JClass(f"{lucene}.store.MMapDirectory")(
            jpype.JClass("java.nio.file.Paths").get(index)
        )
        reader = jpype.JClass(f"{lucene}.index.DirectoryReader").open(directory)
        self._searcher = jpype.JClass(f"{lucene}.search.IndexSearcher")(reader)
        self._stored = self._searcher.storedFields()
        self._analyzer = jpype.JClass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        self._bag_of_words = jpype.JClass("io.anserini.search.query.BagOfWordsQueryGenerator")()
        field = jpype.JClass(f"{lucene}.search.SortField")
        by_id = field("id", field.Type.STRING_VAL)
        self._best_first = jpype.JClass(f"{lucene}.search.Sort")(field.FIELD_SCORE, by_id)

    def use(self, similarity: str, parameters: Sequence[float]) -> None:
        """Score with this similarity from now on."""
        chosen = jpype.JClass(f"{SIMILARITIES}.{similarity}")(*map(jpype.JFloat, parameters))
        self._searcher.setSimilarity(chosen)

    def query(self, text: str) -> Any:
        return self._bag_of_words.buildQuery("contents", self._analyzer, java_string(text))

    def weighted_query(self, weights: Mapping[str, float]) -> Any:
        search = "org.apache.lucene.search"
        builder = jpype.JClass(f"{search}.BooleanQuery").Builder()
        should = jpype.JClass(f"{search}.BooleanClause").Occur.SHOULD
        for term, weight in weights.items():
            match = jpype.JClass(f"{search}.TermQuery")(
                jpype.JClass("org.apache.lucene.index.Term")("contents", java_string(term))
            )
            builder.add(jpype.JClass(f"{search}.BoostQuery")(match, jpype.JFloat(weight)), should)
        return builder.build()

    def search(self, query: Any, k: int) -> tuple[list[str], list[float]]:
        """Ids and scores, these as the shortest decimals that name the float32."""
        found = self._searcher.search(query, jpype.JInt(k), self._best_first, True).scoreDocs
        decimal = jpype.JClass("java.lang.Float").toString
        ids = [str(self._stored.document(hit.doc).get("id")) for hit in found]
        return ids, [float(str(decimal(hit.score))) for hit in found]

    def expanded(self, text: str) -> dict[str, float]:
        """Anserini's RM3 query."""
        terms = self.anserini.get_feedback_terms(java_string(text))
        decimal = jpype.JClass("java.lang.Float").toString
        weights = {str(e.getKey()): float(str(decimal(e.getValue()))) for e in terms.entrySet()}
        return dict(sorted(weights.items()))


def write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(f"{json.dumps(record, separators=(',', ':'))}\n" for record in records)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder that is there")
    out = parser.parse_args().out
    with (DEMO / "queries.jsonl").open(encoding="utf-8") as lines:
        queries = {record["_id"]: record["text"] for record in map(json.loads, lines)}

    with tempfile.TemporaryDirectory() as folder:
        collection = Collection(Path(folder))
        for name, (similarity, parameters, (n_queries, k)) in RUNS.items():
            collection.use(similarity, parameters)
            records = []
            for qid, text in list(queries.items())[:n_queries]:
                ids, scores = collection.search(collection.query(text), k)
                records.append({"query": qid, "ids": ids, "scores": scores})
            write(out / f"{name}.jsonl.xz", records)

        collection.use("BM25Similarity", (0.9, 0.4))
        terms, documents, weight = FEEDBACK
        collection.anserini.set_rm3(jpype.JInt(terms), jpype.JInt(documents), jpype.JFloat(weight))
        n_queries, k = WHOLE
        records = []
        for qid, text in list(queries.items())[:n_queries]:
            weights = collection.expanded(text)
            ids, scores = collection.search(collection.weighted_query(weights), k)
            if ids != [
                str(hit.docid) for hit in collection.anserini.search(java_string(text), jpype.JInt(k))
            ]:
                raise SystemExit(f"{qid}: Lucene with the expanded query and Anserini differ")
            records.append({"query": qid, "ids": ids, "scores": scores, "weights": weights})
        write(out / "bm25-rm3.jsonl.xz", records)


if __name__ == "__main__":
    main()
