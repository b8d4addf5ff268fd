"""Numbers of boxes: all of a row or every k-th microbatch of it, and no two of them meet."""

import numpy as np

from ppsim.plots.scale import every_kth, roomy_rows


def numbered(device, middle, microbatch, wide=15.0, rows=(True, True)):
    columns = (np.array(column) for column in (device, middle, [wide] * len(device), microbatch, rows))
    return sorted(every_kth(*columns).tolist())


def test_k_is_the_least_at_which_no_two_numbers_meet():
    assert numbered([0] * 4, [0.0, 20.0, 40.0, 60.0], [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert numbered([0] * 4, [0.0, 10.0, 20.0, 30.0], [0, 1, 2, 3]) == [0, 2]
    assert numbered([0, 0, 1, 1], [0.0, 20.0, 5.0, 25.0], [0, 1, 0, 1]) == [0, 1, 2, 3]


def test_neighbours_of_one_microbatch_share_a_number():
    assert numbered([0] * 4, [0.0, 10.0, 30.0, 40.0], [0, 0, 1, 1]) == [0, 2]


def test_a_row_that_is_more_crowded_than_the_others_has_a_larger_k():
    device, middle = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [0.0, 20.0, 40.0] * 3 + [0.0, 10.0, 20.0]
    assert numbered(device, middle, [0, 1, 2] * 4, rows=[True] * 4) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]


def test_rows_that_are_numbered_whole_are_left_to_themselves():
    assert numbered([0, 0, 1, 1], [0.0, 20.0, 0.0, 20.0], [0, 1, 0, 1], rows=(False, True)) == [2, 3]


def test_rows_are_numbered_whole_where_most_of_them_have_room():
    device = np.repeat([0, 1, 2, 3], 2)
    assert roomy_rows(device, np.array([True] * 7 + [False]), 4).tolist() == [True, True, True, False]
    assert not roomy_rows(device, np.array([True] * 4 + [False] * 4), 4).any()
