"""Results that stores keep mean the same as long as `RESULTS` in ppsim/studies/store.py is the same number.

`python tests/test_stored_results.py` writes the results of today.
"""

import json
from pathlib import Path

import ppsim
from ppsim.costs import DEVICES, LINKS
from ppsim.studies import RESULTS, run_points

DATA = Path(__file__).parent / "data" / "stored_results.json"
CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
DIGITS = 12  # other machines may round further ones differently
UNEVEN = {
    "forward": [1.0, 1.5, 1.25, 0.75], "input_grad": [1.5, 1.0, 2.0, 1.25], "weight_grad": [0.5, 1.25, 1.0, 0.75],
    "latency": 0.125, "activation_bytes": 1e9,
}  # fmt: skip
SHORT = {"auto": {"rounds": 1}}
SIZES = {"devices": 4, "microbatches": 8}
MODEL = {
    "model": {"num_layers": 16, "hidden": 2048, "heads": 16, "vocabulary": 32000, "sequence": 2048, "experts": 8,
              "experts_per_token": 2},
    "hardware": {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"},
    "schedule": {"name": "1f1b", **SIZES},
}  # fmt: skip
POINTS = {
    "transport": {"transport": ["directed", "pair", "rank", "blocking"]},
    "end of a step": {"optimizer": ["sync", "post-validated"]},
    "dispatch": {"dispatch": ["ready"], "memory_limit": [2, 4]},
    "R": {"schedule.recompute": ["all"]},
    "R within a limit": {"schedule.recompute": ["needed"], "memory_limit": [2, 3]},
    "copies": {"schedule.offload": ["all"], "costs.offload_latency": [0.5], "transport": ["async", "rank"]},
    "jitter": {"jitter.actions": [0.05], "jitter.seed": [1, 2]},
    "layout": {"layout.recompute": ["none", "selective", "full"], "layout.partition": ["even", "optimal"]},
    "shards": {"layout.data": [4], "layout.sharded": [True], "layout.distributed_optimizer": [False]},
    "tensor": {"layout.tensor": [2, 8], "layout.sequence_parallel": [False, True]},
    "experts": {"layout.expert": [2], "layout.data": [2], "layout.microbatch_size": [1, 2]},
    "device": {"hardware.device": sorted(DEVICES)},
    "link": {"hardware.link": sorted(LINKS)},
}


def results():
    """Return some results by name: of every family, config and sheet, and of every feature that changes a step."""
    unit = {"schedule": {"name": "1f1b", **SIZES}}
    uneven = {**unit, "costs": UNEVEN}
    found = {}
    for name in ppsim.schedules():
        options = {"schedule.options": SHORT[name]} if name in SHORT else {}
        add(found, name, unit, [{"schedule.name": name, **options}])
        stages = ppsim.schedules()[name].stages_per_device
        per_stage = {key: value * stages if isinstance(value, list) else value for key, value in UNEVEN.items()}
        add(found, f"{name}, uneven", {**unit, "costs": per_stage}, [{"schedule.name": name, **options}])
    for path in CONFIGS:
        add(found, path.name, path, [{}])
    for feature, over in POINTS.items():
        base = MODEL if any(key.startswith(("layout", "hardware")) for key in over) else uneven
        points = [dict(point.changes) for point in ppsim.sweep(base, over).points]
        add(found, feature, base, points)
    return found


def add(found, name, config, points):
    """Add the result of each point, a refusal too."""
    for number, point in enumerate(run_points(config, points)):
        key = name if len(points) == 1 else f"{name} {number}"
        found[key] = point.refused or {
            measure: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
            for measure, value in point.numbers.items()
            if value is not None
        }


def test_a_changed_result_raises_the_number_in_the_key_of_every_store():
    stored, now = json.loads(DATA.read_text()), json.loads(json.dumps(results()))
    changed = [name for name in {**stored["results"], **now} if stored["results"].get(name) != now.get(name)]
    assert (stored["RESULTS"], changed) == (RESULTS, []), (
        "results have changed, and stores hold the old ones. If that is meant: raise RESULTS in ppsim/studies/store.py "
        "and write tests/data/stored_results.json with `python tests/test_stored_results.py`"
    )


if __name__ == "__main__":
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(result)}" for name, result in results().items())
    DATA.write_text(f'{{"RESULTS": {RESULTS}, "results": {{\n{rows}\n}}}}\n')
