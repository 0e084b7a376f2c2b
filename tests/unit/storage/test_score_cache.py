"""The score cache: what is another key, what comes back, and what several processes do to it."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.base.arrays import Array
from tamis.base.errors import CorruptError, InputError, LockedError, StorageError, TamisError
from tamis.storage.score_cache import ScoreCache, cached, pair_key, pair_keys, prefix

MONO = prefix("a1b2", "mono 64 512", "int8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scores.db"


def made(number: int, salt: object = "") -> list[bytes]:
    return pair_keys(MONO, f"query {salt}", [f"text {n}" for n in range(number)])


def known(keys: Sequence[bytes]) -> Array:
    """Scores that follow from the keys, so that a wrong one is seen to be wrong."""
    return np.array([int.from_bytes(key[4:7], "little") / 7 for key in keys], dtype=np.float32)


# -- keys
# ------------------------------------------------------------------------------------------------------------


def test_a_changed_document_model_template_or_precision_is_not_there(path: Path) -> None:
    cache = ScoreCache(path)
    cache.put([pair_key(MONO, "sieve", "a fine sieve")], np.array([2.5]))
    assert cache.get([pair_key(MONO, "sieve", "a fine sieve")]).tolist() == [2.5]
    others = {
        "document": pair_key(MONO, "sieve", "a fine sieve."),
        "query": pair_key(MONO, "sieves", "a fine sieve"),
        "model": pair_key(prefix("a1b3", "mono 64 512", "int8"), "sieve", "a fine sieve"),
        "template": pair_key(prefix("a1b2", "mono 64 256", "int8"), "sieve", "a fine sieve"),
        "precision": pair_key(prefix("a1b2", "mono 64 512", "fp32"), "sieve", "a fine sieve"),
        "a pair": pair_key(MONO, "sieve", "a fine sieve", "a fine sieve"),
        "bytes": pair_key(MONO, "sieve", b"a fine sieve"),
    }
    assert np.isnan(cache.get(list(others.values()))).all()


pieces = st.text(st.sampled_from("ab\0"), max_size=3)
inputs = st.tuples(pieces, pieces, pieces, pieces, st.lists(pieces | pieces.map(str.encode), max_size=3))


@settings(deadline=None)
@given(inputs, inputs)
def test_two_inputs_have_two_keys(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    """However the same letters are dealt out among model, template, precision, query and texts."""
    first, second = (pair_key(prefix(*given[:3]), given[3], *given[4]) for given in (one, other))
    assert (first == second) == (one == other)
    assert len(first) == 16


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=5), st.data())
def test_many_keys_at_once_are_the_same_keys(texts: list[str], data: st.DataObject) -> None:
    assert pair_keys(MONO, "q", texts) == [pair_key(MONO, "q", text) for text in texts]
    numbers = st.integers(0, len(texts) - 1)
    which = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6))
    pairs = [pair_key(MONO, "q", texts[i], texts[j]) for i, j in which]
    assert pair_keys(MONO, "q", texts, np.array(which)) == pairs


def test_keys_do_not_change_from_version_to_version() -> None:
    """Or every cache there is would be lost without a word."""
    assert pair_key(MONO, "sieve", "a fine sieve").hex() == "9611f62bd89b63e87e8ce7417f4c2b98"
    assert pair_key(MONO, "sieve", "one", "two").hex() == "9611f62b6c6e070d96e0c45fcb7cc96d"
    assert pair_keys(MONO, "sieve", []) == []


def test_half_a_surrogate_pair_is_a_text_like_any_other() -> None:
    assert len({pair_key(MONO, "q", text) for text in ("\ud800", "\udc00", "\U00010000", "?", "")}) == 5


# -- scores
# ------------------------------------------------------------------------------------------------------------


def test_scores_come_back_bit_for_bit(path: Path) -> None:
    tiny, huge = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    scores = np.array([0.0, -0.0, np.inf, -np.inf, tiny, -tiny, huge, 1 / 3, 1.0, 2**24], np.float32)
    with ScoreCache(path) as cache:
        cache.put(made(10), scores)
    with ScoreCache(path) as cache:
        assert cache.get(made(10)).tobytes() == scores.tobytes()
        assert cache.get(made(10)).dtype == np.float32


def test_what_is_no_number_is_not_kept(path: Path) -> None:
    cache = ScoreCache(path)
    cache.put(made(3), np.array([1.0, np.nan, 3.0]))
    assert len(cache) == 2
    assert cache.get(made(3)).tolist() == pytest.approx([1.0, np.nan, 3.0], nan_ok=True)


@pytest.mark.parametrize("number", [0, 1, 499, 500, 501, 1700])
def test_any_number_in_any_order(path: Path, number: int) -> None:
    cache, keys = ScoreCache(path), made(number)
    cache.put(keys[::2], known(keys[::2]))
    asked = random.Random(number).choices(keys, k=2 * number)
    there = set(keys[::2])
    expected = [score if key in there else np.nan for key, score in zip(asked, known(asked), strict=True)]
    assert cache.get(asked).tolist() == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_the_first_added_are_the_first_to_go(path: Path) -> None:
    cache, keys = ScoreCache(path, limit=5), made(20)
    cache.put(keys[:4], known(keys[:4]))
    cache.put(keys[:1], known(keys[:1]))  # again, which does not make it younger
    cache.put(keys[4:6], known(keys[4:6]))
    assert np.isnan(cache.get(keys)).tolist() == [n not in range(1, 6) for n in range(20)]
    cache.put(keys[6:], known(keys[6:]))
    assert np.isnan(cache.get(keys)).tolist() == [n < 15 for n in range(20)]
    assert len(cache) == 5


@pytest.mark.parametrize("limit", [0, -1])
def test_a_cache_of_nothing_is_refused(path: Path, limit: int) -> None:
    with pytest.raises(InputError, match="use a limit of at least 1, or none"):
        ScoreCache(path, limit=limit)


def test_keys_and_scores_must_go_together(path: Path) -> None:
    with pytest.raises(TamisError, match="3 keys with 2 scores"):
        ScoreCache(path).put(made(3), np.zeros(2))
    with pytest.raises(TamisError, match="3 keys with 1 scores"):
        cached(ScoreCache(path), made(3), lambda missing: np.zeros(1))


def test_only_what_is_missing_is_scored(path: Path) -> None:
    cache, keys = ScoreCache(path), made(6)
    asked: list[list[int]] = []

    def score(numbers: Array) -> Array:
        asked.append(numbers.tolist())
        return known([keys[n] for n in numbers.tolist()])

    assert cached(cache, keys[:2], score).tolist() == known(keys[:2]).tolist()
    assert cached(cache, keys, score).tolist() == known(keys).tolist()
    assert cached(cache, keys[::-1], score).tolist() == known(keys[::-1]).tolist()
    assert asked == [[0, 1], [2, 3, 4, 5]]
    assert np.isnan(cached(cache, made(1, "other"), lambda missing: np.array([np.nan])))
    assert len(cache) == 6


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 8), max_size=6), max_size=5))
def test_with_and_without_the_cache_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, asked: list[list[int]]
) -> None:
    keys = made(9)
    with ScoreCache(tmp_path_factory.mktemp("cache") / "scores.db", limit=4) as cache:
        for numbers in asked:
            wanted = [keys[n] for n in numbers]
            scores = cached(cache, wanted, lambda missing, wanted=wanted: known(wanted)[missing])
            assert scores.tobytes() == known(wanted).tobytes()


# -- what can be wrong with the file
# ------------------------------------------------------------------------------------------------------------


def test_any_byte_flipped_is_a_score_missing_or_an_error_and_never_a_wrong_score(path: Path) -> None:
    keys = made(60)
    with ScoreCache(path) as cache:
        cache.put(keys, known(keys))
    whole = path.read_bytes()
    assert not list(path.parent.glob("scores.db-*"))  # all of it is in the one file
    used = [n for n, byte in enumerate(whole) if byte]  # a third of the file: the rest is room
    places = [*range(100), *random.Random(0).sample(used, 250)]
    missing, errors = 0, 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            with ScoreCache(path, timeout=0.1) as cache:
                scores = cache.get(keys)
        except (CorruptError, InputError, StorageError):
            errors += 1
        else:
            lost = np.isnan(scores)
            missing += lost.any()
            assert scores[~lost].tobytes() == known(keys)[~lost].tobytes(), place
        for leftover in path.parent.glob("scores.db-*"):
            leftover.unlink()
    assert missing > 20
    assert errors > 20


def test_a_damaged_score_is_replaced(path: Path) -> None:
    keys = made(3)
    with ScoreCache(path) as cache:
        cache.put(keys, np.array([1.0, 2.0, 3.0]))
    raw = sqlite3.connect(path)
    raw.execute("UPDATE scores SET score = (SELECT score FROM scores WHERE number = 1) WHERE number = 2")
    raw.execute("UPDATE scores SET score = 'rubbish' WHERE number = 3")
    raw.commit()
    raw.close()
    cache = ScoreCache(path)
    assert cached(cache, keys, lambda missing: missing + 1.0).tolist() == [1.0, 2.0, 3.0]
    assert cache.get(keys).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("content", [b"q1 Q0 d1 1 2.0 bm25\n" * 100, b"SQLite format 3\0" + bytes(500)])
def test_a_file_of_something_else_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"is damaged, or not a cache of scores \(.+\): give another file"):
        ScoreCache(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE scores (key, score)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="a database of something else: give another file name"):
        ScoreCache(path)
    assert path.read_bytes() == before


def test_the_cache_of_another_version_is_refused(path: Path) -> None:
    ScoreCache(path).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 2")
    other.close()
    with pytest.raises(InputError, match="has cache format 2, and this tamis reads 1"):
        ScoreCache(path)


def test_nowhere_to_write(tmp_path: Path) -> None:
    places = [tmp_path / "no" / "scores.db", tmp_path]
    if Path("/proc/self").is_dir():
        places.append(Path("/proc/scores.db"))  # where not even root may write
    for place in places:
        with pytest.raises(StorageError, match=f"cannot use the cache {place} .+: check that the folder"):
            ScoreCache(place)


@pytest.mark.skipif(os.name == "nt" or not os.geteuid(), reason="needs permissions, which root has")
def test_a_read_only_folder(path: Path) -> None:
    path.parent.chmod(0o500)
    with pytest.raises(StorageError, match="check that the folder is there and that you may write to it"):
        ScoreCache(path)


@pytest.mark.skipif(os.name == "nt", reason="needs a limit on the size of files")
def test_a_full_disk_is_reported_and_loses_nothing(path: Path) -> None:
    import resource

    cache, keys = ScoreCache(path), made(2000)
    cache.put(keys[:50], known(keys[:50]))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot use the cache .+: (check the disk|free some space)"):
            cache.put(keys, known(keys))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert len(cache) == 50
    cache.put(keys, known(keys))
    assert cache.get(keys).tobytes() == known(keys).tobytes()


def test_a_closed_cache_says_so(path: Path) -> None:
    cache = ScoreCache(path)
    cache.close()
    cache.close()
    with pytest.raises(TamisError, match="is closed: open it again"):
        cache.get(made(1))


# -- threads and processes
# ------------------------------------------------------------------------------------------------------------


def test_a_lock_is_waited_for_but_not_for_ever(path: Path) -> None:
    cache, keys = ScoreCache(path, timeout=0.1), made(2)
    cache.put(keys[:1], known(keys[:1]))
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    assert cache.get(keys[:1]).tolist() == known(keys[:1]).tolist()  # a reader need not wait
    with pytest.raises(LockedError, match=r"other processes keep the cache .+ locked: wait until"):
        cache.put(keys[1:], known(keys[1:]))
    patient = ScoreCache(path, timeout=30)
    releasing = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    releasing.start()
    patient.put(keys[1:], known(keys[1:]))
    releasing.join()
    assert cache.get(keys).tolist() == known(keys).tolist()


@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_new_file_that_is_locked(path: Path, how: str) -> None:
    """As it is while another process begins it."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute(f"BEGIN {how}")
    with pytest.raises(LockedError):
        ScoreCache(path, timeout=0.1)
    releasing = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    releasing.start()
    with ScoreCache(path, timeout=30) as cache:
        assert len(cache) == 0
    releasing.join()


