"""The store of results: one SQLite file that outlives the run, and what a stored result follows from."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ppsim.base.errors import ConfigError
from ppsim.base.files import check_target, file_digest, note_read, noting_reads
from ppsim.base.host import noting_failures
from ppsim.base.progress import say

# What stored results mean. Raise it if a change alters any result: tests/test_stored_results.py notices.
RESULTS = 46

_UNRELATED = ("name", "published")  # sections of a config that change no result
_TABLE = (
    "CREATE TABLE results (key TEXT NOT NULL, files TEXT NOT NULL, result TEXT NOT NULL, checksum TEXT NOT NULL, "
    "PRIMARY KEY (key, files))"
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_SECONDS_BEFORE_SAYING, _POLL_SECONDS = 1.0, 0.05

T = TypeVar("T")


@dataclass
class Basis:
    """Inputs of a result besides its key."""

    # digest by path of every file that was read; None if its content cannot be identified
    files: dict[str, str | None] = field(default_factory=dict)
    failures: int = 0  # number of times that this machine failed, such as a missing library

    def add_file(self, path: str | PathLike[str]) -> None:
        """Add a file that is about to be read."""
        self.files.setdefault(os.fspath(path), file_digest(path))

    def add_failure(self) -> None:
        """Add a failure of this machine."""
        self.failures += 1

    @property
    def is_lasting(self) -> bool:
        """True if the same key and files give the same result at any time, on any machine."""
        return not self.failures and all(found is not None for found in self.files.values()) and _unchanged(self.files)


@contextmanager
def noting_basis() -> Iterator[Basis]:
    """Yield a Basis that fills with what is read, and what fails, in this thread inside the `with` block."""
    basis = Basis()
    with noting_reads(basis.add_file), noting_failures(basis.add_failure):
        yield basis


def _unchanged(files: Mapping[str, str | None]) -> bool:
    return all(file_digest(path) == digest for path, digest in files.items())


class Store:
    """Results in an SQLite file with a write-ahead log, by key and by the content of the files that they follow from.

    Two runs can share it; a killed run loses no stored result. While another process locks the file, every method
    waits, and says so on stderr. Rows that fail their checksum are recomputed.

    Raises ConfigError if the file cannot be opened, read or written, or is not a store.
    """

    def __init__(self, path: str | PathLike[str]):
        check_target(path)
        self.path = os.fspath(path)
        self._damaged: set[str] = set()
        if os.path.exists(path) and not os.path.isfile(path):
            raise ConfigError(f"{self.path}: not a file; give an SQLite file or a new one")
        try:  # an absolute path, as SQLite gives ":memory:" and others a meaning
            self._base = sqlite3.connect(os.path.abspath(path), timeout=0, isolation_level=None)
        except (sqlite3.Error, ValueError) as error:
            raise self._fault(error) from None
        self._base.text_factory = lambda text: text.decode(errors="replace")  # a damaged row may not be UTF-8
        try:
            self._patiently(self._prepare)
        except BaseException:
            self._base.close()
            raise

    def find(self, keys: Sequence[str], place: str = "") -> dict[str, Any]:
        """Return the stored results of those `keys` that have one, of the config at `place` if it reads files.

        The oldest builds of SQLite take at most 999 keys.
        """
        found: dict[str, Any] = {}
        marks = ",".join("?" * len(keys))
        query = f"SELECT key, files, result, checksum FROM results WHERE key IN ({marks})"  # noqa: S608 - marks only
        for key, *texts, checksum in self._patiently(lambda: self._base.execute(query, keys).fetchall()):
            if checksum != _checksum(key, *texts):
                self._damaged.add(key)
                continue
            basis, result = map(json.loads, texts)
            if not basis or (basis["place"] == place and _unchanged(basis["files"])):
                found[key] = result
                for path in basis.get("files", ()):
                    note_read(Path(path))
        return found

    def save(self, results: Iterable[tuple[str, Mapping[str, str | None], Any]], place: str = "") -> None:
        """Write results atomically, all of them or none: each with its key and the files that it follows from."""
        rows = []
        for key, files, result in results:
            texts = json.dumps({"place": place, "files": files} if files else {}, sort_keys=True), json.dumps(result)
            rows.append((key, *texts, _checksum(key, *texts)))

        def write() -> None:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.executemany("DELETE FROM results WHERE key = ?", [row[:1] for row in rows if row[0] in damaged])
            self._base.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", rows)
            self._base.execute("COMMIT")

        damaged = set(self._damaged)
        if rows:
            self._patiently(write)

    def close(self) -> None:
        """Close the file, and print how many damaged rows there were."""
        if self._damaged:
            say(f"ppsim: {self.path}: damaged rows: {len(self._damaged)}; their results were recomputed")
            self._damaged.clear()
        with suppress(sqlite3.Error):
            self._base.close()

    def _prepare(self) -> None:
        """Create the table unless it is there; ConfigError for another program's file."""
        if (tables := self._tables()) and tables.get("results") != _TABLE:
            raise ConfigError(f"{self.path}: an SQLite file, but not a store of ppsim; give a new file")
        self._base.execute("BEGIN IMMEDIATE")  # fails now, not after hours of work, if the file cannot be written
        if not self._tables():
            self._base.execute(_TABLE)
        self._base.execute("COMMIT")
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=NORMAL")

    def _tables(self) -> dict[str, str]:
        return dict(self._base.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall())

    def _patiently(self, action: Callable[[], T]) -> T:
        """Return the result of `action`; while another process locks the file, wait and try again."""
        began, has_said = time.monotonic(), False
        while True:
            try:
                return action()
            except (sqlite3.Error, UnicodeError) as error:  # SQLite may quote damaged bytes in its message
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in _BUSY:
                    raise self._fault(error) from None
            finally:
                if self._base.in_transaction:
                    with suppress(sqlite3.Error):
                        self._base.execute("ROLLBACK")
            if not has_said and time.monotonic() - began > _SECONDS_BEFORE_SAYING:
                say(f"ppsim: {self.path}: another process locks it; waiting (Ctrl-C stops)")
                has_said = True
            time.sleep(_POLL_SECONDS)

    def _fault(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.path}: cannot be used as a store: {error}; give an SQLite file or a new one")


def _checksum(*values: object) -> str:
    return hashlib.sha256("\0".join(map(str, values)).encode()).hexdigest()


def store_key(data: Mapping[str, Any]) -> str:
    """Return the store key of values that decide a result: those of a config, and others under further keys."""
    decisive = _plain({key: value for key, value in data.items() if key not in _UNRELATED})
    return hashlib.sha256(json.dumps([RESULTS, decisive], sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value for JSON; values that differ, or keys such as 3 and "3", differ there too."""
    if isinstance(value, Mapping):
        return {repr(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, int) and abs(value) >= 2**64:
        return {"int": hex(value)}  # JSON takes no more than 4,300 digits
    if value is None or isinstance(value, str | int | float):
        return value
    return _plain(value.tolist()) if hasattr(value, "tolist") else repr(value)
