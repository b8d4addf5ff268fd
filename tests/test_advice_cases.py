"""The first advice is as good as the best of all single changes, which a script enumerates by itself."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import advice_cases

SMALL = {
    "model.num_layers": 4, "model.hidden": 1024, "model.heads": 8, "model.key_value_heads": 8, "model.ffn": 4096,
    "model.vocabulary": 32000, "hardware.gpus": 8, "hardware.gpus_per_node": 4,
}  # fmt: skip
QUICK = {
    "gpipe": {"schedule.devices": 4, "schedule.microbatches": 4, "layout.data": 2},
    "no sequence parallelism": {"schedule.devices": 2, "schedule.microbatches": 4, "layout.tensor": 4},
}


@pytest.mark.parametrize("name", QUICK)
def test_of_a_small_config_the_first_advice_is_the_best_single_change(name):
    config = advice_cases.cases()[name].changed({**SMALL, **QUICK[name]})
    assert advice_cases.advised(name, config).behind <= 0.02


@pytest.mark.slow  # a minute per case: pytest -m slow tests/test_advice_cases.py
@pytest.mark.parametrize("name", advice_cases.cases())
def test_the_first_advice_is_the_best_single_change(name):
    assert advice_cases.advised(name, advice_cases.cases()[name]).behind <= 0.02
