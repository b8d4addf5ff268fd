"""The compiled engine against the event model, and against PyTorch's own dry run of a schedule."""

import numpy as np
import pytest

import ppsim
import ppsim.base.compiling

COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)


@pytest.mark.parametrize("transport", ["async", "directed", "rank"])
@pytest.mark.parametrize("family", ["1f1b", "interleaved-1f1b"])
def test_compiled_against_event(compare, family, transport):
    schedule = ppsim.build(family, devices=64, microbatches=1024)

    def simulate(engine):
        return ppsim.simulate(schedule, COSTS, transport=transport, engine=engine)

    assert np.array_equal(simulate("event").row_end, simulate("compiled").row_end)
    compare.benchmark.extra_info.update(family=family, transport=transport, actions=len(schedule))
    compare(lambda: simulate("event"), lambda: simulate("compiled"), other_name="event model")


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_against_the_dry_run_of_pytorch(compare, engine):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    devices = 8
    program = ppsim.lower(ppsim.build("1f1b", devices=devices, microbatches=128))
    order = {
        rank: [schedules._Action.from_str(action) for action in actions]
        for rank, actions in enumerate(program.orders())
    }
    compare.benchmark.extra_info.update(engine=engine, actions=len(program))
    compare(
        lambda: schedules._simulate_comms_compute(order, lambda stage: stage, devices),
        lambda: ppsim.simulate(program, COSTS, transport="directed", engine=engine),
        other_name="torch _simulate_comms_compute",
    )


def test_where_auto_changes_from_the_event_model_to_the_compiled_engine(benchmark):
    """The event model at the size where `engine="auto"` stops taking it: about what loading Numba takes."""
    schedule = ppsim.build("1f1b", devices=8, microbatches=ppsim.base.compiling.ROWS_WORTH_LOADING // 16 - 1)
    benchmark.extra_info.update(actions=len(schedule), limit=ppsim.base.compiling.ROWS_WORTH_LOADING)
    run = benchmark.pedantic(ppsim.simulate, (schedule, COSTS), rounds=5)
    assert run.engine == "event"
