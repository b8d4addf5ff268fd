"""Damaged stores: each ends in the answer of a run without a store, or in one clear error."""

import gzip
import json
import os
import random
import sqlite3
import threading
from contextlib import closing

import pytest
from command_line import UNIT_COSTS

import ppsim
from ppsim.studies import run_points
from tests.fuzz.cases import COUNTS, EXAMPLES, case

POINTS = [{"schedule.name": name, "schedule.microbatches": m} for name in ("1f1b", "dualpipe:3") for m in range(4, 9)]
WHAT = "damaged stores"


@pytest.fixture(scope="module")
def expected():
    """The answers without a store."""
    return list(run_points(UNIT_COSTS, POINTS))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, expected):
    """The bytes of a store with every answer, all of them in its one file."""
    path = tmp_path_factory.mktemp("whole") / "runs.sqlite"
    assert list(run_points(UNIT_COSTS, POINTS, store=path)) == expected
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def sql(*statements):
    """A damage by SQL statements."""

    def damage(path):
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            for statement in statements:
                base.execute(statement)

    return damage


def value(column, expression):
    """A damage to one column of every row."""
    return sql(f"UPDATE results SET {column} = {expression}")  # noqa: S608 - the tests' own text


def only_value(column, expression):
    """A damage to one column of one row."""
    return sql(f"UPDATE results SET {column} = {expression} WHERE rowid = 3")  # noqa: S608


def content(change):
    """A damage to the bytes of the file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def other_table(table, *rows):
    """A damage: a file with a table of that name, and rows, in place of the store."""

    def damage(path):
        path.unlink()
        inserts = [f"INSERT INTO results VALUES {row}" for row in rows]  # noqa: S608
        sql(f"CREATE TABLE {table}", *inserts)(path)

    return damage


def in_place(make):
    """A damage: something else in place of the file."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


def beside(ending, made):
    """A damage: a file of SQLite's next to the store."""
    return lambda path: path.with_name(path.name + ending).write_bytes(made)


def folder_beside(ending):
    return lambda path: path.with_name(path.name + ending).mkdir()


def with_log(keep):
    """A damage: the run was killed, and of its write-ahead log this part is left."""

    def damage(path):
        base = sqlite3.connect(path, isolation_level=None)
        base.execute("PRAGMA wal_autocheckpoint=0")
        base.execute("UPDATE results SET checksum = upper(checksum)")
        base.execute("UPDATE results SET checksum = lower(checksum)")
        main, log = path.read_bytes(), path.with_name(f"{path.name}-wal").read_bytes()
        base.close()
        path.write_bytes(main)
        path.with_name(f"{path.name}-wal").write_bytes(keep(log))

    return damage


def locked_for(seconds, mode):
    """A damage: another process, here another connection, locks the file for a time."""

    def damage(path):
        base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        base.execute(f"BEGIN {mode}")
        base.execute("SELECT count(*) FROM results")
        threading.Timer(seconds, base.close).start()

    return damage


def mode(file, folder=0o755):
    def damage(path):
        path.chmod(file)
        path.parent.chmod(folder)

    return damage


def bits(first, last, seed):
    """A change of random bits between two parts of the file."""

    def changed(before):
        generator, after = random.Random(seed), bytearray(before)  # noqa: S311
        for _ in range(8):
            after[generator.randrange(int(first * len(after)), int(last * len(after)))] ^= 1 << generator.randrange(8)
        return bytes(after)

    return content(changed)


