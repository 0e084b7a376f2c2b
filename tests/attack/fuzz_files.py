"""Reads mutations of small valid files: each must give a result or a TamisError.

    python tests/attack/fuzz_files.py COUNT FIRST KIND...

COUNT cases of each kind from number FIRST on are tried; a number and a kind are always the same case.

A case that raises anything else is printed with its content, and the exit status is 1. Time and memory are
limited by whoever starts it: see `test_fuzz_files.py`.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from tamis.base.errors import TamisError
from tamis.core.language import parse
from tamis.evaluate.folds import read_folds
from tamis.formats import (
    SkipReport,
    read_candidates,
    read_corpus,
    read_qrels,
    read_queries,
    read_run,
    read_run_lines,
    write_qrels,
    write_run,
)
from tamis.models.architecture import architecture
from tamis.models.bundled import BUNDLED
from tamis.models.checkpoint import load_checkpoint
from tamis.models.config import RECORD, parse_config
from tamis.models.legacy import recorded
from tamis.models.names import hugging_face_names, shapes
from tamis.models.settings import build
from tamis.models.tokenizer import Tokenizer
from tamis.models.weights import write_tensors
from tamis.rank.groupwise import GroupwiseModel
from tamis.rank.ltr import LinearModel
from tamis.train.distill_recipe import read_distill_recipe
from tamis.train.pretrain_recipe import read_pretrain_recipe
from tamis.train.recipe import read_recipe

JSONL = b"""{"_id": "d1", "title": "Tamis", "text": "A sieve of hair, caf\\u00e9.", "year": 1900}
{"id": 7, "contents": "A drum.", "metadata": {"tags": ["a", {"b": 1.5}], "none": null}}
"""
QUERIES = b"""{"_id": "q1", "text": "which sieve", "desc": "How fine?", "n": 1}
{"qid": 7, "query": null, "title": "drum"}
"""
CSV = b'id;title;text\nd1;Tamis;"A sieve;\n""fine"""\nd2;;A pot\n'
TSV = b"d1\tTamis\tA sieve of hair.\nd2\tPot\tFor soup.\n"
TREC = b"""<DOC>
<DOCNO> FT911-3 </DOCNO> <HEADLINE>Sieves &amp; cooks</HEADLINE>
<TEXT><P>Finer, &#233; then <!-- not --> finer.</P></TEXT>
</DOC>
<DOC><DOCNO>2</DOCNO><TITLE>Page</TITLE><SCRIPT>x</SCRIPT>Text < 3</DOC>
"""
TOPICS = b"""<top>
<num> Number: 336
<title> Black Bear Attacks
<desc> Description:
How frequent &lt;are&gt; they?
<narr> Narrative: All of them. Cattle are not relevant.
</top>
<top><num>2</num><title>two</title></top>
"""
RUN = b"q1 Q0 d3 1 12.5 bm25\nq1 Q0 d7 2 10.5 bm25\nq2 Q0 d1 1 -1e3 bm25\n"
RECIPE = b"""base = "monobert"
[model]
start = "mono"
narrow = {layers = 2, hidden = 32, heads = 4, feed_forward = 64}
[[data]]
queries = "queries.jsonl"
qrels = "qrels.txt"
corpus = ["corpus.jsonl"]
weight = 1.5
[optimiser]
learning_rate = 1e-5
betas = [0.9, 0.999]
[run]
seed = 7
"""
DISTILL = b"""[student]
layers = 2
[ranker]
teacher = "mono"
[[ranker.data]]
set = "a"
[ranker.optimiser]
steps = 10
"""
PRETRAIN = b"""[model]
start = "mono"
random = {layers = 2, hidden = 32, heads = 4, feed_forward = 64}
[data]
corpus = ["corpus.jsonl"]
[optimiser]
steps = 10
"""
EXPRESSION = (
    b'bm25(k1=0.9, b=0.4) % 1000 >> interpolate(mono(model="a folder"), alpha=.5) % 50 >> duo(aggregate=sum)'
)
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "id2label": {"0": "LABEL_0"},
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": number, "content": token, "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for number, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]"))
    ],
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
        ],
        "special_tokens": {
            "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
            "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
        },
    },
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "sie": 5, "##ve": 6},
    },
}
GROUPWISE = {
    "features": ["score"],
    "texts": 2,
    "normalise": "minmax",
    "loss": 0.5,
    "queries": 3,
    "seed": 0,
    "layers": [{"weights": [[1.0, 0.0], [0.5, 2.0]], "biases": [0.0, 0.5]}],
}
LTR = {
    "weights": {"score": 0.5, "ql": 0.25},
    "normalise": "minmax",
    "measure": "AP",
    "value": 0.5,
    "queries": 3,
    "seed": 0,
}
LISTWISE: dict[str, Any] = {"format": 2, "architecture": "listwise", "settings": {"n": 3, "k": 20}}
CASCADE: dict[str, Any] = {"format": 2, "architecture": "cascade", "settings": {"exits": [1], "alpha": 0.5}}
PLAN = {"format": 1, "kind": "maxp", "window": 150, "stride": 100, "keep": 0.5, "passages": 16}
FOLDS = [["q1", 2], ["q3"], ["q4"]]


