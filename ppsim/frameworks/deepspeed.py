"""Facts about DeepSpeed. Sources: ZeRO, arXiv 1910.02054; Ulysses, Jacobs et al. 2023, arXiv 2309.14509.

Hooks around each module fetch and release sharded weights (runtime/zero/partitioned_param_coordinator.py). Measured
here, DeepSpeed 0.16.9 and a Llama block of small products on one CPU, which gathers nothing: F takes 2.04 ms more, B
2.78. They start no kernel, so they are priced by these seconds, in starts of 9 us. `gathers` lies between the 200 and
325 with which Qwen 7B on 2 GPUs, and DeepSpeed's example on 4, take their published steps.
"""

from ppsim.frameworks.facts import Facts, Host, Messages

FACTS = Facts(
    "DeepSpeed",
    {"overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "context_exchange": "all-to-all"},
    Host(100, 150, hooks=(227, 309), gathers=260),
    "as of any eager PyTorch",
    # runtime/zero: torch.cat(partitions); a bucket of gradients, and its parts for the reduction
    messages=Messages(copies=(4, 8)),
)
