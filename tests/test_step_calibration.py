"""Calibration from measured steps: constants of the cost laws, their intervals, the file and the command."""

# pyright: reportOptionalSubscript=false, reportOptionalOperand=false, reportOptionalIterable=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from command_line import ROOT, ppsim
from ruamel.yaml import YAML

import ppsim as library
from ppsim.analysis import constant_slopes
from ppsim.config import ConfigSource
from ppsim.costs import CONSTANTS, read_calibration, scaled
from ppsim.studies import calibrated_config, fit_constants

MODEL = {"num_layers": 8, "hidden": 4096, "heads": 32, "ffn": 14336, "vocabulary": 32000, "sequence": 4096}
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 8}
SIZES = [(1, 1, 8, 1), (2, 2, 2, 1), (8, 1, 1, 2), (1, 4, 2, 1), (4, 2, 1, 4), (2, 1, 4, 2), (4, 1, 2, 1), (1, 2, 4, 2)]
TRUTH = {"products": 0.9, "memory": 0.85, "link": 0.8, "activations": 1.3, "state": 1.1}


def config_of(tensor=1, devices=1, data=1, microbatch_size=1, **more):
    layout = {"tensor": tensor, "data": data, "microbatch_size": microbatch_size, "sequence_parallel": tensor > 1}
    microbatches = 32 // (data * microbatch_size)
    schedule = {"name": "1f1b", "devices": devices, "microbatches": microbatches}
    return {"model": MODEL, "hardware": HARDWARE, "layout": layout, "schedule": schedule, "optimizer": "sync", **more}


def measured(size, factors=TRUTH):
    """A run of `size` whose step and peak are those of other constants."""
    return measured_of(config_of(*size), factors)


def measured_of(config, factors):
    config = ConfigSource(config, "config").config()
    run = replace(config, costs=scaled(config.costs, factors)).simulate()
    return {"config": config, "seconds": run.iteration_time, "peak_memory": float(run.peak_memory.max())}


@pytest.fixture(scope="module")
def runs():
    return [measured(size) for size in SIZES]


@pytest.fixture(scope="module")
def calibration(runs):
    return library.calibrate_steps(runs)


def error(calibration, run):
    return calibrated_config(run["config"], calibration).simulate().iteration_time / run["seconds"] - 1


def test_constants_come_back_from_the_steps_that_they_made(calibration, runs):
    for name in ("products", "memory", "link", "activations", "state"):
        distance = math.log(calibration.factors[name] / TRUTH[name])
        assert abs(distance) < 2 * calibration.deviation(name)
        assert calibration.deviation(name) < CONSTANTS[name].deviation
    assert calibration.factors["activations"] == pytest.approx(1.3, rel=0.02)
    assert max(abs(error(calibration, run)) for run in runs) < 0.03
    assert all(run.fits for run in calibration.measured)


def test_a_constant_that_the_runs_say_nothing_about_stays_at_its_prior(calibration):
    for name in ("network", "latency"):  # every run was on one node
        assert calibration.factors[name] == pytest.approx(1, abs=1e-6)
        assert calibration.deviation(name) == pytest.approx(CONSTANTS[name].deviation, rel=1e-3)


def test_no_key_that_the_calibration_sets_is_said_to_change_nothing(calibration):
    """Here every pipeline is inside one node, and no config names a network."""
    config = library.load_config(ROOT / "configs" / "llama-3-8b-8xh100.yaml")
    assumed = calibrated_config(config, calibration).simulate().to_dict()["assumptions"]
    assert not [one for one in assumed if "changes nothing" in one]


