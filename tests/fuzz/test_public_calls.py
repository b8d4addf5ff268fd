"""Every parameter of every public function takes odd values: each call ends in an answer or a PpsimError."""

import inspect
import signal

import numpy as np
import pytest

import ppsim
from ppsim.config import ConfigSource
from ppsim.costs import EncoderTower
from tests.fuzz.cases import EXAMPLES, case

LONGEST = 20  # seconds of one call

SCHEDULE = ppsim.build("1f1b", devices=2, microbatches=2)
COSTS = ppsim.Costs(forward=1.0, backward=2.0, activation_bytes=1.0)
RUN = ppsim.simulate(SCHEDULE, COSTS)
SIZES = {"num_layers": 4, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32}
UNIT = {"schedule": {"name": "1f1b", "devices": 2, "microbatches": 2}}
DERIVED = {**UNIT, "model": SIZES, "hardware": {"device": "H100 SXM", "link": "NVLink 4"}}
CONFIG = ConfigSource(DERIVED, "config").config()
BATCH = ppsim.simulate_many(SCHEDULE, COSTS, samples=4, jitter=ppsim.Jitter(actions=0.1), progress=False)

# A call that works: the callable, and the arguments that it needs or that make it short.
CALLS = {
    "build": (ppsim.build, {"name": "1f1b", "devices": 2, "microbatches": 2}),
    "simulate": (ppsim.simulate, {"schedule": SCHEDULE, "costs": COSTS}),
    "simulate_many": (ppsim.simulate_many, {"schedule": SCHEDULE, "costs": COSTS, "progress": False}),
    "lower": (ppsim.lower, {"schedule": SCHEDULE}),
    "with_encoder": (ppsim.with_encoder, {"schedule": SCHEDULE, "encoder": EncoderTower()}),
    "with_offload": (ppsim.with_offload, {"schedule": SCHEDULE}),
    "with_recompute": (ppsim.with_recompute, {"schedule": SCHEDULE}),
    "load_config": (ppsim.load_config, {"path": "no-such.yaml"}),
    "advise": (ppsim.advise, {"config": UNIT}),
    "choose": (ppsim.choose, {"config": DERIVED, "free": ["layout.recompute"], "top": 1}),
    "compare": (ppsim.compare, {"config": UNIT, "schedules": ["1f1b"]}),
    "calibrate_steps": (ppsim.calibrate_steps, {"runs": [{"config": DERIVED, "seconds": 1.0}]}),
    "explain": (ppsim.explain, {"measured": RUN}),
    "sweep": (ppsim.sweep, {"config": UNIT, "over": {"costs.latency": [0]}}),
    "what_fits": (ppsim.what_fits, {"config": CONFIG}),
    "from_launch": (ppsim.from_launch, {"framework": "torchtitan", "text": ""}),
    "to_launch": (ppsim.to_launch, {"config": DERIVED, "framework": "Megatron-LM"}),
    "schedules": (ppsim.schedules, {}),
    "Costs": (lambda **given: ppsim.simulate(SCHEDULE, ppsim.Costs(**given)), {"forward": 1.0, "backward": 2.0}),
    "DerivedCosts": (
        lambda **given: ppsim.simulate(SCHEDULE, ppsim.DerivedCosts(**given)),
        {"model": CONFIG.costs.model, "cluster": CONFIG.costs.cluster},
    ),
    "Model": (ppsim.Model, SIZES),
    "Layout": (ppsim.Layout, {}),
    "Jitter": (ppsim.Jitter, {}),
    "Jitter.measured": (ppsim.Jitter.measured, {}),
    "Model.from_huggingface": (ppsim.Model.from_huggingface, {"source": {}}),
    "Schedule.from_orders": (ppsim.Schedule.from_orders, {"orders": [["0F0", "0B0"]]}),
    "Schedule.of": (ppsim.Schedule.of, {}),
    "Schedule.check": (SCHEDULE.check, {}),
    "Timeline.of": (ppsim.Timeline.of, {}),
    "Timeline.to_text": (RUN.to_text, {}),
    "Timeline.plot_ledger": (RUN.plot_ledger, {}),
    "Batch.percentile": (BATCH.percentile, {"percent": 50}),
    "Config.changed": (CONFIG.changed, {"changes": {}}),
    "Config.simulate": (CONFIG.simulate, {}),
    "Config.completed": (CONFIG.completed, {"schedule": SCHEDULE}),
    "DerivedCosts.with_stages": (CONFIG.costs.with_stages, {"layers_of_stages": (2, 2)}),
    "DerivedCosts.table": (CONFIG.costs.table, {"schedule": SCHEDULE}),
}
CLASSES = {"Costs": ppsim.Costs, "DerivedCosts": ppsim.DerivedCosts}

ODD = [
    None, True, 0, -1, 1.5, 2**70, 10**400, float("nan"), float("inf"), 1e308, 1j, "", "x", "\0", "\u202e", b"x", ...,
    [], [None], [[]], ["x"], [float("nan"), 1], {}, {"a": 1}, {None: None}, {1: 2}, set(), object(), int, len, range(3),
    slice(1), iter([1]), Exception("x"), memoryview(b"x"), np.array([]), np.array(1.0), np.array("x"),
    np.array([None, 1], object), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array(["0F0"]), np.float32("nan"), np.int64(-1),
    np.ma.masked, np.ma.masked_array([1.0, 2.0], mask=[False, True]), np.ma.masked_array([1.0, 2.0]),
    np.datetime64("2020"), SCHEDULE, RUN, COSTS, CONFIG, [SCHEDULE], [RUN], [COSTS, None], {"a": [object()]}, (),
    np.array([np.nan]),
]  # fmt: skip


def parameters_of(name):
    call, _ = CALLS[name]
    kinds = inspect.signature(CLASSES.get(name, call)).parameters.values()
    return [one.name for one in kinds if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def too_long(*_):
    raise AssertionError(f"no answer within {LONGEST} s")


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_end_in_an_answer_or_an_error_of_ours(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some values name a store
    call, arguments = CALLS[name]
    pairs = [(parameter, value) for parameter in parameters_of(name) for value in range(len(ODD))]
    order = np.random.default_rng(len(pairs)).permutation(len(pairs))
    signal.signal(signal.SIGALRM, too_long)
    for parameter, number in [pairs[index] for index in order[:EXAMPLES]]:
        signal.alarm(LONGEST)
        try:
            with case("public functions with odd arguments"):
                call(**{**arguments, parameter: ODD[number]})
        except Exception as error:
            raise AssertionError(f"{name}({parameter}={ODD[number]!r}): {type(error).__name__}: {error}") from error
        finally:
            signal.alarm(0)


def test_every_public_function_is_called():
    public = {name for name in ppsim.__all__ if inspect.isfunction(getattr(ppsim, name))}
    assert public <= CALLS.keys()


def test_masked_arrays_are_no_costs():
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(ppsim.CostError, match="masked"):
        ppsim.Costs(forward=masked, backward=2.0, per="stage")

    class Prices:
        def table(self, schedule):
            table = COSTS.table(schedule)
            vars(table)["stage_share"] = masked
            return table

    with pytest.raises(ppsim.CostError, match="stage_share is a masked array"):
        ppsim.simulate(SCHEDULE, Prices())
    with pytest.raises(ppsim.ConfigError, match="config=None must be a path of a YAML file"):
        ppsim.what_fits(None)
