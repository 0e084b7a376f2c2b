"""What people type in their first hour: names that are nearly right, and what the commands answer."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import tamis as package
from tamis import Index
from tamis.cli import main
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.train.bases import bundled_for

REPOSITORY = Path(__file__).parents[2]
DEMO = Path(package.__file__).parent / "demo_data"
Tamis = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's first documents, the queries that they answer, and runs of which none has the last query."""
    folder = tmp_path_factory.mktemp("newcomer")
    documents = list(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 500))
    known = {document.id for document in documents}
    index = Index.build(documents, folder / "idx")
    grades = {
        qid: {doc_id: grade for doc_id, grade in judged.items() if doc_id in known}
        for qid, judged in read_qrels(DEMO / "qrels.txt").items()
    }
    answered = [qid for qid, judged in grades.items() if any(judged.values())][:10]
    lines = [f"{qid} 0 {doc_id} {grade}\n" for qid in answered for doc_id, grade in grades[qid].items()]
    (folder / "qrels.txt").write_text("".join(lines))
    queries = [query for query in read_queries(DEMO / "queries.jsonl") if query.id in answered]
    (folder / "queries.tsv").write_text("".join(f"{query.id}\t{query.text}\n" for query in queries))
    for k in (5, 10, 20):
        (index.bm25() % k).run(queries[:-1]).write(folder / f"bm25-{k}.run")
    return folder