def test_a_slow_host_is_found_by_runs_with_little_work():
    def run(tensor, microbatches, factors):
        model = {"num_layers": 40, "hidden": 1536, "heads": 16, "vocabulary": 50304, "sequence": 1024}
        config = config_of(tensor) | {"model": model}
        config["schedule"] = config["schedule"] | {"microbatches": microbatches}
        return measured_of(config | {"layout": config["layout"] | {"framework": "megatron-core"}}, factors)

    slow = library.calibrate_steps([run(*size, {"host": 2.0}) for size in ((1, 2), (2, 4), (4, 2))])
    assert slow.factors["host"] == pytest.approx(2.0, rel=0.1)
    assert all(slow.factors[name] == pytest.approx(1, abs=0.05) for name in CONSTANTS if name != "host")
    other = run(8, 4, {"host": 2.0})
    assert abs(error(slow, other)) < 0.1 < abs(other["config"].simulate().iteration_time / other["seconds"] - 1)


def test_unmeasured_layouts_are_predicted_better(calibration):
    others = [measured(size) for size in ((2, 4, 1, 1), (8, 1, 2, 1), (1, 8, 1, 1))]
    for run in others:
        assert abs(error(calibration, run)) < abs(run["config"].simulate().iteration_time / run["seconds"] - 1)
        low, high = calibrated_config(run["config"], calibration).simulate().interval
        assert low < run["seconds"] < high


def test_three_runs_already_help(runs):
    three = library.calibrate_steps(runs[1:4])
    for run in [runs[0], *runs[4:]]:
        assert abs(error(three, run)) < abs(run["config"].simulate().iteration_time / run["seconds"] - 1) + 0.01


def test_runs_without_a_common_error_change_no_constant():
    apart = [measured(size, {}) for size in SIZES[:4]]
    apart = [
        {**run, "seconds": run["seconds"] * factor} for run, factor in zip(apart, (1.2, 0.85, 1.2, 0.85), strict=True)
    ]
    found = library.calibrate_steps([{key: run[key] for key in ("config", "seconds")} for run in apart])
    assert set(found.factors.values()) == {1.0}


def test_one_bad_run_does_not_pull_the_fit_and_is_named(calibration, runs):
    bad = {**runs[2], "seconds": 4 * runs[2]["seconds"]}
    pulled = library.calibrate_steps([*runs[:2], bad, *runs[3:]])
    assert [run.fits for run in pulled.measured] == [number != 2 for number in range(len(runs))]
    for name in CONSTANTS:
        assert abs(math.log(pulled.factors[name] / calibration.factors[name])) < 0.15
    assert max(abs(error(pulled, run)) for run in runs) < 0.06


OF_TIME = [name for name in CONSTANTS if not CONSTANTS[name].of_memory]


def fit_of(steps, slopes):
    return fit_constants(np.array(steps), OF_TIME, lambda logs: slopes @ logs, lambda _: slopes)


def test_a_fit_is_used_only_if_it_predicts_left_out_runs_better():
    """Slopes of three runs of nanotron 8B, of which the last hung; it alone moved the host by 0.23."""
    slopes = np.zeros((3, 10))
    slopes[:, :3] = [[-0.49, -0.12, -0.28], [-0.41, -0.1, -0.24], [-0.15, -0.04, -0.09]]
    slopes[:, 3:6] = [[0, 0, 0], [0.26, 0, -0.05], [0.95, 0.24, -0.01]]
    hung, agreed = fit_of((0.05, 0.12, 2.43), slopes), fit_of((0.3, 0.28, 0.3), slopes)
    assert not hung.logs.any()
    assert "of 3 steps (fit not used)" in hung.support.words("steps")
    assert np.abs(agreed.logs).max() > 0.1
    assert agreed.support.words("steps") == "3 of 3 steps"


@pytest.mark.parametrize(
    ("steps", "better", "part"),
    [
        ((0.3, 0.3, 0.3), 3, 1.0),
        ((0.3, 0.3, 0.12), 3, 0.55),  # the whole fit takes the third run past its step
        ((0.3, 0.3, -0.1), 2, 0.0),
        ((0.1,) * 7 + (-0.3,), 7, 1.0),
        ((0.1,) * 5 + (-0.02,) * 3, 5, 0.0),
    ],
)
def test_the_fraction_of_a_fit_has_the_surest_improvement_of_left_out_runs(steps, better, part):
    slopes = np.zeros((len(steps), 10))
    slopes[:, OF_TIME.index("memory")] = -0.8
    fit = fit_of(steps, slopes)
    assert fit.support == (len(steps), better, part)
    assert fit.error >= fit_of((0.1,) * len(steps), slopes).error  # the distance from the constants that are used


