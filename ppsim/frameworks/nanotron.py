"""Facts about nanotron. Sources: huggingface/nanotron@0e0a27ea, src/nanotron; The Ultra-Scale Playbook, its table."""

from ppsim.frameworks.facts import Extra, Facts, Host, Moves, Stall

FACTS = Facts(
    "nanotron",
    {"overlap_data": True, "loss_bytes": 10, "fused": False, "fused_norms": True, "fused_loss": False}
    | {"gradient_buffers": True},
    Host(150, 210, tensor=(60, 60), member=120, node=195),
    "a 1B model of the Ultra-Scale Playbook takes 4.5 ms a block at tensor 4 and 8",
    # fused_norms: nn/layer_norm.py, Triton's RMS norm of flash-attn
    moves=Moves(loss=(38, 14), step=110),
    # `.grad` of all parameters until loss.backward() ends (optim/gradient_accumulator.py); two buffers of gathered
    # inputs, gradients of input and output, an output (parallel/tensor_parallel/functional.py). Fragments: peaks of 1B
    extra=Extra(fragments=0.12, gradients=True, whole=5),
    # Branch nouamane/bench2@67c5ebb6, with which its benchmark repeated runs, polls both of a message's headers every
    # 0.1 s (parallel/pipeline_parallel/p2p.py): 0.20 to 0.27 s a message in 1B, 3B and 80B. No release does.
    stall=Stall(0.1, nodes=64, group_nodes=4),
)