@pytest.fixture
def tamis(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tamis:
    monkeypatch.chdir(made)
    monkeypatch.setenv("COLUMNS", "100")
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_misspelt_stage(tamis: Tamis) -> None:
    status, _, err = tamis("search", "idx", "film", "-p", "bm26")
    assert status == 2 and err.count("\n") == 1
    assert err.startswith("error: 'bm26' is not a stage: did you mean bm25? Use bm25, ql, tfidf, ")


def test_a_misspelt_bundled_model_is_not_looked_for_on_the_hub(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    assert tamis("search", "idx", "film", "-p", "bm25 % 5 >> mono(model=mono-tinny)") == (
        2,
        "",
        "error: no model is called 'mono-tinny': did you mean mono-tiny? bundled are duo, mono, mono-nano, "
        "mono-tiny; others are a FOLDER, or OWNER/NAME on the hub\n",
    )


def test_a_name_unlike_a_bundled_model_says_which_are_bundled(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import errors

    def missing(*_: object, **__: object) -> None:
        raise errors.LocalEntryNotFoundError("not there")

    monkeypatch.setattr("huggingface_hub.snapshot_download", missing)
    status, _, err = tamis("search", "idx", "film", "-p", "bm25 % 5 >> mono(model=electra-small)")
    assert status == 2 and err.endswith("; bundled are duo, mono, mono-nano, mono-tiny\n")
    status, _, err = tamis("search", "idx", "film", "-p", 'bm25 % 5 >> mono(model="models/mine")')
    assert status == 2 and "bundled" not in err


def test_a_device_that_needs_torch_says_what_to_install(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr("tamis.infer.scorer.find_spec", lambda name: None if name == "torch" else there(name))
    status, _, err = tamis("search", "idx", "film", "-p", "bm25 % 5 >> mono", "--device", "cuda")
    assert status == 2 and err.count("\n") == 1
    assert re.fullmatch(
        r"error: device cuda with precision auto needs torch, which is not installed: "
        r"pip install 'torch<[\d.]+,>=[\d.]+' \(about 5 GB; .*\), or use device=cpu with int8 or fp32\n",
        err,
    )


def test_no_hint_names_an_extra_that_pip_may_not_find() -> None:
    """Before tamis is on an index, `pip install 'tamis[torch]'` finds nothing, or the package of another."""
    for path in (DEMO.parent).rglob("*.py"):
        assert not re.search(r"pip install '?tamis\b", path.read_text(encoding="utf-8")), path


def test_no_page_names_an_extra_that_pip_may_not_find() -> None:
    """The quick start says once what to write where an index has tamis."""
    for path in [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]:
        once = int(path.name == "quick-start.md")
        assert path.read_text(encoding="utf-8").count("tamis[") == once, path


def test_a_misspelt_recipe(tamis: Tamis) -> None:
    status, _, err = tamis("train", "monobrt", "--out", "model")
    assert status == 2 and err.count("\n") == 1
    assert err.startswith("error: no recipe is called 'monobrt': did you mean monobert? Use cascade, ")


# -- trec_eval's names
# ------------------------------------------------------------------------------------------------------------

NAMES = {
    "ndcg_cut_10": "nDCG@10",
    "map": "AP",
    "recip_rank": "RR",
    "P_10": "P@10",
    "recall_1000": "R@1000",
    "success_1": "Success@1",
    "P.5": "P@5",
    "map_cut_100": "AP@100",
    "bpref": "Bpref",
    "Rprec": "Rprec",
    "ndcg": "nDCG",
}


def test_eval_understands_the_names_of_trec_eval(tamis: Tamis) -> None:
    means = []
    for names in (NAMES, NAMES.values()):
        asked = [word for name in names for word in ("-m", name)]
        status, out, _ = tamis("eval", "qrels.txt", "bm25-10.run", "--only", "--json", *asked)
        assert status == 0
        means.append(json.loads(out)[0]["mean"])
    assert means[0] == means[1] and list(means[0]) == list(NAMES.values())


def test_several_measures_of_trec_eval_are_no_measure(tamis: Tamis) -> None:
    status, _, err = tamis("eval", "qrels.txt", "bm25-10.run", "-m", "ndcg_cut")
    assert status == 2 and "'ndcg_cut' is not a measure: use a name such as nDCG@10, " in err
    assert err.endswith("or trec_eval's ndcg_cut_10, map, recip_rank, P_10\n")


def test_a_measure_in_another_case_is_suggested(tamis: Tamis) -> None:
    status, _, err = tamis("eval", "qrels.txt", "bm25-10.run", "-m", "ndcg@10")
    assert status == 2
    assert err.startswith("error: 'ndcg@10' is not a measure: did you mean nDCG@10? Use a name such as ")


def test_compare_tune_and_tradeoff_understand_them(tamis: Tamis) -> None:
    status, out, _ = tamis("compare", "qrels.txt", "bm25-5.run", "bm25-20.run", "-m", "ndcg_cut_10")
    assert status == 0 and "nDCG@10" in out
    files = ("idx", "queries.tsv", "qrels.txt")
    tuned = (
        "-p",
        "bm25(b={b})",
        "--grid",
        "b=0.2,0.6",
        "--folds",
        "2",
        "-m",
        "recip_rank",
        "-o",
        "tuned.run",
    )
    status, out, _ = tamis("tune", *files, *tuned, "--json")
    assert status == 0 and json.loads(out)["cross_validation"]["measure"] == "RR"
    swept = ("-p", "bm25(b={b})", "--grid", "b=0.2,0.6", "--timed", "0", "-m", "P_10", "--json")
    status, out, _ = tamis("tradeoff", *files, *swept)
    assert status == 0 and json.loads(out)["measure"] == "P@10"


def test_the_dev_run_of_a_recipe_understands_them(made: Path) -> None:
    from tamis.train.dev import open_dev
    from tamis.train.recipe import Dev

    queries, qrels, run = (str(made / name) for name in ("queries.tsv", "qrels.txt", "bm25-20.run"))
    corpus = (str(DEMO / "corpus.jsonl.gz"),)
    found = [
        open_dev(Dev(queries=queries, qrels=qrels, run=run, corpus=corpus, measure=measure)).first()
        for measure in ("ndcg_cut_10", "nDCG@10")
    ]
    assert found[0] == found[1] > 0


# -- what is said once
# ------------------------------------------------------------------------------------------------------------


def test_eval_of_several_runs_gives_a_warning_once(tamis: Tamis) -> None:
    runs = [f"bm25-{k}.run" for k in (5, 10, 20)]
    _, _, err = tamis("eval", "qrels.txt", *runs)
    missing = [line for line in err.splitlines() if "judged queries missing from the run" in line]
    assert len(missing) == 1
    assert missing[0].startswith("warning: bm25-5.run, bm25-10.run, bm25-20.run: judged queries missing")


def test_tradeoff_says_that_it_lists_the_frontier(tamis: Tamis) -> None:
    files = ("idx", "queries.tsv", "qrels.txt")
    sweep = ("-p", "bm25(b={b}) % 20", "--grid", "b=0.1,0.4,0.9")
    _, out, _ = tamis("tradeoff", *files, *sweep, "--timed", "0")  # whatever the clock says
    assert (
        "The table has the frontier, 1 of 3 settings: each of the others takes at least the inferences of "
        "one of these, and has no higher nDCG@10."
    ) in " ".join(out.split())
    _, out, _ = tamis("tradeoff", *files, "-p", "bm25 % {k} >> mono(model=mono-nano)", "--grid", "k=1,8")
    assert "The table has all settings: a setting that costs more is worth more." in out


def test_tradeoff_says_what_few_candidates_can_reach(tamis: Tamis) -> None:
    files = ("idx", "queries.tsv", "qrels.txt")
    sweep = ("-p", "bm25 % {k}", "--grid", "k=1,3,20", "--timed", "0")
    _, out, _ = tamis("tradeoff", *files, *sweep)
    said = re.search(
        r"Fewer than 10 documents limit nDCG@10, even in the best order: "
        r"to ([.\d]+) with 1, ([.\d]+) with 3\.",
        " ".join(out.split()),
    )
    assert said
    _, out, _ = tamis("tradeoff", *files, *sweep, "--json")
    one, three, twenty = json.loads(out)["points"]
    assert twenty["ceiling"] is None and one["ceiling"]["documents"] == 1
    assert f"{one['ceiling']['value']:.4f}" == said[1] and f"{three['ceiling']['value']:.4f}" == said[2]
    assert one["value"] <= one["ceiling"]["value"] < three["ceiling"]["value"] < 1
    _, out, _ = tamis("tradeoff", *files, *sweep, "-m", "AP")
    assert "Fewer than" not in out


# -- training
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "distill", "pretrain"])
def test_help_lists_the_bundled_recipes(tamis: Tamis, command: str) -> None:
    status, out, _ = tamis(command, "--help")
    assert status == 0
    listed = out.partition("bundled recipes")[2]
    told = dict(re.findall(r"^  (\S+) +(\S.*)$", listed, re.MULTILINE))
    assert set(told) == set(bundled_for(command)) and all(told.values())
    every = {name for each in ("train", "distill", "pretrain") for name in bundled_for(each)}
    assert every == {path.stem for path in (DEMO.parent / "train" / "recipes").glob("*.toml")}
    assert "torchrun" in out or command != "train"


def test_killed_before_the_first_checkpoint_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from tamis.base.errors import InputError
    from tamis.cli.training import resumable
    from tamis.train.state import require_new

    out = tmp_path / "out"
    (out / "best").mkdir(parents=True)  # of the dev run before the first step
    (out / "log.jsonl").write_text('{"step": 0, "dev": 0.5}\n')
    said = f"{out} contains a training run that stopped before its first checkpoint"
    with pytest.raises(InputError) as refused:
        require_new(out, resume=False)
    assert str(refused.value) == f"{said}: add --resume to start it again, or give another folder"
    with resumable(out, resume=True):
        require_new(out, resume=True)
    assert capsys.readouterr().err == f"{said}: it is started again\n"
