"""From the scores of repro/long_documents.py to runs, and from runs to the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from long_documents_data import MEASURE, Places, Prepared, Units

import tamis
from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, Run, ScoreKind
from tamis.evaluate.compare import Comparison, compare
from tamis.evaluate.grid import BIRCH, INTERPOLATION, Setting, settings
from tamis.evaluate.measures import evaluate
from tamis.evaluate.significance import holm, t_test
from tamis.evaluate.tables import markdown
from tamis.rank.combine import min_max
from tamis.rank.evidence import apart, grown
from tamis.rank.passage import PASSAGES, AvgP, FirstP, KMaxP, MaxP, PassageStage, ScoredPassages, SumP
from tamis.rank.reranker import to_score
from tamis.text.segment import Passage

MEASURES = ("nDCG@10", "AP")
K = (2, 3, 5)  # of k-max, tuned
SHOWN = 10  # candidates whose evidence is looked at

#: Files of runs by the names that the table has for them, in its order.
ROWS = {
    "BM25": "bm25",
    "BM25+RM3": "rm3",
    "mono (512 tokens)": "mono",
    "FirstP": "firstp",
    "MaxP": "maxp",
    "SumP": "sump",
    "AvgP": "avgp",
    "k-max": "kmaxp",
    "MaxP (all passages)": "maxp-all",
    "MaxP + BM25": "maxp-interpolated",
    "Birch 1S": "birch-1s",
    "Birch 2S": "birch-2s",
    "Birch 3S": "birch-3s",
    "Birch 3S without BM25": "birch-3s-alone",
    "trained FirstP": "firstp-trained",
    "trained MaxP": "maxp-trained",
    "trained SumP": "sump-trained",
    "trained AvgP": "avgp-trained",
    "MaxP by the softmax": "maxp-softmax",
    "PARADE-Max": "parade-max",
    "PARADE-Transformer": "parade-transformer",
    "CEDR-KNRM": "cedr-knrm",
}
BASELINES = ("BM25", "MaxP", "trained MaxP")

Scores = Mapping[str, Array]  # by query: of each candidate in the first stage's order, one or several


# -- runs
# ------------------------------------------------------------------------------------------------------------


def write_runs(prepared: Prepared, out: Path, model: str) -> None:
    """A run for each row whose scores there are; what was tuned to what, and how much evidence was shown."""
    maker = _Maker(prepared, out, model)
    first = {qid: prepared.first[qid] for qid in prepared.sample}
    maker.write("BM25", first.values())
    second = Run.read(prepared.folder / "rm3.run.gz")
    maker.write("BM25+RM3", (second[qid] for qid in prepared.sample))
    maker.tuned["BM25+RM3"] = json.loads((prepared.folder / "rm3.json").read_text(encoding="utf-8"))
    if texts := maker.scores("mono-texts"):
        maker.write(
            "mono (512 tokens)", (first[qid].rescored(own, ScoreKind.LOGIT) for qid, own in texts.items())
        )
    if passages := maker.passages("mono-passages", None):
        _aggregated(maker, passages)
    if sentences := maker.sentences():
        _birch(maker, sentences)
    _trained(maker)
    maker.finish()


def _aggregated(maker: _Maker, passages: Mapping[str, Sequence[ScoredPassages]]) -> None:
    mono = tamis.Mono(maker.model)
    limited = {qid: [_first(each, PASSAGES) for each in own] for qid, own in passages.items()}
    first = {qid: [_first(each, 1) for each in own] for qid, own in passages.items()}
    for row, stage, found in (
        ("FirstP", FirstP(mono), first),
        ("MaxP", MaxP(mono), limited),
        ("SumP", SumP(mono), limited),
        ("AvgP", AvgP(mono), limited),
        ("MaxP (all passages)", MaxP(mono, passages=None), passages),
    ):
        maker.write(row, replay(stage, maker.candidates, found))
    by_k = [{r.query.id: r for r in replay(KMaxP(mono, k=k), maker.candidates, limited)} for k in K]
    maker.tune("k-max", {"k": K}, lambda setting: by_k[K.index(setting["k"])])
    best = {qid: np.array([each.margins.max() for each in own]) for qid, own in limited.items()}
    chances = {qid: to_score(own, ScoreKind.PROBABILITY)[:, None] for qid, own in best.items()}
    maker.tune("MaxP + BM25", INTERPOLATION, lambda setting: interpolated(maker.candidates, chances, setting))


def _birch(maker: _Maker, sentences: Scores) -> None:
    chances = {qid: to_score(own, ScoreKind.PROBABILITY) for qid, own in sentences.items()}
    for row, grid in (
        *((f"Birch {n}S", grid) for n, grid in enumerate(BIRCH, start=1)),
        ("Birch 3S without BM25", BIRCH[2] | {"alpha": [0.0]}),
    ):
        maker.tune(row, grid, lambda setting: interpolated(maker.candidates, chances, setting))


def _trained(maker: _Maker) -> None:
    mono = tamis.Mono(maker.model)
    if found := maker.passages("maxp", PASSAGES):
        first = {qid: [_first(each, 1) for each in own] for qid, own in found.items()}
        maker.write("trained FirstP", replay(FirstP(mono), maker.candidates, first))
        for stage in (MaxP(mono), SumP(mono), AvgP(mono)):
            row = f"trained {type(stage).__name__}"
            maker.write(row, replay(stage, maker.candidates, found))
    if found := maker.passages("maxp-softmax", PASSAGES):
        maker.write("MaxP by the softmax", replay(MaxP(mono), maker.candidates, found))
    for row in ("PARADE-Max", "PARADE-Transformer", "CEDR-KNRM"):
        if scores := maker.scores(ROWS[row]):
            candidates = maker.candidates
            maker.write(row, (candidates[qid].rescored(own, ScoreKind.LOGIT) for qid, own in scores.items()))


def replay(
    stage: PassageStage, candidates: Mapping[str, Ranking], scored: Mapping[str, Sequence[ScoredPassages]]
) -> list[Ranking]:
    """What a stage makes of margins that were computed before: all of it but its model."""
    stage._scored = lambda rankings: [list(scored[ranking.query.id]) for ranking in rankings]  # type: ignore[method-assign]
    return stage.apply([candidates[qid] for qid in scored], SHOWN)


def interpolated(candidates: Mapping[str, Ranking], chances: Scores, setting: Setting) -> dict[str, Ranking]:
    """Birch's sum for all candidates of all queries; `chances` are the best units', in falling order."""
    alpha = float(setting["alpha"])
    weights = np.array([1.0, *(float(setting[name]) for name in ("w2", "w3") if name in setting)])
    made = {}
    for qid, own in chances.items():
        ranking = candidates[qid]
        best = own[:, : len(weights)] @ weights
        made[qid] = ranking.rescored(alpha * min_max(ranking.scores) + (1 - alpha) * best, ScoreKind.COMBINED)
    return made


def _first(scored: ScoredPassages, most: int) -> ScoredPassages:
    return ScoredPassages(scored.passages[:most], scored.margins[:most])


class _Maker:
    """Reads scores, writes runs, and keeps what is to be told of them."""

    def __init__(self, prepared: Prepared, out: Path, model: str) -> None:
        self.prepared, self.out, self.model = prepared, out, model
        self.candidates = {qid: prepared.first[qid] for qid in prepared.sample}
        self.tuned: dict[str, list[Setting]] = {}
        self.evidence: dict[str, dict[str, Shown]] = {}
        (out / "runs").mkdir(parents=True, exist_ok=True)

    def write(self, row: str, rankings: object) -> None:
        run = Run(rankings)  # type: ignore[arg-type]
        run.write(self.out / "runs" / f"{ROWS[row]}.run", tag=ROWS[row])
        if self.prepared.evidence and any(ranking.evidence for ranking in run.values()):
            qrels, places = self.prepared.qrels, self.prepared.evidence
            self.evidence[row] = {
                f"first {k}": evidence_shown(run, qrels, places, self.sentences_of, k) for k in (1, SHOWN)
            }

    def sentences_of(self, document: str) -> list[Passage]:
        return self.prepared.sentences.passages(self.prepared.document_numbers[document])

    def finish(self) -> None:
        told = {name: {k: asdict(each) for k, each in found.items()} for name, found in self.evidence.items()}
        for name, value in (("tuned", self.tuned), ("evidence", told)):
            (self.out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

    def tune(
        self,
        row: str,
        grid: Mapping[str, Sequence[object]],
        run_of: Callable[[Setting], Mapping[str, Ranking]],
    ) -> None:
        """Each fold's queries by the setting that is best on the others: of equal ones, the first."""
        tries = settings(grid)  # type: ignore[arg-type]
        qrels, folds = self.prepared.sample_qrels, self.prepared.tuning
        values = [evaluate(qrels, run_of(each), [MEASURE]).per_query[MEASURE] for each in tries]
        run: dict[str, Ranking] = {}
        self.tuned[row] = []
        for fold in folds:
            means = [np.mean([own[qid] for qid in fold.train]) for own in values]
            best = tries[int(np.argmax(means))]
            self.tuned[row].append(best)
            ranked = run_of(best)
            run |= {qid: ranked[qid] for qid in fold.test}
        self.write(row, (run[qid] for qid in self.prepared.sample))

    def scores(self, name: str) -> dict[str, Array]:
        """Those of a file, or of one for each fold; none where one is missing."""
        folder, folds = self.out / "scores", range(1, 1 + len(self.prepared.folds))
        whole = folder / f"{name}.npz"
        paths = [whole] if whole.is_file() else [folder / f"{name}-{fold}.npz" for fold in folds]
        if not all(path.is_file() for path in paths):
            return {}
        found: dict[str, Array] = {}
        for path in paths:
            columns = np.load(path)
            found |= self._by_query(columns["queries"].tolist(), columns["margins"], name)
        if not found.keys() >= set(self.prepared.sample):
            raise InputError(f"{name} has scores of other queries", remedy="use one --queries for all steps")
        return {qid: found[qid] for qid in self.prepared.sample}

    def _by_query(self, queries: Sequence[str], margins: Array, name: str) -> dict[str, Array]:
        counts = [int(self._counts(qid, name).sum()) for qid in queries]
        return dict(zip(queries, np.split(margins, np.cumsum(counts)[:-1]), strict=True))

    def _counts(self, qid: str, name: str) -> Array:
        """How many margins each candidate of a query has."""
        documents = self.prepared.candidates(qid)
        if name in ("mono-passages", "maxp", "maxp-softmax"):
            return self.prepared.passages.counts(documents, None if name == "mono-passages" else PASSAGES)
        return np.ones(len(documents), np.int64)

    def sentences(self) -> dict[str, Array]:
        """The margins of each candidate's best sentences; minus infinity for those that it lacks."""
        return self.scores("mono-sentences")

    def passages(self, name: str, most: int | None) -> dict[str, list[ScoredPassages]]:
        """Each candidate's passages and their margins."""
        units: Units = self.prepared.passages
        found = {}
        for qid, margins in self.scores(name).items():
            documents = self.prepared.candidates(qid)
            parts = np.split(margins, np.cumsum(self._counts(qid, name))[:-1])
            places = (units.passages(document)[:most] for document in documents.tolist())
            found[qid] = [ScoredPassages(*each) for each in zip(places, parts, strict=True)]
        return found