def test_rates_of_a_gpu_share_what_the_runs_show_of_one_of_them():
    slopes = np.zeros((5, 10))
    slopes[:, OF_TIME.index("products")] = -0.8
    logs = dict(zip(OF_TIME, fit_of((0.2,) * 5, slopes).logs, strict=True))
    assert logs["products"] < logs["attention"] < -0.05
    assert logs["memory"] == pytest.approx(logs["attention"])
    assert all(logs[name] == 0 for name in OF_TIME if name not in ("products", "attention", "memory"))


def test_fewer_than_three_runs_change_no_constant():
    for count, slopes in ((1, np.full((1, 10), -0.1)), (2, np.full((2, 10), -0.1))):
        fit = fit_of(np.full(count, 0.3), slopes)
        assert not fit.logs.any()
        assert fit.support.words("steps") == f"0 of {count} steps (fit not used)"


def test_a_run_without_memory_leaves_its_constants_at_the_prior(runs):
    seconds_only = library.calibrate_steps([{key: run[key] for key in ("config", "seconds")} for run in runs[:3]])
    assert [seconds_only.factors[name] for name in ("activations", "state")] == [1, 1]
    assert seconds_only.measured[0].memory_after is None


def test_peaks_of_the_first_device_are_recognised():
    def first(size):
        run = calibrated_config(measured(size)["config"], one).simulate()
        return {"config": config_of(*size), "seconds": run.iteration_time, "peak_memory": float(run.peak_memory[0])}

    one = library.calibrate_steps([measured(size) for size in SIZES[:3]])
    sizes = [(1, 8, 1, 1), (1, 4, 1, 8), (2, 4, 1, 8), (1, 2, 1, 8), (2, 2, 1, 16)]
    found = library.calibrate_steps([first(size) for size in sizes])
    for run in found.measured:
        assert run.memory_after == pytest.approx(run.peak_memory, rel=0.03)


def test_the_interval_is_narrower_and_widens_away_from_the_runs(calibration):
    derived = ConfigSource(config_of(2, 2, 2, 1), "config").config()
    before, after = (one.simulate().interval for one in (derived, calibrated_config(derived, calibration)))
    assert after[1] / after[0] < before[1] / before[0]
    far = calibrated_config(ConfigSource(config_of(2, 2, 16, 1), "config").config(), calibration).simulate().interval
    assert far[1] / far[0] > after[1] / after[0]
    spread = calibration.spread(
        np.zeros(len(CONSTANTS)), 3.0
    )  # beyond the runs, steps take longer rather than less long
    assert math.log(spread.high) > -math.log(spread.low)


def test_the_slopes_of_a_step_are_those_of_simulating_again(calibration):
    config = ConfigSource(config_of(4, 2, 1, 4), "config").config()
    run = config.simulate()
    for name, slope in zip(CONSTANTS, constant_slopes(run), strict=True):
        other = replace(config, costs=scaled(config.costs, {name: math.exp(0.05)})).simulate()
        assert slope == pytest.approx(math.log(other.iteration_time / run.iteration_time) / 0.05, abs=0.01)


def test_the_next_run_is_the_one_whose_step_is_known_least(calibration):
    low, high = calibration.next_interval
    config = ConfigSource(config_of(*SIZES[0]), "config").config()
    there = calibrated_config(config.changed(calibration.next_run), calibration).simulate()
    assert there.interval == pytest.approx((low, high))
    others = [calibrated_config(ConfigSource(config_of(*size), "config").config(), calibration) for size in SIZES[:3]]
    assert high / low >= max(run[1] / run[0] for run in (one.simulate().interval for one in others))


