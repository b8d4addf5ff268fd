"""PyTorch's pipeline schedules without processes or models: stages that are only their numbers."""

from types import SimpleNamespace

from torch.distributed.pipelining import schedules as torch_schedules

import ppsim


def stage(index: int, stages: int, device: int, devices: int) -> SimpleNamespace:
    """What the constructors of PyTorch's schedules look at."""
    return SimpleNamespace(
        stage_index=index,
        num_stages=stages,
        group_rank=device,
        group_size=devices,
        is_first=index == 0,
        is_last=index == stages - 1,
        submod=None,
    )


def multi_stage(name: str, devices: int, microbatches: int, stages_per_device: int, **options):
    """A schedule of several stages a device, by the name of PyTorch's class."""
    count = devices * stages_per_device
    stages = [stage(local, count, 0, devices) for local in range(stages_per_device)]
    return getattr(torch_schedules, name)(stages, microbatches, **options)


def runtime(schedule: ppsim.Schedule, **options):
    """PyTorch's runtime for a schedule of ours, with nothing loaded yet; each device has at least one stage."""
    stages = [stage(0, schedule.num_stages, 0, schedule.devices)]
    return torch_schedules._PipelineScheduleRuntime(stages, schedule.microbatches, **options)


def texts(orders) -> list[list[str]]:
    """PyTorch's lists by rank as ours by device, empty slots left out."""
    return [[str(action) for action in orders[rank] if action is not None] for rank in sorted(orders)]


class RecordingStage:
    """A stage that writes down what a step loop calls, for the schedules that PyTorch keeps as loops."""

    def __init__(self, index: int, stages: int):
        self.stage_index, self.num_stages = index, stages
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.log: list[str] = []

    def forward_one_chunk(self, microbatch, *_, **__):
        self.log.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, **_):
        self.log.append(f"{self.stage_index}B{microbatch}")

    def perform_reduce_grad(self, _):
        self.log.append(f"{self.stage_index}REDUCE_GRAD")

    def _no_transfers(self, _):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_transfers


def step_loop(name: str, devices: int, microbatches: int) -> list[list[str]]:
    """The order in which the step loop of a single-stage schedule runs its microbatches, device by device."""
    lists = []
    for index in range(devices):
        recorder = RecordingStage(index, devices)
        loop = getattr(torch_schedules, name)(recorder, microbatches)
        loop._initialize_stage = lambda *_: None
        loop._step_microbatches([()] * microbatches, [{}] * microbatches)
        lists.append(recorder.log)
    return lists
