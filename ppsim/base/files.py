"""Reading and writing files: one clear error for what cannot be read, and never a half-written file."""

import os
import secrets
import stat
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError, shown


def read_text(path: str | PathLike[str]) -> str:
    """The text of a UTF-8 file; ConfigError when it is missing, a folder, unreadable or not text."""
    try:
        return _as_path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_name(path)}: not a UTF-8 text file (byte {error.start})") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_name(path)}: cannot be read: {_reason(error)}") from None


def write_atomically(path: str | PathLike[str], content: str | bytes | Iterable[bytes]) -> None:
    """Write to a temporary name beside `path`, then move it into place; ConfigError when that cannot be done.

    Large content may come in pieces. A link keeps pointing at the file that is written; a device or a pipe such as
    /dev/stdout is written to directly.
    """
    target = _as_path(path)
    try:
        text = content.encode() if isinstance(content, str) else content
        pieces = [text] if isinstance(text, bytes) else text
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("wb") as file:
                file.writelines(pieces)
        else:
            _replace(Path(os.path.realpath(target)), pieces)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_name(path)}: cannot be written: {_reason(error)}") from None


def _replace(target: Path, pieces: Iterable[bytes]) -> None:
    """A whole new file in the place of `target`, with the mode of the old one; else the kernel applies the umask."""
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
        raise ConfigError(f"{shown(path)} is not a file name; give a text such as 'schedule.csv' or a Path") from None


def _name(path: str | PathLike[str]) -> str:
    """The path as it is, or quoted where it would not be seen or not be printed."""
    text = str(path)
    return text if text.strip() and text.isprintable() else shown(text)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
