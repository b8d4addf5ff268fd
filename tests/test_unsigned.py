"""Loops whose indexes are read without a sign: what is compiled gives what the plain function gives."""

import numpy as np
import pytest

from ppsim.base.unsigned import from_the_start, unsigned


def last_but(column, back):
    return column[len(column) - 1 - back] - column[-1]


@from_the_start
def sum_of_diagonal(table, column):
    total = column[-1]
    for row in range(len(table)):
        total += table[row, row] * column[1:][row - 1]
    return total


def test_a_function_that_is_not_marked_stays_itself():
    assert unsigned(last_but) is last_but


def test_marked_functions_convert_each_index_but_constants_and_slices():
    made = unsigned(sum_of_diagonal)
    assert made is not sum_of_diagonal
    assert (made.__name__, made.__module__, made.__doc__) == ("sum_of_diagonal", __name__, sum_of_diagonal.__doc__)
    with pytest.raises(OverflowError):
        made(np.eye(2), np.ones(3))  # row - 1 is -1 at row 0, which no marked loop may ask for


@from_the_start
def gathered(column, places):
    total = column[-1]
    for place in places:
        total += column[place]
    return total


def test_compiled_without_signs_equals_plain():
    numba = pytest.importorskip("numba")
    column, places = np.arange(5.0), np.array([0, 3, 3])
    assert numba.njit(unsigned(gathered))(column, places) == gathered(column, places) == 10.0


def test_a_function_whose_text_is_not_at_hand_is_compiled_as_it_is():
    space: dict = {}
    exec("def loop(column):\n    return column[len(column) - 1]\n", space)  # noqa: S102 - a function without a file
    made = from_the_start(space["loop"])
    assert unsigned(made) is made
