"""What a trace must say of where it was recorded."""

import os
import platform
import socket
import subprocess
from pathlib import Path

import torch


def describe_environment(device: torch.device) -> dict[str, object]:
    """Device name, driver, library versions and clocks, as plain values."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    described: dict[str, object] = {
        "device": f"{_processor()}, {cpus} CPUs",
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        described.update(
            device=properties.name,
            multiprocessors=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
            cuda=torch.version.cuda,
            nccl=".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None,
            **_nvidia_smi(),
        )
    return described


def _processor() -> str:
    """The processor's name as Linux tells it, or else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.processor() or platform.machine()


def host_name() -> str:
    """Name of this host, to tell whether ranks share a clock; never written to a file."""
    return socket.gethostname()


def _nvidia_smi() -> dict[str, str]:
    fields = {"driver": "driver_version", "sm_clock": "clocks.sm", "memory_clock": "clocks.mem"}
    command = ["nvidia-smi", f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (value.strip() for value in answer.splitlines()[0].split(",")), strict=False))
