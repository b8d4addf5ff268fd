"""docs/choosing-checks.md shows docs/data/choices.yaml, explains each large regret, and has its charts."""

import sys

import pytest
from command_line import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import advice_cases
import choices
import make_choosing_docs

FOUND = choices.read()
PARTS = {
    "regret": make_choosing_docs.regret_lines, "configs": make_choosing_docs.config_lines,
    "advice": make_choosing_docs.advice_lines, "implausible": make_choosing_docs.implausible_lines,
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_the_page_shows_the_results(part):
    page = make_choosing_docs.CHECKS.read_text(encoding="utf-8")
    assert "\n".join(PARTS[part](FOUND)) in page, "docs/choosing-checks.md is out of date; run `make docs`"


def test_every_large_regret_has_a_reason_and_no_best_layout_is_slower_than_the_published_one():
    for name, (_, one, regret) in make_choosing_docs.regrets(FOUND).items():
        assert regret >= 0, name
        assert regret <= make_choosing_docs.EXPLAINED or make_choosing_docs.reason(name)
        assert one["step"] > 0


def test_every_faulty_config_was_compared_with_every_single_change():
    assert FOUND["advice"].keys() == advice_cases.cases().keys()
    assert all(one["advised"] <= 1.02 * one["best"] for one in FOUND["advice"].values())


@pytest.mark.parametrize("name", ["regret", "advice"])
def test_the_page_has_its_charts(name):
    assert (make_choosing_docs.IMAGES / f"{name}.svg").read_text(encoding="utf-8").startswith("<?xml")
