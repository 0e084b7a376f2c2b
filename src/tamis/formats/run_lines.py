"""Reads the lines of a run file: one by one, or in blocks if a whole run of millions of lines is read."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

import numpy as np

from tamis.base.errors import InputError, quoted
from tamis.formats.lines import (
    LONGEST_COLUMNS,
    SkipReport,
    drop_line,
    numbered_lines,
    skip_or_raise,
    too_long,
)
from tamis.storage.files import BOM, PathLike, not_utf8, open_bytes

Row = tuple[str, str, int, float, str]
"""Query id, document id, rank, score and tag."""

_Numbered = Iterable[tuple[int, bytes]]
_Parser = Callable[[_Numbered, PathLike, SkipReport | None], Iterator[Row]]

_LARGEST_RANK = 2**63 - 1  # the maximum of an array
_BLOCK_BYTES = 1 << 16  # the columns of a block should fit into the processor's cache
_IS_SPACE = bytes(character in b" \t\n\r\f\v" for character in range(256))  # where bytes.split() splits


class Block(NamedTuple):
    """Some consecutive lines, column by column."""

    qids: list[bytes]
    docids: list[str]
    ranks: array[int]
    scores: array[float]


def parse_rows(path: PathLike, skipped: SkipReport | None) -> Iterator[Row]:
    """The lines of a run, one by one.

    >>> file = getfixture("tmp_path") / "run.tsv"
    >>> _ = file.write_text("q1\\td7\\t2\\n")
    >>> list(parse_rows(file, None))
    [('q1', 'd7', 2, 0.5, 'msmarco')]
    """
    with open_bytes(path) as stream:
        lines = numbered_lines(stream, path, skipped, LONGEST_COLUMNS)
        for number, raw in lines:
            if parse := _parser(raw):
                yield from parse(chain([(number, raw)], lines), path, skipped)


def parse_blocks(path: PathLike, skipped: SkipReport | None) -> Iterator[Block]:
    """The same lines in blocks, without their tags.

    >>> file = getfixture("tmp_path") / "run"
    >>> _ = file.write_text("q1 Q0 d7 1 2.5 bm25\\nq1 Q0 d3 2 1.5 bm25\\n")
    >>> list(parse_blocks(file, None))
    [Block(qids=[b'q1', b'q1'], docids=['d7', 'd3'], ranks=array('q', [1, 2]), scores=array('d', [2.5, 1.5]))]
    """
    parse: _Parser | None = None
    with open_bytes(path) as stream:
        for first, text in _whole_lines(stream, path, skipped):
            parse = parse or _parser(text.lstrip().partition(b"\n")[0])
            if parse is not None:
                try:
                    block = _split(text)
                except ValueError:
                    # Not TREC's six columns, or an error in them: parse the lines one by one.
                    block = _gather(parse(enumerate(text.split(b"\n"), first), path, skipped))
                yield block


def _parser(first_line: bytes) -> _Parser | None:
    """The parser for a file that starts with these lines; None while they are blank."""
    columns = len(first_line.split())
    return None if columns == 0 else _parse_msmarco if columns == 3 else _parse_trec


def _parse_trec(lines: _Numbered, path: PathLike, skipped: SkipReport | None) -> Iterator[Row]:
    # bytes.split() splits only at ASCII white space, as trec_eval does; str.split() also at no-break spaces.
    # Query and tag are usually the same as in the line above: they are decoded once and share their strings.
    qid = tag = ""
    raw_qid = raw_tag = b""
    for number, raw in lines:
        try:
            new_qid, _, docid, rank, score, new_tag = raw.split()
            if new_qid != raw_qid:
                raw_qid, qid = new_qid, new_qid.decode()
            if new_tag != raw_tag:
                raw_tag, tag = new_tag, new_tag.decode()
            row = qid, docid.decode(), int(rank), float(score), tag
            if not math.isfinite(row[3]) or abs(row[2]) > _LARGEST_RANK:
                raise ValueError
        except ValueError:
            if raw.strip():
                skip_or_raise(_complaint(raw, 6, path, number), skipped)
        else:
            yield row


def _parse_msmarco(lines: _Numbered, path: PathLike, skipped: SkipReport | None) -> Iterator[Row]:
    for number, raw in lines:
        try:
            qid, docid, raw_rank = raw.split()
            rank = int(raw_rank)
            if not 1 <= rank <= _LARGEST_RANK:
                raise ValueError
            row = qid.decode(), docid.decode(), rank, 1 / rank, "msmarco"
        except ValueError:
            if raw.strip():
                skip_or_raise(_complaint(raw, 3, path, number), skipped)
        else:
            yield row


def _complaint(raw: bytes, width: int, path: PathLike, number: int) -> InputError:
    """The error for an invalid line."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return not_utf8(error, path=path, line=number)
    fields = [value.decode() for value in raw.split()]
    if len(fields) != width and raw.count(b"\t") == 3:
        return InputError(
            "candidates with their texts",
            remedy="leave them without --corpus and --queries (tamis rerank)",
            path=os.fspath(path),
            line=number,
        )
    if len(fields) != width:
        problem = f"{len(fields)} columns where a run has {width}"
    elif width == 3:
        problem = f"the rank {quoted(fields[2])} is not a whole number from 1"
    elif _is_finite(fields[4]):
        problem = f"the rank {quoted(fields[3])} is not a whole number"
    else:
        problem = f"the score {quoted(fields[4])} is not a finite number"
    remedy = "write qid docid rank" if width == 3 else "write qid Q0 docid rank score tag"
    return InputError(problem, remedy=remedy, path=os.fspath(path), line=number)


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _whole_lines(stream: BinaryIO, path: PathLike, skipped: SkipReport | None) -> Iterator[tuple[int, bytes]]:
    """The file in blocks of whole lines, each ended by a line break, with the number of its first line."""
    first = 1
    text = stream.read(_BLOCK_BYTES).removeprefix(BOM)
    while text:
        last = stream.readline(LONGEST_COLUMNS + 1)
        if len(last) > LONGEST_COLUMNS:
            complete, newline, _ = text.rpartition(b"\n")
            number = first + text.count(b"\n")
            skip_or_raise(too_long("a line", LONGEST_COLUMNS, path, number), skipped)
            drop_line(stream, last)
            text, following = complete + newline, number + 1
        else:
            text += last
            text += b"" if text.endswith(b"\n") else b"\n"
            following = first + text.count(b"\n")
        if text:
            yield first, text
        first, text = following, stream.read(_BLOCK_BYTES)


