"""The experiments on long documents: every step on a tiny collection, and the same numbers as the stages'."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import AvgP, Birch, FirstP, MaxP, Mono, Ranking, Run, Stage, SumP  # noqa: E402
from tamis.formats import read_corpus, read_queries  # noqa: E402
from tamis.rank.given_run import Documents, GivenRun  # noqa: E402

WORDS = ["river", "castle", "song", "war", "music", "bridge", "film", "singer", "city", "battle", "king"]
DOCUMENTS, QUERIES, SAMPLE, FOLDS = 8, 8, 4, 2


@pytest.fixture(scope="module")
def repro() -> Iterator[ModuleType]:
    """The script, which finds the files beside it as it does when it is run."""
    folder = str(Path(__file__).parents[3] / "repro")
    sys.path.insert(0, folder)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    import long_documents

    yield long_documents
    torch.set_num_threads(before)
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "m", labels=2, layers=1, hidden=16, heads=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 140 to 230 words, with sentences of ten, of which one answers a query."""
    rng = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("collection")
    facts, corpus = [], []
    for number in range(DOCUMENTS):
        count = int(rng.integers(14, 24))
        said = [" ".join(rng.choice(WORDS, 9)).capitalize() + f" {number}{n}." for n in range(count)]
        facts.append(said[count // 2])
        corpus.append({"_id": f"d{number}", "title": f"About {WORDS[number]}", "text": " ".join(said)})
    queries = [{"_id": f"q{n}", "text": f"{WORDS[n]} {WORDS[n + 1]} of {facts[n]}"} for n in range(QUERIES)]
    _write_lines(folder / "corpus.jsonl", corpus)
    _write_lines(folder / "queries.jsonl", queries)
    (folder / "qrels.txt").write_text("".join(f"q{n} 0 d{n} 1\n" for n in range(QUERIES)))
    lists = [
        {"query": query["text"], "evidence_list": [{"title": corpus[n]["title"], "fact": facts[n]}]}
        for n, query in enumerate(queries)
    ]
    (folder / "facts.json").write_text(json.dumps(lists))
    return folder


def _write_lines(path: Path, records: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def out(repro: ModuleType, data: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All steps but fine-tuning."""
    folder = tmp_path_factory.mktemp("out")
    common = ["--prepared", str(folder / "prepared"), "--model", str(model)]
    limits = ["--queries", str(SAMPLE), "--folds", str(FOLDS)]
    repro.main(["prepare", *common, *limits, "--data", str(data), "--evidence", str(data / "facts.json")])
    common += ["--out", str(folder)]
    repro.main(["zero-shot", *common, "--device", "cpu", "--precision", "fp32"])
    repro.main(["runs", *common])
    return folder


def read(out: Path, name: str) -> Run:
    return Run.read(out / "runs" / f"{name}.run")


def by_stage(out: Path, data: Path, stage: Stage) -> dict[str, Ranking]:
    """What a stage makes of the first stage's run."""
    documents = list(read_corpus(data / "corpus.jsonl"))
    texts = Documents(documents, only={document.id for document in documents})
    given = Run.read(out / "prepared" / "bm25.run.gz", queries=read_queries(data / "queries.jsonl"))
    sample = json.loads((out / "prepared" / "sample.json").read_text())
    pipeline = GivenRun(given, texts) >> stage
    return {qid: pipeline(given[qid].query) for qid in sample}


def assert_same(run: Run, ranked: dict[str, Ranking]) -> None:
    assert list(run) == list(ranked)
    for qid, ranking in ranked.items():
        assert list(run[qid].ids) == list(ranking.ids)
        np.testing.assert_allclose(run[qid].scores, ranking.scores, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "stage"), [("firstp", FirstP), ("maxp", MaxP), ("sump", SumP), ("avgp", AvgP)]
)
def test_what_is_derived_is_what_the_stages_compute(
    out: Path, data: Path, model: Path, name: str, stage: type[MaxP]
) -> None:
    mono = Mono(str(model), precision="fp32", device="cpu")
    assert_same(read(out, name), by_stage(out, data, stage(mono)))


def test_truncated_documents_are_scored_as_by_mono(out: Path, data: Path, model: Path) -> None:
    mono = Mono(str(model), precision="fp32", device="cpu", score="logit")
    assert_same(read(out, "mono"), by_stage(out, data, mono))


def test_birch_is_the_stage_with_the_setting_of_the_fold(out: Path, data: Path, model: Path) -> None:
    mono = Mono(str(model), precision="fp32", device="cpu")
    chosen = json.loads((out / "tuned.json").read_text())["Birch 2S"]
    folds = json.loads((out / "prepared" / "folds.json").read_text())
    run = read(out, "birch-2s")
    for setting, fold in zip(chosen, folds, strict=True):
        ranked = by_stage(out, data, Birch(mono, n=2, **setting))
        for qid in set(fold) & set(run):
            assert list(run[qid].ids) == list(ranked[qid].ids)
            np.testing.assert_allclose(run[qid].scores, ranked[qid].scores, rtol=1e-6)


def test_evidence_is_counted(out: Path) -> None:
    found = json.loads((out / "evidence.json").read_text())
    all_of_them = found["MaxP (all passages)"]["first 10"]
    # one sentence a query, and the best windows of 150 words are most of a document
    assert all_of_them["marked"] == all_of_them["documents"] == SAMPLE
    assert 0 < found["FirstP"]["first 10"]["inside"] <= all_of_them["inside"] <= SAMPLE


def test_fine_tuning_skips_what_is_done_and_the_table_has_all_rows(
    repro: ModuleType, out: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--prepared", str(out / "prepared"), "--model", str(model), "--out", str(out)]
    for _ in range(2):
        capsys.readouterr()
        repro.main(["fine-tune", *common, "--device", "cpu", "--steps", "1"])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5 * FOLDS and all(line.endswith("there already") for line in said)
    repro.main(["runs", *common])
    table = tmp_path / "table.md"
    table.write_text("# Long documents\n")
    repro.main(["table", *common, "--write", str(table)])
    text = table.read_text()
    for row in ("BM25+RM3", "Birch 3S", "trained MaxP", "CEDR-KNRM", "PARADE-Transformer", "Li et al. 2020"):
        assert f"| {row} |" in text or f"| {row}<" in text
    assert text.startswith("# Long documents\n")


def test_scores_of_fewer_queries_make_no_run(
    repro: ModuleType, out: Path, model: Path, tmp_path: Path
) -> None:
    common = ["--prepared", str(out / "prepared"), "--model", str(model), "--out", str(tmp_path)]
    repro.main(["zero-shot", *common, "--device", "cpu", "--precision", "fp32", "--queries", "2"])
    with pytest.raises(repro.tamis.TamisError, match="use one --queries"):
        repro.main(["runs", *common])


def test_no_time_is_no_part(repro: ModuleType, out: Path, model: Path, tmp_path: Path) -> None:
    common = ["--prepared", str(out / "prepared"), "--model", str(model), "--out", str(tmp_path)]
    repro.main(["zero-shot", *common, "--device", "cpu", "--precision", "fp32", "--minutes", "-1"])
    assert not list((tmp_path / "scores").iterdir())


def test_another_tokenizer_is_refused(
    repro: ModuleType, out: Path, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    other = tiny_checkpoint(tmp_path / "other", family="roberta")
    common = ["--prepared", str(out / "prepared"), "--model", str(other), "--out", str(tmp_path)]
    with pytest.raises(repro.tamis.TamisError, match="another tokenizer"):
        repro.main(["zero-shot", *common, "--device", "cpu"])
