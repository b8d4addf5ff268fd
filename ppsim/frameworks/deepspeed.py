"""Facts about DeepSpeed. Sources: ZeRO, arXiv 1910.02054; Ulysses, Jacobs et al. 2023, arXiv 2309.14509.

Hooks around each module fetch and release sharded weights (runtime/zero/partitioned_param_coordinator.py). Measured
here, DeepSpeed 0.16.9 and a Llama block of small products on one CPU: F takes 2.04 ms more than 0.38, B 2.78 more than
0.48. ZeRO-2 at 2.1 ms a block has none (deepspeedai/DeepSpeed, pull request 7886).
"""

from ppsim.frameworks.facts import Facts, Host

FACTS = Facts(
    "DeepSpeed",
    {"overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "context_exchange": "all-to-all"},
    Host(100, 150, hooks_forward=530, hooks_backward=860),
    "as of any eager PyTorch",
)
