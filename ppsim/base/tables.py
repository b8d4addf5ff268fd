"""Rows of text as lines with aligned columns: the tables that commands, summaries and reports print."""

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ppsim.base.units import value_text

WIDTH = 100  # of a line of running text


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """One line a row; the first `left` columns are flush left (default: all), the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush_left = len(widths) if left is None else left
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < flush_left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def layout_lines(text: str | None, label: str = "layout string") -> list[str]:
    """A layout string as lines of a page, cut behind stages alone; none where there is no string."""
    if text is None:
        return []
    lines = textwrap.wrap(f"{label}: {text.replace('|', '| ')}", WIDTH, subsequent_indent="  ")
    return [line.replace("| ", "|") for line in lines]


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a table of HTML, which scrolls where it is wider than the page."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div style='overflow-x:auto'><table><tr>{head}</tr>{body}</table></div>"


def page_table(rows: Sequence[Mapping[str, Any]], units: Mapping[str, str]) -> str:
    """Rows of values as a table of HTML; a column is headed by its key, `units` are those of numbers (`value_text`)."""

    def cell(name: str, value: Any) -> str:
        is_word = isinstance(value, str | bool)
        return str(value) if is_word else value_text(value, units.get(name, ""))

    heads = list(dict.fromkeys(name for row in rows for name in row))
    return html_table(heads, [[cell(name, row.get(name)) for name in heads] for row in rows])
