"""Files: one clear error for what cannot be read or written, and never half a file."""

import gzip
import os
import re
import stat

import pytest

from ppsim import ConfigError
from ppsim.base.files import CallFiles, noting_reads, read_text, write_atomically


def refusal(action, *arguments):
    with pytest.raises(ConfigError) as caught:
        action(*arguments)
    return str(caught.value)


def test_what_is_written_is_read_again(tmp_path):
    write_atomically(tmp_path / "a.txt", "Größe\r\n")
    assert (tmp_path / "a.txt").read_bytes() == "Größe\r\n".encode()
    assert read_text(tmp_path / "a.txt") == "Größe\n"
    assert read_text(str(tmp_path / "a.txt")) == "Größe\n"


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbftext")
    assert read_text(tmp_path / "a.txt") == "text"


def test_bytes_are_written_as_they_are(tmp_path):
    write_atomically(tmp_path / "a.bin", b"\xff\x00\r\n")
    assert (tmp_path / "a.bin").read_bytes() == b"\xff\x00\r\n"


def test_what_cannot_be_read_is_named_with_its_reason(tmp_path):
    assert (
        refusal(read_text, tmp_path / "none.csv") == f"{tmp_path}/none.csv: cannot be read: No such file or directory"
    )
    assert refusal(read_text, tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    (tmp_path / "latin").write_bytes(b"Gr\xf6\xdfe")
    assert refusal(read_text, tmp_path / "latin") == f"{tmp_path}/latin: not a UTF-8 text file (byte 2)"
    assert refusal(read_text, "") == "'': cannot be read: Is a directory"
    assert refusal(read_text, "a\0b") == r"'a\x00b': cannot be read: embedded null byte"
    assert "cannot be read: File name too long" in refusal(read_text, "x" * 5000)
    assert refusal(read_text, "-") == "-: not a file name; to read stdin, give /dev/stdin"


def test_what_cannot_be_written_is_named_with_its_reason(tmp_path):
    missing = tmp_path / "none" / "a.csv"
    assert refusal(write_atomically, missing, "") == f"{missing}: cannot be written: No such file or directory"
    assert refusal(write_atomically, tmp_path, "") == f"{tmp_path}: cannot be written: Is a directory"
    assert refusal(write_atomically, "a\0b", "").startswith(r"'a\x00b': cannot be written: embedded null")
    assert "cannot be written: File name too long" in refusal(write_atomically, tmp_path / ("x" * 256), "")
    assert "cannot be written: " in refusal(write_atomically, tmp_path / "a.txt", "\ud800")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 5, 2.0, b"a.csv", ["a.csv"], object()], ids=lambda path: type(path).__name__)
def test_what_is_no_file_name_is_refused(path):
    for action in (read_text, lambda path: write_atomically(path, "")):
        assert re.match(r".* is not a path of a file or folder; give one as text or as a Path$", refusal(action, path))


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    target = tmp_path / "a.csv"
    target.write_text("old")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        assert refusal(write_atomically, target, "new") == f"{target}: cannot be written: No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert target.read_text() == "old"
    write_atomically(target, "new")
    assert target.read_text() == "new"


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.csv", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_the_permissions_that_the_user_gives_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a.csv", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.csv").stat().st_mode) == 0o640


def test_a_new_file_does_not_touch_the_umask_of_the_process(tmp_path, monkeypatch):
    def refuse(mask):
        raise AssertionError("another thread's new file would have this mask")

    monkeypatch.setattr(os, "umask", refuse)
    write_atomically(tmp_path / "a.csv", "")
    assert (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o400, 0o755], ids=oct)
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, mode):
    (tmp_path / "a.csv").write_text("old")
    os.chmod(tmp_path / "a.csv", mode)
    write_atomically(tmp_path / "a.csv", "new")
    assert (tmp_path / "a.csv").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "a.csv").stat().st_mode) == mode


def test_a_secret_file_is_never_open_to_others_while_it_is_written(tmp_path):
    (tmp_path / "a.csv").write_text("old")
    os.chmod(tmp_path / "a.csv", 0o600)
    modes = []

    def pieces():
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())
        yield b"new"

    write_atomically(tmp_path / "a.csv", pieces())
    assert modes == [0o600, 0o600]


def test_a_link_still_points_at_the_file_that_was_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "folder" / "target.csv")
    write_atomically(tmp_path / "link.csv", "text")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "folder" / "target.csv").read_text() == "text"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(tmp_path / "pipe", "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_file_that_another_call_replaces_is_not_written_twice(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with CallFiles().watch():
        write_atomically(first, "ours")
        first.rename(second)  # the second file has the inode of ours, as if the other call's file had got it
        first.write_text("another call's")
        write_atomically(second, "ours")
        with pytest.raises(ConfigError, match="second: is written twice by this call"):
            write_atomically(second, "ours")


def test_a_long_name_in_any_script_can_be_written(tmp_path):
    name = "模" * 85  # 255 bytes, the longest that a file system takes
    write_atomically(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_a_packed_file_is_read_up_to_its_limit_and_no_further(tmp_path):
    packed = tmp_path / "zeros.gz"
    packed.write_bytes(gzip.compress(bytes(3_000_000)))
    with pytest.raises(ConfigError, match="holds more than 1,000,000 bytes"):
        read_text(packed, most=1_000_000)
    packed.write_bytes(packed.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(packed)


def test_every_file_that_is_read_is_noted(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("b")
    noted, inner = [], []
    with noting_reads(noted.append):
        read_text(tmp_path / "a.txt")
        with noting_reads(inner.append):
            read_text(str(tmp_path / "b.txt.gz"))
    read_text(tmp_path / "a.txt")
    assert noted == [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    assert inner == [tmp_path / "b.txt.gz"]