def test_a_file_holds_the_calibration_and_a_config_names_it(calibration, tmp_path):
    calibration.save(tmp_path / "calibration.yaml")
    read = read_calibration(tmp_path / "calibration.yaml")
    assert read.factors == pytest.approx(dict(calibration.factors))
    assert np.allclose(read.covariance, calibration.covariance)
    assert read.support == calibration.support == {"steps": (8, 8, 1.0), "peaks": (8, 8, 1.0)}
    config = library.load_config(_written(tmp_path / "job.yaml", config_of(2, 2, 2, 1)))
    run = config.changed({"calibration": "calibration.yaml"}).simulate()
    assert run.interval == pytest.approx(calibrated_config(config, calibration).simulate().interval, rel=1e-6)
    assert "calibrated with 8 runs" in run.summary()
    assert any(sentence.startswith("calibrated with 8 runs") for sentence in run.to_dict()["assumptions"])
    assert (run.peak_memory > config.simulate().peak_memory).all()


def test_a_calibrated_config_in_a_run_is_fitted_from_the_priors(calibration, runs, tmp_path):
    calibration.save(tmp_path / "calibration.yaml")
    path = _written(tmp_path / "job.yaml", config_of(*SIZES[1], calibration="calibration.yaml"))
    again = library.calibrate_steps([{**runs[1], "config": path}, *runs[2:4]])
    assert again.factors == pytest.approx(library.calibrate_steps(runs[1:4]).factors)


def _written(path, document):
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(document, file)
    return path


# The command


@pytest.fixture
def runs_file(runs, tmp_path):
    listed = []
    for number, (size, run) in enumerate(zip(SIZES[:4], runs, strict=False)):
        _written(tmp_path / f"job{number}.yaml", config_of(*size))
        peak = f"{run['peak_memory'] / 1e9:.3f} GB"
        listed.append({"config": f"job{number}.yaml", "seconds": f"{run['seconds']:.6f} s", "peak_memory": peak})
    return _written(tmp_path / "runs.yaml", listed)


def test_the_command_names_constants_runs_and_the_next_run(runs_file, tmp_path):
    made = tmp_path / "calibration.yaml"
    done = ppsim("calibrate", "--steps", runs_file, "-o", made)
    assert done.status == 0
    assert done.out.startswith("calibrated with 4 runs: median error ")
    assert len(done.out.splitlines()) <= 24
    assert max(map(len, done.out.splitlines())) <= 100
    for word in (
        *CONSTANTS,
        "job0",
        "next: ",
        "; peak memory ",
        "by a fit to the other runs: 4 of 4 steps, 4 of 4 peaks",
    ):
        assert word in done.out
    assert read_calibration(made).runs == 4
    for command in (("fits",), ("compare", "--schedules", "gpipe"), ("simulate",), ("sweep", "--over", "engine=event")):
        shown = ppsim(command[0], tmp_path / "job1.yaml", "--set", f"calibration={made}", *command[1:])
        assert "calibrated with 4 runs" in shown.out
    document = ppsim("fits", tmp_path / "job1.yaml", "--set", f"calibration={made}", "--json", "-").out
    assert json.loads(document)["calibrations"] == ["calibrated with 4 runs"]


def test_runs_whose_configs_have_one_name_are_told_apart_by_their_files(runs_file, tmp_path):
    for number in range(4):
        _written(tmp_path / f"job{number}.yaml", {**config_of(*SIZES[number]), "name": "my job"})
    done = ppsim("calibrate", "--steps", runs_file, "-o", tmp_path / "made.yaml")
    assert all(f"my job, job{number}.yaml  " in done.out for number in range(3))