# -- evidence
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """How many marked sentences lie inside a passage that is shown, and how many there are."""

    inside: int
    marked: int
    documents: int


def evidence_shown(
    run: Mapping[str, Ranking],
    qrels: object,
    places: Mapping[str, Places],
    sentences: Callable[[str], Sequence[Passage]],
    k: int,
) -> Shown:
    """Of the sentences marked in relevant documents among each query's first k. Passages are shown in whole
    `sentences`, which are all those of a document.

    >>> from tamis import Query, Span
    >>> ranking = Ranking(Query("q", ""), ("d",), np.ones(1), evidence={"d": [Span(0, 9, 0.7)]})
    >>> marked = {"q": {"d": [(2, 8), (4, 12), (20, 30)]}}
    >>> evidence_shown({"q": ranking}, {"q": {"d": 1}}, marked, lambda document: [Passage(0, 15)], 1)
    Shown(inside=2, marked=3, documents=1)
    """
    inside = marked = documents = 0
    for qid, ranking in run.items():
        for identity in ranking.ids[:k]:
            if qrels[qid].get(identity, 0) < 1:  # type: ignore[index]
                continue
            documents += 1
            whole = sentences(identity)
            read = ranking.evidence[identity]
            spans = apart(read, [grown(span, whole) for span in read])
            for start, stop in places.get(qid, {}).get(identity, ()):
                inside += any(span.start <= start and stop <= span.stop for span in spans)
                marked += 1
    return Shown(inside, marked, documents)


