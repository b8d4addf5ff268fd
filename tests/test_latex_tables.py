"""Tables for papers: LaTeX with booktabs, one unit and one number of decimals per column."""

import pytest

import ppsim

COSTS = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1)


def compared(*names):
    runs = [ppsim.simulate(ppsim.build(name, devices=4, microbatches=8), COSTS) for name in names]
    return ppsim.compare(runs)


def test_a_comparison_is_a_table_whose_numbers_align():
    lines = compared("1f1b", "zb-h1").to_latex().splitlines()
    assert lines[:4] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"schedule & step (s) & vs 1f1b (\%) & idle (\%) & peak activations \\",
        r"\midrule",
    ]
    assert sorted(lines[4:6]) == [
        r"1f1b & $34.6$ & base & $30.6$ & $4$ \\",
        r"zb-h1 & $28.2$ & $-18.5$ & $14.9$ & $4$ \\",
    ]
    assert lines[6:] == [r"\bottomrule", r"\end{tabular}"]


def test_names_are_escaped():
    schedule = ppsim.Schedule.from_orders([["0F0", "0B0"]], name="a_b & 50%")
    assert r"a\_b \& 50\% &" in ppsim.compare([ppsim.simulate(schedule)]).to_latex()


def test_a_comparison_without_a_run_has_no_table():
    nothing = ppsim.compare({"schedule": {"name": "1f1b", "devices": 3, "microbatches": 8}}, ["dualpipe"])
    with pytest.raises(ppsim.ConfigError, match="no schedule ran"):
        nothing.to_latex()


def test_a_sweep_is_a_table_of_its_points():
    sweep = ppsim.sweep("configs/unit-costs.yaml", over={"schedule.microbatches": [4, 8]}, workers=1)
    lines = sweep.to_latex().splitlines()
    assert lines[2].startswith("microbatches & ")
    assert lines[2].endswith(r"& peak activations \\")
    assert [line.partition(" & ")[0] for line in lines[4:6]] == ["$4$", "$8$"]
