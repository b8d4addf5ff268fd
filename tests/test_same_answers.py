"""Commands and Python functions that are asked about one config give the same numbers, and agree on whether it fits."""

import json
from pathlib import Path

import pytest
from command_line import ppsim as command

import ppsim
from ppsim.studies import check_configs, parse_limits

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
# The last one leaves 5 % of the memory free: less than the headroom that every command keeps by default.
CASES = (
    ("gpt-3-175b-64xa100", True, "schedule.microbatches=16"), ("llama-3-8b-8xh100", True), ("unit-costs", None),
    ("llama-3-8b-8xh100", False, "hardware.device.memory=65 GB"),
)  # fmt: skip
SHARED = ("makespan", "iteration_time", "tokens_per_second", "peak_memory", "bubble_fraction", "peak_activations")


def asked(*arguments):
    """The JSON document of a command, whatever its answer is."""
    done = command(*arguments, "--json", "-")
    assert done.status in (0, 1), done.err
    return json.loads(done.out)


def answers(config, *settings):
    """Return the answer of each command and function about one config: measures by name, and whether it fits."""
    case = ppsim.load_config(config, overrides=dict(one.split("=", 1) for one in settings))
    run, section = case.simulate(), case.schedule
    own = {name: run.to_dict()[name] for name in SHARED}
    maxima = {name: own[name] and max(own[name]) for name in ("peak_memory", "peak_activations")}
    sets = [text for one in settings for text in ("--set", one)]
    simulated = asked("simulate", config, *sets)
    advised = asked("advise", config, *sets)
    stages = (
        "" if ppsim.schedules()[section["name"]].fixed_stages else f":{run.schedule.num_stages // run.schedule.devices}"
    )
    compared = asked("compare", config, *sets, "--schedules", section["name"] + stages)
    [row] = [one for one in compared["schedules"] if one["schedule"].startswith(section["name"])]
    swept = asked("sweep", config, *sets, "--over", f"schedule.microbatches={section['microbatches']}")["points"][0]
    same = f"schedule.microbatches={section['microbatches']}"
    changed = asked("what-if", config, *sets, *(() if same in settings else ("--set", same)))
    yield "python", own | maxima, run.memory().fits() if maxima["peak_memory"] else None
    if maxima["peak_memory"]:
        limits, overrides = parse_limits(max_memory="1 PB"), dict(one.split("=", 1) for one in settings)
        [limited] = check_configs([config], limits=limits, overrides=overrides)
        fits = asked("fits", config, *sets)
        yield "check", {"peak_memory": limited.after}, None
        yield "fits", {"peak_memory": max(fits["memory"]["peak"])}, fits["fits"]
        yield "what_fits", {}, any(not one.changes for one in ppsim.what_fits(case))
    yield from [
        ("simulate", simulated | {name: simulated[name] and max(simulated[name]) for name in maxima}, None),
        ("advise", {"iteration_time": advised["step"]}, advised["fits"]),
        ("compare", row, row["fits"]),
        ("sweep", swept, None),
        ("what-if", {one["name"]: one["after"] for one in changed["changes"]}, None),
        ("compare()", {}, ppsim.compare(case, [section["name"] + stages]).rows()[0]["fits"]),
    ]


@pytest.mark.parametrize(("name", "fits", "settings"), [(name, fits, more) for name, fits, *more in CASES])
def test_every_command_gives_the_same_numbers(name, fits, settings):
    found = list(answers(CONFIGS / f"{name}.yaml", *settings))
    _, expected, _ = found[0]
    for who, numbers, answer in found:
        shared = [measure for measure in SHARED if numbers.get(measure) is not None]
        assert shared or answer is not None or who == "compare()", who
        for measure in shared:
            assert numbers[measure] == pytest.approx(expected[measure], rel=1e-12), (who, measure)
        assert answer == fits or who in ("simulate", "sweep", "what-if", "check"), who


def test_choose_agrees_with_simulate_about_its_winner():
    config = ppsim.load_config(CONFIGS / "gpt-3-175b-64xa100.yaml")
    changes = {"hardware.gpus": config.costs.gpus(config.schedule["devices"]), "layout.recompute": "full"}
    found = ppsim.choose(config.changed(changes), {"schedule.name": ["1f1b", "gpipe"]}, top=2)
    for one in found.ranked:
        run = config.changed({**changes, **one.changes}).simulate()
        assert (one.step, one.memory) == (run.iteration_time, run.peak_memory.max())
        assert run.memory().fits()
    assert found.headroom == ppsim.advise(config).headroom
