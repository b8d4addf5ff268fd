"""Runs programs through PyTorch's pipeline runtime in processes of their own, on gloo and a tiny model."""

import os
import runpy
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import set_forkserver_preload
from pathlib import Path
from time import monotonic
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.multiprocessing.spawn import start_processes

WIDTH, ROWS = 6, 2
WAIT = timedelta(minutes=10)  # a guard against hanging, which no loaded machine comes near


@dataclass(frozen=True)
class Case:
    """A program to run: its file, PyTorch's name of the file's format, and its sizes."""

    name: str
    csv: str
    form: Literal["compute_only", "compute_comms"]
    stages_of: tuple[tuple[int, ...], ...]
    stages: int
    microbatches: int


def layers(stages: int) -> list[torch.nn.Module]:
    """One small layer a stage, the same in every process."""
    torch.manual_seed(7)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(stages)]


def batch(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and target of one step."""
    generator = torch.Generator().manual_seed(11)
    size = ROWS * microbatches, WIDTH
    return torch.randn(size, generator=generator), torch.randn(size, generator=generator)


def gradients(model: list[torch.nn.Module], chosen: tuple[int, ...] | range) -> dict[int, list[torch.Tensor | None]]:
    """Gradients of each chosen stage's parameters."""
    return {stage: [parameter.grad for parameter in model[stage].parameters()] for stage in chosen}


def single_process(stages: int, microbatches: int) -> dict[int, list[torch.Tensor | None]]:
    """Gradients of the mean loss over the whole batch, without a pipeline."""
    model = layers(stages)
    inputs, target = batch(microbatches)
    torch.nn.functional.mse_loss(torch.nn.Sequential(*model)(inputs), target).backward()
    return gradients(model, range(stages))


def _run_case(case: Case, rank: int, folder: Path) -> None:
    model = layers(case.stages)
    mine = case.stages_of[rank]
    stages = [PipelineStage(model[index], index, case.stages, torch.device("cpu")) for index in mine]
    pipeline = _PipelineScheduleRuntime(stages, case.microbatches, loss_fn=torch.nn.functional.mse_loss)
    pipeline._load_csv(case.csv, format=case.form)
    inputs, target = batch(case.microbatches)
    pipeline.step(
        *([inputs] if 0 in mine else []), target=target if case.stages - 1 in mine else None, return_outputs=False
    )
    torch.save(gradients(model, mine), folder / f"{case.name}-{rank}.pt")


def _process(rank: int, devices: int, cases: list[Case], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timeout=WAIT, rank=rank, world_size=devices)
    for case in cases:
        _run_case(case, rank, folder)
        dist.barrier()
    dist.destroy_process_group()


def _run_everywhere(devices: int, function: Callable, *arguments: object) -> None:
    """Call a function with each rank, the number of devices and arguments, in one process per device."""
    deadline = monotonic() + WAIT.total_seconds()
    set_forkserver_preload(["torch.distributed.pipelining.schedules"])  # imported once for all processes
    context = start_processes(function, (devices, *arguments), nprocs=devices, join=False, start_method="forkserver")
    assert context is not None
    try:
        while not context.join(timeout=1):
            if monotonic() > deadline:
                raise TimeoutError(f"{devices} processes did not finish {function.__name__}{arguments}")
    finally:
        for process in filter(None, context.processes):
            process.kill()
            process.join()


def _script(rank: int, devices: int, script: Path, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(devices), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.chdir(script.parent)
    runpy.run_path(str(script), run_name="__main__")


def run_script(devices: int, script: Path) -> None:
    """Run a training script in its folder as torchrun does, and raise what any of its processes raises."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _run_everywhere(devices, _script, script, port)


def run(devices: int, cases: list[Case], folder: Path) -> dict[str, dict[int, list[torch.Tensor]]]:
    """Gradients by case and stage, from one process a device; every process is gone when it returns."""
    _run_everywhere(devices, _process, cases, folder)
    return {
        case.name: {
            stage: found
            for rank in range(devices)
            for stage, found in torch.load(folder / f"{case.name}-{rank}.pt").items()
        }
        for case in cases
    }
