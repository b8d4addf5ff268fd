"""validation/record.py: one import and one `with` record a step of PyTorch's schedules, which `explain` then reads."""

import json

import pytest
from command_line import ROOT
from command_line import ppsim as command

torch = pytest.importorskip("torch")

from pytorch_processes import run_script  # noqa: E402
from torch.distributed.pipelining import schedules  # noqa: E402
from torch.distributed.pipelining.stage import _PipelineStageBase  # noqa: E402

from validation import record  # noqa: E402

SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from validation.record import record_step

dist.init_process_group("gloo")
rank, batch, loss = dist.get_rank(), torch.randn(8, 8), torch.nn.functional.mse_loss

def stages(*own, count):
    return [PipelineStage(torch.nn.Linear(8, 8), index, count, torch.device("cpu")) for index in own]

for name, last, schedule in (
    ("1f1b", 1, Schedule1F1B(stages(rank, count=2)[0], 4, loss_fn=loss)),
    ("interleaved-1f1b", 1, ScheduleInterleaved1F1B(stages(rank, rank + 2, count=4), 4, loss_fn=loss)),
    ("zb-v", 0, ScheduleZBVZeroBubble(stages(rank, 3 - rank, count=4), 4, loss_fn=loss)),
):
    dist.barrier()
    with record_step(name):
        for _ in range(2):
            target = batch if rank == last else None
            schedule.step(*([batch] if rank == 0 else []), target=target, return_outputs=False)
            dist.barrier()
dist.destroy_process_group()
"""


def test_recorded_steps_of_pytorchs_schedules_are_explained_without_another_argument(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    run_script(2, tmp_path / "train.py")
    for name in ("1f1b", "interleaved-1f1b", "zb-v"):
        outcome = command("explain", tmp_path / name, "--json", tmp_path / "found.json")
        assert outcome.status == 0, outcome.err
        found = json.loads((tmp_path / "found.json").read_text())
        assert (found["recognized"]["family"], found["recognized"]["moved"]) == (name, 0)
        assert found["steps"]["count"] == 2
        assert found["steps"]["between"] > 0
        events = json.loads((tmp_path / name / "rank-1.json").read_text())["traceEvents"]
        assert any(event["name"] == record.WAIT for event in events)


def test_a_loop_of_ones_own_names_its_actions(tmp_path):
    with record.record_step(tmp_path / "trace") as step:
        for action in ("0F0", "1F0", "1I0", "0B0", "1W0"):
            with step.action(int(action[0]), action[1], int(action[2])):
                pass
        with pytest.raises(ValueError, match="use one of: F, B, I, W"), step.action(0, "X", 0):
            pass
    outcome = command("explain", tmp_path / "trace", "-v")
    assert outcome.status == 0
    assert "1 device" in outcome.out


def test_pytorch_is_as_before_after_a_step_that_fails_and_nothing_is_written(tmp_path):
    before = _PipelineStageBase.forward_one_chunk, schedules._wait_batch_p2p
    with pytest.raises(ZeroDivisionError), record.record_step(tmp_path / "trace"):  # noqa: PT012 - one failing step
        assert _PipelineStageBase.forward_one_chunk is not before[0]
        _ = 1 / 0
    assert (_PipelineStageBase.forward_one_chunk, schedules._wait_batch_p2p) == before
    assert not (tmp_path / "trace").exists()


class Event:
    """A CUDA event on a stream whose time goes on by 1 ms per event."""

    clock = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.clock += 1
        self.at = Event.clock

    def elapsed_time(self, other):
        return float(other.at - self.at)


def test_on_a_gpu_events_of_the_stream_give_the_times(tmp_path, monkeypatch):
    """This machine has no GPU: the events are made by hand, and the file is read as one of a GPU."""
    for name, value in (("is_available", True), ("is_initialized", True), ("synchronize", None)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    with record.record_step(tmp_path) as step:
        for kind in "FB":
            with step.action(0, kind, 0):
                pass
    document = json.loads((tmp_path / "rank-0.json").read_text())
    assert [(event["ts"], event["dur"], event["cat"]) for event in document["traceEvents"]] == [
        (1000.0, 1000.0, "gpu_user_annotation"),
        (3000.0, 1000.0, "gpu_user_annotation"),
    ]
    assert command("explain", tmp_path).status == 0
