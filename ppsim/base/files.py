"""Reading and writing files: one clear error for what cannot be read, and never a half-written file."""

import gzip
import hashlib
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, cast

from ppsim.base.errors import ConfigError, shown
from ppsim.base.host import Notes, note_failure

MAX_FILE_BYTES = 2**29  # a schedule of 50 million actions
MAX_CONFIG_BYTES = 2**21  # a config, a profile or a model's config.json
_NEWLINE = re.compile("\r\n?")
_SETTLED = 2 * 10**9  # nanoseconds after which another change of a file changes its times too


def read_text(path: str | PathLike[str], most: int = MAX_FILE_BYTES, *, noted: bool = True) -> str:
    """Return the text of a UTF-8 file, unpacked if its name ends in .gz; not `noted` if a write replaces the file.

    Raises ConfigError if the file is missing, a folder, unreadable, not text, or holds more than `most` bytes. A device
    or a pipe may never end, and a small packed file may unpack to any size.
    """
    try:
        with open_input(path, noted=noted) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ConfigError(f"{_name(path)}: holds more than {most:,} bytes, the most that is read of such a file")
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{_name(path)}: cannot be read: a damaged .gz file ({error})") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            note_failure()
        raise ConfigError(f"{_name(path)}: cannot be read: {_reason(error)}") from None
    return decoded(content, _name(path))


def decoded(content: bytes, place: str) -> str:
    r"""Return the text of a UTF-8 file with "\n" at the end of each line; ConfigError if it is not UTF-8."""
    try:
        return _NEWLINE.sub("\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not a UTF-8 text file (byte {error.start})") from None


def open_input(path: str | PathLike[str], *, noted: bool = True) -> BinaryIO:
    """Open a file to read its bytes, unpacked if its name ends in .gz, and note it for `noting_reads`.

    Every file that a user names is opened here. Raises OSError, and ConfigError for what is not a path.
    """
    place = _as_path(path)
    if str(place) == "-":
        raise ConfigError("-: not a file name; to read stdin, give /dev/stdin")
    if noted:
        note_read(place)
    return cast(BinaryIO, gzip.open(place)) if place.suffix == ".gz" else place.open("rb")


_reads = Notes("reads")
# Notes the path of a file that this thread is about to read, or that a worker process has read.
note_read, noting_reads = _reads.note, _reads.noting


def file_digest(path: str | PathLike[str]) -> str | None:
    """Return a digest of a file's content; None if it cannot be read again, as a pipe, or is larger than any input.

    A file whose times and size have not changed is not read again.
    """
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_FILE_BYTES:
            return None
        version = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
        settled = time.time_ns() - max(version[-2:]) > _SETTLED
        return (_digest if settled else _digest.__wrapped__)(os.fspath(path), version)
    except (OSError, ValueError):
        return None


@lru_cache(256)
def _digest(path: str, version: tuple[int, ...]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: str | PathLike[str], content: str | bytes | Iterable[bytes]) -> None:
    """Write to a temporary file next to `path`, then move it into place; ConfigError if that fails.

    Large content may come in pieces. A link stays; its target is replaced. Devices such as /dev/stdout are written to.
    """
    with _writing(path) as target:
        text = content.encode() if isinstance(content, str) else content
        pieces = [text] if isinstance(text, bytes) else text
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("wb") as file:
                file.writelines(pieces)
        else:
            _replace(Path(os.path.realpath(target)), pieces)


def append_text(path: str | PathLike[str], text: str) -> None:
    """Append to a file that several programs share; ConfigError if that fails. A name that is no UTF-8 is escaped."""
    with _writing(path) as target, open(target, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


@contextmanager
def _writing(path: str | PathLike[str]) -> Iterator[Path]:
    """Yield the path that the `with` block writes; ConfigError if it cannot, or if the command reads the file."""
    target, call = _as_path(path), _call.get()
    if call:
        call.check_write(target)
    try:
        yield target
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_name(path)}: cannot be written: {_reason(error)}") from None
    if call:
        call.add_written(target)


