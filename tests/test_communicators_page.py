"""docs/communicators.md: its numbers are today's, and its claims about transports hold."""

import make_communicator_docs
import pytest

import ppsim

TEXT = make_communicator_docs.PAGE.read_text(encoding="utf-8")


def test_the_page_shows_what_the_simulator_gives():
    assert make_communicator_docs.page(TEXT) == TEXT, "docs/communicators.md is out of date; run `make docs`"
    assert make_communicator_docs.PICTURE.is_file()


@pytest.mark.parametrize(
    ("transport", "seconds"), [("rank", 89.2), ("directions", 87.85), ("pair", 60.0), ("directed", 60.0)]
)
def test_one_communicator_costs_half_of_a_step_of_interleaved_1f1b(transport, seconds):
    run = make_communicator_docs.simulated(*make_communicator_docs.CASE, transport)
    assert run.makespan == pytest.approx(seconds, abs=0.05)


def test_receives_posted_just_in_time_hang_unless_every_edge_has_its_own_communicator():
    hanging = {
        transport: isinstance(
            make_communicator_docs.simulated(*make_communicator_docs.CASE, transport, "just-in-time"),
            ppsim.DeadlockError,
        )
        for transport in make_communicator_docs.TRANSPORTS
    }
    assert hanging == {"rank": True, "directions": True, "pair": True, "directed": False}