# -- what is done with a file


def corpus(path: Path) -> None:
    list(read_corpus(path, skipped=SkipReport()))
    for document in read_corpus(path):
        (document.id + document.text + document.title).encode()
        json.dumps(document.metadata, ensure_ascii=False, allow_nan=False).encode()


def queries(path: Path) -> None:
    read_queries(path, skipped=SkipReport())
    for query in read_queries(path):
        (query.id + query.text + "".join(query.fields.values())).encode()


def qrels(path: Path) -> None:
    read_qrels(path, skipped=SkipReport())
    write_qrels(path.with_name("out"), read_qrels(path))


def run(path: Path) -> None:
    read_run(path, skipped=SkipReport())
    list(read_run_lines(path, skipped=SkipReport()))
    rows = ((qid, docids, scores) for qid, (docids, scores) in read_run(path).items())
    write_run(path.with_name("out"), rows, "fuzz")


def candidates(path: Path) -> None:
    read_candidates(path, skipped=SkipReport())
    read_candidates(path)


def expression(path: Path) -> None:
    text = path.read_bytes().decode(errors="replace")
    node = parse(text)
    assert parse(str(node)) == node


def checkpoint(path: Path) -> None:
    folder = path.parent
    found = load_checkpoint(folder, require_head=False)
    _ = dict(found.tensors), dict(found.head), repr(found.architecture)
    load_checkpoint(folder)


def tokenizer(path: Path) -> None:
    found = Tokenizer(path.parent)
    found.encode(["a sieve, [SEP] and \ue000\x00", ""])
    found.places("a sieve")
    _ = found.vocabulary, found.sentence_ends


class Kind(NamedTuple):
    name: str  # of the file
    seed: bytes
    read: Callable[[Path], object]
    record: dict[str, Any] | None = None  # of the architecture, in the config.json beside it


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def config(record: dict[str, Any] | None) -> bytes:
    return as_json(CONFIG | ({} if record is None else {RECORD: record}))


