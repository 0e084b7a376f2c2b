"""Tiny random models, complete as Hugging Face folders, so that tests need no network and no torch."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import tamis

DEMO_CORPUS = Path(tamis.__file__).parent / "demo_data" / "corpus.jsonl.gz"
VOCABULARY = 400

# how long an example takes is no property of ours: it depends on what else the machine has to do
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")

# a shell that starts us in the background has Ctrl-C ignored, and what we start would inherit that
if os.name != "nt" and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is kept between processes is kept for the tests alone."""
    os.environ["TAMIS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch on one thread, which adds up in one order: what is trained again is the same to the last bit."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


#: The command, which is killed when it is about to write a file for the second time.
_KILLED = """
import os, signal, sys
from tamis.cli import main

when, times, replace = sys.argv.pop(1), 0, os.replace

def lethal(source, target, **options):
    global times
    times += str(target) == when
    if times == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target, **options)

os.replace = lethal
sys.exit(main())
"""


@pytest.fixture(scope="session")
def killed_at() -> Callable[[Path, Sequence[str]], None]:
    """Runs the command in a process that is killed when it is about to write a file for the second time."""

    def run(when: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-c", _KILLED, str(when), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # one thread: sums in one order
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, timeout=600
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert when.exists()

    return run


@pytest.fixture(scope="session")
def killed_before() -> Callable[..., bool]:
    """Runs a function in a process that dies before this call of the file system; True if it ended sooner.
    Not at random: before the first call, the second, ..."""
    changing = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")

    def run(call: int, act: Callable[[], int | None], names: Sequence[str] = changing) -> bool:
        child = os.fork()
        if child == 0:
            left = call

            def lethal(function: Callable[..., object]) -> Callable[..., object]:
                def wrapped(*arguments: object, **options: object) -> object:
                    nonlocal left
                    left -= 1
                    if not left:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return function(*arguments, **options)

                return wrapped

            status = 1
            try:
                for name in names:
                    setattr(os, name, lethal(getattr(os, name)))
                status = act() or 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
        return status == 0

    return run


#: A script (the command, unless another is named), after which none of gloo's threads may be left.
_ONE_OF_TWO = """
import runpy, sys
from pathlib import Path

def name_of(task):
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""

sys.argv.pop(0)
try:
    names = runpy.run_path(sys.argv[0], run_name="__main__")  # which live as long as a script's
finally:
    threads = map(name_of, Path("/proc/self/task").glob("*"))
    left = [name for name in threads if "gloo" in name]
    assert not left, f"threads that can keep the process from ending: {left}"
"""
_COMMAND = "import sys; from tamis.cli import main; sys.exit(main())"


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs the command, or another script, in two processes that torch starts; what they print."""
    pytest.importorskip("torch")

    def run(*arguments: str, script: str = _COMMAND) -> str:
        folder = tmp_path_factory.mktemp("two_processes")
        (folder / "one_of_two.py").write_text(_ONE_OF_TWO)
        (folder / "script.py").write_text(script)
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        files = [str(folder / name) for name in ("one_of_two.py", "script.py")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # new interpreters, not forks of this one: the threads that torch has started here would be missing
        done = subprocess.run(
            [*launch, *files, *arguments], capture_output=True, text=True, env=environment, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Callable[..., Path]:
    """The function that writes one: see `write_tiny_checkpoint`."""
    return write_tiny_checkpoint


def write_tiny_checkpoint(
    folder: Path,
    family: str = "bert",
    labels: int = 1,
    segments: int | None = None,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    positions: int = 512,
    embedding: int = 16,
    seed: int = 0,
) -> Path:
    """Write config.json, model.safetensors and tokenizer.json; the weights are so large that different
    inputs get clearly different scores. `segments` is 2, or 1 for RoBERTa, unless told; `positions` is how
    long an input may be; `embedding` counts for ELECTRA and ALBERT only."""
    from tamis.models.config import parse_config
    from tamis.models.names import hugging_face_names, shapes
    from tamis.models.weights import write_tensors

    folder.mkdir(parents=True, exist_ok=True)
    if segments is None:
        segments = 1 if family == "roberta" else 2
    raw = _raw_config(family, labels, segments, layers, hidden, heads, positions, embedding)
    config = parse_config(raw, folder / "config.json")
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "tokenizer.json").write_text(_byte_pairs() if family == "roberta" else _word_pieces())
    generator = np.random.default_rng(seed)
    names = hugging_face_names(config)
    tensors = {}
    for name, shape in shapes(config).items():
        values = generator.normal(0.0, 0.2, shape).astype(np.float32)
        tensors[names[name]] = values + 1 if name.endswith("norm.weight") else values
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def _raw_config(
    family: str,
    labels: int,
    segments: int,
    layers: int,
    hidden: int,
    heads: int,
    positions: int,
    embedding: int,
) -> dict[str, object]:
    shared: dict[str, object] = {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": positions,
        "pad_token_id": 0,
        "id2label": {str(label): f"LABEL_{label}" for label in range(labels)},
    }
    if family == "distilbert":
        sizes = {"dim": hidden, "n_layers": layers, "n_heads": heads, "hidden_dim": 4 * hidden}
        return shared | sizes | {"activation": "gelu"}
    shared |= {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "type_vocab_size": segments,
        "hidden_act": "gelu_new" if family == "albert" else "gelu",
        "layer_norm_eps": 1e-12,
    }
    if family == "roberta":
        shared |= {"pad_token_id": 1, "max_position_embeddings": positions + 2}
    if family in ("electra", "albert"):
        shared["embedding_size"] = embedding
    return shared


def _texts() -> list[str]:
    with gzip.open(DEMO_CORPUS, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in islice(lines, 200)]


@cache
def _word_pieces() -> str:
    """Made by hand, because the library's trainer numbers its words differently each time: letters, alone and
    inside words, then whole words, the frequent first, then their ends."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words = Counter(re.findall(r"\w+", " ".join(_texts()).lower()))
    letters = sorted("abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'()-")
    frequent = sorted(words, key=lambda word: (-words[word], word))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters)]
    pieces += [piece for word in frequent for piece in (word, f"##{word[-3:]}")]
    vocabulary = {piece: number for number, piece in enumerate(list(dict.fromkeys(pieces))[:VOCABULARY])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer.to_str()


@cache
def _byte_pairs() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer.to_str()
