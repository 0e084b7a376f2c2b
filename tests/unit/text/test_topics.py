"""The queries that can be made of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tamis.base.errors import InputError
from tamis.formats import read_queries
from tamis.text.topics import (
    TopicField,
    description,
    keywords,
    narrative,
    represented,
    title,
    without_negation,
)

# written for this test, in the manner of TREC's
TOPIC = {
    "title": "dam removal",
    "desc": "What are the effects of removing dams on fish, and who pays for it?",
    "narr": "A relevant document names a dam that was removed and what happened there. Plans for removal "
    "that were never carried out are not relevant. Studies of the costs are relevant, whether or not the dam "
    "still stands. Documents about building dams are irrelevant.",
}


def test_the_parts_of_a_topic() -> None:
    assert title(TOPIC) == "dam removal"
    assert description(TOPIC) == TOPIC["desc"]
    assert narrative(TOPIC) == TOPIC["narr"]


@pytest.mark.parametrize("part", [title, description, narrative])
def test_a_part_that_is_not_there(part: object) -> None:
    with pytest.raises(InputError, match=r"the query has no .*: choose another field"):
        part({"title": "", "num": "3"})  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TOPIC["desc"], "effects removing dams fish pays"),
        ("Who?", ""),
        ("", ""),
        ("It's the U.S. economy!", "U.S economy"),
        ("What isn’t known", "known"),
        ("3-D printing (2013) & R&D", "3-D printing 2013 R&D"),
        ("Die Wirkung von Dämmen", "Die Wirkung von Dämmen"),
    ],
)
def test_keywords(text: str, expected: str) -> None:
    assert keywords(text) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "Plans are not relevant.",
        "Documents about dams alone are NOT considered to be relevant.",
        "A mention of a dam is irrelevant.",
        "Such items are non-relevant.",
        "Cost alone is of no relevance.",
        "A list of dams isn't relevant.",
        "It is not sufficient to name a dam.",
        "Neither prices nor plans are relevant.",
        "Dams abroad are excluded.",
    ],
)
def test_sentences_that_say_what_is_not_relevant(sentence: str) -> None:
    assert without_negation(f"Dams are relevant. {sentence} So are rivers.") == (
        "Dams are relevant. So are rivers."
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "Dams are relevant.",
        "A relevant document names a dam that does not stand any more.",
        "Whether or not it is old is relevant too.",
        "Documents that note no effect count as well.",
        "",
    ],
)
def test_sentences_that_do_not(sentence: str) -> None:
    assert without_negation(sentence) == sentence


def test_a_narrative_without_negation() -> None:
    assert represented(TOPIC, "narr-noneg") == (
        "A relevant document names a dam that was removed and what happened there. Studies of the costs are "
        "relevant, whether or not the dam still stands."
    )


def test_every_field_can_be_asked_for() -> None:
    made = {field: represented(TOPIC, field) for field in get_args(TopicField)}
    assert made["title+desc"] == f"{TOPIC['title']} {TOPIC['desc']}"
    assert made["title-keywords"] == "dam removal"
    assert made["desc-keywords"] == "effects removing dams fish pays"
    assert len(made["narr-keywords"].split()) < len(TOPIC["narr"].split()) / 2 + 3
    assert all(made.values())


def test_nothing_left() -> None:
    with pytest.raises(InputError, match="nothing is left of the query as desc-keywords: use desc"):
        represented({"desc": "What is it?"}, "desc-keywords")


def test_fields_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "topics.trec"
    file.write_text(
        f"<top>\n<num> Number: 7\n<title> {TOPIC['title']}\n<desc> Description:\n{TOPIC['desc']}\n"
        f"<narr> Narrative:\n{TOPIC['narr']}\n</top>\n"
    )
    (query,) = read_queries(file, field="narr-noneg")
    assert query.text == represented(TOPIC, "narr-noneg")
    assert dict(query.fields) == TOPIC