def tensors(record: dict[str, Any] | None = None) -> bytes:
    import numpy as np

    config = parse_config(CONFIG, "config.json")
    names = hugging_face_names(config)
    wanted = {names[ours]: shape for ours, shape in shapes(config).items()}
    if record is not None:
        kind = architecture(record["architecture"])
        wanted |= kind(build(kind.Settings, record["settings"], "")).tensors(config) or {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        write_tensors(path, {name: np.ones(shape) for name, shape in wanted.items()})
        return path.read_bytes()


KINDS = {
    "jsonl": Kind("corpus.jsonl", JSONL, corpus),
    "csv": Kind("corpus.csv", CSV, corpus),
    "tsv": Kind("corpus.tsv", TSV, corpus),
    "trec": Kind("corpus.trec", TREC, corpus),
    "text": Kind("note.txt", b"Onions, caf\xc3\xa9.\r\n", corpus),
    "gz": Kind("corpus.jsonl.gz", gzip.compress(JSONL, mtime=0), corpus),
    "zst": Kind("corpus.jsonl.zst", zstandard.ZstdCompressor().compress(JSONL), corpus),
    "queries": Kind("queries.jsonl", QUERIES, queries),
    "queries-tsv": Kind("queries.tsv", b"q1\tsieve\nq2\tpot\n", queries),
    "topics": Kind("topics.txt", TOPICS, queries),
    "qrels": Kind("qrels.txt", b"q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 -1\n", qrels),
    "qrels-beir": Kind("qrels.tsv", b"query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n", qrels),
    "run": Kind("run.txt", RUN, run),
    "run-msmarco": Kind("run.tsv", b"q1\td3\t1\nq1\td7\t2\n", run),
    "candidates": Kind("top.tsv", b"q1\td7\twhich\tA tamis.\nq1\td3\twhich\tA drum.\n", candidates),
    "folds": Kind("folds.json", as_json(FOLDS), read_folds),
    "folds-columns": Kind("folds.txt", b"q1 1\nq2 1\nq3 2\n", read_folds),
    "recipe": Kind("recipe.toml", RECIPE, read_recipe),
    "recipe-distill": Kind("recipe.toml", DISTILL, read_distill_recipe),
    "recipe-pretrain": Kind("recipe.toml", PRETRAIN, read_pretrain_recipe),
    "expression": Kind("pipeline.txt", EXPRESSION, expression),
    "groupwise": Kind("groupwise.json", as_json(GROUPWISE), GroupwiseModel.read),
    "ltr": Kind("ltr.json", as_json(LTR), lambda path: str(LinearModel.read(path))),
    "plan": Kind("tamis.json", as_json(PLAN), lambda path: recorded({}, 2, 4, [], path.parent)),
    "config": Kind("config.json", config(None), checkpoint),
    "config-listwise": Kind("config.json", config(LISTWISE), checkpoint, LISTWISE),
    "config-cascade": Kind("config.json", config(CASCADE), checkpoint, CASCADE),
    "weights": Kind("model.safetensors", tensors(), checkpoint),
    "weights-cascade": Kind("model.safetensors", tensors(CASCADE), checkpoint, CASCADE),
    "tokenizer": Kind("tokenizer.json", as_json(TOKENIZER), tokenizer),
}

# -- mutations

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**400,
    1.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
]
VALUES += ["", "x", "a\x00b", "\ud800", "x" * 5000, [], {}, [[]], {"": {}}, ["x"], list(range(50))]
PIECES = [
    b"",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b'"',
    b"'",
    b"\\",
]
PIECES += [
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b"<",
    b">",
    b"<DOC>",
    b"</DOC>",
    b"<top>",
    b"<!--",
    b"&#",
    b"%",
]
PIECES += [b"=", b",", b";", b":", b"#", b"1e400", b"-1", b"NaN", b"inf", b"9" * 5000, b"0x" + b"f" * 5000]
PIECES += [b"\\ud800", b"\\u0000", "\u2028\u00a0\u0130".encode(), b"[" * 3000, b"(" * 3000, b"a." * 3000]


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """One to four changes; of JSON, half of the time, changes of values."""
    content = seed
    if chance.random() < 0.5:
        try:
            value = json.loads(seed)
        except ValueError:
            pass
        else:
            for _ in range(chance.randint(1, 3)):
                value = replaced(value, chance)
            return json.dumps(value).encode()
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(content))
        stop = min(start + int(chance.expovariate(0.2)), len(content))
        how = chance.randrange(5)
        if how == 0:  # other bits
            content = (
                content[:start]
                + bytes(b ^ 1 << chance.randrange(8) for b in content[start:stop])
                + content[stop:]
            )
        elif how == 1:  # repeated
            content = content[:stop] + content[start:stop] * chance.choice([1, 2, 300]) + content[stop:]
        elif how == 2:  # cut short, or out
            content = content[:start] + (content[stop:] if chance.random() < 0.8 else b"")
        elif how == 3:  # something else there
            content = content[:start] + chance.choice(PIECES) + content[stop:]
        else:  # something between
            content = content[:start] + chance.choice(PIECES) + content[start:]
    return content


def replaced(value: Any, chance: random.Random) -> Any:
    """A value with one part of it replaced, dropped or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.15:
            return {name: each for name, each in value.items() if name != key}
        return value | {key: replaced(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        place = chance.randrange(len(value))
        if chance.random() < 0.15:
            return value[:place] + value[place:] * 2
        return [*value[:place], replaced(value[place], chance), *value[place + 1 :]]
    return chance.choice(VALUES)


def fuzz(name: str, count: int, first: int) -> int:
    """How many cases failed."""
    kind, failed = KINDS[name], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if kind.read is checkpoint:
            (folder / "config.json").write_bytes(config(kind.record))
            (folder / "model.safetensors").write_bytes(tensors(kind.record))
            (folder / "tokenizer.json").write_bytes((BUNDLED / "mono" / "tokenizer.json").read_bytes())
        path = folder / kind.name
        path.write_bytes(kind.seed)
        kind.read(path)  # as it is, it is fine
        for number in islice(range(first, sys.maxsize), count):
            content = mutated(kind.seed, random.Random(f"{name} {number}"))
            path.write_bytes(content)
            try:
                kind.read(path)
            except TamisError as error:
                if len(str(error)) < 5000 and "\n" not in str(error):
                    continue
                problem = f"an error of {len(str(error))} characters: {str(error)[:300]!r}"
            except BaseException as error:
                problem = f"{type(error).__name__}: {str(error)[:300]}"
            else:
                continue
            failed += 1
            sys.stdout.write(f"{name} {number}: {problem}\n{content[:2000]!r}\n")
    return failed


if __name__ == "__main__":
    cases, start, *kinds = sys.argv[1:]
    sys.exit(sum(fuzz(each, int(cases), int(start)) for each in kinds) > 0)