def _split(text: bytes) -> Block:
    """The columns of a block of valid TREC lines; raises a `ValueError` for any other block."""
    if not _has_six_columns(text):
        raise ValueError
    if not text.isascii():
        text.decode()  # a UnicodeDecodeError is a ValueError
    fields = text.split()
    try:
        ranks = array("q", map(int, fields[3::6]))
    except OverflowError:
        raise ValueError from None
    scores = array("d", map(float, fields[4::6]))
    if not math.isfinite(sum(scores)):  # a score that is not finite makes the sum not finite
        raise ValueError
    return Block(fields[0::6], list(map(bytes.decode, fields[2::6])), ranks, scores)


def _has_six_columns(text: bytes) -> bool:
    """Whether every line has six columns: a line with five and one with seven must not cancel out."""
    space = np.frombuffer(text.translate(_IS_SPACE), dtype=bool)
    field_ends = np.flatnonzero(space[1:] & ~space[:-1]) + 1
    line_ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
    return (
        len(field_ends) == 6 * len(line_ends)
        and bool((field_ends[5::6] <= line_ends).all())
        and bool((field_ends[6::6] > line_ends[:-1]).all())
    )


def _gather(rows: Iterable[Row]) -> Block:
    block = Block([], [], array("q"), array("d"))
    for qid, docid, rank, score, _ in rows:
        block.qids.append(qid.encode())
        block.docids.append(docid)
        block.ranks.append(rank)
        block.scores.append(score)
    return block
