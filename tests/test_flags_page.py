"""docs/flags.md: its tables are what the launch files of all frameworks hold."""

import make_flags_page

from ppsim.launch import FRAMEWORKS


def test_the_page_shows_the_flags_that_are_printed_today():
    text = make_flags_page.PAGE.read_text(encoding="utf-8")
    assert make_flags_page.page(text) == text, "docs/flags.md is out of date; run `make docs`"


def test_each_framework_has_a_flag_for_most_changes():
    text = make_flags_page.policies()
    rows = [line.split(" | ") for line in text.splitlines()[2:]]
    assert len(rows) == len(make_flags_page.CHANGES)
    for column in range(1, len(FRAMEWORKS) + 1):
        assert sum("`" in row[column] and "cannot run it" not in row[column] for row in rows) > len(rows) / 2
