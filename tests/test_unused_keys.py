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


MODEL = {"num_layers": 8, "hidden": 256, "heads": 8, "vocabulary": 1000, "sequence": 512}
DEVICE = {"like": "H100 SXM"}


def derived(device=None, model=None, **sections):
    hardware = {"device": {**DEVICE, **(device or {})}, "link": "NVLink 4"}
    return config(model={**MODEL, **(model or {})}, hardware=hardware, **sections)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (derived(device={"peak_fp8": "1 PFLOP/s"}), "hardware.device.peak_fp8: '1 PFLOP/s' changes nothing here: it n"),
        (derived(device={"achieved": 0.5, "memory_bandwidth": 1e12}), "hardware.device.memory_bandwidth: "),
        (derived(model={"window": 512}), "model.window: 512 changes nothing here: it needs a sequence that is longer"),
        (derived(model={"window_period": 2}), "model.window_period: 2 changes nothing here: it needs model.window"),
        (
            config(schedule={"name": "interleaved-1f1b:1", "devices": 4, "microbatches": 8,
                             "options": {"group_size": 8}}),
            "schedule.options.group_size: 8 changes nothing here: it needs lists that differ without it",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_keys_of_sheets_the_model_and_the_schedules_options_that_change_nothing_are_said(sections, said):
    assert any(one.startswith(said) for one in as_config(sections).simulate().to_dict()["assumptions"])


@pytest.mark.parametrize(
    "sections",
    [
        derived(device={"peak_fp8": "1 PFLOP/s"}, layout={"fp8": "tensor", "cuda_graphs": True}),
        derived(device={"peak": 5e14, "memory": "40 GB", "memory_bandwidth": 1e12}, model={"window": 128}),
        derived(device={"achieved": 0.5}, model={"tied_embeddings": True, "causal": False}),  # facts about the model
        derived(model={"head_size": 32, "ffn": 1024, "window": 128}),  # what follows without the first two
        config(schedule={"name": "interleaved-1f1b:2", "devices": 4, "microbatches": 8, "options": {"group_size": 8}}),
        config(schedule={"name": "seq1f1b", "devices": 4, "microbatches": 8, "options": {"slices": 2}}),
    ],
    ids=range(6),
)
def test_keys_that_change_the_run_or_say_a_default_are_not_said(sections):
    assert not [one for one in as_config(sections).simulate().to_dict()["assumptions"] if "changes nothing" in one]
