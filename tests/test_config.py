"""The YAML file: what it means, and every fault of one told with its path, value and rule."""

import re
import textwrap

import numpy as np
import pytest
from command_line import LLAMA, UNIT_COSTS

import ppsim
from ppsim import ConfigError, CostError, DerivedCosts, PpsimError, load_config
from ppsim.config import ConfigSource

UNIT = """
name: four devices
schedule:
  name: 1f1b
  devices: 4
  microbatches: 8
costs:
  forward: 1
  backward: 2
"""
DERIVED = """
model: {num_layers: 8, hidden: 64, heads: 4, vocabulary: 100, sequence: 32}
hardware:
  device: {peak: 1 TFLOP/s, memory: 80 GB, achieved: 0.5}
  link: {bandwidth: 100 Gb/s, latency: 5 us}
layout: {tensor: 2, data: 2}
schedule: {name: gpipe, devices: 2, microbatches: 4}
transport: directed
engine: event
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="case.yaml"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def fault_of(path, **overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides=overrides)
    return str(caught.value)


def test_given_numbers_run_as_in_the_python_face(write):
    config = load_config(write(UNIT))
    run = config.simulate()
    assert (config.name, config.transport, config.engine) == ("four devices", "async", "auto")
    assert config.costs == ppsim.Costs(forward=1.0, backward=2.0)
    assert run.makespan == (8 + 4 - 1) * 3
    assert config.build() == ppsim.build("1f1b", devices=4, microbatches=8)


def test_a_config_is_a_path_a_dict_or_an_object(write):
    config = load_config(write(UNIT))
    assert load_config(config.data) == ppsim.compare(config.data, ["1f1b"]).current.config
    assert load_config(config, overrides={"schedule.microbatches": 6}).build().microbatches == 6
    with pytest.raises(ConfigError, match="config=3 must be a path of a YAML file, a dict of its sections or a"):
        load_config(3)


def test_a_model_and_hardware_give_derived_costs(write):
    config = load_config(write(DERIVED))
    assert isinstance(config.costs, DerivedCosts)
    assert config.name == "case"
    assert config.model.parameters == config.costs.model.parameters
    assert config.costs.cluster.link.bandwidth == 12.5e9
    assert config.costs.cluster.link.latency == pytest.approx(5e-6)
    assert config.costs.rate == 0.5e12
    assert config.simulate().engine == "event"


def test_a_known_sheet_can_be_changed_in_part(write):
    config = load_config(
        write(DERIVED),
        overrides={"hardware.device": {"like": "H100", "achieved": 0.6}, "hardware.link": "nvlink 4"},
    )
    assert config.costs.rate == 0.6 * 989e12
    assert config.costs.cluster.device.achieved_source == "given"
    assert config.costs.cluster.network == config.costs.cluster.link


def test_numbers_beside_a_model_replace_what_would_be_derived(write):
    config = load_config(write(DERIVED), overrides={"costs.forward": "3 ms"})
    assert config.costs.for_stages(2).forward == 0.003
    assert config.costs.provenance["forward"] == "given"


@pytest.mark.parametrize(
    "text", ["[1,", "{a", "'x", "%", "@", "!x 1", "!!int x", "a: b: c", "2024-13-45", "#5", "---", "&a"]
)
def test_an_override_that_is_no_value_is_refused_in_plain_words(write, text):
    with pytest.raises(ConfigError, match="a list such as") as error:
        load_config(write(DERIVED), overrides={"costs.latency": text})
    assert error.value.faults[0].startswith(f"override 'costs.latency': {text!r} is not a value; give a number")


def test_overrides_replace_dotted_keys_and_read_text_as_yaml(write):
    path = write(UNIT)
    config = load_config(
        path, overrides={"schedule.name": "gpipe", "schedule.microbatches": "6", "costs.latency": "1e-6"}
    )
    assert config.schedule["name"] == "gpipe"
    assert config.build().microbatches == 6
    assert config.costs.latency == 1e-6
    assert load_config(path, overrides={"costs": None, "transport": "rank"}).transport == "rank"
    assert "name is '1f1b', not a section" in fault_of(path, **{"schedule.name.x": 1})
    assert "dots between them" in fault_of(path, **{"schedule.": 1})


def test_a_csv_file_is_found_beside_the_config(write):
    write("0F0,,0B0\n1F0,1B0\n", "hand.csv")
    path = write("schedule: {csv: hand.csv}\n")
    assert load_config(path).build().orders() == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert "schedule.devices: excludes csv" in fault_of(path, **{"schedule.devices": 4})


def test_options_reach_the_family(write):
    path = write(UNIT)
    config = load_config(path, overrides={"schedule.name": "interleaved-1f1b", "schedule.options": {"group_size": 8}})
    expected = ppsim.build("interleaved-1f1b", devices=4, microbatches=8, group_size=8)
    assert config.build() == expected
    message = fault_of(path, **{"schedule.options.grup_size": 8})
    assert "schedule.options.grup_size" in message
    assert "unknown option of 1f1b; its options are: none" in message


SIZES = {"devices": 4, "microbatches": 8}
INTERLEAVED = SIZES | {"name": "interleaved-1f1b", "stages_per_device": 3, "options": {"group_size": 8}}


@pytest.mark.parametrize(
    ("section", "changes", "left"),
    [
        (INTERLEAVED, {"name": "zb-v"}, SIZES | {"name": "zb-v"}),
        (INTERLEAVED, {"name": "interleaved-1f1b:2"}, INTERLEAVED | {"stages_per_device": 2}),
        (INTERLEAVED, {"name": "hanayo"}, SIZES | {"name": "hanayo", "stages_per_device": 3}),
        (INTERLEAVED, {"name": "gis", "options": {"group_size": 4}},
         INTERLEAVED | {"name": "gis", "options": {"group_size": 4}}),
        (INTERLEAVED, {"csv": "hand.csv"}, {"csv": "hand.csv"}),
        ({"csv": "hand.csv", "slices": 2}, SIZES | {"name": "gpipe"}, SIZES | {"name": "gpipe"}),
    ],
)  # fmt: skip
def test_another_schedule_removes_the_keys_that_only_the_first_one_has(section, changes, left):
    changed = ConfigSource({"schedule": section}, "here").changed(
        {f"schedule.{key}": one for key, one in changes.items()}
    )
    assert {key: one for key, one in changed.data["schedule"].items() if one is not None} == left


def test_all_faults_come_at_once_each_with_path_line_value_and_what_is_legal(write):
    path = write(
        """
        schedule:
          name: 1f2b
          devices: 0
          microbaches: 8
        costs:
          forward: 2 GB
          latency: true
        transport: asinc
        modle: {}
        """
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: 8 faults\n")
    assert caught.value.faults == [
        "schedule.devices (line 4): 0 must be a whole number of at least 1",
        "schedule.name (line 3): unknown schedule '1f2b'; did you mean 1f1b or 1f1b-v or seq1f1b? "
        "`ppsim list` shows them",
        "schedule.microbaches (line 5): unknown key; did you mean microbatches?",
        "costs.forward (line 7): '2 GB': 'GB' is not a unit of seconds; it must be a number of seconds of at least 0, "
        "or text with a unit such as '2 ms'",
        "costs.latency (line 8): True must be a number of seconds of at least 0, or text with a unit such as '2 ms'",
        "transport (line 9): 'asinc' is not known; did you mean async? use one of: async, directed, "
        "directions, pair, rank, blocking",
        "modle (line 10): unknown key; did you mean model?",
        "schedule.microbatches: is missing; a schedule has name, devices and microbatches, or csv",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": [1]}, r"schedule: \[1\] must be a section of keys"),
        ({"schedule.name": "1f2b"}, r"unknown schedule '1f2b'; did you mean .*1f1b"),
        ({"schedule.devices": 2.5}, "schedule.devices: 2.5 must be a whole number"),
        ({"layout.tensor": 3}, "layout.*tensor=3 does not divide the 4 attention heads; use 2 or 4"),
        ({"layout.partition": "evenly"}, r"'evenly' is not a partition; use one of: even, by_cost\(greedy\), by_cost"),
        ({"layout.recompute": ["none", "half"]}, "'half' is not known; use one of: none, selective, full"),
        ({"hardware.device": "H1000"}, "hardware.device: unknown device 'H1000'; did you mean H100 SXM"),
        ({"hardware.link": {"latency": "1 us"}}, "hardware.link: gives no bandwidth"),
        ({"memory_limit": []}, r"\[\] is empty; list one value per device"),
        (
            {"hardware.device": {"like": "A100", "memory": "80 ms"}},
            "hardware.device.memory.*'ms' is not a unit of bytes",
        ),
        ({"model.heads": 5}, "model.*hidden=64 is not a multiple of heads=5"),
        ({"model": {"hidden": 64}}, "4 faults\n  model.num_layers: is missing"),
        ({"costs.overlap": [[1, 2], [3, "x"]]}, "costs.overlap.*'x' must be a number of seconds"),
        ({"costs.input_grad": 1}, "costs: input_grad is given without weight_grad"),
        ({"costs.bandwidth": -1}, "-1 must be a number of bytes per second"),
        ({"optimizer": "sync"}, "hardware.device.*gives no memory_bandwidth, which the optimizer step is priced by"),
        ({"optimizer": "late"}, "optimizer: 'late' is not known; use one of: sync, post-validated"),
        ({"hardware.cards_per_node": 0}, "hardware.cards_per_node: 0 must be a whole number of at least 1"),
        (
            {"layout.first_stage_layers": 1, "layout.partition": "greedy"},
            "layout.*first_stage_layers=1 needs partition 'even'",
        ),
    ],
)
def test_each_wrong_value_is_one_clear_error(write, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(DERIVED), overrides=changes)


def test_sections_that_need_each_other_say_so(write):
    assert "hardware: is missing; a model is priced" in fault_of(write("model: {num_layers: 2, hidden: 4, heads: 2, "
        "vocabulary: 9, sequence: 8}\nschedule: {name: gpipe, devices: 2, microbatches: 2}\n"))  # fmt: skip
    assert "layout (line 3): needs a section `model`" in fault_of(
        write("schedule: {name: gpipe, devices: 2, microbatches: 2}\n\nlayout: {tensor: 2}\n")
    )
    assert "schedule.microbatches: is missing" in fault_of(write("schedule: {name: gpipe, devices: 2}\n"))


def test_the_number_of_gpus_is_checked_against_the_layout(write):
    config = load_config(write(DERIVED), overrides={"hardware.gpus": 16})
    with pytest.raises(ConfigError, match=r"hardware\.gpus is 16, but 2 pipeline devices of 4 GPUs make 8"):
        config.simulate()


def test_jitter_in_a_config_is_one_sample_the_same_on_both_engines(write):
    text = (
        DERIVED + "jitter: {actions: 0.1, slow_devices: {1: 2.0}, slow_links: [{between: [0, 1], factor: 3}], seed: 7}"
    )
    event = load_config(write(text)).simulate()
    compiled = load_config(write(text), overrides={"engine": "compiled"}).simulate()
    plain = load_config(write(DERIVED)).simulate()
    assert np.array_equal(event.end, compiled.end)
    assert compiled.engine == "compiled"
    assert not np.array_equal(event.end, load_config(write(text), overrides={"jitter.seed": 8}).simulate().end)
    assert event.device_busy[1] / plain.device_busy[1] == pytest.approx(2, rel=0.15)
    moved = event.transfer_end - event.transfer_start
    assert np.nanmax(moved) == pytest.approx(3 * np.nanmax(plain.transfer_end - plain.transfer_start))


def test_users_bring_their_own_devices_and_links_with_sources(write):
    sheet = {"name": "ours", "peak": "2 PFLOP/s", "memory": "96 GB", "achieved": 0.4, "memory_bandwidth": "4 TB/s"}
    config = load_config(
        write(DERIVED),
        overrides={"hardware.device": sheet | {"source": "measured in May"}, "hardware.link.latency_source": "ours"},
    )
    device, link = config.costs.cluster.device, config.costs.cluster.link
    assert (device.name, device.peak, device.memory, device.memory_bandwidth) == ("ours", 2e15, 96e9, 4e12)
    assert (device.source, device.achieved_source) == ("measured in May", "given")
    assert (link.source, link.latency_source) == ("given", "ours")


def test_a_known_link_takes_the_part_that_collectives_reach_there(write):
    own = {"like": "NVLink 5", "achieved": 0.5}
    link = load_config(write(DERIVED), overrides={"hardware.link": own}).costs.cluster.link
    assert (link.bandwidth, link.in_collectives.bandwidth) == (9e11, 4.5e11)
    assert link.source.startswith("given: achieved; else NVIDIA B200 data sheet")
    changed = load_config(write(DERIVED), overrides={"hardware.device": {"like": "A100", "memory": "40 GB"}})
    assert changed.costs.cluster.device.source.startswith("given: memory; else NVIDIA A100")


def test_sharded_weights_and_an_optimizer_step_in_a_config(write):
    changes = {"layout.sharded": True, "optimizer": "post-validated", "hardware.device.memory_bandwidth": "1 TB/s"}
    run = load_config(write(DERIVED), overrides=changes).simulate()
    assert len(run.unshards.device) == 2
    assert len(run.reductions.device) == 2
    assert run.optimizer_steps is not None
    plain = load_config(write(DERIVED)).simulate()
    assert run.static_memory[2].sum() < plain.static_memory[2].sum()
    given = load_config(write(UNIT), overrides={"costs.unshard": "100 ms"}).simulate()
    assert given.unshards.end[0] - given.unshards.start[0] == 0.1


def test_more_stages_than_layers_is_one_clear_error(write):
    config = load_config(write(DERIVED), overrides={"schedule.devices": 9, "hardware.gpus_per_node": 72})
    with pytest.raises(CostError, match="8 layers cannot fill 9 stages of at least one layer each; use at most 8"):
        config.simulate()


def test_a_limit_for_another_number_of_devices_is_an_error_that_names_the_file(write):
    path = write(UNIT)
    with pytest.raises(ConfigError, match=rf"{re.escape(str(path))}: memory_limit=\[9.0, 9.0\] is not a limit for 4"):
        load_config(path, overrides={"memory_limit": [9, 9]}).simulate()


@pytest.mark.parametrize(
    ("jitter", "message"),
    [
        ({"actions": -1}, "-1 must be a relative spread from 0 to 3"),
        ({"slow_devices": [3]}, "must map devices to factors"),
        ({"slow_devices": {0: 0}}, "0 must be a factor above 0"),
        ({"slow_links": [{"between": [0], "factor": 2}]}, "must be a link such as"),
    ],
)
def test_a_wrong_jitter_is_one_clear_error(write, jitter, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(DERIVED), overrides={"jitter": jitter})


def test_a_slow_device_that_is_not_there_is_one_clear_error(write):
    with pytest.raises(PpsimError, match="names device 5, but the schedule has devices 0 to 1"):
        load_config(write(DERIVED), overrides={"jitter.slow_devices": {5: 2.0}}).simulate()


def test_numbers_and_arrays_of_numpy_are_values():
    config = ppsim.load_config(UNIT_COSTS)
    data = {**config.data, "schedule": {**config.data["schedule"], "microbatches": np.int64(16)}}
    assert config.changed({"schedule.microbatches": np.int64(16)}).simulate().makespan == (16 + 3) * 3
    assert [row.step for row in ppsim.sweep(data, {"costs.forward": np.array([[1.0] * 4, [2.0] * 4])}).points] == [
        57,
        76,
    ]
    assert config.changed({"costs.forward": np.array([1.0, 1.0, 1.0, 2.0])}).costs.forward == [1, 1, 1, 2]


def test_values_without_an_end_are_an_error():
    endless = {}
    endless["costs"] = endless
    with pytest.raises(ConfigError, match="config: nested deeper than 30 levels"):
        ppsim.sweep(endless, {"schedule.microbatches": [8]})
    with pytest.raises(ConfigError, match="override 'costs': nested deeper than 30 levels"):
        ppsim.load_config(UNIT_COSTS).changed({"costs": endless})


def test_changes_make_another_config(write):
    config = load_config(write(DERIVED), overrides={"schedule.microbatches": 6})
    other = config.changed({"schedule.name": "1f1b", "layout.recompute": "full"})
    assert other.build() == ppsim.build("1f1b", devices=2, microbatches=6)
    assert other.costs.layout.recompute == "full"
    assert config.changed({"layout": None}).costs.layout.tensor == 1


def test_what_fits_names_the_fastest_single_changes_that_fit(write):
    config = load_config(write(DERIVED), overrides={"schedule.microbatches": 16})
    assert ppsim.what_fits(config)[0].changes == {}
    limit = config.simulate().peak_memory.max()
    fittings = ppsim.what_fits(config.changed({"hardware.device.memory": float(0.6 * limit)}), headroom=0.0)
    assert len({fitting.idea for fitting in fittings}) == len(fittings) == 4
    assert [fitting.step for fitting in fittings] == sorted(fitting.step for fitting in fittings)
    assert all(fitting.run.memory().fits(headroom=0.0) for fitting in fittings)
    assert ppsim.what_fits(config.changed({"hardware.device.memory": "1 kB"})) == []


def test_yaml_1_2_numbers_are_numbers(write):
    config = load_config(write(UNIT + "  latency: 1e-6\n  weight_grad_fraction_of_activation: .5\n"))
    assert config.costs.latency == 1e-6
    assert config.costs.weight_grad_fraction_of_activation == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedule: {name: a}\nschedule: {name: b}\n", "line 2: found duplicate key"),
        ("a: &x [1]\nb: *x\n", "line 2: aliases .* are not read"),
        ("a: " + "[" * 5000, "line 1: nested deeper than 30 levels"),
        ("a: [" + "1," * 20000 + "1]", "more than 20000 values"),
        ("a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("a: [1\n", "expected ',' or ']'"),
        ("- 1\n", "is not a config; write sections"),
        ("", "is empty; write sections"),
        ("a: 1\n---\nb: 2\n", "line 2: found another document"),
        ("a: 2001-99-99\n", "not YAML: month must be in 1..12"),
        ("1: 2\nschedule: {csv: x}\n", "keys must be text"),
        ("\0", "not YAML"),
    ],
)
def test_what_is_no_config_is_one_clear_error(write, text, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(text))


def test_a_file_that_is_missing_or_a_folder_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_gpus_on_several_nodes_need_a_network(write):
    text = "hardware.network is missing: 16 GPUs need several nodes of 8"
    several = ppsim.load_config(LLAMA).changed(
        {"hardware.network": None, "hardware.gpus": None, "batch": None, "layout.data": 2}
    )
    with pytest.raises(ConfigError, match=text):
        several.simulate()
    with pytest.raises(ConfigError, match=text):
        ppsim.choose(several.changed({"hardware.gpus": 16, "batch": 64}), ["layout.tensor"])
    assert several.changed({"hardware.gpus_per_node": 16}).simulate().makespan > 0


@pytest.mark.parametrize("kind", ["none", "optimizer", "gradients", "weights", "hybrid"])
def test_sharding_stands_for_its_keys_in_a_file_and_in_a_change(kind):
    nodes = {"hardware.gpus": 32, "hardware.network": "InfiniBand NDR", "batch": None}
    given = ppsim.load_config(LLAMA).changed({**nodes, "layout.data": 4, "layout.replicas": 2})
    names = ("layout.distributed_optimizer", "layout.sharded_gradients", "layout.sharded")
    flags = {"optimizer": (True, False, False), "gradients": (True, True, False), "none": (False, False, False)}
    keys = dict(zip(names, flags.get(kind, (False, False, True)), strict=True))
    changed = given.changed({"layout.sharded": True}).changed({"layout.sharding": kind})
    layout = {"sharding": kind, "data": 4, "replicas": 2, "partition": "even", "fused_loss": True}
    read = ppsim.load_config(LLAMA).changed({**nodes, "layout": layout})
    assert changed.costs == given.changed(keys).costs
    assert read.simulate().makespan == changed.simulate().makespan == given.changed(keys).simulate().makespan
    assert "sharding" not in changed.data["layout"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"layout.sharding": "some"}, "layout.sharding: 'some' is not known; use one of: none, opt"),
        (
            {"layout.sharding": "weights", "layout.sharded": True},
            "layout.sharding: sets .*; leave out sharding, or sharded",
        ),
        ({"layout.sharding": "hybrid"}, "layout.sharding: hybrid needs replicas above 1"),
    ],
)
def test_sharding_that_is_wrong_or_given_twice_is_named(changes, fault):
    with pytest.raises(ConfigError, match=fault):
        ppsim.load_config(LLAMA).changed(changes)
