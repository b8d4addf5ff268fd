from pathlib import Path

import pytest

from ppsim import load_config

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_runs(path):
    config = load_config(path)
    run = config.simulate()
    assert 0 < run.bubble_fraction < 0.5
    assert len(config.name) > 3


def test_llama_3_8b_on_8_h100_is_the_model_as_published():
    config = load_config(Path(__file__).parent.parent / "configs" / "llama-3-8b-8xh100.yaml")
    run = config.simulate()
    assert config.model.parameters == 8_030_261_248
    assert run.schedule.devices == 8
    assert run.schedule.microbatches == 32
    assert config.costs.cluster.device.peak == 989e12
    assert config.costs.cluster.link.bandwidth == 450e9
    assert run.peak_memory.max() < 80e9
