"""Tables for commands, summaries, reports and papers: aligned text, HTML and LaTeX."""

import csv
import io
import math
import re
import statistics
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import chain
from typing import Any

from ppsim.base.units import axis_unit, value_text

WIDTH = 100  # characters of a line of running text
_EVEN = ("seconds", "bytes", "fraction")  # units of columns with one number of decimals
_NO_BREAK = "\N{NO-BREAK SPACE}"
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=%|[mµnk]?s\b|[kMGTP]?B\b|x\b)")


def aligned(rows: Sequence[Sequence[str]], left: int | Collection[int] | None = None) -> list[str]:
    """Return one line per row; the first `left` columns (default: all), or those numbers, are flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush_left = left if isinstance(left, Collection) else range(len(widths) if left is None else left)
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number in flush_left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def paragraph(text: str, first: str = "") -> list[str]:
    """Return a text as lines of at most `WIDTH`, after `first` and hanging below its end; numbers keep their units."""
    whole, hanging = _NUMBER_AND_UNIT.sub(_NO_BREAK, text), " " * len(first)
    lines = textwrap.wrap(whole, WIDTH, initial_indent=first, subsequent_indent=hanging, break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ").rstrip() for line in lines or [first]]


def with_remarks(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return lines of a label, a value flush right and a remark, which wraps at `WIDTH`."""
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    heads = [f"{label:<{widths[0]}}  {value:>{widths[1]}}  " for label, value, _ in rows]
    return [line for head, (*_, remark) in zip(heads, rows, strict=True) for line in paragraph(remark, head)]


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

    Each column has its key as its head. A column without any value is left out. Times, bytes and fractions have one
    unit and number of decimals in a column.
    """

    def cells(name: str) -> list[str]:
        values, unit = [row.get(name) for row in rows], units.get(name, "")
        if unit in _EVEN:
            middle = statistics.median(abs(value) for value in values if value is not None)
            symbol, texts = even_column(values, unit, middle or None, digits=3 if unit == "fraction" else 4)
            return [f"{text} {symbol}" if text else "-" for text in texts]
        words = ["yes" if value is True else "no" if value is False else value for value in values]
        return [word if isinstance(word, str) else value_text(word, unit) for word in words]

    names = [name for name in dict.fromkeys(chain(*rows)) if any(row.get(name) is not None for row in rows)]
    heads = [name.replace("_", " ") for name in names]
    return html_table(heads, [*zip(*map(cells, names), strict=True)])


def csv_text_of(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV text; a cell of None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '&#124;').replace(chr(10), ' ') for cell in cells)} |"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\^{}",
}


def latex_table(rows: Sequence[Mapping[str, Any]], units: Mapping[str, str]) -> str:
    """Return rows of values as a LaTeX table for the package booktabs, without columns that have no value.

    A numeric column has one unit, which its head names, and one number of decimals, so that numbers align.
    """
    names = [name for name in dict.fromkeys(chain(*rows)) if any(row.get(name) is not None for row in rows)]
    columns = [_latex_column(name, [row.get(name) for row in rows], units.get(name)) for name in names]
    lines = [" & ".join(cells) + r" \\" for cells in zip(*columns, strict=True)]
    texts = {name for row in rows for name, value in row.items() if not isinstance(value, int | float | None)}
    sides = "".join("l" if name in texts else "r" for name in names)
    head, *body = lines
    begin = [f"\\begin{{tabular}}{{{sides}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*begin, *body, r"\bottomrule", r"\end{tabular}", ""])


def _latex_column(name: str, values: Sequence[Any], unit: str | None) -> list[str]:
    """Return the head of a column and its cells as LaTeX."""
    words = _latex_text(name.replace("_", " "))
    if unit is None:
        return [words, *(_latex_text(str("" if value is None else value)) for value in values)]
    symbol, cells = even_column(values, unit)
    shown = [cell and f"${cell}$".replace(",", "{,}") for cell in cells]
    known = symbol and not symbol.startswith(("microbatches", "activations", "tokens"))  # names of columns say these
    return [f"{words} ({_latex_text(symbol)})" if known else words, *shown]


def even_column(
    values: Sequence[float | None], unit: str, usual: float | None = None, digits: int = 3
) -> tuple[str, list[str]]:
    """Return the unit of a column of numbers, and its cells with one number of decimals, "" for None.

    A `usual` large value, by default the largest, has so many digits, and one decimal at least unless all are whole.
    """
    largest = max(abs(value) for value in values if value is not None) if usual is None else usual
    factor, symbol = axis_unit(largest, unit)
    whole = all(abs(math.remainder(value * factor, 1.0)) < 1e-9 for value in values if value is not None)
    places = 0 if whole else max(digits - 1 - math.floor(math.log10(max(largest * factor, 1.0))), 1)
    return symbol, ["" if value is None else f"{value * factor:,.{places}f}" for value in values]


def _latex_text(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(sign, sign) for sign in text)
