"""Tables for commands, summaries and reports: aligned text and HTML."""

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain
from typing import Any

from ppsim.base.units import value_text

WIDTH = 100  # characters of a line of running text


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Return one line per row; the first `left` columns (default: all) are flush left, the others flush right."""
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
    """Return a layout string as lines that break only after stages; no lines if there is no string."""
    if text is None:
        return []
    lines = textwrap.wrap(f"{label}: {text.replace('|', '| ')}", WIDTH, subsequent_indent="  ")
    return [line.replace("| ", "|") for line in lines]


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table that scrolls if it is wider than the page; numbers are flush right."""

    def cell(column: int, text: str) -> str:
        side = "right" if column and text.lstrip("+-")[:1].isdigit() else "left"
        return f"<td style='text-align:{side};white-space:nowrap'>{escape(text)}</td>"

    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(cell(column, text) for column, text in enumerate(row))}</tr>" for row in rows)
    return f"<div style='overflow-x:auto'><table><tr>{head}</tr>{body}</table></div>"


def page_table(rows: Sequence[Mapping[str, Any]], units: Mapping[str, str]) -> str:
    """Return rows of values as an HTML table; `units` gives the unit of each numeric column (`value_text`).

    Each column has its key as its head. A column without any value is left out.
    """

    def cell(name: str, value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else value_text(value, units.get(name, ""))

    names = [name for name in dict.fromkeys(chain(*rows)) if any(row.get(name) is not None for row in rows)]
    heads = [name.replace("_", " ") for name in names]
    return html_table(heads, [[cell(name, row.get(name)) for name in names] for row in rows])
