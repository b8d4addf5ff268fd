"""BitPipe: two Vs in opposite directions, their idle slots and activations."""

import pytest

import ppsim


def build(p, m):
    return ppsim.build("bitpipe", devices=p, microbatches=m)


def simulate(p, m, f, b):
    return ppsim.simulate(build(p, m), ppsim.Costs(forward=f, backward=b, per="stage"))


def test_two_units_on_two_devices():
    assert [" ".join(order) for order in build(2, 4).orders()] == [
        "0F0 1F2 2F2 3F0 3B0 2B2 1B2 0B0 0F1 1F3 2F3 3F1 3B1 2B3 1B3 0B1",
        "0F2 1F0 2F0 3F2 3B2 2B0 1B0 0B2 0F3 1F1 2F1 3F3 3B3 2B1 1B1 0B3",
    ]


def test_the_drain_of_a_unit_runs_into_the_fill_of_the_next():
    kinds = "".join(action[1] for action in build(4, 8).orders()[0])
    assert kinds == "FFFFFFFBFBBBBBBFBFFFFFFBFBBBBBBB"


def test_weights_are_held_twice():
    assert build(4, 4).weight_copies.tolist() == [2] * 4


@pytest.mark.parametrize(
    ("p", "m", "sentence"),
    [
        (3, 6, "devices=3 is odd, .* use 2 or 4 devices"),
        (1, 2, "devices=1 is odd, .* use 2 devices"),
        (4, 6, "microbatches=6 with devices=4.* use a multiple of 4: 4 or 8"),
        (4, 2, "use a multiple of 4: 4$"),
    ],
)
def test_a_refused_size_names_the_nearest_legal_ones(p, m, sentence):
    with pytest.raises(ppsim.BuildError, match=sentence):
        build(p, m)
