"""Every command that shows a step says where its memory is tight or over, by the same usable memory."""

import json
import re

import pytest
from command_line import ppsim
from synthetic_traces import trace_document

import ppsim as api

USABLE, CAPACITY = 76.4, 80  # GB of an H100
LENGTHS = {"sequences": 24, "median": 3000, "batches": 1}


@pytest.fixture(params=[1, 2, 3])
def config(tmp_path, request):
    """A model of which one device holds less than the usable memory, less than its own, and more than its own."""
    data = {
        "model": {
            "num_layers": 32, "hidden": 4096, "heads": 32, "key_value_heads": 8, "ffn": 14336, "gated": True,
            "norm": "rmsnorm", "vocabulary": 128256, "sequence": 8192,
        },
        "hardware": {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"},
        "layout": {"tensor": 2, "data": 4, "distributed_optimizer": True, "sequence_parallel": True,
                   "microbatch_size": request.param},
        "schedule": {"name": "1f1b", "devices": 1, "microbatches": 3},
        "optimizer": "sync",
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(data))
    return tmp_path / "job.yaml"


def check_mark(out):
    """The page has one peak, marked by how it compares with the usable memory and with the device's own."""
    ((peak, mark),) = re.findall(rf"([\d.]+) GB of {USABLE} GB usable( \(tight\)| \(over\)|)", " ".join(out.split()))
    assert mark == ("" if float(peak) <= USABLE else " (tight)" if float(peak) <= CAPACITY else " (over)")
    return mark


def test_fill(config):
    check_mark(ppsim("fill", config, "--work", "1ms,1GB").out)


def test_lengths(config):
    settings = [f"--set=lengths.{key}={value}" for key, value in LENGTHS.items()]
    check_mark(ppsim("lengths", config, *settings, "--set=schedule.microbatches=null").out)


def test_explain(config):
    trace = config.parent / "trace.json"
    measured = trace_document("1f1b", api.Costs(backward=2.0), devices=1, microbatches=3, steps=2)
    trace.write_text(json.dumps(measured))
    check_mark(ppsim("explain", trace, config).out)


def test_optimum(config):
    pytest.importorskip("ortools")
    check_mark(ppsim("optimum", config).out)


def test_check(config):
    baseline = config.parent / "baseline.json"
    ppsim("check", config, "--baseline", baseline, "--update")
    found = ppsim("check", config, "--baseline", baseline, "--set", "schedule.microbatches=4").out
    step = next(line for line in found.splitlines() if "makespan" in line)
    mark = check_mark(ppsim("fill", config, "--work", "1ms,1GB").out)
    assert step.endswith(f"regression{f', memory {mark[2:-1]}' if mark else ''}")
