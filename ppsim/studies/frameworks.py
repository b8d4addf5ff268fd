"""Which schedules each framework runs: synchronous ones of a model that is not changed for them.

Every microbatch is whole, and weights are held once.
"""

from ppsim.base.errors import ConfigError, shown
from ppsim.search import families

TORCHTITAN = {  # the names of their classes in torch/distributed/pipelining/schedules.py
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B", "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
RUNS: dict[str, tuple[str, ...]] = {
    # megatron/core/pipeline_parallel/schedules.py
    "Megatron-LM": ("1f1b", "interleaved-1f1b"),
    # primus/core/pipeline_parallel/scheduler/schedule_table_factory.py; v-half and v-min are modes of zbv-greedy
    "Primus": ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-half", "v-min"),
    "PyTorch": (*TORCHTITAN, "looped-bfs"),
}


def runnable(framework: str | None) -> list[str]:
    """Names of the families that a framework runs; of an unknown one (None) those that any of `RUNS` does.

    Raises ConfigError for a framework that is not in `RUNS`.
    """
    if framework is not None and framework not in RUNS:
        raise ConfigError(f"framework={shown(framework)} is not known; use one of: {', '.join(RUNS)}")
    chosen = [*RUNS] if framework is None else [framework]
    return [name for name in families() if any(name in RUNS[one] for one in chosen)]
