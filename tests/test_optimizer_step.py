"""The optimizer step: behind a barrier of all devices, or on each device when its own gradients are complete."""

import pytest

import ppsim

TWO = ("1f1b", {"devices": 2, "microbatches": 2})


def step(optimizer, **costs):
    name, sizes = TWO
    return ppsim.simulate(ppsim.build(name, **sizes), ppsim.Costs(**costs), optimizer=optimizer)


def of(run):
    steps = run.optimizer_steps
    return list(zip(steps.device.tolist(), steps.start.tolist(), steps.end.tolist(), strict=True))


def test_without_an_optimizer_the_step_ends_with_the_last_action():
    run = step(None, optimizer_step=5.0)
    assert run.optimizer_steps is None
    assert run.device_end.tolist() == [9, 7]


def test_sync_waits_for_the_last_device():
    run = step("sync", optimizer_step=0.5)
    assert of(run) == [(0, 9, 9.5), (1, 9, 9.5)]
    assert run.device_end.tolist() == [9.5, 9.5]
    assert run.makespan == 9.5
    assert run.device_busy.tolist() == [6, 6]


def test_post_validated_steps_on_each_device_when_its_last_action_ends():
    run = step("post-validated", optimizer_step=0.5)
    assert of(run) == [(0, 9, 9.5), (1, 7, 7.5)]
    assert run.makespan == 9.5


def test_post_validated_steps_follow_each_other_at_the_span():
    """Device 1 begins 1 s after device 0 and ends 2 s before it: the next step of both may begin after 9.5 s."""
    run = step("post-validated", optimizer_step=0.5)
    assert run.device_start.tolist() == [0, 1]
    assert run.iteration_time == run.span == 9.5
    schedule = ppsim.build("zb-h2", devices=4, microbatches=8)
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, optimizer_step=1)
    free, waiting = (ppsim.simulate(schedule, costs, optimizer=one) for one in ("post-validated", "sync"))
    assert free.iteration_time == 8 * 3 + 1  # no bubble: what each device computes, and its own step
    assert (free.makespan, waiting.iteration_time) == (8 * 3 + 3 + 1, 8 * 3 + 3 + 1)


def test_a_step_waits_for_gradient_reductions():
    assert of(step("sync", optimizer_step=0.5, reduce_grad=4)) == [(0, 13, 13.5), (1, 13, 13.5)]
    assert of(step("post-validated", optimizer_step=0.5, reduce_grad=4)) == [(0, 13, 13.5), (1, 11, 11.5)]


def test_each_device_steps_all_stages_that_it_holds():
    interleaved = ppsim.build("interleaved-1f1b", devices=2, microbatches=2, stages_per_device=2)
    run = ppsim.simulate(interleaved, ppsim.Costs(optimizer_step=[1, 2, 3, 4], per="stage"), optimizer="post-validated")
    assert (run.optimizer_steps.end - run.optimizer_steps.start).tolist() == [4, 6]
    both_ways = ppsim.build("dualpipe", devices=2, microbatches=4)
    run = ppsim.simulate(both_ways, ppsim.Costs(optimizer_step=1), optimizer="post-validated")
    assert (run.optimizer_steps.end - run.optimizer_steps.start).tolist() == [2, 2]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_zb_h2_has_no_bubble_if_no_device_waits_for_a_global_norm(devices):
    schedule = ppsim.build("zb-h2", devices=devices, microbatches=2 * devices)
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1)
    free = ppsim.simulate(schedule, costs, optimizer="post-validated")
    waiting = ppsim.simulate(schedule, costs, optimizer="sync")
    assert free.span_bubble_fraction == 0
    assert waiting.span - free.span == devices - 1  # the first device ends p - 1 forwards before the last
    assert waiting.span_bubble_fraction > 0


def test_the_ledger_tells_the_barrier_from_the_drain():
    waiting, free = (step(optimizer, optimizer_step=0.5).ledger() for optimizer in ("sync", "post-validated"))
    assert waiting["optimizer"].tolist() == [0.5, 2.5]
    assert waiting["drain"].tolist() == [0, 0]
    assert free["optimizer"].tolist() == [0.5, 0.5]
    assert free["drain"].tolist() == [0, 2]


def test_the_critical_path_ends_with_the_step():
    run = step("sync", optimizer_step=0.5)
    assert run.sensitivities().kind["optimizer"] == 1
    plain = step(None)
    assert run.critical_path().tolist() == plain.critical_path().tolist()
    assert run.slack().tolist() == plain.slack().tolist()


def test_iterations_that_run_on_have_no_common_step():
    schedule = ppsim.build("pipedream", devices=2, microbatches=4)
    with pytest.raises(ppsim.ConfigError, match="its iterations follow each other without a common end"):
        ppsim.simulate(schedule, optimizer="sync")


def test_unknown_optimizers_are_refused():
    with pytest.raises(ppsim.ConfigError, match="optimizer='async' is not known; did you mean sync"):
        step("async")
    with pytest.raises(ppsim.ConfigError, match="optimizer=3 is not known"):
        step(3)


def test_the_result_document_names_the_optimizer():
    assert [step(optimizer).to_dict()["optimizer"] for optimizer in (None, "sync")] == [None, "sync"]
    assert ", optimizer post-validated\n" in step("post-validated").summary(verbose=True, costs=True)
