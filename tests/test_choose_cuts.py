"""The stages of what choose ranks are the fastest of every cut that fits, embedding, head and predictions apart."""

import itertools

import pytest

import ppsim
from ppsim.config import ConfigSource

MODEL = {
    "num_layers": 5, "hidden": 512, "heads": 8, "sequence": 1024, "ffn": 2048, "vocabulary": 40000,
    "prediction_layers": 1,
}  # fmt: skip
PIECES = "E" + "t" * 5 + "mL"


def config_of(section, memory):
    return ConfigSource({
            "model": MODEL, "schedule": section, "transport": "directed", "optimizer": "sync",
            "hardware": {"device": {"like": "H100 SXM", "memory": memory}, "link": "NVLink 4"},
        }, "case").config()  # fmt: skip


def every_text(stages):
    """The layout string of every cut; the first stage has the embedding and the last one the head."""
    for ends in itertools.combinations_with_replacement(range(1, len(PIECES)), stages - 1):
        yield "|".join(PIECES[begin:end] for begin, end in itertools.pairwise((0, *ends, len(PIECES))))


@pytest.mark.parametrize(
    "section",
    [
        {"name": "1f1b", "devices": 3, "microbatches": 6},
        {"name": "interleaved-1f1b", "devices": 2, "microbatches": 4, "stages_per_device": 2},
        {"name": "zb-v", "devices": 2, "microbatches": 4},
    ],
)
def test_the_winner_has_the_fastest_of_every_cut_that_fits(section):
    free = config_of(section, "80 GB")
    runs = [free.changed({"layout.partition": text}).simulate() for text in every_text(free.build().num_stages)]
    measured = sorted((float(run.peak_memory.max()), run.iteration_time) for run in runs)
    for quantile in (0.0, 0.05, 0.3, 1.0):
        limit, _ = measured[int(quantile * (len(measured) - 1))]
        found = ppsim.choose(config_of(section, limit), ["layout.partition"], headroom=0.0)
        assert found.ranked[0].step == min(step for peak, step in measured if peak <= limit)
        assert found.ranked[0].memory <= limit
        assert found.best.run.iteration_time == found.ranked[0].step


def test_a_search_of_stages_makes_no_rank_slower_and_leaves_the_counts():
    section = {"name": "interleaved-1f1b", "devices": 2, "microbatches": 4, "stages_per_device": 2}
    config = config_of(section, "80 GB")
    free = {"layout.partition": ["even", "balanced"], "layout.microbatch_size": [1, 2]}
    plain = ppsim.choose(config, free)
    searched = ppsim.choose(config, {**free, "layout.partition": ["even", "balanced", "searched"]})
    assert searched.counts == plain.counts
    assert all(new.step <= old.step for new, old in zip(searched.ranked, plain.ranked, strict=False))


@pytest.mark.parametrize("top", [1, 3, 5])
def test_nothing_is_ranked_that_is_slower_than_points_left_aside(top):
    config = config_of({"name": "1f1b", "devices": 2, "microbatches": 4}, "80 GB")
    free = {"schedule.name": ["1f1b", "zb-h1", "gpipe", "naive", "gems", "interleaved-1f1b"]}
    plain, searched = (
        ppsim.choose(config, {**free, "layout.partition": ["even", "balanced", *more]}, top=top)
        for more in ([], ["searched"])
    )
    assert searched.ranked[-1].step <= plain.ranked[-1].step


def test_a_second_search_of_stages_is_read_from_the_store(tmp_path):
    section = {"name": "1f1b", "devices": 2, "microbatches": 4}
    first, second = (
        ppsim.choose(config_of(section, "80 GB"), ["layout.partition"], store=tmp_path / "runs.sqlite", workers=1)
        for _ in range(2)
    )
    assert first.ranked == second.ranked
