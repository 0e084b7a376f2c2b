"""Files on disk: atomic writes, and reads that decompress."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, overload

from tamis.base.errors import InputError, StorageError, quoted

PathLike = str | os.PathLike[str]
Check = Callable[[], None]

STDIN = "-"
BOM = b"\xef\xbb\xbf"
TEMPORARY = ".tamis-"  # prefix of the name of an incomplete file
TEMPORARY_FILE = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{16}}\.tmp")
COMPRESSED_SUFFIXES = (".gz", ".zst")

_BUFFER_BYTES = 1 << 18
#: Bytes read at once from a zstd file. They are decompressed in memory: up to 128 KiB for every four bytes.
_COMPRESSED_READ_BYTES = 1 << 10
_LARGEST_WINDOW = 1 << 27  # largest window of a zstd file, the default limit of zstd itself
_LARGEST_TEXT = 1 << 28  # maximum bytes of a file that is read into memory

_REMEDIES = {
    errno.ENOSPC: "free some space or write to another disk",
    errno.EDQUOT: "free some of your quota or write to another disk",
    errno.EFBIG: "write where files may be larger",
    errno.EROFS: "write to a folder that is not read-only",
    errno.EACCES: "check the permissions, and that no other program has the file open",
    errno.EPERM: "check the permissions",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "part of the path is a file: choose another path",
    errno.EISDIR: "give the name of a file, not of a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "check the disk",
    errno.EMFILE: "allow more open files (ulimit -n), or merge the index",
    errno.ENFILE: "close other programs, or allow more open files",
}


@contextmanager
def storage_errors(path: PathLike) -> Iterator[None]:
    """Convert errors of the file system while `path` is written to a `StorageError` with a remedy.

    >>> with storage_errors("run.txt"):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    tamis.base.errors.StorageError: cannot write run.txt (No space left on device): free some space or ...
    """
    try:
        yield
    except ConnectionError:
        raise  # the reader closed a pipe: not an error of the storage
    except OSError as error:
        if error.errno is None:  # raised by a decompressor, not by the file system
            raise
        problem = f"cannot write {os.fspath(path)} ({os.strerror(error.errno)})"
        raise StorageError(problem, remedy=_REMEDIES.get(error.errno, "")) from error


def unreadable(path: PathLike, error: OSError) -> StorageError:
    """The error for an existing file that the file system does not allow us to read.

    >>> print(unreadable("idx/manifest.json", PermissionError(errno.EACCES, "Permission denied")))
    cannot read idx/manifest.json (Permission denied): check the permissions, and that no other ...
    """
    problem = f"cannot read {os.fspath(path)} ({error.strerror or error})"
    return StorageError(problem, remedy=_REMEDIES.get(error.errno or 0, ""))


@overload
def atomic_write(
    path: PathLike, mode: Literal["wb"] = "wb", *, check: Check | None = None
) -> AbstractContextManager[BinaryIO]: ...
@overload
def atomic_write(
    path: PathLike, mode: Literal["w"], *, check: Check | None = None
) -> AbstractContextManager[TextIO]: ...
def atomic_write(
    path: PathLike, mode: Literal["wb", "w"] = "wb", *, check: Check | None = None
) -> AbstractContextManager[IO[Any]]:
    """Open `path` for writing so that a reader sees either the old file or the complete new one.

    The data is written to a temporary file in the same folder. When the block ends, the file is forced to
    disk and renamed in one step; if the block ends with an exception, the temporary file is removed. A file
    whose name ends in `.gz` or `.zst` is compressed. Text is UTF-8 with `\\n` line ends on every system.
    `check` is called just before the file is renamed, and can still prevent this with an exception.

    >>> folder = getfixture("tmp_path")
    >>> with atomic_write(folder / "notes.txt.gz", "w") as stream:
    ...     _ = stream.write("café")
    >>> read_text(folder / "notes.txt.gz")
    'café'
    """
    return _atomic_write(Path(path), mode, check)


@contextmanager
def _atomic_write(path: Path, mode: str, check: Check | None) -> Iterator[IO[Any]]:
    target = Path(os.path.realpath(path))  # replace the target of a symbolic link, not the link
    with storage_errors(path):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.exists() and not path.is_file():
            # A pipe or a device must not be replaced: os.replace would destroy /dev/null. And the target of
            # the link is not always a file: for /dev/stdout it can be pipe:[123].
            with path.open("wb") as device, _encoding(device, target.suffix.lower(), mode) as stream:
                yield stream
            return
        temporary = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("xb", buffering=_BUFFER_BYTES) as raw:
                with _encoding(raw, target.suffix.lower(), mode) as stream:
                    yield stream
                raw.flush()
                os.fsync(raw.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            if check is not None:
                check()
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(target.parent)


@contextmanager
def _encoding(raw: BinaryIO, suffix: str, mode: str) -> Iterator[IO[Any]]:
    """The stream to write to, on top of `raw`, which stays open so that it can be forced to disk."""
    compressor: Any = None
    if suffix == ".gz":
        # No name and no time in the header, so that the same text always gives the same bytes.
        compressor = gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0)
    elif suffix == ".zst":
        import zstandard

        frame = zstandard.ZstdCompressor(level=3, write_checksum=True)
        compressor = frame.stream_writer(raw, closefd=False)
    stream: Any = compressor or raw
    text = io.TextIOWrapper(stream, "utf-8", newline="\n") if mode == "w" else None
    try:
        yield text or stream
        if text is not None:
            text.flush()
        if compressor is not None:
            compressor.close()
    except BaseException:
        # Only the first error is reported. A file that is not closed here would warn when it is
        # garbage-collected.
        if compressor is not None:
            with suppress(Exception):
                compressor.close()
        raise
    finally:
        if text is not None:
            with suppress(Exception):
                text.detach()  # otherwise its finaliser would close `raw`


def make_folder(folder: PathLike) -> None:
    """Create a folder and its missing parents durably, so that files written into them survive a power cut.

    >>> make_folder(getfixture("tmp_path") / "deep" / "idx")
    >>> (getfixture("tmp_path") / "deep" / "idx").is_dir()
    True
    """
    path = Path(folder)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        with suppress(PermissionError):  # a folder that can be entered but not listed cannot be synced
            sync_folder(each.parent)
    if not missing:
        path.mkdir(exist_ok=True)  # raises the error if it is a file


def is_temporary(path: Path) -> bool:
    """Whether a path is a plain file left by an interrupted `atomic_write`, by its name with 64 random bits.

    >>> is_temporary(Path(".tamis-notes"))
    False
    """
    return bool(TEMPORARY_FILE.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


def sync_folder(folder: PathLike) -> None:
    """Force a folder's list of names to disk, if the system supports it (Windows does it by itself).

    >>> sync_folder(".")
    """
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some network file systems
            raise
    finally:
        os.close(descriptor)


@contextmanager
def open_bytes(path: PathLike) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed by its suffix; `-` is the standard input.

    A missing, unreadable, damaged or truncated file raises an `InputError` that names it.

    >>> folder = getfixture("tmp_path")
    >>> with atomic_write(folder / "run.zst") as stream:
    ...     _ = stream.write(b"one\\ntwo\\n")
    >>> with open_bytes(folder / "run.zst") as stream:
    ...     list(stream)
    [b'one\\n', b'two\\n']
    """
    if os.fspath(path) == STDIN:
        if sys.stdin is None:
            raise InputError("the standard input is closed", remedy="give a file, or a pipe")
        yield sys.stdin.buffer
        return
    suffix = Path(path).suffix.lower()
    with _open(path) as raw:
        try:
            if suffix == ".gz":
                # GzipFile reads lines in Python; a buffer above it reads them in C.
                with io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER_BYTES) as stream:
                    yield stream
            elif suffix == ".zst":
                with io.BufferedReader(_ZstdReader(raw), _BUFFER_BYTES) as stream:
                    yield stream
            else:
                yield raw
        except _WideZstdError as error:
            problem = f"compressed with a window of over {_LARGEST_WINDOW >> 20} MiB"
            remedy = "compress it again, with --long=27 at most"
            raise InputError(problem, remedy=remedy, path=os.fspath(path)) from error
        except (EOFError, gzip.BadGzipFile, zlib.error, _DamagedZstdError) as error:
            problem = f"the compressed file is damaged or cut short ({error})"
            raise InputError(problem, remedy="fetch or write it again", path=os.fspath(path)) from error


