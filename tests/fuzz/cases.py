"""The cases of a fuzz run: how many, how documents are damaged, and a count of what came of them."""

import copy
import json
import os
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import ppsim

EXAMPLES = int(os.environ.get("PPSIM_FUZZ_EXAMPLES", "10"))
ALL: Any = list(HealthCheck)
COUNTS = defaultdict(Counter)  # what was tried -> "answers" and "refusals"


def some(part=1.0):
    """As many random examples of a test as the run asks for, or a part of them where one takes long."""
    return settings(max_examples=max(5, int(EXAMPLES * part)), deadline=None, suppress_health_check=ALL)


fuzz = some()


@contextmanager
def case(what):
    """One case ends in an answer or a PpsimError, both counted; anything else fails the test."""
    try:
        yield
    except ppsim.PpsimError:
        COUNTS[what]["refusals"] += 1
    else:
        COUNTS[what]["answers"] += 1


odd_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4),
        st.sampled_from(["0F0", "inf", "1e999", int("9" * 400), -1, 0, 2**31, 2**63, 1e308, -1e308, "2 ms", {}, []]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip


def moved(value):
    """Other numbers near a number, most of them as legal as it is; the other of two truths."""
    if isinstance(value, bool):
        return st.just(not value)
    near = ([2 * value, 4 * value, max(value // 2, 1), value + 1, 1] if isinstance(value, int) else
            [value * 0.999, value * 1.001, value + 0.001, value * 2, value / 3, 0.0])  # fmt: skip
    return st.sampled_from([other for other in near if other != value])


def leaves(document, unread, above=()):
    """The keys that lead to each value of a document that is no list or mapping, without what nobody reads."""
    if not isinstance(document, dict | list):
        return [above]
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    return [path for key, inner in pairs if key not in unread for path in leaves(inner, unread, (*above, key))]


def at(document, path):
    """What stands in a document behind some keys."""
    for key in path:
        document = document[key]
    return document


@st.composite
def damaged_documents(draw, document, unread=()):
    """The document with a few values, anywhere in it, replaced or taken away; never those under the keys of `unread`.

    In three of four only one or two numbers are moved, so that many are legal and what comes behind the check is tried.
    """
    paths = leaves(document, unread)
    numbers = [path for path in paths if isinstance(at(document, path), int | float)]
    changed = copy.deepcopy(document)
    if numbers and draw(st.sampled_from([True, True, True, False])):
        for path in draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=2, unique=True)):
            at(changed, path[:-1])[path[-1]] = draw(moved(at(document, path)))
        return changed
    for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True)):
        path = path[: draw(st.integers(1, len(path)))]
        with suppress(LookupError, TypeError):  # damaged before
            if draw(st.integers(0, 4)):
                at(changed, path[:-1])[path[-1]] = draw(odd_values)
            else:
                del at(changed, path[:-1])[path[-1]]
    return changed


@st.composite
def damaged_tables(draw, rows):
    """The rows of a CSV file with neighbouring cells exchanged or empty cells put in, most of them still legal."""
    rows = [list(row) for row in rows]
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.sampled_from(rows))
        place = draw(st.integers(0, len(row) - 2))
        if draw(st.booleans()):
            row[place], row[place + 1] = row[place + 1], row[place]
        else:
            row[place:place] = [""] * draw(st.integers(1, 3))
    return "\n".join(map(",".join, rows)).encode()


@st.composite
def damaged_bytes(draw, content):
    """The content with a few pieces replaced, cut out or doubled."""
    content = bytearray(content)
    if draw(st.sampled_from([True, True, False])):  # a digit, which often leaves the file legal
        digits = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
        if digits:
            place = draw(st.sampled_from(digits))
            content[place] = draw(st.integers(48, 57).filter(lambda digit: digit != content[place]))
        return bytes(content)
    for _ in range(draw(st.integers(1, 4))):
        place, length = draw(st.integers(0, len(content))), draw(st.integers(0, 9))
        piece = draw(st.one_of(st.binary(max_size=4), st.just(bytes(content[place : place + 30])), st.just(b"9" * 400)))
        content[place : place + length] = piece
    return bytes(content)


def as_json(document):
    """The document as the bytes of a JSON file."""
    return json.dumps(document).encode()


def as_yaml(document):
    """The document as the bytes of a YAML file, whose flow style is JSON but for infinity."""
    return as_json(document).replace(b" Infinity", b" .inf").replace(b"[Infinity", b"[.inf")


def damaged(document, content=None, text=as_json, unread=()):
    """A document damaged value by value, or its text (`content`, where it is not that of `text`) byte by byte."""
    content = text(document) if content is None else content
    documents = damaged_documents(document, unread).map(text)
    return st.one_of(documents, documents, documents, damaged_bytes(content))
