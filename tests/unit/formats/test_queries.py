"""Queries of every format, good and bad."""

import gzip
from pathlib import Path

import pytest

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.formats import SkipReport, read_queries

# The layout of the Robust04 topics: labels, no closing tags, fields over several lines.
TOPICS = """
<top>

<num> Number: 336
<title> Black Bear Attacks

<desc> Description:
A relevant document would discuss the
frequency of vicious black bear attacks.

<narr> Narrative:
It has been reported that   food or cosmetics
sometimes attract hungry black bears.

</top>

<top>
<num> Number: 337
<title>Viral Hepatitis
<desc> Description:
What research is ongoing?
<narr> Narrative:
R&amp;D costs < 5 % count.
</top>
"""


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_trec_topics(tmp_path: Path) -> None:
    first, second = read_queries(write(tmp_path / "topics.robust04.txt", TOPICS))
    assert first == Query(
        "336",
        "Black Bear Attacks",
        {
            "title": "Black Bear Attacks",
            "desc": "A relevant document would discuss the frequency of vicious black bear attacks.",
            "narr": "It has been reported that food or cosmetics sometimes attract hungry black bears.",
        },
    )
    assert (second.id, second.text, second.fields["narr"]) == (
        "337",
        "Viral Hepatitis",
        "R&D costs < 5 % count.",
    )


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("title", "Viral Hepatitis"),
        ("desc", "What research is ongoing?"),
        ("narr", "R&D costs < 5 % count."),
        ("title+desc", "Viral Hepatitis What research is ongoing?"),
        ("title+desc+narr", "Viral Hepatitis What research is ongoing? R&D costs < 5 % count."),
    ],
)
def test_the_field_chosen_is_the_query(tmp_path: Path, field: str, text: str) -> None:
    assert read_queries(write(tmp_path / "topics", TOPICS), field=field)[1].text == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "topic",
    [
        "<top>\n<num>51</num>\n<title>Airbus Subsidies</title>\n<desc>D.</desc>\n</top>",
        "<top>\n<head> Tipster Topic Description\n<num> Number:  51\n<dom> Domain:  Economics\n"
        "<title> Topic:  Airbus Subsidies\n<desc> Description:\nD.\n<smry> Summary:\nS.\n</top>",
        "<TOP>\r\n<NUM> Number: 51\r\n<TITLE> Airbus\r\nSubsidies\r\n<DESC> Description: D.\r\n</TOP>\r\n",
        "<top><num> 51 <title> Airbus Subsidies <desc> D.",
    ],
)
def test_topics_old_and_new_have_the_same_fields(tmp_path: Path, topic: str) -> None:
    (query,) = read_queries(write(tmp_path / "topics.txt", topic))
    assert query == Query("51", "Airbus Subsidies", {"title": "Airbus Subsidies", "desc": "D."})


def test_a_label_inside_the_text_stays(tmp_path: Path) -> None:
    (query,) = read_queries(write(tmp_path / "t.txt", "<top><num>1<title>hot topic: bears</top>"))
    assert query.text == "hot topic: bears"


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("<top>\n<title>no number\n</top>", "<top> without a <num>"),
        ("<top>\n<num>2\n<title>no desc\n</top>", "the query has no desc"),
        ("<top>\n<num>1\n<desc>again\n</top>", "the query id '1' comes twice"),
    ],
)
def test_a_bad_topic_is_named_or_skipped(tmp_path: Path, topic: str, problem: str) -> None:
    good = "<top>\n\n<num>1\n<desc>fine\n</top>\n"
    file = write(tmp_path / "topics.txt", good + topic)
    with pytest.raises(InputError, match=f"line 6: {problem}"):
        read_queries(file, field="desc")
    report = SkipReport()
    assert [query.id for query in read_queries(file, field="desc", skipped=report)] == ["1"]
    assert report.count == 1


def test_jsonl_keys_of_every_dialect(tmp_path: Path) -> None:
    file = write(
        tmp_path / "queries.jsonl",
        b'\xef\xbb\xbf{"_id": "1", "text": "a", "metadata": {}}\r\n\n{"id": 2, "query": "b"}\n'
        b'{"qid": "3", "title": "c", "desc": "d"}\n{"query_id": "4", "text": null}\n',
    )
    assert read_queries(file) == [
        Query("1", "a"),
        Query("2", "b"),
        Query("3", "c", {"title": "c", "desc": "d"}),
        Query("4", ""),
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.jsonl", '{"_id": "1", "text": "what is a tamis"}\n'),
        ("q.tsv", "1\twhat is a tamis\n"),
        ("q.txt", "\n1\twhat is a tamis \r\n"),
        ("q", '\n {"_id": "1", "text": "what is a tamis"}\n'),
    ],
)
def test_the_format_follows_from_the_suffix_or_the_first_character(
    tmp_path: Path, name: str, content: str
) -> None:
    assert read_queries(write(tmp_path / name, content)) == [Query("1", "what is a tamis")]
    assert read_queries(write(tmp_path / f"{name}.gz", gzip.compress(content.encode()))) == [
        Query("1", "what is a tamis")
    ]


def test_the_format_given_wins(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", "1\ttext\n")
    assert read_queries(file, format="tsv") == [Query("1", "text")]


@pytest.mark.parametrize(
    ("name", "line", "problem"),
    [
        ("q.tsv", b"2 no tab", "1 tab-separated columns where queries have 2"),
        ("q.tsv", b"2\ttwo\ttabs", "3 tab-separated columns where queries have 2"),
        ("q.tsv", b" \ttext", "the id is empty"),
        ("q.tsv", b"1\tagain", "the query id '1' comes twice"),
        ("q.tsv", b"2\tcaf\xe9", "not UTF-8"),
        ("q.jsonl", b'{"_id": "2"}', "none of the keys 'text', 'query', 'title'"),
        ("q.jsonl", b'{"text": "b"}', "none of the keys '_id', 'id', 'qid', 'query_id'"),
        ("q.jsonl", b"{", "not JSON"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, name: str, line: bytes, problem: str) -> None:
    good = b"1\ta" if name == "q.tsv" else b'{"_id": "1", "text": "a"}'
    file = write(tmp_path / name, good + b"\n\n" + line + b"\n")
    with pytest.raises(InputError, match=f"line 3: {problem}"):
        read_queries(file)
    report = SkipReport()
    assert read_queries(file, skipped=report) == [Query("1", "a")]
    assert report.count == 1


@pytest.mark.parametrize("content", ["1\ttext\n", '{"_id": "1", "text": "a"}\n'])
def test_queries_without_fields_refuse_a_field(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="the query has no desc: choose another field"):
        read_queries(write(tmp_path / "q", content), field="desc")


def test_unknown_fields_and_formats(tmp_path: Path) -> None:
    file = write(tmp_path / "q.tsv", "1\ta")
    with pytest.raises(InputError, match=r"'description': use one of title, desc, narr, title\+desc"):
        read_queries(file, field="description")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'csv': use one of jsonl, tsv, trec"):
        read_queries(file, format="csv")  # type: ignore[arg-type]


def test_empty_files_and_files_without_topics(tmp_path: Path) -> None:
    assert read_queries(write(tmp_path / "q.txt", "")) == []
    with pytest.raises(InputError, match="contains no <top>"):
        read_queries(write(tmp_path / "q.xml", "<topics><topic number='1'/></topics>"))
