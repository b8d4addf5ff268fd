"""Facts about Aleph Alpha's Scaling. Source: Aleph-Alpha/scaling@01b9d21, src/scaling; arXiv 2311.05610."""

from ppsim.frameworks import eager
from ppsim.frameworks.facts import Extra, Facts, Moves

# Gradients stay in bf16 (core/optimizer/parameter_group.py). The head gathers its logits
# (transformer/model/layers/lm_head.py). Fragments: chosen with the layouts of arXiv 2311.05610 that ran and crashed in
# view. Norms: its operators (core/nn/norm/rms_norm.py) take 300 bytes a value and block more than a kernel, in pairs of
# its runs that differ so. Loss: gathered logits are copied twice (core/nn/linear/utils.py, _all_concat), 8 bytes more
# in F, and the accuracy reads fp32 ones, 4 (transformer/model/losses/cross_entropy.py).
FACTS = Facts(
    "Scaling",
    {"loss_bytes": 8, "fused": False, "bf16_gradients": True},
    eager.FACTS.host,
    eager.FACTS.host_source,
    moves=Moves(norm=(64, 96), loss=(34, 26)),
    extra=Extra(fragments=0.25, logits=True),
)
