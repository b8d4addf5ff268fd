"""A given key that changes nothing is said to do so, with what it needs."""

from pathlib import Path

import pytest

import ppsim
from ppsim.config import as_config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def test_selective_recompute_under_flash_attention_says_what_it_does_and_what_would_help():
    llama = CONFIGS / "llama-3-405b-16384xh100.yaml"
    run = ppsim.load_config(llama, overrides={"layout.recompute": "selective"}).simulate()
    [said] = [one for one in run.to_dict()["assumptions"] if "changes nothing" in one]
    assert said.startswith("layout.recompute: 'selective' changes nothing here")
    assert "`full`, or modules such as norms+activations" in said
    assert said in " ".join(run.summary(verbose=True, costs=True).split())
    full = ppsim.load_config(llama, overrides={"layout.recompute": "selective", "model.attention": "full"}).simulate()
    assert not any("changes nothing" in one for one in full.to_dict()["assumptions"])


def config(**sections):
    return {"schedule": {"name": "1f1b", "devices": 4, "microbatches": 8}, **sections}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"costs": {"offload_bandwidth": "25 GB/s", "offload_latency": 0.1}}, "costs.offload_latency: 0.1 changes"),
        (
            {"costs": {"bandwidth": "25 GB/s"}},
            "costs.bandwidth: 25000000000.0 changes nothing here: it needs costs.tra",
        ),
        ({"costs": {"overlap": 2.5}}, "it needs a schedule with OVERLAP_F_B slots"),
        ({"costs": {"optimizer_step": 0.5}}, "it needs optimizer: sync or post-validated"),
        ({"optimizer": "sync"}, "optimizer: sync changes nothing here: it needs costs.optimizer_step"),
        ({"jitter": {"seed": 3}}, "jitter changes nothing here"),
        ({"jitter": {"transfers": 0.3}}, "jitter changes nothing here"),
    ],
)
def test_what_given_costs_and_options_leave_without_effect_is_said(sections, said):
    assert any(said in one for one in as_config(config(**sections)).simulate().to_dict()["assumptions"])
