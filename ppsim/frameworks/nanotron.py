"""Facts about nanotron. Sources: huggingface/nanotron@0e0a27ea, src/nanotron; The Ultra-Scale Playbook, table of 1B."""

from ppsim.frameworks.facts import Facts, Host

FACTS = Facts(
    "nanotron",
    {"overlap_data": True, "loss_bytes": 6, "fused": False, "gradient_buffers": True},
    Host(220, 280, 100, member=105),
    "a 1B model of the Ultra-Scale Playbook takes 4.5 ms a block at tensor 4 and 8",
)
