"""Host seconds of messages: posts occupy a device's host, which delays its next action and its later posts."""

from dataclasses import replace

import numpy as np
import pytest
from random_runs import Given, random_case
from shared_ports import SharedPorts

import ppsim

ORDERS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


class Hosted:
    """Costs with 0.125 s of the host per message."""

    def __init__(self, message=0.125):
        self.costs, self.message = ppsim.Costs(forward=1, backward=2, latency=0.25), message

    def table(self, schedule):
        return replace(self.costs.table(schedule), message_overhead=self.message)


@pytest.mark.parametrize("engine", ["event", "compiled"])
@pytest.mark.parametrize("transport", ["async", "directed"])
def test_a_message_occupies_the_host_before_the_next_action(engine, transport):
    """Device 0 posts SEND_F0 at 1, so that F1 starts 0.125 later; device 1 posts RECV_F1 after F0 and so on."""
    lists = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1F0", "1RECV_F1", "1B0", "1SEND_B0", "1F1", "1B1", "1SEND_B1"],
    ]
    run = ppsim.simulate(ppsim.Schedule.from_orders(lists), Hosted(), engine=engine, transport=transport)
    assert run.start.tolist() == [0.0, 1.125, 4.625, 7.75, 1.25, 2.375, 4.5, 5.5]


def test_a_receive_counts_as_posted_when_its_host_time_has_passed_and_a_send_before_it():
    lists = [["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
    run = ppsim.simulate(ppsim.Schedule.from_orders(lists), Hosted(2.0), transport="directed")
    assert run.transfer_start[~np.isnan(run.transfer_start)].tolist() == [5.25, 2.0]


def test_idle_time_of_messages_is_overhead_and_a_critical_path_has_no_slack():
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=8)
    for transport in ("async", "directed", "rank"):
        run = ppsim.simulate(schedule, Hosted(), transport=transport)
        ledger = run.ledger()
        assert ledger["overhead"].sum() > 1.0
        assert sum(ledger.values()) == pytest.approx(run.makespan - run.device_busy)
        path = run.critical_path()
        assert run.slack()[path] == pytest.approx(np.zeros(len(path)), abs=1e-9)
        assert run.start[path[0]] == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_no_action_can_grow_by_more_than_its_slack_without_a_longer_step(seed):
    case = random_case(
        seed, lists="random", messages=True, streams=False, offload=None, evicted=False, vocabulary=False, jitter=None,
        dispatch="list", failed=False, encoder=None, optimizer=None, iterations=1, slots=None, scale=None, slices=1,
    )  # fmt: skip
    try:
        run = case.run("event")
    except ppsim.PpsimError:
        return
    assert np.nanmin(run.slack()) >= -1e-9


def test_shared_ports_are_refused_with_messages():
    costs = SharedPorts(Hosted(), [0, 0])
    with pytest.raises(ppsim.CostError, match="message_overhead excludes shared network cards"):
        ppsim.simulate(ppsim.Schedule.from_orders(ORDERS), costs)


def test_a_table_with_messages_below_zero_is_refused():
    table = Hosted(-1.0).table(ppsim.Schedule.from_orders(ORDERS))
    with pytest.raises(ppsim.CostError, match="message_overhead"):
        ppsim.simulate(ppsim.Schedule.from_orders(ORDERS), Given(table))
