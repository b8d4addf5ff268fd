"""Facts about a framework that no file here names: PyTorch in eager mode.

A Llama block of PyTorch starts about 30 kernels in F and 60 in B (transformers, models/llama/modeling_llama.py).
Python, autograd and hooks are taken to last as long as two starts for each kernel in F and one and a half in B.
"""

from ppsim.frameworks.facts import Facts, Host, Messages

# torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: split_with_sizes_copy, and chunk_cat into fp32
FULLY_SHARD = Messages(copies=(4, 6))
FACTS = Facts(
    "eager",
    {"overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "fused": False, "gradient_buffers": True},
    Host(100, 150, compiled=True),
    "a Llama block of transformers, modeling_llama.py, with Python and autograd",
    messages=FULLY_SHARD,
)
