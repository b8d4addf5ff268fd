"""The store of results: one SQLite file that outlives the run, and the store keys of configs."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import ppsim
from ppsim.base.errors import ConfigError

SCHEMA = 1
_UNRELATED = ("name", "published")  # sections of a config that change no result
_FILES = (("model", "huggingface"), ("schedule", "csv"), ("costs", "profile"))
_UNRELATED_CODE = ("commands", "plots", "interop", "explorer", "cli.py")
_MAX_KEYS = 500  # keys per query; the oldest builds of SQLite take 999


class Store:
    """Results by key in an SQLite file with a write-ahead log.

    Two runs can share it; a killed run loses no stored result.

    Raises ConfigError if the file cannot be opened or is not an SQLite file.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path = os.fspath(path)
        try:
            self._base = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise ConfigError(
                f"{self.path}: cannot be used as a store: {error}; give an SQLite file or a new one"
            ) from None

    def find(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the stored results of those `keys` that have one."""
        found: dict[str, Any] = {}
        for first in range(0, len(keys), _MAX_KEYS):
            some = keys[first : first + _MAX_KEYS]
            marks = ",".join("?" * len(some))
            rows = self._base.execute(f"SELECT key, result FROM results WHERE key IN ({marks})", some)  # noqa: S608 - marks only
            found |= {key: json.loads(result) for key, result in rows}
        return found

    def save(self, results: Mapping[str, Any]) -> None:
        """Write results atomically: all of them, or none if the process dies."""
        rows = [(key, json.dumps(result)) for key, result in results.items()]
        try:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", rows)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            raise ConfigError(f"{self.path}: results cannot be kept: {error}") from None

    def count(self) -> int:
        """Return the number of stored results."""
        return self._base.execute("SELECT count(*) FROM results").fetchone()[0]

    def close(self) -> None:
        """Close the file."""
        self._base.close()


def store_key(data: Mapping[str, Any], place: str) -> str:
    """Return the store key of a config: a hash of its values, its files and the code of ppsim."""
    decisive = {key: value for key, value in data.items() if key not in _UNRELATED}
    files = [
        _digest(os.path.join(os.path.dirname(place), section[name]))
        for top, name in _FILES
        if isinstance(section := data.get(top), Mapping) and isinstance(section.get(name), str)
    ]
    text = json.dumps([SCHEMA, _code(), decisive, files], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(path: str) -> str | None:
    try:
        state = os.stat(path)
    except OSError:
        return None  # the check of the config names the fault
    return _digest_of_version(path, state.st_mtime_ns, state.st_size)


@cache
def _digest_of_version(path: str, changed: int, size: int) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


@cache
def _code() -> str:
    """Return a hash of ppsim's version and of every source file that can change results."""
    home = Path(ppsim.__file__).parent
    digest = hashlib.sha256(ppsim.__version__.encode())
    for file in sorted(home.rglob("*.py")):
        if file.relative_to(home).parts[0] not in _UNRELATED_CODE:
            digest.update(file.read_bytes())
    return digest.hexdigest()
