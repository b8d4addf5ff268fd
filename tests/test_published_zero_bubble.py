"""The zero-bubble paper's throughput and memory (arXiv 2401.10241, table 4) against costs that nobody fitted."""

import pytest
from zero_bubble_table import ROOT, line, rate_of, rows


@pytest.fixture(scope="module")
def runs():
    return {(row["model"], row["schedule"]): (row, run) for row, run in rows()}


def test_throughput_is_predicted_within_8_percent_and_on_average_within_5(runs):
    ratios = [rate_of(run) / float(row["samples_per_gpu_second"]) for row, run in runs.values()]
    assert len(ratios) == 16
    assert all(ratio == pytest.approx(1, abs=0.08) for ratio in ratios)
    assert sum(abs(ratio - 1) for ratio in ratios) / 16 < 0.05


def test_peak_memory_is_predicted_within_9_percent(runs):
    for row, run in runs.values():
        assert run.peak_memory.max() / 1e9 == pytest.approx(float(row["memory_gb"]), rel=0.09)


def test_zero_bubble_beats_1f1b_in_every_model_as_measured(runs):
    for model in ("1.5B", "6.2B", "14.6B", "28.3B"):
        rate = {name: rate_of(runs[model, name][1]) for name in ("1f1b", "zb-1p", "zb-2p")}
        assert rate["1f1b"] < rate["zb-1p"] <= rate["zb-2p"] * 1.01


def test_the_cost_model_page_shows_these_numbers(runs):
    page = (ROOT / "docs" / "cost-model.md").read_text(encoding="utf-8")
    assert [line(*pair) for pair in runs.values() if line(*pair) not in page] == []
