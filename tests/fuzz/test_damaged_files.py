"""A damaged file of any kind is read and used to the end, or refused by a PpsimError."""

import json

from command_line import CONFIGS, ROOT, UNIT_COSTS
from hypothesis import given
from hypothesis import strategies as st
from primus_dumps import write_dump
from published_models import CONFIGS as MODELS
from ruamel.yaml import YAML
from synthetic_traces import trace_document

import ppsim
from ppsim import Model, Timeline
from ppsim.costs import read_profile
from ppsim.interop.kineto import read_any_trace
from ppsim.studies import Tolerance, calibrate, check_configs, evaluate, read_baseline, update_baseline
from tests.fuzz.cases import as_yaml, case, damaged, damaged_bytes, damaged_tables, fuzz

PROFILE = ROOT / "validation" / "data" / "cpu" / "sleep" / "profile.yaml"
TRACE = trace_document(
    "1f1b", ppsim.Costs(forward=0.02, backward=0.05, latency=0.001), devices=2, microbatches=2, steps=2
)

SMALL = {
    "schedule": {"name": "zb-h1", "devices": 2, "microbatches": 3},
    "costs": {"forward": 1.0, "latency": "1 ms"},
    "jitter": {"actions": 0.1, "links": 0.2},
    "transport": "rank",
}


def yaml_of(path):
    return YAML(typ="safe").load(path.read_text())


def use_trace(path):
    """Everything that is done with a trace."""
    trace = read_any_trace(path)
    run = Timeline.of(trace.timeline())
    assert run.to_text()
    assert run.makespan >= 0
    evaluate([trace], calibrate([trace]))


@given(config=st.sampled_from(sorted(CONFIGS.glob("*.yaml"))), data=st.data())
@fuzz
def test_configs(config, data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_bytes(data.draw(damaged(yaml_of(config), config.read_bytes(), as_yaml)))
    with case("config files"):
        ppsim.load_config(path)


@given(data=st.data())
@fuzz
def test_small_configs_are_simulated(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "small.yaml"
    path.write_bytes(data.draw(damaged(SMALL, text=as_yaml)))
    with case("config files, simulated"):
        config = ppsim.load_config(path)
        if len(config.build()) < 10_000:
            assert config.simulate().summary()


@given(family=st.sampled_from(["1f1b", "zb-h1", "dualpipe", "interleaved-1f1b"]), data=st.data())
@fuzz
def test_schedules(family, data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "schedule.csv"
    ppsim.build(family, devices=4, microbatches=8).to_csv(path)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    path.write_bytes(data.draw(st.one_of(damaged_tables(rows), damaged_bytes(path.read_bytes()))))
    with case("schedule CSV files"):
        ppsim.simulate(ppsim.Schedule.from_csv(path), transport="directed", engine="event")


@given(model=st.sampled_from(sorted(MODELS)), data=st.data())
@fuzz
def test_model_configs(model, data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_bytes(data.draw(damaged(MODELS[model][0])))
    with case("Hugging Face config.json files"):
        assert Model.from_huggingface(path).parameters > 0


@given(data=st.data())
@fuzz
def test_profiles(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "profile.yaml"
    path.write_bytes(data.draw(damaged(yaml_of(PROFILE), PROFILE.read_bytes(), as_yaml)))
    with case("profile files"):
        profile = read_profile(path)
        ppsim.simulate(ppsim.build("zb-h1", devices=4, microbatches=4), profile, transport="rank")


@given(data=st.data())
@fuzz
def test_traces(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "trace.json"
    path.write_bytes(data.draw(damaged(TRACE)))
    with case("trace files of the harness"):
        use_trace(path)


@given(data=st.data())
@fuzz
def test_primus_dumps(data, tmp_path_factory):
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2))
    folder = write_dump(tmp_path_factory.getbasetemp() / "primus", run)
    sizes, *ranks = sorted(folder.iterdir())
    hurt = data.draw(st.sampled_from([*ranks, *ranks, sizes]))
    hurt.write_bytes(data.draw(damaged(json.loads(hurt.read_text()), unread=("total", "memory"))))
    with case("Primus dumps"):
        use_trace(folder)


@given(data=st.data())
@fuzz
def test_baselines(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "baseline.json"
    path.unlink(missing_ok=True)  # the damaged one of the case before, which no update replaces
    update_baseline([UNIT_COSTS], path)
    whole = path.read_bytes()
    path.write_bytes(data.draw(damaged(json.loads(whole), whole)))
    with case("baseline files"):
        old = read_baseline(path)
        assert check_configs([UNIT_COSTS], baseline=path, limits={}, tolerance=Tolerance())
        assert isinstance(old, dict)
