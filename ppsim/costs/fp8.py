"""Products in fp8: which of them, what bringing values to fp8 moves through memory, and what is held and sent in fp8.

An fp8 product has two fp8 factors and a bf16 result. Of a block all products run so but the router's; attention, norms,
loss and head stay in bf16. Sources: DeepSeek-V3, arXiv 2412.19437, section 3.3; Transformer Engine, the user guide on
FP8, and the kernels that release 2.9 starts for each tensor (common/recipe/current_scaling.cu, pytorch/csrc/extensions/
cast.cpp); torchao, float8.
"""

from __future__ import annotations

from typing import NamedTuple

from ppsim.costs.layers import Linear

FP8_BYTES = 1
RECIPES = ("none", "tensor", "delayed", "block")
CAST_BYTES = 2 + 2 * FP8_BYTES  # a bf16 value read, written along rows for one product and along columns for another
LARGEST_BYTES = 2  # read once more before, to find the largest value of the tensor
COPY_BYTES = 2 * FP8_BYTES  # of a weight: along rows and along columns


class Casts(NamedTuple):
    """How products run in fp8.

    Attributes
    ----------
    recipe : {"tensor", "delayed", "block"}
        One scale for a tensor, from its largest value; the same from the steps before; a scale for each block.
    experts : bool
        Whether the products of routed experts run in fp8 too.
    weights : bool
        Whether weights are brought to fp8 for each microbatch, in F and in I; else once a step.
    holds_inputs : bool
        Whether W finds its input in fp8; else it was held in bf16, and is brought to fp8 again.
    """

    recipe: str
    experts: bool
    weights: bool
    holds_inputs: bool

    @property
    def bytes_of_a_value(self) -> int:
        return CAST_BYTES + LARGEST_BYTES * (self.recipe == "tensor")

    def kernels(self, tensors: float = 1) -> float:
        """How many kernels bring so many tensors to fp8: one for each, with delayed scales one for all.

        For a tensor's own scale four: its largest value set to 0, looked for, made into a scale, the values cast.
        """
        return 1 if self.recipe == "delayed" else tensors * (4 if self.recipe == "tensor" else 1)

    def reach(self, linear: Linear) -> bool:
        """Whether this product runs in fp8."""
        return linear.narrow and (self.experts or not linear.expert)