PAGE = 4096
DAMAGES = {
    # values
    "result null": value("result", "'null'"),
    "result list": value("result", "'[]'"),
    "result mapping": value("result", "'{}'"),
    "result text": value("result", "'\"x\"'"),
    "result number": value("result", "7"),
    "result real": value("result", "1e308"),
    "result true": value("result", "'true'"),
    "result empty": value("result", "''"),
    "result blob": value("result", "x'00ff'"),
    "result blob of the same bytes": value("result", "CAST(result AS BLOB)"),
    "result not UTF-8": value("result", "CAST(x'ff2200' AS TEXT)"),
    "result huge blob": only_value("result", "zeroblob(5000000)"),
    "result not JSON": value("result", "substr(result, 2)"),
    "result cut": value("result", "substr(result, 1, length(result) / 2)"),
    "result doubled": value("result", "result || result"),
    "result NaN": value("result", "replace(result, '0', 'NaN')"),
    "result infinite": value("result", "replace(result, ': ', ': 1e999')"),
    "result other number": value("result", "replace(result, '3', '4')"),
    "result many digits": value("result", f"'{'9' * 5000}'"),
    "result deep": value("result", "replace(hex(zeroblob(50000)), '0', '[')"),
    "result refused": value("result", "'{\"refused\": \"no\"}'"),
    "result refused by a number": value("result", "'{\"refused\": 1}'"),
    "result without measures": value("result", "'{\"measures\": {}, \"layout_string\": null}'"),
    "result exchanged": value("result", "(SELECT result FROM results ORDER BY key LIMIT 1)"),
    "result with NUL": value("result", "result || char(0)"),
    "result with a mark of byte order": value("result", "char(65279) || result"),
    "checksum empty": value("checksum", "''"),
    "checksum number": value("checksum", "0"),
    "checksum blob": value("checksum", "zeroblob(32)"),
    "checksum in capitals": value("checksum", "upper(checksum)"),
    "checksum of another row": value("checksum", "(SELECT checksum FROM results LIMIT 1)"),
    "files empty": value("files", "''"),
    "files list": value("files", "'[]'"),
    "files null": value("files", "'null'"),
    "files number": value("files", "5"),
    "files without a place": value("files", "'{\"files\": {}}'"),
    "files that are no mapping": value("files", "'{\"place\": 1, \"files\": 2}'"),
    "key reversed": only_value("key", "'x' || key"),
    "key blob": value("key", "CAST(key AS BLOB)"),
    "key not UTF-8": only_value("key", "CAST(x'ff' AS TEXT)"),
    # rows
    "no rows": sql("DELETE FROM results"),
    "one row less": sql("DELETE FROM results WHERE rowid = 2"),
    "a second row for a key": sql("INSERT INTO results SELECT key, '[]', 'null', '' FROM results LIMIT 1"),
    "a row of another program": sql("INSERT INTO results VALUES (1, 2, 3, 4)"),
    # schema
    "no table": sql("DROP TABLE results"),
    "table renamed": sql("ALTER TABLE results RENAME TO others"),
    "column added": sql("ALTER TABLE results ADD COLUMN more TEXT"),
    "column renamed": sql("ALTER TABLE results RENAME COLUMN result TO outcome"),
    "another table beside": sql("CREATE TABLE others (a)"),
    "a view beside": sql("CREATE VIEW others AS SELECT * FROM results"),
    "a trigger that fails": sql(
        "DELETE FROM results",
        "CREATE TRIGGER no BEFORE INSERT ON results BEGIN SELECT RAISE(ABORT, 'no'); END",
    ),
    "a trigger that deletes": sql(
        "DELETE FROM results", "CREATE TRIGGER no AFTER INSERT ON results BEGIN DELETE FROM results; END"
    ),
    "a view of that name": in_place(sql("CREATE TABLE t (a)", "CREATE VIEW results AS SELECT a AS key FROM t")),
    "a foreign table": other_table("results (a, b, c, d)", "(1, 2, 3, 4)"),
    "a foreign table of two columns": other_table("results (key, result)", "('a', 'null')"),
    "a foreign table without columns of ours": other_table("results (id INTEGER PRIMARY KEY)", "(1)"),
    "a foreign database": other_table("bookmarks (id, url)"),
    "a virtual table": in_place(sql("CREATE VIRTUAL TABLE results USING fts5(key, files, result, checksum)")),
    "an incremental vacuum": sql("PRAGMA auto_vacuum = 2", "VACUUM"),
    "UTF-16": in_place(sql("PRAGMA encoding = 'UTF-16'", "CREATE TABLE t (a)", "DROP TABLE t")),
    "a journal instead of a log": sql("PRAGMA journal_mode = DELETE"),
    "pages of 512 bytes": sql("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 512", "VACUUM"),
    "another schema version": sql("PRAGMA user_version = 99", "PRAGMA application_id = 77"),
    "no more pages": sql("PRAGMA max_page_count = 1"),
    "schema not SQL": sql("PRAGMA writable_schema = ON", "UPDATE sqlite_master SET sql = 'nonsense'"),
    "schema of another page": sql("PRAGMA writable_schema = ON", "UPDATE sqlite_master SET rootpage = 99"),
    "table and index exchanged": sql("PRAGMA writable_schema = ON", "UPDATE sqlite_master SET rootpage = 5 - rootpage"),
    # pages and bytes
    "empty": content(lambda _: b""),
    "one byte": content(lambda before: before[:1]),
    "the head alone": content(lambda before: before[:100]),
    "one page": content(lambda before: before[:PAGE]),
    "two pages": content(lambda before: before[: 2 * PAGE]),
    "half": content(lambda before: before[: len(before) // 2]),
    "half a page less": content(lambda before: before[: -PAGE // 2]),
    "a page more": content(lambda before: before + bytes(PAGE)),
    "doubled": content(lambda before: before + before),
    "wrong magic": content(lambda before: b"X" + before[1:]),
    "a head of zeros": content(lambda before: bytes(100) + before[100:]),
    "a page of zeros": content(lambda before: before[: 2 * PAGE] + bytes(PAGE) + before[3 * PAGE :]),
    "a page of ones": content(lambda before: before[: 3 * PAGE] + b"\xff" * PAGE + before[4 * PAGE :]),
    "pages exchanged": content(lambda b: b[:PAGE] + b[2 * PAGE : 3 * PAGE] + b[PAGE : 2 * PAGE] + b[3 * PAGE :]),
    "all zeros": content(lambda before: bytes(len(before))),
    "a page size of 0": content(lambda before: before[:16] + b"\0\0" + before[18:]),
    "a later format": content(lambda before: before[:18] + b"\xff\xff" + before[20:]),
    "text": content(lambda _: b"not a database, but long enough to be read as one by mistake"),
    "a config": content(lambda _: UNIT_COSTS.read_bytes()),
    "JSON": content(lambda _: json.dumps({"results": []}).encode()),
    "packed": content(gzip.compress),
    "newlines": content(lambda before: before.replace(b"\n", b"\r\n")),
    "bits of the head": bits(0, 100 / 40000, 1),
    "bits of the first half": bits(0.1, 0.5, 2),
    "bits of the second half": bits(0.5, 1, 3),
    # files
    "a folder": in_place(lambda path: path.mkdir()),
    "a pipe": in_place(os.mkfifo),
    "a device": in_place(lambda path: path.symlink_to("/dev/zero")),
    "a device without content": in_place(lambda path: path.symlink_to("/dev/null")),
    "a link to nothing": in_place(lambda path: path.symlink_to("nothing")),
    "a link to a folder that is missing": in_place(lambda path: path.symlink_to("no/folder")),
    "a link to itself": in_place(lambda path: path.symlink_to(path.name)),
    "a link": lambda path: path.rename(path.with_name("other")).exists() and path.symlink_to("other"),
    "no file": lambda path: path.unlink(),
    "no folder": lambda path: (path.unlink(), path.parent.rmdir()),
    "read-only": mode(0o444),
    "unreadable": mode(0o000),
    "a read-only folder": mode(0o644, 0o555),
    "a log of nonsense": beside("-wal", b"nonsense" * 1000),
    "a log of zeros": beside("-wal", bytes(50000)),
    "a journal of nonsense": beside("-journal", b"nonsense" * 1000),
    "a journal with its magic": beside("-journal", bytes.fromhex("d9d505f920a163d7") + bytes(1000)),
    "a shared index of nonsense": beside("-shm", b"nonsense" * 4096),
    "a log that is a folder": folder_beside("-wal"),
    "a journal that is a folder": folder_beside("-journal"),
    "a shared index that is a folder": folder_beside("-shm"),
    "a log": with_log(lambda log: log),
    "a missing log": with_log(lambda _: b""),
    "half a log": with_log(lambda log: log[: len(log) // 2]),
    "a damaged log": with_log(lambda log: log[:2000] + b"\0" + log[2001:]),
    # other processes
    "another one reads": locked_for(0.3, "DEFERRED"),
    "another one writes": locked_for(0.3, "IMMEDIATE"),
    "another one locks": locked_for(0.3, "EXCLUSIVE"),
}  # fmt: skip


def check(path, expected, always_answers=False):
    """A run with a damaged store gives the right answers or one error, which names the file; so does the next one."""
    for _ in range(2):
        found, error = None, ""
        try:
            found = list(run_points(UNIT_COSTS, POINTS, store=path))
        except ppsim.PpsimError as caught:
            error = str(caught)
        if error:
            assert not always_answers
            assert str(path) in error
            assert "\n" not in error
        else:
            assert found == expected
        COUNTS[WHAT]["refusals" if error else "answers"] += 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_gives_the_right_answer_or_one_error(damage, tmp_path, whole, expected):
    path = tmp_path / "folder" / "runs.sqlite"
    path.parent.mkdir()
    path.write_bytes(whole)
    DAMAGES[damage](path)
    check(path, expected, damage.startswith(("result", "checksum", "files", "key", "another one")))
    if path.parent.exists():
        path.parent.chmod(0o755)


def test_random_bytes_of_a_store_are_changed(tmp_path, whole, expected):
    generator = random.Random(0)  # noqa: S311 - damages
    for number in range(max(4, EXAMPLES // 4)):
        content, path = bytearray(whole), tmp_path / f"{number}.sqlite"
        for _ in range(generator.choice([1, 1, 4, 16, 64])):
            place = generator.randrange(len(content))
            content[place : place + 1] = generator.randbytes(1)
        if generator.random() < 0.2:
            content = content[: generator.randrange(len(content))]
        path.write_bytes(content)
        check(path, expected)


NAMES = ["", "a\0b", ":memory:", "file:x?mode=memory", "e\udcff.sqlite", "a" * 300, 5, b"x", ["x"]]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_of_a_store(name, tmp_path, monkeypatch, expected):
    monkeypatch.chdir(tmp_path)
    with case(WHAT):
        assert list(run_points(UNIT_COSTS, POINTS, store=name)) == expected
        assert list(run_points(UNIT_COSTS, POINTS, store=name)) == expected
        assert os.listdir(tmp_path), "the results are in a file"