# -- the table
# ------------------------------------------------------------------------------------------------------------


def table(prepared: Prepared, out: Path, write: Path | None) -> None:
    """Print the table, or write it."""
    runs = {
        row: Run.read(path) for row, name in ROWS.items() if (path := out / "runs" / f"{name}.run").is_file()
    }
    baselines = [row for row in BASELINES if row in runs]
    found = compare(prepared.sample_qrels, runs, MEASURES, baselines=baselines)
    text = "\n".join([markdown(found), *_evidence_lines(out), *_tuned_lines(out), *directions(found)])
    if write is None:
        print(text)
    else:
        before = write.read_text(encoding="utf-8").partition(_MARK)[0] if write.is_file() else ""
        write.write_text(f"{before}{_MARK}\n\n{text}\n", encoding="utf-8")


_MARK = "<!-- what follows is written by repro/long_documents.py table -->"


def _evidence_lines(out: Path) -> list[str]:
    path = out / "evidence.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not found:
        return []
    lines = [
        "## Evidence",
        "",
        "| | relevant and ranked first | relevant among the first 10 |",
        "|---|---:|---:|",
    ]
    for row, each in found.items():
        cells = [
            f"{s['inside']} of {s['marked']} ({s['inside'] / max(s['marked'], 1):.1%})" for s in each.values()
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return [*lines, ""]


def _tuned_lines(out: Path) -> list[str]:
    found = json.loads((out / "tuned.json").read_text(encoding="utf-8"))
    lines = ["## What the folds were tuned to", ""]
    for row, choices in found.items():
        each = "; ".join(" ".join(f"{name}={value}" for name, value in choice.items()) for choice in choices)
        lines.append(f"- {row}: {each}")
    return [*lines, ""]


#: What the papers found: the run that is expected above the other.
EXPECTED = (
    ("Zhang et al. 2021", "MaxP", "FirstP"),
    ("Zhang et al. 2021", "MaxP", "SumP"),
    ("Zhang et al. 2021", "MaxP", "AvgP"),
    ("Zhang et al. 2021", "trained MaxP", "trained FirstP"),
    ("Zhang et al. 2021", "trained MaxP", "trained SumP"),
    ("Zhang et al. 2021", "trained MaxP", "trained AvgP"),
    ("Yilmaz et al. 2019", "Birch 3S", "Birch 3S without BM25"),
    ("Li et al. 2020", "PARADE-Max", "trained MaxP"),
    ("Li et al. 2020", "PARADE-Transformer", "trained MaxP"),
    ("Li et al. 2020", "CEDR-KNRM", "trained MaxP"),
)


def directions(found: Comparison) -> list[str]:
    """Whether each expected direction is there, and how likely its differences are by luck."""
    expected = [each for each in EXPECTED if {each[1], each[2]} <= set(found.evaluations)]
    p = {}
    for measure in MEASURES:
        values = {row: each.per_query[measure] for row, each in found.evaluations.items()}
        tested = [
            t_test(np.array([values[better][qid] - values[worse][qid] for qid in found.queries]))
            for _, better, worse in expected
        ]
        p[measure] = holm(tested)
    lines = [
        "## Directions",
        "",
        f"| found by | that | {' | '.join(MEASURES)} | |",
        "|---|---|---:|---:|---|",
    ]
    for number, (name, better, worse) in enumerate(expected):
        means = [found.evaluations[row].mean for row in (better, worse)]
        differences = {measure: means[0][measure] - means[1][measure] for measure in MEASURES}
        signs = {np.sign(each) for each in differences.values()}
        seen = {(1.0,): "yes", (-1.0,): "no"}.get(tuple(signs), "in part")
        cells = " | ".join(f"{each:+.4f} (p = {p[m][number]:.4f})" for m, each in differences.items())
        lines.append(f"| {name} | {better} above {worse} | {cells} | {seen} |")
    return [*lines, "", f"Paired t-tests; Holm's correction over the {len(expected)} of each measure."]
