"""Reader of Chrome trace events, one by one: even a file of gigabytes needs only the memory of its result."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import open_input

CHUNK = 1 << 20  # bytes per read
MAX_VALUE_LENGTH = 1 << 26  # characters of an event, or of another entry of the file
MAX_UNPACKED = 1 << 36  # bytes of a file
MAX_TIMES_PACKED = 100  # limit of unpacked / packed size; the profiler traces in tests/data have 10
EVENTS = "traceEvents"
_SPACE = re.compile(r"[ \t\r\n]*")

Event = dict[str, Any]
Keep = Callable[[Event], Event | None]


def read_events(path: Path, keep: Keep) -> tuple[dict[str, Any], list[Event]]:
    """Return the entries of a Chrome trace except its events, and the results of `keep` for its events, without None.

    Raises ConfigError with the name of a file that is no JSON object, is cut short, contains an entry of more than
    64 MiB, or unpacks to more than 64 GiB or 100 times its size.
    """
    head: dict[str, Any] = {}
    events: list[Event] = []
    try:
        text = _Text(_characters(path))
        text.expect("{")
        while not text.ends_with("}"):
            key = text.value()
            text.expect(":")
            if key == EVENTS:
                found = (keep(event) for event in text.items() if isinstance(event, dict))
                events.extend(event for event in found if event is not None)
                head[EVENTS] = None
            else:
                head[key] = text.value()
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a profiler trace: {error}") from None
    return head, events


def _characters(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    packed = path.suffix == ".gz"
    limit = min(MAX_UNPACKED, max(MAX_TIMES_PACKED * path.stat().st_size, CHUNK)) if packed else MAX_UNPACKED
    with open_input(path) as file:
        while chunk := file.read(CHUNK):
            if file.tell() > limit:
                raise ValueError(f"it holds more than {limit:,} bytes, the most that is read of such a file")
            yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


class _Text:
    """Reader of the values of a JSON text that arrives in pieces."""

    def __init__(self, pieces: Iterator[str]):
        self.pieces, self.text, self.at = pieces, "", 0
        self.decoder = json.JSONDecoder()

    def value(self) -> Any:
        """Return the next value."""
        self._skip_space()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            if end < len(self.text) or not self._more():  # a number may continue in the next piece
                self.at = end
                return value

    def items(self) -> Iterator[Any]:
        """Yield the items of the next value, a list."""
        self.expect("[")
        while not self.ends_with("]"):
            yield self.value()

    def ends_with(self, bracket: str) -> bool:
        """Return whether `bracket` comes next; skip it, or else a comma."""
        self._skip_space()
        found = self.text[self.at : self.at + 1]
        if found == bracket:
            self.at += 1
            return True
        if found == ",":
            self.at += 1
        return False

    def expect(self, character: str) -> None:
        """Skip `character`; raise ValueError for any other."""
        self._skip_space()
        found = self.text[self.at : self.at + 1]
        if found != character:
            raise ValueError(f"{character!r} expected, found {found!r}" if found else "it ends too early")
        self.at += 1

    def _skip_space(self) -> None:
        while True:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr] - it matches everywhere
            if self.at < len(self.text) or not self._more():
                return

    def _more(self) -> bool:
        """Append the next piece and drop the text before `at`; return False at the end."""
        piece = next(self.pieces, None)
        if piece is None:
            return False
        self.text, self.at = self.text[self.at :] + piece, 0
        if len(self.text) > MAX_VALUE_LENGTH:
            raise ValueError(f"it holds one value of more than {MAX_VALUE_LENGTH >> 20} MiB")
        return True
