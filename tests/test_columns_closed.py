"""Nobody can write to the columns of a timeline, nor to those of its copies and pickles."""

import copy
import pickle

import numpy as np
import pytest
from timelines import stepped

import ppsim
from ppsim.analysis import MEASURES
from ppsim.engines import Times

MODEL = {"activation_bytes": 1e9, "weight_bytes": 1e9, "gradient_bytes": 1e9, "optimizer_bytes": 1e9}


def deferred():
    """A run of the compiled engine, whose columns are computed when they are read."""
    schedule = ppsim.build("1f1b", devices=2, microbatches=3)
    return ppsim.simulate(schedule, ppsim.Costs(forward=1, backward=2, latency=0.5, **MODEL), engine="compiled")


def queued():
    schedule = ppsim.build("zb-h1", devices=2, microbatches=4)
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.5, **MODEL)
    return ppsim.simulate(schedule, costs, transport="rank", engine="compiled")


RUNS = {"deferred": deferred, "queued": queued, "with the end of a step": stepped}
COPIES = {
    "new": lambda run: run,
    "pickled": lambda run: pickle.loads(pickle.dumps(run)),  # noqa: S301 - our own bytes
    "copied": copy.copy,
    "deeply copied": copy.deepcopy,
}


def arrays_in(value):
    """Return the arrays of a value: itself, its entries, or the columns of an object that has them."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, tuple):
        return [array for part in value for array in arrays_in(part)]
    return [held for held in getattr(value, "__dict__", {}).values() if isinstance(held, np.ndarray)]


def assert_closed(run):
    names = {name for name in dir(run) if name.isidentifier() and not name.startswith("_")} | MEASURES.keys()
    found = {name: arrays_in(getattr(run, name)) for name in sorted(names)}
    assert sum(map(len, found.values())) > 40
    for name, arrays in found.items():
        for array in arrays:
            assert not array.flags.writeable, name
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True


@pytest.mark.parametrize("made", COPIES.values(), ids=list(COPIES))
@pytest.mark.parametrize("run", RUNS.values(), ids=list(RUNS))
def test_no_column_of_a_timeline_can_be_written(run, made):
    run = run()
    other = made(run)
    assert other == run
    assert_closed(other)
    assert_closed(made(run))  # now that the cached columns of `run` are there


@pytest.mark.parametrize(
    "view", ["ledger", "slack", "critical_path", "sensitivities", "lower_bound", "memory", "bubbles"]
)
def test_no_column_of_a_view_can_be_written(view):
    for array in arrays_in(getattr(queued(), view)()):
        assert not array.flags.writeable


def test_a_timeline_copies_what_its_caller_can_still_write_to():
    run = deferred()
    block = np.stack([run.row_start, run.row_end])
    given = Times(block[0], block[1], run.transfer_start, run.transfer_end)
    made = ppsim.Timeline(run.plan, run.table, run.costs, given, engine="measured")
    block[:] = -1.0
    assert np.array_equal(made.row_end, run.row_end)