BAD = {
    "[]": "is empty; list runs, such as",
    "5": "5 must be a list of runs, such as",
    "[7]": "[0]: 7 must be a run, such as",
    "[{config: missing.yaml, seconds: 1}]": "missing.yaml",
    "[{config: job0.yaml}]": "[0]: seconds is missing",
    "[{seconds: 2}]": "[0]: config is missing",
    "[{config: job0.yaml, seconds: -3}]": "[0]: seconds: -3 must be",
    "": "is empty; list runs, such as",
    "[{config: job0.yaml, seconds: 0}]": "[0]: seconds: 0 must be above 0 and at most 1e+08 seconds, such as 14.2",
    "[{config: job0.yaml, seconds: 1e300}]": "[0]: seconds: 1e+300 must be above 0 and at most 1e+08 seconds",
    "[{config: job0.yaml, seconds: fast}]": "[0]: seconds: 'fast'",
    "[{config: job0.yaml, seconds: 3, peak_memory: 0}]": "[0]: peak_memory: 0 must be above 0 and at most 1e+15 bytes",
    "[{config: job0.yaml, second: 3}]": "[0]: second: unknown key; did you mean seconds?",
    "[{config: job0.yaml, seconds: 3}, {config: job0.yaml, seconds: 3}]": "[1]: repeats ",
    "[{config: unit.yaml, seconds: 3}]": "gives its own times",
    "[{config: broken.yaml, seconds: 3}]": "broken.yaml",
}


@pytest.mark.parametrize("listed", BAD)
def test_a_wrong_list_of_runs_is_one_clear_error(listed, runs_file, tmp_path):
    _written(tmp_path / "unit.yaml", {"schedule": {"name": "1f1b", "devices": 2, "microbatches": 2}})
    (tmp_path / "broken.yaml").write_text("schedule: {name: 1f1b, devices: 0, microbatches: 2}")
    (tmp_path / "bad.yaml").write_text(listed)
    done = ppsim("calibrate", "--steps", tmp_path / "bad.yaml", "-o", tmp_path / "c.yaml")
    assert done.status == 2
    assert BAD[listed] in done.err
    assert "bad.yaml" in done.err
    assert not (tmp_path / "c.yaml").exists()


def test_an_empty_tuple_of_runs_is_refused_like_an_empty_list():
    with pytest.raises(library.ConfigError, match="runs: is empty; list runs"):
        library.calibrate_steps(())


def test_a_calibration_needs_derived_costs_and_a_right_file(calibration, tmp_path):
    calibration.save(tmp_path / "c.yaml")
    given = {"schedule": {"name": "1f1b", "devices": 2, "microbatches": 2}, "calibration": str(tmp_path / "c.yaml")}
    with pytest.raises(library.ConfigError, match="calibration: calibrates derived costs; give model and hardware"):
        ConfigSource(given, "config").config()
    text = (tmp_path / "c.yaml").read_text(encoding="utf-8")
    faults = {
        text.replace("ppsim.calibration/1", "ppsim.profile/1"): "not a calibration, as `ppsim calibrate --steps`",
        text.replace("products:", "product:"): "product",
        text.replace("error:", "eror:"): "eror: unknown key; did you mean error?",
        text.replace("covariance:\n- [", "covariance:\n- [7.0, "): "covariance: must have",
    }
    for wrong, message in faults.items():
        (tmp_path / "wrong.yaml").write_text(wrong, encoding="utf-8")
        with pytest.raises(library.ConfigError, match=message):
            ConfigSource(config_of(calibration=str(tmp_path / "wrong.yaml")), "config").config()
    with pytest.raises(library.ConfigError, match=r"missing\.yaml: cannot be read"):
        ConfigSource(config_of(calibration="missing.yaml"), "config").config()


def test_one_of_traces_steps_and_operators_is_given(runs_file, tmp_path):
    for options in ([], ["--steps", runs_file, "--operators", runs_file], ["--steps", runs_file, "--layers", "2,2"]):
        done = ppsim("calibrate", *options, "-o", tmp_path / "c.yaml")
        assert done.status == 2
        assert "--steps" in done.err or "--layers" in done.err
