"""The published set-ups in configs/: each runs, and comes near to what was published."""

from functools import cache
from itertools import islice
from pathlib import Path

import catalogue
import pytest

from ppsim import load_config

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


MEASURES = {"step": "makespan", "mfu": "mfu", "tokens_per_second": "tokens_per_second"}


run_of = cache(lambda path: load_config(path).simulate())
each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


@each_config
def test_every_config_runs_within_a_quarter_of_what_was_published(path):
    run = run_of(path)
    assert 0 < run.bubble_fraction < 0.5
    for name, value in load_config(path).published.items():
        if name != "source":
            assert getattr(run, MEASURES[name]) == pytest.approx(value, rel=0.26)


@each_config
def test_no_key_of_a_config_is_idle(path):
    idle = [one for one in run_of(path).to_dict()["assumptions"] if "changes nothing" in one]
    # Variants on several nodes need the network, and launch files the flag of grouped experts.
    assert not [one for one in idle if not one.startswith(("hardware.network", "layout.grouped_experts"))]


@each_config
def test_the_default_summary_of_each_config_fits_one_screen(path):
    text = run_of(path).summary()
    lines = text.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True), text
    assert [line.split()[0] for line in lines[2:] if not line.startswith((" ", "idle")) and line][:3] == [
        "step", "memory" if path.stem != "unit-costs" else "activations", "bubble",
    ]  # fmt: skip


def test_the_cost_model_page_shows_each_set_up_as_it_is_simulated():
    page = (CONFIGS[0].parent.parent / "docs" / "cost-model.md").read_text(encoding="utf-8")
    configs = {path.stem: load_config(path, overrides={"engine": "compiled"}) for path in CONFIGS}
    for name, config in configs.items():
        if config.published:
            assert "| " + " | ".join(islice(catalogue.row(name, config), 7)) + " | " in page
    assert "come to 608 ms on the fullest device, of which 237 ms are exposed" in page
    assert "reductions 608 ms, step + 237 ms" in catalogue.data_parallelism()


def test_the_catalogue_holds_a_dozen_published_set_ups_each_with_its_source():
    published = [load_config(path).published for path in CONFIGS]
    sources = [entry["source"] for entry in published if entry]
    assert len(sources) >= 12


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bloom-176b-384xa100", 176e9),
        ("deepseek-v3-2048xh800", 671e9),
        ("gpt-145b-1536xa100", 145.6e9),
        ("gpt-1t-3072xa100", 1008e9),
        ("gpt-neox-20b-96xa100", 20.6e9),
        ("llama-3-405b-16384xh100", 405e9),
        ("kimi-k2-256xh100", 1026.4e9),
        ("megascale-175b-12288xa100", 175e9),
        ("mt-nlg-530b-280xa100", 529.6e9),
        ("nemotron-3-nano-16xh100", 31.6e9),
        ("nemotron-h-56b-256xh100", 56.3e9),
        ("qwen3-next-80b-128xh100", 79.7e9),
        ("nemotron-4-340b-6144xh100", 340e9),
        ("zero-bubble-28b-32xa100", 28.3e9),
    ],
)
def test_models_of_the_catalogue_have_their_published_parameters(name, parameters):
    path = next(path for path in CONFIGS if path.stem == name)
    assert load_config(path).model.parameters == pytest.approx(parameters, rel=0.01)


def test_llama_3_8b_on_8_h100_is_the_model_as_published():
    (path,) = (path for path in CONFIGS if path.stem == "llama-3-8b-8xh100")
    config, run = load_config(path), run_of(path)
    assert config.model.parameters == 8_030_261_248
    assert run.schedule.devices == 8
    assert run.schedule.microbatches == 32
    assert config.costs.cluster.device.peak == 989e12
    assert config.costs.cluster.link.bandwidth == 450e9
    assert run.peak_memory.max() < 80e9
