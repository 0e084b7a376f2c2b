"""The data of pretraining: segments, masks and word sets by their rules. Nothing here needs torch."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.index.score import Collection, QueryLikelihood, Terms
from tamis.models.templates import Special, Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.train.masked import (
    MaskedBatch,
    Sentences,
    Vocabulary,
    fitted,
    mask_tokens,
    masked_batch,
    next_sentence_pair,
    read_sentences,
    read_vocabulary,
    split_sentences,
)
from tamis.train.rop import Bags, query_likelihood, read_bags, rop_batch, word_sets

CLS, SEP, MASK = 2, 3, 4
VOCABULARY = Vocabulary(size=1000, cls=CLS, sep=SEP, mask=MASK, special=(0, 1, 2, 3, 4))


def numbered(sizes: list[list[int]]) -> Sentences:
    """A corpus whose tokens are 10, 11, 12 ...: where one stands says where it comes from."""
    lengths = [length for document in sizes for length in document]
    offsets = np.cumsum([0, *lengths])
    rows = [list(range(10 + start, 10 + stop)) for start, stop in pairwise(offsets.tolist())]
    return Sentences(Tokenised.of(rows), np.cumsum([0, *map(len, sizes)]))


def documents_of(corpus: Sentences, tokens) -> set[int]:
    edges = corpus.tokens.offsets[corpus.documents]
    return set((np.searchsorted(edges, np.asarray(tokens) - 10, side="right") - 1).tolist())


CORPUS = numbered([[5, 9, 3], [4, 4], [7, 1, 1, 6, 12], [2, 2, 30]])


# -- sentences


def test_sentences_of_texts():
    assert split_sentences("One. Two! Three? Four") == ["One.", "Two!", "Three?", "Four"]
    assert split_sentences("  Version 2.5 is out.  \n\nNext  ") == ["Version 2.5 is out.", "Next"]
    assert split_sentences("word") == ["word"]
    assert split_sentences("") == []


def test_a_corpus_is_read_sentence_by_sentence(tmp_path, tiny_checkpoint):
    tokenizer = Tokenizer(tiny_checkpoint(tmp_path / "model"))
    documents = [
        Document("a", "The first. The second.", title="A title"),
        Document("b", "word"),  # nothing follows
        Document("c", ""),
        Document("d", "two words"),
    ]
    corpus = read_sentences(documents, tokenizer)
    assert len(corpus) == 2 and corpus.documents.tolist() == [0, 3, 5]
    expected = tokenizer.encode(["A title", "The first.", "The second.", "two", "words"])
    assert corpus.tokens.ids.tolist() == expected.ids.tolist()
    assert corpus.tokens.offsets.tolist() == expected.offsets.tolist()
    with pytest.raises(InputError, match="1 documents of at least two words: pretrain on a corpus"):
        read_sentences(documents[:3], tokenizer)


# -- next sentences


def test_pairs_follow_each_other_or_come_from_two_documents():
    generator = np.random.default_rng(0)
    for _ in range(300):
        first, second = next_sentence_pair(CORPUS, generator, 20, is_random=False)
        both = [*first.tolist(), *second.tolist()]
        assert both == list(range(both[0], both[0] + len(both)))  # end to end, as in the document
        assert len(documents_of(CORPUS, both)) == 1
        first, second = next_sentence_pair(CORPUS, generator, 20, is_random=True)
        assert len(documents_of(CORPUS, first)) == len(documents_of(CORPUS, second)) == 1
        assert documents_of(CORPUS, first) != documents_of(CORPUS, second)
        for part in (first, second):
            assert part.tolist() == list(range(part[0], part[0] + len(part)))


def test_segments_meet_at_the_end_of_a_sentence():
    generator = np.random.default_rng(1)
    offsets = set((CORPUS.tokens.offsets + 10).tolist())
    for _ in range(200):
        first, second = next_sentence_pair(CORPUS, generator, 12, is_random=False)
        assert int(second[0]) in offsets and int(first[-1]) + 1 == int(second[0])


def test_every_sentence_but_the_last_of_a_document_begins_a_pair_equally_often():
    generator = np.random.default_rng(2)
    corpus = numbered([[1, 1, 1], [1, 1], [1, 1, 1, 1]])
    for is_random in (False, True):
        pairs = [next_sentence_pair(corpus, generator, 50, is_random) for _ in range(3000)]
        starts = np.bincount([int(first[0]) - 10 for first, _ in pairs], minlength=9)
        assert starts[[2, 4, 8]].tolist() == [0, 0, 0]
        assert (np.abs(np.delete(starts, [2, 4, 8]) - 500) < 100).all()


@given(st.integers(0, 9), st.integers(0, 9), st.integers(2, 12))
def test_segments_fit_into_their_room(first, second, room):
    one, two = fitted(np.arange(first), np.arange(100, 100 + second), room)
    assert len(one) + len(two) == min(first + second, room)
    assert one.tolist() == list(range(first))[first - len(one) :]
    assert two.tolist() == list(range(100, 100 + second))[: len(two)]
    if first + second > room:  # the longer one is cut, at most to the length of the shorter
        assert min(len(one), len(two)) >= min(first, second, room // 2)


def test_half_of_the_pairs_are_random_and_inputs_are_built_as_bert_wants_them():
    batch = masked_batch(CORPUS, VOCABULARY, size=2000, length=24, seed=0, number=0)
    assert 0.46 < batch.is_random.mean() < 0.54
    assert set(batch.is_random.tolist()) == {0, 1}
    whole = batch.inputs.ids.copy()
    whole[batch.positions] = batch.tokens
    for number, (start, stop) in enumerate(pairwise(batch.inputs.offsets.tolist())):
        ids, segments = whole[start:stop].tolist(), batch.inputs.segments[start:stop].tolist()
        assert 5 <= len(ids) <= 24
        assert ids[0] == CLS and ids[-1] == SEP and ids.count(SEP) == 2
        middle = ids.index(SEP)
        assert segments == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
        first, second = ids[1:middle], ids[middle + 1 : -1]
        assert first and second
        assert (first[-1] + 1 != second[0]) == bool(batch.is_random[number])


def test_some_inputs_are_short():
    one = numbered([[50] * 4, [50] * 4])
    lengths = masked_batch(one, VOCABULARY, size=1000, length=103, seed=0, number=0).inputs.lengths
    assert 0.05 < (lengths < 100).mean() < 0.2
    assert (lengths == 103).mean() > 0.6


def test_a_batch_depends_on_the_seed_and_its_number_alone():
    def make(seed: int, number: int) -> MaskedBatch:
        return masked_batch(CORPUS, VOCABULARY, size=8, length=30, seed=seed, number=number)

    first, _, again = make(1, 5), make(1, 6), make(1, 5)
    for name in ("positions", "tokens", "is_random"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    np.testing.assert_array_equal(first.inputs.ids, again.inputs.ids)
    for other in (make(1, 6), make(2, 5)):
        assert first.inputs.ids.tolist() != other.inputs.ids.tolist()


@pytest.mark.parametrize(("size", "length"), [(0, 20), (4, 4)])
def test_batches_that_cannot_be(size, length):
    with pytest.raises(InputError, match=f"batches of {size} inputs of {length} tokens"):
        masked_batch(CORPUS, VOCABULARY, size=size, length=length, seed=0, number=0)


# -- masks


def rows(lengths: list[int]):
    ids = [[CLS, *range(100, 100 + length), SEP] for length in lengths]
    return np.array([token for row in ids for token in row]), np.cumsum([0, *map(len, ids)])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(0, 1000))
def test_each_input_has_its_share_of_chosen_tokens(lengths, seed):
    ids, offsets = rows(lengths)
    masked, positions = mask_tokens(ids, offsets, VOCABULARY, np.random.default_rng(seed))
    chosen = np.histogram(positions, bins=offsets)[0].tolist()
    assert chosen == [min(max(1, round(0.15 * length)), length) for length in lengths]
    assert not np.isin(ids[positions], VOCABULARY.special).any()  # [CLS] and [SEP] are never chosen
    untouched = np.ones(len(ids), bool)
    untouched[positions] = False
    np.testing.assert_array_equal(masked[untouched], ids[untouched])


def test_of_the_chosen_8_in_10_are_masked_and_1_in_10_is_replaced():
    ids, offsets = rows([400] * 500)
    before = ids.copy()
    masked, positions = mask_tokens(ids, offsets, VOCABULARY, np.random.default_rng(0))
    np.testing.assert_array_equal(ids, before)
    assert len(positions) == 60 * 500
    shown = masked[positions]
    assert np.mean(shown == MASK) == pytest.approx(0.8, abs=0.01)
    assert np.mean(shown == ids[positions]) == pytest.approx(0.1, abs=0.01)
    replaced = shown[(shown != MASK) & (shown != ids[positions])]
    assert len(replaced) / len(shown) == pytest.approx(0.1, abs=0.01)
    assert replaced.min() == 5 and replaced.max() == 999 and len(np.unique(replaced)) > 900
    places = np.bincount((positions % 402) - 1, minlength=400)  # 500 draws of 15 % at each place
    assert abs(places.mean() - 75) < 1e-9 and places.min() > 40 and places.max() < 115


def test_the_vocabulary_of_a_tokenizer(tmp_path, tiny_checkpoint):
    folder = tiny_checkpoint(tmp_path / "model")
    vocabulary = read_vocabulary(Tokenizer(folder))
    assert vocabulary == Vocabulary(400, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4))
    file = folder / "tokenizer.json"
    file.write_text(re.sub(r"\[MASK\]", "[ELSE]", file.read_text()))
    with pytest.raises(InputError, match=r"no \[MASK\] token"):
        read_vocabulary(Tokenizer(folder))


# -- words


def test_query_likelihood_by_hand():
    # tf 2 and 1, cf 4 and 2 in 100 words, a document of 10, mu 10:
    # log((2 + 0.4) / 20) + log((1 + 0.2) / 20)
    found = query_likelihood(np.array([2, 1]), np.array([4, 2]), length=10, tokens=100, mu=10)
    assert found == pytest.approx(np.log(2.4 / 20) + np.log(1.2 / 20), rel=1e-12)


def test_query_likelihood_is_that_of_the_first_stage():
    model = QueryLikelihood(mu=50, variant="exact")
    tf, cf, length = np.array([3, 1, 2]), np.array([30, 4, 9]), np.array([40])
    terms, collection = Terms(np.ones(3), np.ones(3), cf), Collection(20, 800)
    theirs = sum(
        model.contribution(tf[i : i + 1], length, terms.at(i), collection)[0]
        + model.prior(length, terms.at(i), collection)[0]
        for i in range(3)
    )
    assert query_likelihood(tf, cf, 40, 800, mu=50) == pytest.approx(theirs, rel=1e-5)


def bags() -> Bags:
    """Two documents: words 0 0 0 1 2, and words 2 3 3."""
    return Bags(
        texts=Tokenised.of([[20, 20, 20, 21, 22], [22, 23, 23]]),
        vocabulary=Tokenised.of([[20], [21, 31], [22], [23]]),
        frequencies=np.array([3, 1, 2, 2]),
        tokens=8,
        offsets=np.array([0, 3, 5]),
        words=np.array([0, 1, 2, 2, 3]),
        counts=np.array([3, 1, 1, 1, 2]),
    )


def test_the_likelier_set_comes_first():
    generator, some = np.random.default_rng(0), bags()
    tf = {0: 3, 1: 1, 2: 1}
    sizes, drawn, ties = [], np.zeros(4), 0
    for _ in range(500):
        pair = word_sets(some, 0, generator, mu=1.0)
        if pair is None:
            ties += 1
            continue
        better, worse = pair
        scores = [sum(np.log((tf[w] + some.frequencies[w] / 8) / (5 + 1)) for w in words) for words in pair]
        assert scores[0] > scores[1]
        assert len(better) == len(worse) == len(set(better.tolist())) == len(set(worse.tolist()))
        sizes.append(len(better))
        drawn += np.bincount(better, minlength=4) + np.bincount(worse, minlength=4)
    assert set(sizes) == {1, 2} and 0 < ties < 400
    assert drawn[3] == 0 and drawn[0] > drawn[1]


def test_set_sizes_are_poisson():
    words = np.arange(200)
    large = Bags(
        Tokenised.of([[7]]),
        Tokenised.of([[7]] * 200),
        words + 1,
        int((words + 1).sum()),
        np.array([0, 200]),
        words,
        np.ones(200, int),
    )
    generator = np.random.default_rng(0)
    pairs = [word_sets(large, 0, generator) for _ in range(4000)]
    sizes = np.array([len(pair[0]) for pair in pairs if pair is not None])
    assert sizes.mean() == pytest.approx(3 + np.exp(-3), abs=0.1)  # none becomes one
    assert np.mean(sizes == 3) == pytest.approx(27 / 6 * np.exp(-3), abs=0.03)


def test_rop_inputs_are_words_beside_their_document():
    special = Special(cls=CLS, sep=SEP)
    inputs = rop_batch(bags(), special, size=6, length=9, seed=1, number=3, mu=1.0)
    assert len(inputs) == 12
    texts = [[20, 20, 20, 21, 22], [22, 23, 23]]
    of = []
    for start, stop in pairwise(inputs.offsets.tolist()):
        ids = inputs.ids[start:stop].tolist()
        words, text = ids[1 : ids.index(SEP)], ids[ids.index(SEP) + 1 : -1]
        assert len(ids) <= 9 and ids[0] == CLS and words
        of.append(next(i for i, each in enumerate(texts) if each[: len(text)] == text))
        assert set(words) <= ({20, 21, 31, 22} if of[-1] == 0 else {22, 23})
    assert of[0::2] == of[1::2] and set(of) == {0, 1}
    again = rop_batch(bags(), special, size=6, length=9, seed=1, number=3, mu=1.0)
    np.testing.assert_array_equal(inputs.ids, again.ids)
    other = rop_batch(bags(), special, size=6, length=9, seed=1, number=4, mu=1.0)
    assert inputs.ids.tolist() != other.ids.tolist()


def test_stop_words_are_left_out_and_words_that_are_all_alike_refused(tmp_path, tiny_checkpoint):
    tokenizer = Tokenizer(tiny_checkpoint(tmp_path / "model"))
    read = read_bags([Document("a", "The sieve of the Sieve and soup."), Document("b", "the the")], tokenizer)
    assert len(read) == 1 and read.tokens == 3
    assert (read.words.tolist(), read.counts.tolist(), read.frequencies.tolist()) == ([0, 1], [2, 1], [2, 1])
    assert read.vocabulary.ids.tolist() == tokenizer.encode(["sieve", "soup"]).ids.tolist()
    alike = read_bags([Document("a", "sieve soup"), Document("b", "sieve soup")], tokenizer)
    with pytest.raises(InputError, match="pretrain on another corpus, or without ROP"):
        rop_batch(alike, tokenizer.special, size=2, length=32, seed=0, number=0)
    with pytest.raises(InputError, match="no document has two different words"):
        read_bags([Document("a", "the sieve")], tokenizer)