def check_target(path: str | PathLike[str]) -> None:
    """Raise ConfigError if `path` is no file name, or its folder is missing or not writable.

    Call it before work whose result would be lost. `-` is not a file name, because it means stdout in `--json -`.
    """
    target = _as_path(path)
    if str(target) == "-" or "\0" in str(target) or os.path.isdir(target):
        raise ConfigError(f"{_name(path)}: not a file name; use a name such as out.json")
    folder = os.path.dirname(os.path.realpath(target))
    if not os.path.isdir(folder):
        raise ConfigError(f"{_name(path)}: cannot be written: there is no folder {_name(folder)}")
    if not os.path.exists(path) and not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{_name(path)}: cannot be written: the folder {_name(folder)} may not be written to")


class OverwriteError(Exception):
    """An output of a command is one of its inputs. It is no PpsimError, which a study may take for a faulty point."""


_Identity = tuple[int | str, ...]
_call: ContextVar["CallFiles | None"] = ContextVar("call", default=None)  # of the command that runs


class CallFiles:
    """The files of one command: none is both read and written, and none is written twice.

    Files are compared by device and inode, so that spelling, links and case do not matter; devices and pipes are free.
    The Python API has no such rule: `Schedule.from_csv(path).to_csv(path)` is legal.
    """

    def __init__(self) -> None:
        self._read: set[_Identity] = set()
        self._outputs: dict[_Identity, str] = {}  # the option and the name of each
        self._written: dict[_Identity, Path] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Check every read and write of this thread inside the `with` block; OverwriteError before a file is lost."""
        before = _call.set(self)
        try:
            with noting_reads(self.add_input):
                yield
        finally:
            _call.reset(before)

    def add_output(self, option: str, path: str | PathLike[str] | int) -> None:
        """Add a file, or an open descriptor, that will be written; ConfigError if another option writes it."""
        identity = _identity(path)
        if identity is None:
            return
        if identity in self._outputs:
            twin = self._outputs[identity].partition(" ")[0]
            raise ConfigError(f"{twin} and {option} both write {path}; give each a file of its own")
        self._outputs[identity] = option if isinstance(path, int) else f"{option} {_name(path)}"

    def add_input(self, path: str | PathLike[str]) -> None:
        """Add a file that is about to be read; OverwriteError if it will be written or was written."""
        identity = _identity(path)
        if identity is None:
            return
        self._read.add(identity)
        if identity in self._outputs or self._has_written(identity):
            raise _overwrites(self._outputs.get(identity, _name(path)))

    def check_write(self, path: Path) -> None:
        """Raise OverwriteError if this call has read the file, ConfigError if it has written it."""
        identity = _identity(path)
        if identity in self._read:
            raise _overwrites(_name(path))
        if self._has_written(identity):
            raise ConfigError(f"{_name(path)}: is written twice by this call; give each output a file of its own")

    def add_written(self, path: Path) -> None:
        """Add a file that was written, which may be a new one of an old name."""
        if identity := _identity(path):
            self._written[identity] = path

    def _has_written(self, identity: _Identity | None) -> bool:
        """Return whether the file is one of this call; the inode of a file that another call replaced is used again."""
        return identity in self._written and _identity(self._written[identity]) == identity


def _overwrites(output: str) -> OverwriteError:
    return OverwriteError(f"{output}: would replace a file that this call reads; give another name")


def _identity(path: str | PathLike[str] | int) -> _Identity | None:
    """Return the device and inode of a file, or of the folder of a file to come; None for a folder, device or pipe."""
    with suppress(OSError, ValueError):
        state = os.stat(path)
        return (state.st_dev, state.st_ino) if stat.S_ISREG(state.st_mode) else None
    with suppress(OSError, ValueError):
        folder, name = os.path.split(os.path.realpath(str(path)))  # a link may lead to a file that does not exist yet
        state = os.stat(folder)
        return state.st_dev, state.st_ino, name
    return None


def _replace(target: Path, pieces: Iterable[bytes]) -> None:
    """Replace `target` atomically, keeping its mode; for a new file the kernel applies the umask."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    created = 0o666 if mode is None else mode
    temporary = target.with_name(f".{target.name[:20]}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, created)) as file:
            file.writelines(pieces)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _as_path(path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise ConfigError(f"{shown(path)} is not a path of a file or folder; give one as text or as a Path") from None


def _name(path: str | PathLike[str]) -> str:
    """Return the path, quoted if it is blank or not printable."""
    text = str(path)
    return text if text.strip() and text.isprintable() else shown(text)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).removeprefix("lstat: ")  # Python 3.13 adds this prefix
