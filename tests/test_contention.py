"""Shared ports: first come, first served, lower sender first at equal times, without overtaking."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from shared_ports import SharedPorts
from timelines import actions, transfers

import ppsim

ENGINES = pytest.mark.parametrize("engine", ["event", "compiled"])


@dataclass(frozen=True)
class OnePort:
    """Costs under which all transfers go through one port."""

    costs: ppsim.Costs
    capacity: int

    def table(self, schedule):
        ways = np.zeros((schedule.devices, schedule.devices, 1), np.int32)
        return replace(self.costs.table(schedule), link_ports=ways, port_capacity=np.array([self.capacity]))


@dataclass(frozen=True)
class Faulty:
    ways: np.ndarray
    capacity: np.ndarray

    def table(self, schedule):
        return replace(ppsim.Costs().table(schedule), link_ports=self.ways, port_capacity=self.capacity)


BOTH_WAYS = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]


@ENGINES
def test_of_two_transfers_ready_at_one_time_the_lower_device_sends_first(engine):
    costs = OnePort(ppsim.Costs(forward=1, backward=1, latency=1, per="stage"), 1)
    run = ppsim.simulate(ppsim.Schedule.from_orders(BOTH_WAYS), costs, engine=engine)
    assert actions(run) == ["0F0 0-1  1F1 3-4  1B1 4-5  0B0 5-6", "0F1 0-1  1F0 2-3  1B0 3-4  0B1 6-7"]
    assert transfers(run) == {"1F0": (1, 2), "1F1": (2, 3), "0B0": (4, 5), "0B1": (5, 6)}


@ENGINES
def test_a_port_carries_as_many_at_once_as_its_capacity(engine):
    costs = OnePort(ppsim.Costs(forward=1, backward=1, latency=1, per="stage"), 2)
    run = ppsim.simulate(ppsim.Schedule.from_orders(BOTH_WAYS), costs, engine=engine)
    assert transfers(run) == {"1F0": (1, 2), "1F1": (1, 2), "0B0": (4, 5), "0B1": (4, 5)}
    assert run.makespan == 6


GPIPE = {
    # The port alone holds up 1F1's transfer, ready at 2, and 0B1's, ready at 8.
    "async": ["0F0 0-1  0F1 1-2  0B0 9-10  0B1 11-12", "1F0 3-4  1F1 5-6  1B0 6-7  1B1 7-8"],
    # 1F1's is received only behind 1F0, and 0B1's behind 0B0.
    "directed": ["0F0 0-1  0F1 1-2  0B0 10-11  0B1 13-14", "1F0 3-4  1F1 6-7  1B0 7-8  1B1 8-9"],
    # Also 0F1 waits until 1F0's is through, and 1B1 until 0B0's is.
    "blocking": ["0F0 0-1  0F1 3-4  0B0 10-11  0B1 13-14", "1F0 3-4  1F1 6-7  1B0 7-8  1B1 10-11"],
}


@ENGINES
@pytest.mark.parametrize("transport", GPIPE)
def test_one_port_between_two_devices_under_gpipe(transport, engine):
    costs = OnePort(ppsim.Costs(forward=1, backward=1, latency=2), 1)
    run = ppsim.simulate(ppsim.build("gpipe", devices=2, microbatches=2), costs, transport=transport, engine=engine)
    assert actions(run) == GPIPE[transport]


@ENGINES
def test_who_heads_one_line_but_not_the_other_holds_up_those_behind(engine):
    # Ports: 0 is used on the way 0 -> 1, 1 on the way 2 -> 3, and both on the way 1 -> 2.
    schedule = ppsim.build("gpipe", devices=4, microbatches=2)
    ways = np.full((4, 4, 2), -1, np.int32)
    ways[0, 1, 0], ways[2, 3, 0], ways[1, 2] = 0, 1, (0, 1)
    table = replace(ppsim.Costs(forward=1, latency=3).table(schedule), link_ports=ways, port_capacity=np.array([1, 1]))

    class Ways:
        def table(self, schedule):
            return table

    found = transfers(ppsim.simulate(schedule, Ways(), engine=engine))
    assert {label: found[label] for label in ("1F0", "1F1", "2F0", "2F1", "3F0", "3F1")} == {
        "1F0": (1, 4),
        "1F1": (4, 7),  # ready at 2
        "2F0": (7, 10),  # ready at 5, port 1 is free but port 0 is not
        "2F1": (10, 13),  # ready at 8, before 3F0 at 11
        "3F0": (13, 16),
        "3F1": (16, 19),
    }


@ENGINES
def test_transfers_without_length_make_another_round_at_the_same_moment(engine):
    schedule = ppsim.build("interleaved-1f1b", devices=3, microbatches=3)
    free = ppsim.Costs(forward=1, backward=1)
    run = ppsim.simulate(schedule, OnePort(free, 1), engine=engine)
    plain = ppsim.simulate(schedule, free)
    assert run.row_start.tolist() == plain.row_start.tolist()


def test_waiting_for_a_place_is_queue_in_the_ledger():
    costs = OnePort(ppsim.Costs(forward=1, backward=1, latency=1, per="stage"), 1)
    ledger = ppsim.simulate(ppsim.Schedule.from_orders(BOTH_WAYS), costs).ledger()
    # Device 0 is idle from 1 to 3: one second until it finds a place, one on the way; device 1 from 1 to 2 and 4 to 6.
    assert ledger["queue"].tolist() == [1, 0]
    assert ledger["transfer"].tolist() == [1, 2]
    assert ledger["dependency"].tolist() == [0, 1]
    assert ledger["drain"].tolist() == [1, 0]


def test_the_critical_path_follows_who_held_the_port():
    costs = OnePort(ppsim.Costs(forward=1, backward=1, latency=1, per="stage"), 1)
    run = ppsim.simulate(ppsim.Schedule.from_orders(BOTH_WAYS), costs)
    # 0F0, its transfer, the other one behind it, 1F1, 1B1, its transfer, 0B1.
    assert run.critical_path().tolist() == [0, 1, 2, 7]
    assert run.sensitivities().kind["transfer"] == 3
    assert run.slack()[3] == 1


def test_ports_of_nodes():
    schedule = ppsim.build("1f1b", devices=4, microbatches=4)
    table = SharedPorts(ppsim.Costs(), [0, 0, 1, 1], cards_per_node=2).table(schedule)
    assert table.link_ports[0, 1].tolist() == [0, -1, 5, -1]
    assert table.link_ports[1, 2].tolist() == [1, 8, 6, 11]
    assert table.link_ports[3, 0].tolist() == [3, 9, 4, 10]
    assert table.port_capacity.tolist() == [1] * 8 + [2] * 4


def test_devices_of_a_node_share_its_card():
    schedule = ppsim.build("gpipe", devices=4, microbatches=8)
    costs = ppsim.Costs(forward=1, backward=1, latency=1.0)
    apart = [0, 1, 0, 1]  # every transfer leaves its node, and two devices of a node send on one card
    one, two = (ppsim.simulate(schedule, SharedPorts(costs, apart, cards)) for cards in (1, 2))
    alone = ppsim.simulate(schedule, SharedPorts(costs, [0, 1, 2, 3]))
    assert two.makespan == alone.makespan == ppsim.simulate(schedule, costs).makespan
    assert one.makespan > two.makespan
    assert one.ledger()["queue"].sum() > 0


@pytest.mark.parametrize(
    ("ways", "capacity", "message"),
    [
        (np.zeros((2, 2), np.int32), [1], "link_ports has shape"),
        (np.zeros((3, 3, 1), np.int32), [1], "here 2 x 2 x any"),
        (np.zeros((2, 2, 1)), [1], "float64"),
        (np.ones((2, 2, 1), np.int32), [1], "names port 1; port_capacity has ports 0 to 0"),
        (np.zeros((2, 2, 1), np.int32), [0], "at least 1"),
        (np.zeros((2, 2, 2), np.int32), [1], "names a port twice on the way from device 0 to 0"),
    ],
)
def test_faulty_ports_are_named(ways, capacity, message):
    with pytest.raises(ppsim.CostError, match=message):
        ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2), Faulty(ways, np.array(capacity)))
