"""Facts about DeepSpeed. Sources: ZeRO, arXiv 1910.02054; Ulysses, Jacobs et al. 2023, arXiv 2309.14509."""

from ppsim.frameworks.facts import Facts, Host

FACTS = Facts(
    "DeepSpeed",
    {"overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "context_exchange": "all-to-all"},
    Host(100, 150, 50),
    "as of any eager PyTorch",
)
