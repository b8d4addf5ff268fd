"""A cost and an effect are declared once: engines, config, summary, JSON, units and pages read the declaration."""

from typing import Any

import pytest

import ppsim
from ppsim.commands.what_if import UNITS
from ppsim.config import ConfigSource
from ppsim.costs import DEVICES, EFFECTS, LINKS, PARAMETERS, effects

MODEL = ppsim.Model(num_layers=4, hidden=64, heads=4, vocabulary=100, sequence=32)
CLUSTER = ppsim.Cluster(DEVICES["H100 SXM"], LINKS["NVLink 4"], LINKS["InfiniBand NDR"])
SCHEDULE = ppsim.build("zb-h1", devices=2, microbatches=4)
EVERYTHING = (
    {
        "microbatch_scale": [1.0] * 4,
        "overlap": 1.0,
        "latency": 1.0,
        "transfer_bytes": 1.0,
        "bandwidth": 1.0,
        "unshard": 1.0,
    }
    | {
        name: 1.0
        for name, parameter in PARAMETERS.items()
        if parameter.get("group") in ("action", "again", "vocabulary", "copy", "step", "held")
    }
    | {"offload_switch": 2}
)


def test_json_summary_and_units_have_every_cost_with_its_unit():
    before = {"0I0": ["0R0", "0I0"], "0F1": ["0OFFLOAD0", "0RELOAD0", "0F1"]}
    orders = [[part for text in order for part in before.get(text, [text])] for order in SCHEDULE.orders()]
    schedule = ppsim.Schedule.from_orders(orders)
    cut = ppsim.build("vocab-1f1b", devices=2, microbatches=4)
    runs = [ppsim.simulate(one, ppsim.Costs(**{**EVERYTHING, "backward": 2.0})) for one in (schedule, cut)]
    document = runs[0].to_dict()["costs"] | runs[1].to_dict()["costs"]
    assert document.keys() == {name for name, parameter in PARAMETERS.items() if "column" in parameter}
    for name, cost in document.items():
        assert cost["unit"] == PARAMETERS[name]["unit"] + PARAMETERS[name]["of"]
        assert UNITS.get(name, "") == PARAMETERS[name]["unit"]
    rows = {
        line.split()[0]
        for run in runs
        for line in run.summary(verbose=True, costs=True).splitlines()
        if line.startswith("  ")
    }
    assert rows >= {name for name in document if "note" in PARAMETERS[name]} - {"backward"}


@pytest.mark.parametrize("name", [name for name, parameter in PARAMETERS.items() if parameter.get("unit")])
def test_a_config_takes_every_cost_as_text_with_its_unit(name):
    unit = {"seconds": "2 s", "bytes": "2 B", "bytes per second": "2 B/s"}[PARAMETERS[name]["unit"]]
    costs = {"backward": 4.0, name: unit}
    schedule = {"name": "1f1b", "devices": 2, "microbatches": 2}
    config: Any = ConfigSource({"schedule": schedule, "costs": costs}, "here").config()
    assert getattr(config.costs, name) == 2.0
    assert config.costs.provenance[name] == "given"


def test_a_new_effect_is_an_entry_that_costs_and_assumptions_read(monkeypatch):
    layout = ppsim.Layout(cuda_graphs=True)
    costs = ppsim.DerivedCosts(MODEL, CLUSTER, layout)
    before = ppsim.simulate(SCHEDULE, costs)
    new = effects.Effect(
        "layout.tensor",
        sentence=lambda setup: f"{setup.model.num_layers} blocks wait for someone",
        action=lambda setup, layer: (2.0, 1.0) if layer.name == "block" else (0.0, 0.0),
    )
    monkeypatch.setattr(effects, "EFFECTS", (*EFFECTS, new))
    after = ppsim.simulate(SCHEDULE, ppsim.DerivedCosts(MODEL, CLUSTER, layout))
    assert after.table.seconds[0] - before.table.seconds[0] == pytest.approx([4.0, 4.0])
    assert after.table.seconds[2] - before.table.seconds[2] == pytest.approx([2.0, 2.0])
    assert "4 blocks wait for someone" in after.to_dict()["assumptions"]


def test_what_is_done_once_a_step_is_an_entry_too(monkeypatch):
    new = effects.Effect("unshard", step=lambda setup, stage: 3.0 * stage.copies)
    monkeypatch.setattr(effects, "EFFECTS", (*(effect for effect in EFFECTS if effect.key != "unshard"), new))
    costs = ppsim.DerivedCosts(MODEL, CLUSTER).for_stages(2, copies=[1, 2])
    assert costs.unshard == [3.0, 6.0]
    assert "reduce_grad" not in costs.provenance or costs.reduce_grad
