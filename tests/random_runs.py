"""Hypothesis strategies of simulated runs: random and known schedules, costs, transports; and longer runs."""

import dataclasses

from hypothesis import assume
from hypothesis import strategies as st
from random_schedules import schedules, vocabulary_orders

import ppsim
from ppsim import Timeline
from ppsim.engines import run_plan
from ppsim.lowering import TRANSPORTS

ROUND_SECONDS = st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.0])
ANY_SECONDS = st.one_of(ROUND_SECONDS, st.floats(0.0, 5.0))
FAMILIES = ("bpipe", "dualpipe", "hanayo", "interleaved-1f1b", "pipedream", "seq1f1b", "terapipe", "vocab-1f1b",
            "zb-h1", "zb-v")  # fmt: skip


@st.composite
def family_schedules(draw):
    return ppsim.build(draw(st.sampled_from(FAMILIES)), devices=draw(st.sampled_from([2, 4])), microbatches=8)


@st.composite
def runs(draw, seconds=ANY_SECONDS, streams=False):
    """A run of a random schedule under random costs and transport; those that deadlock are left out.

    With `streams`, weights may be gathered, gradients reduced and an optimizer step taken.
    """
    cut = st.randoms(use_true_random=False).map(lambda random: ppsim.Schedule.from_orders(vocabulary_orders(random)))
    schedule = draw(st.one_of(schedules(), schedules(recompute=True, offload=True), cut, family_schedules()))
    a_stage = st.lists(seconds, min_size=schedule.num_stages, max_size=schedule.num_stages)
    maybe = st.one_of(st.none(), a_stage) if streams else st.none()
    costs = ppsim.Costs(
        per="stage",
        forward=draw(a_stage),
        input_grad=draw(a_stage),
        weight_grad=draw(a_stage),
        latency=draw(seconds),
        overlap=draw(st.one_of(st.none(), a_stage)),
        weight_grad_fraction_of_activation=draw(st.floats(0.0, 1.0)),
        offload_latency=draw(seconds),
        recompute=draw(st.one_of(st.none(), a_stage)),
        input_fraction_of_activation=draw(st.floats(0.0, 1.0)),
        vocabulary_forward=draw(seconds),
        vocabulary_backward=draw(seconds),
        vocabulary_reduce=draw(seconds),
        vocabulary_statistics=draw(st.one_of(st.none(), seconds)),
        unshard=draw(maybe),
        reduce_grad=draw(maybe),
        optimizer_step=draw(maybe),
    )
    optimizer = None
    if streams:
        optimizer = draw(st.sampled_from([None, "sync", "post-validated"])) if schedule.iterations == 1 else None
    sharded, transport = streams and draw(st.booleans()), draw(st.sampled_from(TRANSPORTS))
    try:
        schedule = ppsim.lower(schedule, sharded=True) if sharded else schedule
        return ppsim.simulate(schedule, costs, transport=transport, optimizer=optimizer)
    except ppsim.DeadlockError:
        assume(False)


def rerun(run, **columns):
    """The same run with other `seconds` or `transfer_seconds` of its plan."""
    fields = {"seconds": "row_lengths", "transfer_seconds": "transfer_lengths"}
    plan = dataclasses.replace(run.plan, **{fields.get(name, name): column for name, column in columns.items()})
    engine, times = run_plan(plan, "event")
    return Timeline(plan, run.table, run.costs, times, engine=engine)


def lengthened(run, action, seconds):
    """The run with one action that many seconds longer."""
    longer = run.plan.seconds.copy()
    longer[run.schedule.first_rows[action]] += seconds
    return rerun(run, seconds=longer)
