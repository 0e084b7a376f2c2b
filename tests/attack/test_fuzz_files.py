"""The fuzzer of files, in processes of limited time and memory. TAMIS_ATTACK=long tries a hundred times as
many cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).with_name("fuzz_files.py")
LONG = os.environ.get("TAMIS_ATTACK") == "long"
COUNT = 20_000 if LONG else 200
TIMEOUT = 7200 if LONG else 300  # seconds, of which a few are needed
MEMORY = 8 << 30  # bytes of addresses, most of which are libraries and threads' stacks
GROUPS = {
    "corpora": "jsonl csv tsv trec text gz zst",
    "queries": "queries queries-tsv topics",
    "judgments and runs": "qrels qrels-beir run run-msmarco candidates folds folds-columns",
    "recipes": "recipe recipe-distill recipe-pretrain expression",
    "models": "groupwise ltr plan config config-listwise config-cascade weights weights-cascade tokenizer",
}


def limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


@pytest.mark.parametrize("group", GROUPS)
def test_mutated_files_are_read_or_refused(group: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FUZZER), str(COUNT), "0", *GROUPS[group].split()]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT,
        check=False,
        cwd=tmp_path,
        preexec_fn=None if sys.platform == "win32" else limit_memory,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
