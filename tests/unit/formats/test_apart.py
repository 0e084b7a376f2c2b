"""The process that reads files apart: whatever a file does to it, the next one is read."""

import sys
from pathlib import Path

import pytest

from tamis.base.errors import InputError
from tamis.formats.apart import Reader
from tests.unit.formats.builders import ENCRYPTED, pdf


def page(path: Path, text: str) -> Path:
    path.write_text(f"<title>{path.stem}</title><p>{text}")
    return path


def test_files_one_after_the_other(tmp_path: Path) -> None:
    with Reader() as reader:
        assert reader.read(page(tmp_path / "a.html", "one\u2028\ue000"), "html").text == "one\u2028\ue000"
        with pytest.raises(InputError, match=r"no.html: no such file"):
            reader.read(tmp_path / "no.html", "html")
        assert reader.read(page(tmp_path / "b.html", "two"), "html").title == "b"


def test_a_file_that_takes_too_long_is_refused_and_the_next_is_read(tmp_path: Path) -> None:
    slow = tmp_path / "slow.html"
    slow.write_bytes(b"<div>" * 1_000_000)  # parsers need the square of the depth
    too_slow = pytest.raises(InputError, match=r"slow.html: takes longer than 0.5 seconds to read: split it")
    with Reader(seconds=0.5) as reader, too_slow:
        reader.read(slow, "html")
    with Reader() as reader:
        reader.read(page(tmp_path / "a.html", "one"), "html")
        process = reader._process
        assert process is not None
        process.kill()
        process.wait()
        with pytest.raises(InputError, match=r"b.html: crashes its parser"):
            reader.read(page(tmp_path / "b.html", "two"), "html")
        assert reader.read(tmp_path / "a.html", "html").text == "one"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's memory")
def test_a_file_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    big = tmp_path / "big.html"
    big.write_bytes(b"<p>a" * 2_000_000)
    with Reader(memory=1 << 28) as reader:
        with pytest.raises(InputError, match=r"takes too much memory|crashes its parser|cannot be read"):
            reader.read(big, "html")
        assert reader.read(page(tmp_path / "a.html", "one"), "html").text == "one"


def test_an_encrypted_pdf(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    with Reader() as reader, pytest.raises(InputError, match=r"a.pdf: encrypted: save it without a password"):
        reader.read(pdf(tmp_path / "a.pdf", "text", encrypt=ENCRYPTED), "pdf")


def test_a_hostile_name_is_only_a_name(tmp_path: Path) -> None:
    with Reader() as reader:
        assert reader.read(page(tmp_path / 'a"\n.html', "one"), "html").text == "one"
