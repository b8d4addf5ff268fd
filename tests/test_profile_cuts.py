"""A profile moves to stages of other numbers of layers, to more devices than it was measured on, and to other links."""

import pytest
from command_line import ppsim as command
from synthetic_traces import read_document, trace_document

import ppsim
from ppsim.costs import Profile, read_profile, write_profile
from ppsim.studies import calibrate

LAYER, HEAD = 0.01, 0.005  # seconds of F; B takes twice as long


def model(layers, per="stage", **more):
    """Stages of so many equal layers, the last one with a head."""
    forward = [LAYER * count for count in layers]
    forward[-1] += HEAD
    return ppsim.Costs(forward=forward, backward=[2 * value for value in forward], per=per, **more)


def measured(layers, devices=4, **more):
    return read_document(trace_document("1f1b", model(layers, **more), devices=devices), "1f1b")


def seconds(profile, stages, devices=4):
    schedule = ppsim.build("1f1b" if stages == devices else "interleaved-1f1b", devices=devices, microbatches=8,
                           stages_per_device=stages // devices)  # fmt: skip
    return profile.table(schedule).seconds[0]


def test_equal_stages_are_cut_by_layers():
    profile = calibrate([measured([8, 8, 8, 8])])
    assert seconds(profile, 4) == pytest.approx([0.08, 0.08, 0.08, 0.085])
    cut = profile.cut([9, 9, 8, 6])
    assert seconds(cut, 4) == pytest.approx([0.09, 0.09, 0.08, 0.065])
    assert seconds(profile.cut([5, 5, 4, 4, 4, 4, 4, 2]), 8) == pytest.approx([0.05, 0.05, *[0.04] * 5, 0.025])


def test_uneven_stages_say_what_a_layer_takes_and_what_the_head_does():
    profile = calibrate([measured([7, 9, 9, 7])], layers=[7, 9, 9, 7])
    assert profile.once["F"] == pytest.approx((0.0, HEAD))
    assert seconds(profile, 4) == pytest.approx([0.07, 0.09, 0.09, 0.075])  # as many stages: as they were measured
    assert seconds(profile, 8) == pytest.approx([*[0.04] * 7, 0.045])  # others: equal ones
    assert seconds(profile.cut([8, 8, 8, 8]), 4) == pytest.approx([0.08, 0.08, 0.08, 0.085])
    assert seconds(profile.cut([10, 9, 8, 5]), 4) == pytest.approx([0.1, 0.09, 0.08, 0.055])


def test_devices_with_more_layers_hold_more_activations():
    profile = calibrate([measured([7, 9, 9, 7])], layers=[7, 9, 9, 7])
    table = profile.cut([16, 8, 4, 4]).table(ppsim.build("1f1b", devices=4, microbatches=8))
    assert table.stage_share == pytest.approx([2.0, 1.0, 0.5, 0.5])


def test_stages_folded_on_one_device_predict_any_number_of_devices_over_a_given_link():
    """One process runs all stages, one after the other: no transfer is measured, and none is needed."""
    costs = model([8, 8, 8, 8])
    folded = read_document(trace_document("looped-bfs", costs, devices=1, stages_per_device=4), "folded")
    profile = calibrate([folded])
    assert profile.latency == 0
    linked = profile.with_link(latency=0.003, bandwidth=1e9, transfer_bytes=2e6)
    for devices, name in ((4, "1f1b"), (2, "interleaved-1f1b"), (4, "zb-h1")):
        schedule = ppsim.build(name, devices=devices, microbatches=8, stages_per_device=4 // devices)
        true = model([8, 8, 8, 8], latency=0.003, bandwidth=1e9, transfer_bytes=2e6)
        assert ppsim.simulate(schedule, linked).makespan == pytest.approx(ppsim.simulate(schedule, true).makespan)


def test_stages_measured_one_at_a_time_are_written_down_by_hand(tmp_path):
    (tmp_path / "stages.yaml").write_text(
        "schema: ppsim.profile/1\ndevices: 1\n"
        "seconds: {F: [0.08, 0.08, 0.085], I: [0.1, 0.1, 0.1], W: [0.06, 0.06, 0.07]}\n"
    )
    costs = read_profile(tmp_path / "stages.yaml").with_link(latency=0.01)
    schedule = ppsim.build("zb-h1", devices=3, microbatches=6)
    true = ppsim.Costs(
        forward=[0.08, 0.08, 0.085], input_grad=0.1, weight_grad=[0.06, 0.06, 0.07], latency=0.01, per="stage"
    )
    assert ppsim.simulate(schedule, costs).makespan == pytest.approx(ppsim.simulate(schedule, true).makespan)


def test_a_config_cuts_a_profile_and_gives_it_a_link(tmp_path):
    write_profile(calibrate([measured([7, 9, 9, 7])], layers=[7, 9, 9, 7]), tmp_path / "profile.yaml")
    assert read_profile(tmp_path / "profile.yaml").layers == [7, 9, 9, 7]
    config = tmp_path / "config.yaml"
    config.write_text(
        "schedule: {name: 1f1b, devices: 4, microbatches: 8}\n"
        "costs: {profile: profile.yaml, stage_layers: [8, 8, 8, 8], latency: 1 ms}\n"
    )
    run = ppsim.load_config(config).simulate()
    true = ppsim.simulate(run.schedule, model([8, 8, 8, 8], latency=0.001))
    assert run.makespan == pytest.approx(true.makespan, rel=1e-6)


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ("profile: profile.yaml, stage_layers: [8, 8, 8]", "of 3 stages, but the schedule has 4"),
        ("profile: profile.yaml, stage_layers: [8, 8, 8, 9]", "hold 33 layers, but the profile was measured on 32"),
        ("profile: profile.yaml, stage_layers: [8, 8, 8, 0]", "costs.stage_layers (line 2): 0 must be a whole number"),
        ("profile: profile.yaml, latency: [1, 2]", "costs.latency (line 2): [1.0, 2.0] must be one number"),
        ("profile: profile.yaml, forward: 1", "excludes profile"),
        ("forward: 1, stage_layers: [8, 8, 8, 8]", "needs costs.profile"),
    ],
)
def test_cuts_and_links_that_do_not_fit_are_refused(tmp_path, costs, said):
    write_profile(calibrate([measured([7, 9, 9, 7])], layers=[7, 9, 9, 7]), tmp_path / "profile.yaml")
    config = tmp_path / "config.yaml"
    config.write_text(f"schedule: {{name: 1f1b, devices: 4, microbatches: 8}}\ncosts: {{{costs}}}\n")
    outcome = command("simulate", config)
    assert outcome.status == 2
    assert said in outcome.err


def test_the_layers_of_a_calibration_are_checked(tmp_path):
    with pytest.raises(ppsim.CostError, match="are of 3 stages, but 1f1b has 4"):
        calibrate([measured([8, 8, 8, 8])], layers=[8, 8, 8])
    for layers in ("8,x", "8,0", ""):
        outcome = command("calibrate", tmp_path / "t.json", "-o", tmp_path / "p.yaml", "--layers", layers)
        assert outcome.status == 2
    (tmp_path / "p.yaml").write_text("schema: ppsim.profile/1\ndevices: 1\nseconds: {F: [1.0]}\nlayers: [1, 2]\n")
    with pytest.raises(ppsim.ConfigError, match="layers: must list the layers of each part"):
        read_profile(tmp_path / "p.yaml")
    with pytest.raises(ppsim.PpsimError, match="whole number"):
        Profile(devices=1, seconds={"F": [1.0], "B": [1.0]}).cut([0])