def test_several_threads(path: Path) -> None:
    cache, wrong = ScoreCache(path), []

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(10):
            keys = made(20, rng.randrange(8))
            if (cached(cache, keys, lambda missing: known(keys)[missing]) != known(keys)).any():  # noqa: B023
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cache) == 20 * 8


WORK = """
import random, sys, time
import numpy as np
from pathlib import Path
from tamis.storage.score_cache import ScoreCache, cached, pair_keys, prefix
path, number = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while not path.with_name("go").exists():
    time.sleep(0.001)
with ScoreCache(path) as cache:
    rng = random.Random(number)
    for turn in range(30):
        query = rng.randrange(40)
        texts = [f"text {n}" for n in range(50)]
        keys = pair_keys(prefix("a1b2", "mono 64 512", "int8"), f"query {query}", texts)
        truth = np.array([int.from_bytes(key[4:7], "little") / 7 for key in keys], dtype=np.float32)
        assert (cached(cache, keys, lambda missing: truth[missing]) == truth).all()
        print(query, flush=True)
"""


def start(path: Path, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORK, str(path), str(number)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def test_several_processes_one_of_which_is_killed(path: Path) -> None:
    """They make the file at the same moment, and write and read the same scores."""
    with ExitStack() as running:
        processes = []
        for number in range(4):
            processes.append(running.enter_context(start(path, number)))
            running.callback(processes[-1].kill)  # if anything goes wrong here, they would wait for ever
        path.with_name("go").touch()
        victim = processes[0]
        assert victim.stdout
        for _ in range(5):
            victim.stdout.readline()
        if hasattr(signal, "SIGKILL"):
            victim.kill()
        said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes[1:]] == [0, 0, 0], said
    done = {int(line) for out, _ in said[1:] for line in out.split()}
    with ScoreCache(path) as cache:
        for query in done:
            keys = made(50, query)
            assert cache.get(keys).tobytes() == known(keys).tobytes()
        assert len(cache) % 50 == 0  # a put is there entirely or not at all
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_forks(path: Path) -> None:
    cache, keys = ScoreCache(path), made(40)
    cache.put(keys[:10], known(keys[:10]))
    children = []
    for number in range(1, 4):
        cache._lock.acquire()  # as another thread may have at that moment, which is not there in the child
        child = os.fork()
        if not child:
            status = 1
            signal.alarm(60)
            try:
                mine = keys[: 10 * number + 10]
                right = cached(cache, mine, lambda missing: known(mine)[missing]) == known(mine)  # noqa: B023
                status = 0 if right.all() else 2
            finally:
                os._exit(status)
        cache._lock.release()
        children.append(child)
    deadline = time.monotonic() + 60
    while len(cache) < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert cache.get(keys).tobytes() == known(keys).tobytes()
