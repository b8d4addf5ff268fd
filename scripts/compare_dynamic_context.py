"""Compare dynamic context parallelism with Megatron-LM's own scheduler on random steps: docs/data/dynamic_context.json.

Give the path of megatron/core/pipeline_parallel/hybrid_cp_schedule.py of a checkout. Its class is run as it is, in an
empty stand-in for torch and for the rest of Megatron-LM, which the class does not use.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np

from ppsim.costs.packing import MicrobatchSlots, context_groups

STEPS = 4_000
TARGET = Path(__file__).parents[1] / "docs/data/dynamic_context.json"


def main(path: str) -> None:
    """Write how many random steps get the same sequences on the same number of GPUs in the same microbatches."""
    for name in ("torch", "megatron", "megatron.core", "megatron.core.rerun_state_machine"):
        sys.modules[name] = MagicMock()
    theirs = SourceFileLoader("theirs", path).load_module()
    random = np.random.default_rng(0)
    found = {"steps": STEPS, "equal": 0, "microbatches": 0, "sequences": 0, "source_failed": 0}
    for _ in range(STEPS):
        context, copies = (int(2 ** random.integers(0, 4)) for _ in range(2))
        slots = MicrobatchSlots(tokens=8192 * context, copies=copies, context=context)
        drawn = np.exp(np.log(2000) + random.uniform(0.2, 2.5) * random.standard_normal(random.integers(1, 200)))
        lengths = np.clip(np.rint(drawn), 1, slots.tokens).astype(int)
        scheduler = theirs.BalancedCPScheduler(8192, SimpleNamespace(size=lambda gpus=copies * context: gpus))
        try:
            expected = _as_groups(scheduler.get_groups_and_subsamples([*enumerate(lengths.tolist())], None)[1], lengths)
        except (AssertionError, IndexError):
            found["source_failed"] += 1
            continue
        ours = [sorted((one.gpus, one.lengths) for one in groups) for groups in context_groups(lengths, slots)]
        found["equal"] += ours == expected
        found["microbatches"] += len(ours)
        found["sequences"] += len(lengths)
    TARGET.write_text(json.dumps(found, indent=1) + "\n")


def _as_groups(microbatches: list[list[list[int]]], lengths: np.ndarray) -> list[list[tuple[int, list[int]]]]:
    """Return each microbatch as groups of (GPUs, lengths), from the numbers of the sequences on each GPU."""
    return [
        sorted((gpus.count(one), lengths[one].tolist()) for one in {tuple(one): one for one in gpus}.values())
        for gpus in microbatches
    ]


if __name__ == "__main__":
    main(sys.argv[1])
