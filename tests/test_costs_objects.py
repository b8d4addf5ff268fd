"""Objects of costs: what is no legal value is refused when they are made; they compare by value and show their call."""

import copy
import math

import numpy as np
import pytest

import ppsim
from ppsim import Cluster, ConfigError, CostError, Costs, DerivedCosts, Layout, Model
from ppsim.costs import DEVICES, LINKS, CostTable, DeviceSheet, LinkSheet, OperatorLaw, Profile

H100, NVLINK = DEVICES["H100 SXM"], LINKS["NVLink 4"]
MODEL = {"num_layers": 4, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32}
SCHEDULE = ppsim.build("1f1b", devices=2, microbatches=2)


def derived(**changes):
    return DerivedCosts(**{"model": Model(**MODEL), "cluster": Cluster(H100, NVLINK, NVLINK), **changes})


@pytest.mark.parametrize(
    ("make", "error", "parts"),
    [
        (lambda: Layout(recompute=5), ConfigError, ("recompute=5", "none, selective, full")),
        (lambda: Layout(recompute=[5]), ConfigError, ("recompute=5", "none, selective, full")),
        (lambda: Layout(recompute=[]), ConfigError, ("recompute=[]", "none, selective, full")),
        (lambda: Layout(recompute_stages="two"), ConfigError, ("recompute_stages='two'", "whole number of at least 0")),
        (lambda: Layout(sharded="yes"), ConfigError, ("sharded='yes'", "true or false")),
        (lambda: Layout(overlap=1), ConfigError, ("overlap=1", "true, false or two-stream")),
        (lambda: Layout(tensor=None), ConfigError, ("tensor=None", "whole number of at least 1")),
        (lambda: Layout(data=10**400), ConfigError, ("data=1000", "too large", "at most 9007199254740992")),
        (lambda: Layout(microbatch_size=2**53 + 1), ConfigError, ("microbatch_size=90071", "at most 90071")),
        (lambda: DeviceSheet("x", "989e12", 80e9, 0.5), ConfigError, ("peak='989e12'", "above 0, such as 1e9", "'x'")),
        (lambda: DeviceSheet("x", math.nan, 80e9, 0.5), ConfigError, ("peak=nan", "above 0")),
        (lambda: DeviceSheet("x", 1e12, 80e9, 1.5), ConfigError, ("achieved=1.5", "above 0 and at most 1")),
        (lambda: DeviceSheet(3, 1e12, 80e9, 0.5), ConfigError, ("name=3", "must be text")),
        (lambda: DeviceSheet("x", 1e12, 80e9, 0.5, memory_bandwidth=[1]), ConfigError, ("memory_bandwidth=[1]",)),
        (lambda: LinkSheet("x", "1 GB/s", 0), ConfigError, ("bandwidth='1 GB/s'", "above 0")),
        (lambda: LinkSheet("x", 1e9, -1), ConfigError, ("latency=-1", "at least 0", "'x'")),
        (lambda: Cluster("H100 SXM", NVLINK, NVLINK), ConfigError, ("device='H100 SXM'", "DEVICES['H100 SXM']")),
        (lambda: Cluster(H100, "NVLink 4", NVLINK), ConfigError, ("link='NVLink 4'", "LINKS['NVLink 4']")),
        (lambda: Cluster(H100, NVLINK, H100), ConfigError, ("network=", "must be a LinkSheet")),
        (lambda: LinkSheet("x", 1e9, 0, links=0), ConfigError, ("links=0", "at least 1")),
        (lambda: derived(given={"foo": 1}), CostError, ("'foo'", "use one of: forward, backward")),
        (lambda: derived(given={"forward": "x"}), CostError, ("forward='x'", "finite number of seconds")),
        (lambda: derived(given=["forward"]), CostError, ("given=['forward']", "{'forward': 0.01}")),
        (lambda: derived(model="llama"), ConfigError, ("model='llama'", "must be a Model")),
        (lambda: derived(cluster=H100), ConfigError, ("cluster=", "must be a Cluster")),
        (lambda: derived(layout={"tensor": 2}), ConfigError, ("layout={'tensor': 2}", "must be a Layout")),
        (lambda: Model(**{**MODEL, "heads": "4"}), ConfigError, ("heads='4'", "whole number of at least 1")),
        (lambda: Costs(foward=1), ConfigError, ("Costs(foward=...)", "no such option", "forward, backward")),
        (lambda: ppsim.FillItem(seconds=1), ConfigError, ("FillItem(seconds=...)", "no such option", "duration")),
        (lambda: DeviceSheet(), ConfigError, ("DeviceSheet()", "'name'")),
        (lambda: Layout(*[1] * 99), ConfigError, ("Layout(1)", "options are given by name")),
        (lambda: Cluster(), ConfigError, ("Cluster()", "'device'")),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_its_value_and_what_is_legal(make, error, parts):
    with pytest.raises(error) as caught:
        make()
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: Costs(forward=2, backward=[1, 2]), Costs(forward=2)),
        (lambda: Layout(tensor=2, recompute=["none", "full"]), Layout(tensor=2)),
        (lambda: Model(**MODEL), Model(**{**MODEL, "heads": 2})),
        (lambda: Cluster(H100, NVLINK, NVLINK, gpus_per_node=4), Cluster(H100, NVLINK, NVLINK)),
        (lambda: DeviceSheet("x", 1e12, 8e9, 0.5), H100),
        (lambda: LinkSheet("x", 1e9, 0), NVLINK),
        (lambda: derived(given={"forward": [1, 2]}), derived()),
        (lambda: Profile(2, {"F": [1.0]}), Profile(2, {"F": [2.0]})),
        (lambda: derived().table(SCHEDULE), Costs().table(SCHEDULE)),
    ],
)
def test_objects_compare_by_value(make, other):
    assert make() == make()
    assert make() == copy.deepcopy(make())
    assert make() != other
    assert make() != 3


