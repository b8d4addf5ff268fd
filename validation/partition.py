"""Streams on disjoint parts of one GPU, so that virtual devices do not slow each other down."""

from __future__ import annotations

import torch

SMALLEST_PART = 8  # Hopper hands out multiprocessors in eights


def multiprocessor_streams(count: int) -> list[torch.cuda.Stream]:
    """`count` streams, each on its own equal share of the multiprocessors (CUDA green contexts).

    Needs the package cuda-bindings and CUDA 12.4 or later; RuntimeError says so where they are missing.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        raise RuntimeError(
            "real compute on one GPU needs the package cuda-bindings to part its multiprocessors; use --compute sleep"
        ) from None

    def call(function, *arguments):
        status, *values = function(*arguments)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{function.__name__} failed: {status.name}")
        return values[0] if len(values) == 1 else values

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    device = call(driver.cuDeviceGet, torch.cuda.current_device())
    whole = call(driver.cuDeviceGetDevResource, device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    share = share_of(whole.sm.smCount, count)
    parts, made, _ = call(driver.cuDevSmResourceSplitByCount, count, whole, 0, share)
    if made < count:
        raise RuntimeError(f"the GPU was cut into {made} parts, not {count}; use fewer devices")
    streams = []
    for part in parts[:count]:
        description = call(driver.cuDevResourceGenerateDesc, [part], 1)
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = call(driver.cuGreenCtxCreate, description, device, flags)
        stream = call(driver.cuGreenCtxStreamCreate, context, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, 0)
        streams.append(torch.cuda.ExternalStream(int(stream)))
    return streams


def share_of(multiprocessors: int, count: int) -> int:
    """Multiprocessors of each of `count` equal parts; RuntimeError where there are too few."""
    share = multiprocessors // count // SMALLEST_PART * SMALLEST_PART
    if not share:
        most = multiprocessors // SMALLEST_PART
        raise RuntimeError(f"{multiprocessors} multiprocessors cannot be cut into {count} parts; use at most {most}")
    return share
