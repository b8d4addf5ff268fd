"""Hypothesis strategies: sizes, seconds, anything a user could put in place of a number or text, damaged lists."""

import numpy as np
from hypothesis import strategies as st
from random_schedules import random_orders

from ppsim.actions import KIND_NAMES

devices = st.integers(1, 8)
microbatches = st.integers(1, 20)
stages_per_device = st.integers(1, 4)

positive_seconds = st.floats(1e-3, 1e3)
seconds = st.one_of(st.just(0.0), positive_seconds)

numbers_of_any_kind = st.one_of(
    st.integers(-3, 10),
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 2**31 - 1, 2**31, 2**63, 10**30, -(10**30), 1e300, 1e-320]),
    st.integers(-2, 5).map(np.int64),
    st.floats(-1, 5).map(np.float32),
)
things = st.one_of(
    numbers_of_any_kind,
    st.none(),
    st.booleans(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.sampled_from([object(), int, len, float("nan"), 1j, np.bool_(True), np.array([1, 2]), b"0F0", {}, {1: 2}]),
    st.lists(st.one_of(numbers_of_any_kind, st.none(), st.text(max_size=3)), max_size=4),
)

kinds = st.sampled_from([*KIND_NAMES, "X"])
numbers_in_text = st.one_of(st.integers(0, 5), st.sampled_from([2**31 - 2, 2**31 - 1, 2**31, 10**30, -1])).map(str)
plain_cells = st.tuples(numbers_in_text, kinds, st.one_of(st.just(""), numbers_in_text)).map("".join)
cells = st.one_of(
    plain_cells,
    st.tuples(plain_cells, plain_cells).map(lambda parts: f"({parts[0]};{parts[1]})OVERLAP_F_B"),
    st.text(max_size=12),
    st.text("0123FBIW();_ ", max_size=12),
)


@st.composite
def damaged_orders(draw) -> list[list[str]]:
    """A valid schedule's lists after a few edits: cells dropped, doubled, moved, made up, devices emptied or lost."""
    orders = random_orders(draw(st.randoms(use_true_random=False)))
    for _ in range(draw(st.integers(0, 4))):
        if not orders:
            break
        order = draw(st.sampled_from(orders))
        at = draw(st.integers(0, len(order)))
        edit = draw(st.sampled_from(["drop", "double", "move", "write", "empty", "lose"]))
        if edit == "lose":
            orders = [kept for kept in orders if kept is not order]
        elif edit == "empty":
            order.clear()
        elif edit == "write":
            order.insert(at, draw(plain_cells))
        elif at < len(order):
            cell = order[at] if edit == "double" else order.pop(at)
            if edit != "drop":
                target = draw(st.sampled_from(orders))
                target.insert(draw(st.integers(0, len(target))), cell)
    return orders
