"""How models of long documents read one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tamis.base.errors import InputError
from tamis.models.config import EncoderConfig
from tamis.models.documents import Layout
from tamis.models.templates import Special
from tamis.text.segment import even_chunks
from tests.unit.models.builders import DOCUMENTS, STATIC, config_of, document_model, read_documents

SPECIAL = Special(cls=1, sep=2)
CONFIG = EncoderConfig("bert", 400, hidden=8, layers=1, heads=1, feed_forward=8)


def made(kind, *texts, asked=(7,), seed=0, **settings):
    """Texts as a model of this kind reads them."""
    model, config = document_model(kind, **settings), config_of(kind, CONFIG)
    return read_documents(model, texts, SPECIAL, config, asked, seed)


def passages(found):
    """The text of each passage, document by document."""
    there = Layout.of(found.inputs, SPECIAL)
    texts = [
        found.inputs.ids[start : start + count].tolist()
        for start, count in zip(there.text_starts, there.text_counts, strict=True)
    ]
    return [texts[start:stop] for start, stop in zip(there.offsets, there.offsets[1:], strict=False)]


def text(count, first=10):
    return list(range(first, first + count))


def test_windows_overlap_and_the_last_takes_what_is_left():
    found = made("parade-max", text(9), text(4), text(5), window=4, stride=3)
    assert passages(found) == [
        [[10, 11, 12, 13], [13, 14, 15, 16], [16, 17, 18]],
        [[10, 11, 12, 13]],
        [[10, 11, 12, 13], [13, 14]],
    ]
    assert found.truncation.text_tokens_lost == 0


def test_chunks_are_as_even_as_possible():
    # 8 less three special tokens and the query: 4
    found = made("cedr-knrm", text(9), text(4), text(5), text(16), sequence=8)
    lengths = [list(map(len, each)) for each in passages(found)]
    assert lengths == [[3, 3, 3], [4], [3, 2], [4, 4, 4, 4]]


def test_chunks_are_those_of_stages_with_even_ones():
    """CEDR and `unit=even` cut alike: the longer chunks come first."""
    for count in range(1, 60):
        (found,) = passages(made("cedr-knrm", text(count), sequence=8))
        whole = text(count)
        assert found == [whole[start:stop] for start, stop in even_chunks(count, 4)]


@pytest.mark.parametrize("kind", ["parade-max", "cedr-knrm", "knrm"])
def test_every_token_is_read_in_its_order(kind):
    found = made(kind, text(150, 100), window=30, stride=30, sequence=64)
    assert [token for each in passages(found)[0] for token in each] == text(150, 100)


def test_static_embeddings_read_a_document_at_once():
    found = made("knrm", text(900))
    assert len(passages(found)[0]) == 1


def test_an_empty_document_is_one_empty_passage():
    for kind in ("parade-max", "cedr-knrm"):
        found = made(kind, [], text(3))
        assert passages(found) == [[[]], [text(3)]]


def test_a_long_query_makes_windows_smaller_and_loses_no_text():
    plan = {"window": 8, "stride": 6, "sequence": 16, "query": 10}
    found = made("parade-max", text(20, 100), asked=text(10), **plan)  # leaves 16 - 3 - 6 = 7 tokens
    lengths = np.diff(Layout.of(found.inputs, SPECIAL).passages.offsets)
    assert lengths.max() <= 16
    assert sorted({token for each in passages(found)[0] for token in each}) == text(20, 100)
    assert found.truncation.text_tokens_lost == 0
    assert found.truncation.query_tokens_lost == 4  # a query takes at most half of the room


def test_too_many_windows_keep_the_first_the_last_and_some_between():
    plan = {"window": 10, "stride": 10, "passages": 5, "tokens": 1000}
    found = made("parade-max", text(300, 50), text(30), **plan)
    assert found.offsets.tolist() == [0, 5, 8]
    kept = found.numbers[:5].tolist()
    assert kept[0] == 0 and kept[-1] == 29 and kept == sorted(set(kept))
    assert found.truncation.text_tokens_lost == 250 and found.truncation.texts_cut == 1
    # by the document's own length alone, and by the seed
    assert made("parade-max", text(300, 50), **plan).numbers.tolist() == kept
    assert made("parade-max", text(300, 50), seed=1, **plan).numbers.tolist() != kept


def test_what_is_lost_counts_overlaps_once():
    # the first ten and the last ten
    found = made("parade-max", text(100), window=10, stride=5, passages=2, tokens=100)
    assert found.truncation.text_tokens_lost == 80
    cut = made("cedr-knrm", text(100), tokens=60).truncation
    assert (cut.texts_cut, cut.text_tokens_lost) == (1, 40)


@pytest.mark.parametrize("kind", ["parade-transformer", "birch", "pcgm"])
def test_the_end_of_a_long_document_is_read(kind):
    """Unless told, it is the windows that are limited: the first, the last and others."""
    found = made(kind, text(5_000, 100))
    (read_,) = passages(found)
    assert len(read_) == 16
    assert read_[0] == text(225, 100) and read_[-1][-1] == 5_099
    assert found.truncation.text_tokens_lost == 5_000 - len({token for each in read_ for token in each})


@pytest.mark.parametrize("kind", ["vanilla", "cedr-knrm", "knrm"])
def test_chunks_are_of_the_whole_document(kind):
    found = made(kind, text(5_000, 100))
    assert [token for each in passages(found)[0] for token in each] == text(5_000, 100)
    assert found.truncation.texts_cut == 0


@pytest.mark.parametrize("kind", ["parade-max", "cedr-knrm", "knrm"])
@pytest.mark.parametrize("tokens", [8_000, 8_192])
def test_an_endless_document_is_bounded_and_reported(kind, tokens):
    """Counting stops at 8,192 tokens: of what comes after them no more is known than that it is there."""
    found = made(kind, text(100_000, 100), tokens=tokens)
    read_ = [token for each in passages(found)[0] for token in each]
    assert read_[-1] == tokens + 99
    assert found.truncation.texts_cut == 1 and found.truncation.at_least
    assert found.truncation.text_tokens_lost >= 1


def test_maxp_reads_the_first_windows_as_the_stage_does():
    plan = {"window": 10, "stride": 10, "passages": 5}
    assert made("maxp", text(300, 50), seed=3, **plan).numbers.tolist() == [0, 1, 2, 3, 4]
    assert made("maxp", text(30, 50), **plan).numbers.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["parade-max", "birch", "cedr-pacrr", "knrm"])
def test_a_narrative_is_read_whole(kind):
    """A query of a TREC narrative is cut for no text: the text makes room."""
    found = made(kind, text(900, 200), asked=text(120))
    assert found.truncation.query_tokens_lost == 0 and found.truncation.text_tokens_lost == 0


def test_ten_thousand_passages():
    found = made("parade-max", text(10_000), window=1, stride=1, tokens=8192, passages=16)
    assert len(passages(found)[0]) == 16


def test_special_tokens_say_where_passages_begin():
    """RoBERTa's kind has two separators, and other numbers."""
    special, config = Special(cls=0, sep=2, double_separator=True), replace(CONFIG, segments=1)
    found = read_documents(document_model("maxp", window=2, stride=2), [[8, 9, 10]], special, config)
    assert found.inputs.ids.tolist() == [0, 7, 2, 2, 8, 9, 2, 0, 7, 2, 2, 10, 2]


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("double", [False, True])
def test_a_passage_is_an_inference_and_there_is_a_most(kind, double):
    model, config = document_model(kind, tokens=700, sequence=64, query=20), config_of(kind, CONFIG)
    special = Special(cls=1, sep=2, double_separator=double)
    for query in ([], text(20), text(200)):
        found = read_documents(model, [[], text(9), text(5_000)], special, config, query)
        counts = model.inferences(found.inputs, special)
        assert counts.tolist() == np.diff(found.offsets).tolist()
        assert counts[0] == 1 and counts.max() <= model.most_inferences()
    assert model.most_inferences() == (1 if kind in STATIC else 18 if model.settings.even else 16)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"window": 3, "stride": 4}, "windows of 3 tokens every 4 leave out text"),
        ({"tokens": 10**6}, "cannot read 1,000,000 tokens"),
        ({"window": 0}, r"window of \[parade\] is 0"),
        ({"shadow": 1}, r"\[parade\] has no field 'shadow'"),
    ],
)
def test_settings_that_make_no_sense(settings, problem):
    with pytest.raises(InputError, match=problem):
        document_model("parade-max", **settings)


def test_settings_of_one_kind_that_make_no_sense():
    with pytest.raises(InputError, match=r"gains of \[pcgm\] is 1: it must be a whole number from 2 to 1024"):
        document_model("pcgm", gains=1)
    with pytest.raises(InputError, match=r"keep of \[maxp\] is 1.5"):
        document_model("maxp", keep=1.5)
