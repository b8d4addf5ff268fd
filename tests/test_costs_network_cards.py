"""Transfers that share a node's network cards."""

import pytest

import ppsim
from ppsim import Cluster, ConfigError, DerivedCosts, Layout, Model
from ppsim.costs import DeviceSheet, LinkSheet

FAST, SLOW = LinkSheet("fast", 1e4, 0.0), LinkSheet("slow", 1e3, 0.0)
DEVICE = DeviceSheet("unit", 1e9, 1e9, 0.5)
MODEL = Model(num_layers=8, hidden=4, heads=2, vocabulary=6, sequence=16)


def cluster(**options) -> Cluster:
    return Cluster(DEVICE, FAST, SLOW, **{"gpus_per_node": 4, **options})


def test_neighbouring_gpus_share_a_card():
    assert cluster(cards_per_node=2).cards_of_devices(6, 1) == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0)]
    assert cluster(cards_per_node=2).cards_of_devices(3, 2) == [(0, 0), (0, 1), (1, 0)]
    assert cluster().cards_of_devices(3, 1) == [(0, 0), (0, 1), (0, 2)]


def test_gpus_that_send_at_once_split_their_card():
    assert cluster(cards_per_node=1).network_of_group(1).bandwidth == 1e3
    assert cluster(cards_per_node=1).network_of_group(2).bandwidth == 500
    assert cluster(cards_per_node=1).network_of_group(16).bandwidth == 250
    assert cluster().network_of_group(16).bandwidth == 1e3


def test_a_transfer_between_nodes_goes_out_through_one_card_and_in_through_another():
    costs = DerivedCosts(MODEL, cluster(cards_per_node=2), Layout())
    table = costs.table(ppsim.build("1f1b", devices=8, microbatches=8))
    assert table.link_ports[0, 1].tolist() == [-1, -1]
    assert table.link_ports[3, 4].tolist() == [2, 5]
    assert table.link_ports[4, 3].tolist() == [4, 3]
    assert table.port_capacity.tolist() == [1] * 8
    plain = DerivedCosts(MODEL, cluster(), Layout()).table(ppsim.build("1f1b", devices=8, microbatches=8))
    assert plain.link_ports is None


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_transfers_through_one_card_wait_for_each_other(engine):
    schedule = ppsim.Schedule.from_orders([["0F0", "0B0"], ["0F1", "0B1"], ["1F0", "1B0"], ["1F1", "1B1"]])
    starts = []
    for cards in (2, 1):
        sheet = cluster(gpus_per_node=2, cards_per_node=cards)
        run = ppsim.simulate(schedule, DerivedCosts(MODEL, sheet, Layout()), transport="directed", engine=engine)
        starts.append(run.transfer_start[schedule.offsets[2:4]].tolist())
    both_forwards_end = run.end[0]
    assert starts[0] == [both_forwards_end, both_forwards_end]
    assert starts[1] == [both_forwards_end, both_forwards_end + 2 * 16 * 4 / 1e3]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "two"])
def test_a_wrong_number_of_cards_or_gpus_is_one_clear_error(wrong):
    for name in ("cards_per_node", "gpus_per_node"):
        with pytest.raises(ConfigError, match=f"{name}=.* must be a whole number of at least 1"):
            cluster(**{name: wrong})
