"""Recipes: what is in a file is what is trained, and what cannot be meant is refused, by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tamis.base.errors import InputError
from tamis.train import recipe as module
from tamis.train.distill_recipe import read_distill_recipe
from tamis.train.pretrain_recipe import read_pretrain_recipe
from tamis.train.recipe import (
    Data,
    Dev,
    Examples,
    Limits,
    Loss,
    Model,
    Optimiser,
    Recipe,
    Run,
    bundled,
    in_steps,
    read_recipe,
    read_tables,
)

LEAST = """
[model]
start = "encoder"
[[data]]
queries = "q.jsonl"
qrels = "qrels.txt"
corpus = ["corpus.jsonl"]
[optimiser]
steps = 10
"""
TABLES = {
    "model": Model,
    "optimiser": Optimiser,
    "run": Run,
    "examples": Examples,
    "loss": Loss,
    "limits": Limits,
}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str, name: str = "mine.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_recipe(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "\n" not in said
    return said.removeprefix(f"{path}: ")


def test_what_a_file_says_is_read_and_the_rest_has_its_default(written: Any) -> None:
    path = written(LEAST + "learning_rate = 1\nbetas = [0.8, 0.9]\n[run]\nseed = 7\n[loss]\nname = 'hinge'")
    recipe = read_recipe(path)
    assert recipe == Recipe(
        Model("encoder"),
        (Data(queries="q.jsonl", qrels="qrels.txt", corpus=("corpus.jsonl",)),),
        Optimiser(learning_rate=1.0, betas=(0.8, 0.9), steps=10),
        Run(seed=7),
        loss=Loss("hinge"),
    )
    assert isinstance(recipe.optimiser.learning_rate, float)
    assert recipe.dev is None


def test_the_papers_recipe(written: Any) -> None:
    data = '[[data]]\nqueries = "q"\nqrels = "r"\ncorpus = ["c"]\n'
    mono = read_recipe(written(f'base = "monobert"\n{data}'))
    plan = mono.optimiser
    assert (plan.learning_rate, plan.warm_up, plan.steps, plan.schedule) == (3e-6, 10_000, 100_000, "linear")
    assert (plan.betas, plan.weight_decay, plan.dropout) == ((0.9, 0.999), 0.01, 0.1)
    assert (mono.run.batch, mono.run.batch * 100_000) == (128, 12_800_000)  # the pairs that the papers count
    assert (mono.examples.kind, mono.loss.name, mono.limits) == ("balanced", "pointwise", Limits(64, 512))
    duo = read_recipe(written(f'base = "duobert"\n{data}'))
    assert duo.optimiser == plan and duo.run == mono.run
    assert duo.model.third_segment and duo.examples.in_pairs and duo.loss.name == "duo"
    assert duo.limits == Limits(62, 512)


def test_every_bundled_recipe_needs_only_a_model_and_data(written: Any) -> None:
    assert {"monobert", "duobert", "small"} <= set(bundled())
    for name in ("monobert", "duobert", "small"):
        text = LEAST.replace("[optimiser]\nsteps = 10\n", "")
        recipe = read_recipe(written(f'base = "{name}"\n{text}'))
        assert recipe.model.start == "encoder" and recipe.about


# -- what is refused


def test_an_unknown_field_is_named_with_the_known_ones(written: Any) -> None:
    said = refused(written(LEAST + "lerning_rate = 1e-5"))
    assert said.startswith("[optimiser] has no field 'lerning_rate': the known ones are learning_rate, ")
    assert refused(written(LEAST + "[optimizer]")).startswith(
        "the recipe has no field 'optimizer': the known"
    )
    assert "[data] has no field 'query'" in refused(written(LEAST.replace("queries", "query")))


@pytest.mark.parametrize(
    ("table", "field"),
    [(table, field) for table, kind in TABLES.items() for field in kind.model_fields],
)
def test_every_field_has_a_type_that_is_checked(table: str, field: str, written: Any) -> None:
    """No field of any table takes a date."""
    text = LEAST if f"{field} =" not in LEAST else LEAST.replace(f"{field} = ", "# ")
    head, found, tail = text.partition(f"[{table}]\n")
    assert found or table not in LEAST
    path = written(f"{head}[{table}]\n{field} = 2020-01-01\n{tail}")
    said = refused(path)
    assert said.startswith(f"{field} of [{table}] is datetime.date(2020, 1, 1): it must be ")


@pytest.mark.parametrize("field", list(Data.model_fields))
def test_every_field_of_data_has_a_type_that_is_checked(field: str, written: Any) -> None:
    head, optimiser, tail = LEAST.partition("[optimiser]")
    head = head.replace(f"{field} = ", "# ").replace("[[data]]", f"[[data]]\n{field} = 2020-01-01")
    text = head + optimiser + tail
    assert refused(written(text)).startswith(f"{field} of [data] is datetime.date(2020, 1, 1)")


@pytest.mark.parametrize("field", list(Dev.model_fields))
def test_every_field_of_dev_has_a_type_that_is_checked(field: str, written: Any) -> None:
    values = {"queries": '"q"', "qrels": '"r"', "corpus": '["c"]', "run": '"x"', field: "2020-01-01"}
    text = LEAST + "[dev]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
    assert refused(written(text)).startswith(f"{field} of [dev] is datetime.date(2020, 1, 1)")


@pytest.mark.parametrize(
    ("table", "line", "said"),
    [
        ("optimiser", "learning_rate = 0", "learning_rate of [optimiser] is 0: it must be a number above 0"),
        (
            "optimiser",
            "learning_rate = nan",
            "learning_rate of [optimiser] is nan: it must be a number above 0",
        ),
        ("optimiser", "learning_rate = inf", "learning_rate of [optimiser] is inf"),
        ("optimiser", "learning_rate = true", "learning_rate of [optimiser] is True"),
        ("optimiser", "dropout = 1", "dropout of [optimiser] is 1: it must be a number from 0 up to 1"),
        (
            "optimiser",
            "betas = [0.9]",
            "betas of [optimiser] is [0.9]: it must be a list of 2 numbers from 0",
        ),
        ("optimiser", "betas = [0.9, 1.0]", "betas of [optimiser] is [0.9, 1.0]"),
        ("optimiser", "weight_decay = -0.1", "it must be a number of at least 0"),
        ("optimiser", "accumulate = 0", "it must be a whole number of at least 1"),
        ("optimiser", "accumulate = 1.5", "accumulate of [optimiser] is 1.5"),
        ("optimiser", "schedule = 'cosine'", "it must be one of linear, constant"),
        ("optimiser", "warm_up = 11", "warm_up of [optimiser] is 11 of 10 steps"),
        ("optimiser", "epochs = 1", "[optimiser] has not one of steps and epochs: give one of them"),
        ("model", "labels = 3", "labels of [model] is 3: it must be one of 1, 2"),
        ("model", "layers = []", "layers of [model] is []"),
        ("model", "layers = [2, 0]", "layers of [model] is [2, 0]: name each once, in their order"),
        ("model", "layers = [-1]", "it must be a list of whole numbers of at least 0"),
        ("run", "seed = -1", "seed of [run] is -1"),
        ("run", "batch = 0", "batch of [run] is 0"),
        ("run", "precision = 'int8'", "it must be one of auto, fp32, bf16"),
        (
            "examples",
            "kind = 'triples'",
            "it must be one of balanced, grouped, duo, teacher_pairs, duo_lists",
        ),
        ("examples", "group = 1", "[examples] has groups of 1 with 1 relevant"),
        ("examples", "random = 1.5", "it must be a number from 0 to 1"),
        ("examples", "first = 5\nlast = 4", "[examples] draws from ranks 5 to 4"),
        ("examples", "curriculum = 'rank'", "[examples] has one of curriculum and curriculum_steps"),
        (
            "examples",
            "kind = 'duo'",
            "the loss softmax is not for duo examples: use one of duo, logit_mse_ce, or",
        ),
        (
            "loss",
            "name = 'mse'",
            "it must be one of pointwise, duo, hinge, softmax, listwise, margin_mse, logit_mse_ce, kl",
        ),
        ("loss", "temperature = 0", "temperature of [loss] is 0"),
        ("loss", "name = 'kl'", "learns from a teacher, and q.jsonl has none: give teacher"),
        ("loss", "name = 'pointwise'\nalpha = 0.5", "learns from a teacher, and q.jsonl has none"),
        ("limits", "total = 0", "total of [limits] is 0"),
    ],
)
def test_values_out_of_range(table: str, line: str, said: str, written: Any) -> None:
    head, _, tail = LEAST.partition(f"[{table}]\n")
    assert said in refused(written(f"{head}[{table}]\n{line}\n{tail}"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('start = "encoder"', "", "[model] lacks start: give it a text that is not empty"),
        ('start = "encoder"', 'start = ""', "start of [model] is ''"),
        ('[model]\nstart = "encoder"', "", "the recipe lacks model: give it a table"),
        ("[[data]]", "[data]", "it must be a list of tables, [[data]]"),
        ('corpus = ["corpus.jsonl"]', "", "[[data]] has queries without a corpus"),
        (
            'corpus = ["corpus.jsonl"]',
            'corpus = "corpus.jsonl"',
            "corpus of [data] is 'corpus.jsonl': it must be a list",
        ),
        ('qrels = "qrels.txt"', "", "[[data]] has neither qrels nor teacher"),
        (
            'qrels = "qrels.txt"',
            'teacher = "t"',
            "the loss softmax learns from labels, and q.jsonl has no qrels",
        ),
        ('queries = "q.jsonl"', "", "[[data]] has not one of set and queries"),
        ("steps = 10", "", "[optimiser] has not one of steps and epochs"),
    ],
)
def test_what_is_missing_or_in_the_wrong_place(old: str, new: str, said: str, written: Any) -> None:
    assert old in LEAST
    assert said in refused(written(LEAST.replace(old, new)))


def test_a_chain_has_steps_that_add_up(written: Any) -> None:
    def chain(*steps: int | None) -> Path:
        given = "".join(f"[[data]]\nset = 's'\n{f'steps = {n}' if n else ''}\n" for n in steps)
        return Path(written(f"[model]\nstart = 'm'\n{given}[optimiser]\nsteps = 10"))

    assert [each.steps for each in read_recipe(chain(4, 5, None)).data] == [4, 5, None]
    assert read_recipe(chain(4, 6)).data[1].steps == 6
    assert "not all but the last" in refused(chain(None, 4, None))
    assert "the steps of [[data]] are 11, those of [optimiser] 10" in refused(chain(11, None))
    assert "the steps of [[data]] are 9" in refused(chain(4, 5))
    used_up = "take all 10 steps: raise [optimiser] steps: the last [[data]] has none left"
    assert used_up in refused(chain(10, None)) and used_up in refused(chain(4, 6, None))


def test_not_toml_and_no_file(written: Any, tmp_path: Path) -> None:
    assert refused(written("steps = = 1")).startswith("not TOML (Invalid value (at line 1")
    assert refused(tmp_path / "none.toml") == "no such file: check the path"


def test_values_given_in_python_are_checked_too() -> None:
    with pytest.raises(InputError, match=r"learning_rate of \[optimiser\] is -1"):
        Optimiser(learning_rate=-1, steps=3)
    with pytest.raises(InputError, match=r"corpus of \[data\] is 'a'"):
        Data(queries="q", qrels="r", corpus="a")  # type: ignore[arg-type]


# -- recipes on recipes


def test_a_recipe_stands_on_its_base_field_by_field(written: Any) -> None:
    written(LEAST + "dropout = 0.2\n[run]\nseed = 3\nbatch = 9\n", "base.toml")
    recipe = read_recipe(written('base = "base.toml"\n[optimiser]\nepochs = 2\n[run]\nbatch = 5'))
    assert recipe.optimiser.dropout == 0.2 and recipe.run == Run(seed=3, batch=5)
    assert (recipe.optimiser.steps, recipe.optimiser.epochs) == (None, 2.0)


def test_a_base_that_is_not_there_or_is_itself(written: Any) -> None:
    said = refused(written('base = "monobart"'))
    assert "'monobart' is not a recipe: give a file beside it, or one of " in said
    assert "base is 3: it must be a file or one of" in refused(written("base = 3"))
    assert "the recipe is its own base" in refused(written('base = "mine.toml"'))


@pytest.mark.parametrize(
    ("read", "bundled", "command"),
    [
        (read_recipe, "tcp", "pretrain"),
        (read_recipe, "tinybert-ranker", "distill"),
        (read_distill_recipe, "small", "train"),
        (read_distill_recipe, "rop", "pretrain"),
        (read_pretrain_recipe, "maxp", "train"),
        (read_pretrain_recipe, "tinybert-lm-ranker", "distill"),
    ],
)
def test_a_recipe_of_another_command(read: Any, bundled: str, command: str, written: Any) -> None:
    for path in (bundled, written(f'base = "{bundled}"')):
        with pytest.raises(InputError, match=f"a recipe of tamis {command}: use tamis {command}$"):
            read(path)


@pytest.mark.parametrize(
    ("base", "kind"), [("small", None), ("cascade", "cascade"), ("listwise", "listwise"), ("maxp", "maxp")]
)
def test_the_table_of_an_architecture_makes_a_recipe_one_for_it(
    base: str, kind: str | None, written: Any
) -> None:
    data = LEAST.replace("[optimiser]\nsteps = 10\n", "")
    found = read_recipe(written(f'base = "{base}"\n{data}')).architecture
    assert (found and found.name) == kind


@pytest.mark.parametrize(
    ("text", "kind", "settings"),
    [
        ('base = "parade"\n[longdoc]\nkind = "parade-max"', "parade", {"kind": "max", "window": 225}),
        ('base = "parade-distilled"\n[longdoc]\nkind = "birch"', "birch", {"window": 150}),
        ('base = "maxp"\n[longdoc]\nkeep = 0.3', "maxp", {"keep": 0.3, "window": 200, "passages": 30}),
        ('base = "parade"\n[longdoc]\nkind = "knrm"', "interaction", {"kind": "knrm", "sequence": 256}),
        ('base = "parade-distilled"\narchitecture = "parade"', "parade", {"window": 150}),
        ('base = "parade-distilled"\narchitecture = "birch"', "birch", {"window": 225}),
        ('base = "parade-distilled"\n[pcgm]\ngains = 3', "pcgm", {"window": 225, "gains": 3}),
    ],
)
def test_a_recipe_says_which_architecture_by_its_table_by_its_name_or_as_it_once_did(
    text: str, kind: str, settings: dict[str, Any], written: Any
) -> None:
    """[longdoc] goes on from what its base says; another architecture than that of the base has its own
    defaults."""
    found = read_recipe(written(f'{text}\n[model]\nstart = "m"\n[[data]]\nset = "s"\n')).architecture
    assert found is not None and found.name == kind
    assert {name: getattr(found.settings, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("longdoc = 3", "longdoc is 3: use the table of an architecture"),
        ("longdoc = {window = 3}", "[longdoc] lacks kind: add it"),
        ('longdoc = {kind = "knmr"}', "'knmr' is not a kind of model: use one such as parade-max"),
        ('architecture = "knmr"', "architecture is 'knmr': use one of mono, duo, listwise, cascade, maxp, "),
        ('architecture = ["birch"]', "architecture is ['birch']: use one of mono, duo, "),
        ("birch = 3", "birch is 3: it must be a table, [birch]"),
        ('longdoc = {kind = "parade-max", keep = 1, bla = 3}', "[parade] has no field 'bla': the known ones"),
    ],
)
def test_what_is_not_an_architecture(text: str, said: str, written: Any) -> None:
    assert refused(written(f"{text}\n{LEAST}")).startswith(said)


@pytest.mark.parametrize("named", ["mono", "cascade", "parade", "interaction"])
def test_a_model_of_single_texts_is_not_trained_on_pairs(named: str, written: Any) -> None:
    start = '[model]\nstart = "m"\nthird_segment = true\n[[data]]\nset = "s"\n[optimiser]\nsteps = 1\n'
    examples = '[examples]\nkind = "duo"\n[loss]\nname = "duo"\n'
    assert refused(written(f'architecture = "{named}"\n{start}{examples}')) == (
        "duo examples have two texts an input: use grouped or balanced ones"
    )


def test_a_recipe_has_one_architecture(written: Any) -> None:
    both = "[cascade]\nfirst = 2\n[listwise]\nn = 8\n"
    assert refused(written(LEAST + both)) == (
        "the recipe has [cascade] and [listwise]: leave out one of them: a model has one architecture"
    )


def test_a_table_of_another_command_does_not_make_it_a_recipe_of_that(written: Any) -> None:
    text = '[model]\nstart = "m"\n[data]\ncorpus = ["c"]\n[optimiser]\nsteps = 1\n[dev]\nevery = 1\n'
    with pytest.raises(InputError, match="the recipe has no field 'dev'"):
        read_pretrain_recipe(written(text))


def test_epochs_become_steps() -> None:
    def steps(epochs: float, epoch: int, accumulate: int = 1) -> int | None:
        plan = Optimiser(epochs=epochs, accumulate=accumulate)
        return in_steps(Recipe(Model("m"), (Data(set="s"),), plan), epoch).optimiser.steps

    assert (steps(3, 10), steps(0.5, 10), steps(2, 10, accumulate=4), steps(0.01, 10)) == (30, 5, 5, 1)
    given = Recipe(Model("m"), (Data(set="s"),), Optimiser(steps=7))
    assert in_steps(given, 10) is given


def test_reading_a_recipe_takes_no_torch() -> None:
    code = f"import sys, {module.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0


def test_a_dev_run_is_up_to_the_recipe_and_not_to_its_base(written: Any) -> None:
    longdoc = '\n[model]\nstart = "mono"\n[[data]]\nset = "somewhere"\n'
    assert "dev" not in read_tables(written(f'base = "parade"{longdoc}'))
    asked = read_tables(written(f'base = "parade"{longdoc}[dev]\nqueries = "queries.jsonl"\n'))
    assert asked["dev"]["measure"] == "nDCG@20" and asked["dev"]["queries"] == "queries.jsonl"
    assert "measure" in read_tables(written(f'base = "parade"{longdoc}[dev]\nevery = 5\n'))["dev"]
