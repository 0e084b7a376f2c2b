"""Writes that happen entirely or not at all, and reads that say what is wrong."""

import gzip
import io
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import zstandard

from tamis.base.errors import InputError, StorageError
from tamis.storage.files import atomic_write, open_bytes, read_text, storage_errors

posix_only = pytest.mark.skipif(os.name == "nt", reason="POSIX only")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_python(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "A.TXT.GZ"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    text = "caf\u00e9 \u0000 \U0001f373\n" * 1000
    with atomic_write(tmp_path / name, "w") as stream:
        stream.write(text)
    with atomic_write(tmp_path / f"b-{name}") as binary:
        binary.write(text.encode())
    assert read_text(tmp_path / name) == read_text(tmp_path / f"b-{name}") == text
    assert set(names(tmp_path)) == {name, f"b-{name}"}


def test_compressed_files_are_what_their_suffix_says(tmp_path: Path) -> None:
    for name in ("a.gz", "a.zst"):
        with atomic_write(tmp_path / name, "w") as stream:
            stream.write("sieve")
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"sieve"
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO((tmp_path / "a.zst").read_bytes()))
    assert reader.read() == b"sieve"


def test_a_gz_header_holds_no_time_and_no_name(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.gz", "w") as stream:
        stream.write("sieve")
    assert (tmp_path / "a.gz").read_bytes()[3:8] == bytes(5)


def test_line_ends_are_not_translated(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.txt", "w") as stream:
        stream.write("one\ntwo\r\n")
    assert (tmp_path / "a.txt").read_bytes() == b"one\ntwo\r\n"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst"])
@pytest.mark.parametrize("mode", ["w", "wb"])
def test_an_exception_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, name: str, mode: str) -> None:
    with atomic_write(tmp_path / name, "w") as stream:
        stream.write("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / name, mode) as stream:  # type: ignore[call-overload]
        stream.write("new" if mode == "w" else b"new")
        raise KeyboardInterrupt
    assert read_text(tmp_path / name) == "old"
    assert names(tmp_path) == [name]


@posix_only
def test_a_kill_half_way_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "run.txt"
    file.write_text("old")
    source = """
        import os, signal, sys
        from tamis.storage.files import atomic_write
        with atomic_write(sys.argv[1], "w") as stream:
            stream.write("new " * 1_000_000)
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_python(source, str(file)).returncode == -9
    assert file.read_text() == "old"


@posix_only
def test_a_write_that_fails_half_way_is_a_storage_error(tmp_path: Path) -> None:
    file = tmp_path / "run.txt"
    file.write_text("old")
    source = """
        import resource, signal, sys
        from tamis.base.errors import StorageError
        from tamis.storage.files import atomic_write
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            with atomic_write(sys.argv[1], "w") as stream:
                stream.write("new " * 1_000_000)
        except StorageError as error:
            print(error)
    """
    done = run_python(source, str(file))
    assert f"cannot write {file} (File too large)" in done.stdout
    assert done.stderr == ""
    assert file.read_text() == "old"
    assert names(tmp_path) == ["run.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error_with_a_remedy() -> None:
    with (
        pytest.raises(StorageError, match=r"/dev/full .*: free some space"),
        atomic_write("/dev/full") as full,
    ):
        full.write(b"x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_a_pipe_that_has_a_name_only_for_its_process() -> None:
    """As /dev/stdout has in `tamis run ... -o /dev/stdout | head`."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        with os.fdopen(writing, "wb"), atomic_write(f"/dev/fd/{writing}", "w") as stream:
            stream.write("q1 Q0 d1")
        assert pipe.read() == b"q1 Q0 d1"


def test_a_missing_folder_and_a_folder_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="create the folder first"), atomic_write(tmp_path / "no" / "a"):
        pass
    with pytest.raises(StorageError, match="not of a folder"), atomic_write(tmp_path):
        pass


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_a_storage_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="permissions"), atomic_write(tmp_path / "a.txt"):
            pass
    finally:
        tmp_path.chmod(0o755)


@posix_only
def test_links_and_permissions_are_kept(tmp_path: Path) -> None:
    file, link = tmp_path / "real.txt", tmp_path / "link.txt"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    with atomic_write(link, "w") as stream:
        stream.write("new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@posix_only
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "atomic"):
        pass
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_other_errors_pass_through() -> None:
    with pytest.raises(BrokenPipeError), storage_errors("a"):
        raise BrokenPipeError(32, "Broken pipe")
    with pytest.raises(ZeroDivisionError), storage_errors("a"):
        raise ZeroDivisionError


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("missing", [1, 9, 500])
def test_a_compressed_file_cut_short_is_an_error(tmp_path: Path, suffix: str, missing: int) -> None:
    file = tmp_path / f"a.txt{suffix}"
    with atomic_write(file) as stream:
        stream.write(os.urandom(5000))
    file.write_bytes(file.read_bytes()[:-missing])
    with pytest.raises(InputError, match="damaged or cut short"), open_bytes(file) as cut:
        cut.read()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_is_not_compressed_is_an_error(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(b"plain text all the same")
    with pytest.raises(InputError, match="damaged or cut short"), open_bytes(file) as stream:
        stream.read()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_members_follow_each_other(tmp_path: Path, suffix: str) -> None:
    compress = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    file = tmp_path / f"a{suffix}"
    file.write_bytes(compress(b"one\ntw") + compress(b"") + compress(b"o\n"))
    with open_bytes(file) as stream:
        assert list(stream) == [b"one\n", b"two\n"]


def test_missing_files_and_folders_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file: check the path"):
        read_text(tmp_path / "no.txt")
    with pytest.raises(InputError, match="is a folder: give a file"):
        read_text(tmp_path)


def test_a_decoding_error_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfone\ntwo\nthr\xe9e\n")
    with pytest.raises(InputError, match=r"line 3: not UTF-8 \(byte 0xe9\)") as caught:
        read_text(file)
    assert (caught.value.path, caught.value.line) == (str(file), 3)


def test_standard_input_is_read_and_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfone\r\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_text("-") == "one\n"
    assert not stdin.closed
