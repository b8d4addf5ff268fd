"""Measure a device's operators: `python validation/operators.py -o measured.json`, on a GPU or a CPU, in minutes.

Matrix products of many shapes, attention forward and backward, and element-wise passes. `ppsim calibrate --operators
measured.json -o mine.yaml` fits the cost model's law to them.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

SCHEMA = "ppsim.measured-operators/1"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Largest sizes: a GPU's products fill it from some thousands on, a CPU's from some hundreds on
SIZES = {"cuda": (256, 1024, 2048, 4096, 8192), "cpu": (64, 128, 256, 512, 1024)}
TOKENS = {"cuda": (512, 1024, 2048, 4096, 8192, 16384), "cpu": (64, 128, 256, 512)}
VALUES = {"cuda": (2**20, 2**24, 2**28), "cpu": (2**16, 2**20, 2**22)}
MOST_FLOPS = {"cuda": 4e12, "cpu": 4e9}
WARM_UP, LEAST_REPEATS, SECONDS_EACH = 3, 5, 0.2


def main() -> int:
    """Measure and write; 0 done, 2 wrong call."""
    options = _options()
    device, dtype = torch.device(options.device), DTYPES[options.dtype]
    torch.manual_seed(0)
    document = {
        "schema": SCHEMA,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
        "data_type": options.dtype,
        "value_bytes": dtype.itemsize,
        "products": list(products(device, dtype)),
        "attention": list(attentions(device, dtype)),
        "streams": list(streams(device, dtype)),
    }
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.output}", file=sys.stderr)
    return 0


def products(device: torch.device, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Products of all sizes on a grid that are not too long."""
    for rows, columns, depth in product(SIZES[device.type], repeat=3):
        if 2 * rows * columns * depth <= MOST_FLOPS[device.type]:
            left = torch.randn(rows, depth, device=device).to(dtype)
            right = torch.randn(depth, columns, device=device).to(dtype)
            seconds = usual_seconds(device, lambda left=left, right=right: left @ right)
            yield {"rows": rows, "columns": columns, "depth": depth, "seconds": seconds}


def attentions(device: torch.device, dtype: torch.dtype, heads: int = 8, width: int = 128) -> Iterator[dict[str, Any]]:
    """Causal attention, forward and backward, of the same number of tokens in ever longer sequences."""
    longest = TOKENS[device.type][-1]
    for tokens in TOKENS[device.type]:
        batch = longest // tokens
        inputs = [torch.randn(batch, heads, tokens, width, device=device).to(dtype).requires_grad_() for _ in range(3)]

        def both(inputs: list[torch.Tensor] = inputs) -> None:
            out = scaled_dot_product_attention(*inputs, is_causal=True)
            torch.autograd.grad(out, inputs, out.detach())

        yield {
            "batch": batch, "heads": heads, "width": width, "tokens": tokens, "causal": True,
            "seconds": usual_seconds(device, both),
        }  # fmt: skip


def streams(device: torch.device, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Sums of two arrays: two read, one written."""
    for values in VALUES[device.type]:
        one, other, out = (torch.randn(values, device=device).to(dtype) for _ in range(3))
        seconds = usual_seconds(device, lambda one=one, other=other, out=out: torch.add(one, other, out=out))
        yield {"bytes": 3 * values * dtype.itemsize, "seconds": seconds}


def usual_seconds(device: torch.device, run: Callable[[], object]) -> float:
    """Seconds of one call when nothing disturbs it, the fastest fifth's, on a GPU between events on its stream."""
    for _ in range(WARM_UP):
        run()
    times, began = [], time.perf_counter()
    while len(times) < LEAST_REPEATS or time.perf_counter() - began < SECONDS_EACH:
        times.append(_timed(device, run))
    return sorted(times)[len(times) // 5]


def _timed(device: torch.device, run: Callable[[], object]) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="operators.py", description=__doc__)
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=usual)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16" if usual == "cuda" else "float32")
    parser.add_argument("--output", "-o", required=True, metavar="FILE.json")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU; use cpu")
    return options


if __name__ == "__main__":
    sys.exit(main())