@pytest.mark.parametrize(
    "made",
    [
        lambda whole, real, true: Layout(partition=[whole, whole], sequence_parallel=true),
        lambda whole, real, true: ppsim.Jitter(actions=real, slow_devices={whole: real}),
        lambda whole, real, true: ppsim.lower(SCHEDULE, sharded=true, look_ahead=[whole, whole]).orders(),
        lambda whole, real, true: ppsim.build("auto", devices=2, microbatches=2, placement=np.array([0, whole])),
        lambda whole, real, true: ppsim.simulate(SCHEDULE).fill({"duration": real, "count": whole}).used.tolist(),
        lambda whole, real, true: ppsim.FillItem(real, count=whole),
        lambda whole, real, true: Costs(slice_costs=np.array([whole, real]), microbatch_scale=[[whole], (real,)]),
        lambda whole, real, true: ppsim.simulate(SCHEDULE).plot(width=3 + whole).get_size_inches()[0],
    ],
)
def test_numbers_of_numpy_are_numbers(made):
    assert made(np.int64(1), np.float32(1.5), np.True_) == made(1, 1.5, True)


def test_objects_show_the_call_that_makes_them():
    assert repr(Layout(tensor=2, partition="by_cost(optimal)")) == "Layout(tensor=2, partition='optimal')"
    assert repr(Costs(forward=2, latency=1)) == "Costs(forward=2.0, latency=1.0, per='device')"
    assert repr(Costs(backward=3)) == "Costs(backward=3.0, input_grad=1.5, weight_grad=1.5, per='device')"
    namespace = {
        kind.__name__: kind
        for kind in (Costs, Layout, Model, Cluster, DeviceSheet, LinkSheet, DerivedCosts, OperatorLaw)
    }
    for made in (
        Layout(recompute=["none", "full"]),
        Model(**MODEL, gated=True),
    ):
        assert eval(repr(made), namespace) == made  # noqa: S307 - the call that it shows
    made = Costs(forward=2, backward=[1, 2])
    assert eval(repr(made), namespace).table(SCHEDULE) == made.table(SCHEDULE)  # noqa: S307 - likewise
    assert repr(derived(layout=Layout(tensor=2))).endswith("cluster=Cluster(...), layout=Layout(tensor=2))")
    assert "seconds=" in repr(Costs().table(SCHEDULE))
    assert CostTable.__hash__ is None


def test_what_a_parameter_is_stands_in_the_help():
    for kind in (Costs, Layout, Model, Cluster, DeviceSheet, LinkSheet):
        assert "Parameters\n    ----------\n" in kind.__doc__
    assert "tensor\n        size of the tensor-parallel group" in Layout.__doc__
