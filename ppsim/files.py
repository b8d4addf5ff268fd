"""Reading and writing files: one clear error for what cannot be read, and never a half-written file."""

import os
import tempfile
from os import PathLike
from pathlib import Path

from ppsim.errors import ConfigError


def read_text(path: str | PathLike[str]) -> str:
    """The text of a UTF-8 file; ConfigError when it is missing, a folder, unreadable or not text."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a UTF-8 text file (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path!r}: not a file name: {error}") from None


def write_atomically(path: str | PathLike[str], content: str | bytes) -> None:
    """Write to a temporary name beside `path`, then move it into place; ConfigError when that cannot be done."""
    target = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise ConfigError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