def is_there(path: PathLike) -> bool:
    """Whether there is a file or folder with that name; False for names that no file can have.

    >>> is_there("."), is_there("x" * 100_000), is_there("a\\0")
    (True, False, False)
    """
    try:
        return Path(path).exists()
    except OSError:  # the name is too long, or a parent folder cannot be entered
        return False


def _open(path: PathLike) -> BinaryIO:
    try:
        return Path(path).open("rb", buffering=_BUFFER_BYTES)
    except FileNotFoundError as error:
        raise InputError("no such file", remedy="check the path", path=os.fspath(path)) from error
    except OSError as error:
        if is_there(path) and Path(path).is_dir():  # opening a folder has its own error only on some systems
            raise InputError("is a folder", remedy="give a file", path=os.fspath(path)) from error
        remedy = "check that it is a file that you may read"
        problem = f"cannot be opened ({error.strerror})"
        raise InputError(problem, remedy=remedy, path=os.fspath(path)) from error
    except ValueError:  # the path contains a NUL
        problem = f"{quoted(os.fspath(path))} is not a valid path"
        raise InputError(problem, remedy="check the path") from None


def read_text(path: PathLike, limit: int = _LARGEST_TEXT) -> str:
    r"""The whole text of a file: strict UTF-8, without a byte order mark, every line end as `\n`. A file of
    over `limit` bytes is an error: a few kilobytes can be compressed gigabytes, and a device may never end.

    >>> file = getfixture("tmp_path") / "a.txt"
    >>> _ = file.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    >>> read_text(file)
    'one\ntwo'
    >>> _ = file.write_bytes(b"one\ncaf\xe9")
    >>> read_text(file)
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../a.txt, line 2: not UTF-8 (byte 0xe9): convert the file to UTF-8
    """
    with open_bytes(path) as stream:
        data = stream.read(limit + 1).removeprefix(BOM)
    if len(data) > limit:
        size = f"{limit >> 20} MiB" if limit >> 20 else f"{limit} bytes"
        raise InputError(f"holds over {size}", remedy="split it, or check the path", path=os.fspath(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(error, path=path, line=data.count(b"\n", 0, error.start) + 1) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def not_utf8(error: UnicodeDecodeError, *, path: PathLike, line: int) -> InputError:
    """The error for bytes that are not UTF-8.

    >>> try:
    ...     b"caf\\xe9".decode()
    ... except UnicodeDecodeError as error:
    ...     print(not_utf8(error, path="a.txt", line=3))
    a.txt, line 3: not UTF-8 (byte 0xe9): convert the file to UTF-8
    """
    problem = f"not UTF-8 (byte {error.object[error.start]:#04x})"
    return InputError(problem, remedy="convert the file to UTF-8", path=os.fspath(path), line=line)


class _DamagedZstdError(Exception):
    """A zstd frame that is invalid or truncated."""


class _WideZstdError(Exception):
    """A zstd frame that needs more memory than allowed."""


class _ZstdReader(io.RawIOBase):
    """Decompresses a sequence of zstd frames.

    zstandard's own stream reader reads a truncated file without an error, so that half a corpus would be
    indexed silently.
    """

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw = raw
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._error: type[Exception] = zstandard.ZstdError
        self._frame: Any = None
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            compressed = self._raw.read(_COMPRESSED_READ_BYTES)
            if not compressed:
                if self._frame is not None:
                    raise _DamagedZstdError("the last frame has no end")
                return 0
            self._pending = memoryview(self._decompress(compressed))
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size

    def _decompress(self, compressed: bytes) -> bytes:
        parts = []
        try:
            while compressed:
                if self._frame is None:
                    self._frame = self._decompressor.decompressobj()
                parts.append(self._frame.decompress(compressed))
                if not self._frame.eof:
                    break
                compressed, self._frame = self._frame.unused_data, None
        except self._error as error:
            kind = _WideZstdError if "too much memory" in str(error) else _DamagedZstdError
            raise kind(str(error)) from error
        return b"".join(parts)
