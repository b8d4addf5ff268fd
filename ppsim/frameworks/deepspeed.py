"""Facts about DeepSpeed. Sources: ZeRO, arXiv 1910.02054; Ulysses, Jacobs et al. 2023, arXiv 2309.14509."""

# Policies of a layout (keys of `ppsim.Layout`).
POLICIES = {"overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "context_exchange": "all-to-all"}
