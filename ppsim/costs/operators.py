"""Laws of the seconds of matrix products, attention and element-wise passes on one device.

Three laws, whose numbers belong to a device (`OperatorLaw`):

    product of m x k and k x n    2 m n k (1 + tail/m) (1 + tail/n) (1 + tail/k) / (peak products sustained), plus its
                                  bytes / (bandwidth memory)
    fused attention over s tokens FLOPs (1 + attention_tail/s) / (peak attention); its backward computes the scores
                                  again and so counts 5/4 of its FLOPs: Dao 2023 (FlashAttention-2), arXiv 2307.08691
    element-wise pass             bytes / (bandwidth memory)

and a gap of `launch` between operators.

An fp8 product has two fp8 factors and a bf16 result; it has its own peak, and its factors have half the bytes. All
products of a block run so except the router's; attention, norms, loss and head stay in bf16. Casts to fp8 are passes
over memory of their own. Sources: DeepSeek-V3, arXiv 2412.19437, section 3.3; Transformer Engine, the user guide on
FP8, and the kernels that release 2.9 starts for each tensor (common/recipe/current_scaling.cu, pytorch/csrc/extensions/
cast.cpp); torchao, float8.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ppsim.base.rules import check_fields, declared, described, fraction, positive, text, weight
from ppsim.costs.layers import VALUE_BYTES, Linear

FP8_BYTES = 1
RECIPES = ("none", "tensor", "delayed", "block")
CAST_BYTES = 2 + 2 * FP8_BYTES  # a bf16 value read, written along rows for one product and columns for another
LARGEST_BYTES = 2  # read once more, to find the largest value of the tensor
COPY_BYTES = 2 * FP8_BYTES  # one weight, stored along rows and along columns


class Casts(NamedTuple):
    """Recipe for products in fp8; the default runs all of them in bf16."""

    # "tensor": a scale per tensor, from its largest value; "delayed": from the steps before; "block": a scale per block
    recipe: str = "none"
    experts: bool = False  # True if the products of routed experts run in fp8 too
    weights: bool = False  # True if weights are cast for each microbatch, in F and in I; else once per step
    holds_inputs: bool = False  # True if inputs are held in fp8 for W; else they are held in bf16, and cast again
    # True if the products of a GPU's routed experts, the activation between them and their casts are one kernel
    fused_experts: bool = False
    head: bool = False  # True if the head's product runs in fp8 too
    grouped: bool = False  # True if one kernel computes the products of all of a GPU's experts, and one casts them

    def kernels(self, tensors: float = 1) -> float:
        """Return how many kernels cast this number of tensors: one each, or one for all with delayed scales.

        A tensor's own scale needs four: its largest value set to 0, found, turned into a scale, and the values cast.
        """
        tensors = 1 if self.recipe == "delayed" or self.grouped else tensors
        return 4 * tensors if self.recipe == "tensor" else tensors

    def apply_to(self, linear: Linear) -> bool:
        """Return whether this product runs in fp8."""
        if self.recipe == "none":
            return False
        if linear.module == "head":
            return self.head
        return linear.fp8 and (self.experts or not linear.expert)


FITTED_FILE = Path(__file__).with_name("operators.json")
FITTED: Mapping[str, Any] = json.loads(FITTED_FILE.read_text(encoding="utf-8"))
SCORES_AGAIN = 5 / 4
BACKWARD_PASSES = 1.5  # bytes of an element-wise backward over its forward's: a norm reads x and dy and writes dx
# Rotation, activation, or softmax as separate operators, in part on fp32 copies: scores are copied (4 bytes each),
# masked (5) and normalized (4), where one kernel moves 4 (Aleph-Alpha/scaling, core/nn/masked_softmax)
UNFUSED_PASSES = 3.0
FUSED_NORM = (4, 6)  # bytes of each value in F and in B of a norm of one kernel
FUSED_LOSS = (10, 15)  # bytes of each logit in F and in B: bf16 read, fp32 written and read once; half as much again
PERMUTE_SPEED = 0.75  # rows in another order: 0.5 of the bandwidth, other passes 0.666 (SimuMax, b200_bf16_ceperm)
# Triton's first version, forward and backward, relative to FlashAttention 1: 0.471 and 0.255 of an A100's peak in bf16
# with 4,096 tokens (triton-lang/triton, python/test/regression/test_performance.py of 2023), where that has 0.232
TRITON = (2.03, 1.10)
FITTED_WORDS = "fitted: docs/accuracy.md"


def _fitted(name: str, what: str, unit: str | None = None) -> Any:
    more = {"unit": unit} if unit else {}
    check = weight if unit or name == "tail" else fraction
    value = FITTED[name]
    return declared(f"{what} ({FITTED_WORDS})", check, value, example=f"{value:g}", **more)


@described
@dataclass(frozen=True)
class OperatorLaw:
    """Speeds of a device's operators. Raises ConfigError with the field, its value and what is legal."""

    products: float = declared("fraction of `peak` that the best matrix product reaches", fraction, example="0.8")
    attention: float = declared("fraction of `peak` that the best attention kernel reaches", fraction, example="0.5")
    flash_2: float = declared("the same for FlashAttention-2", fraction, example="0.34")
    flash_1: float = declared(
        "the same for FlashAttention 1; Triton's kernel is 2.03 times as fast in F, 1.1 in I", fraction, example="0.14"
    )
    source: str = declared("where these rates come from", text, "given", example="measured in May")
    products_fp8: float | None = declared(
        "fraction of `peak_fp8` that the best fp8 matrix product reaches", fraction, None, example="0.78",
        default_text="like `products`",
    )  # fmt: skip
    sustained: float = _fitted("sustained", "fraction of `products` that training sustains")
    tail: float = _fitted("tail", "size of a product's dimension that doubles its time")
    attention_tail: float = declared("tokens of a sequence that double attention's time", weight, 500.0, example="400")
    memory: float = _fitted("memory", "fraction of `memory_bandwidth` that element-wise passes reach")
    launch: float = _fitted("launch", "seconds between operators", "seconds")
    start: float = declared(
        "seconds that the host takes to launch a kernel; a slow host takes two or three times as long", weight, 9e-6,
        example="20e-6", unit="seconds",
    )  # fmt: skip

    odd: float = declared(
        "times as long takes a head's product with an odd number of words", positive, 1.0, example="4"
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def kernel(self, name: str) -> float:
        """Return the fraction of the peak that an attention kernel reaches."""
        known = {"flash": self.attention, "flash-1": self.flash_1, "triton": TRITON[0] * self.flash_1}
        return known.get(name, self.flash_2)


class Rates(NamedTuple):
    """Law on a device, with its peaks in bf16 and fp8 in FLOP/s and its memory bandwidth in bytes per second."""

    law: OperatorLaw
    peak: float
    bandwidth: float
    peak_fp8: float = 0.0

    def product(self, rows: float, columns: float, depth: float, out: float = VALUE_BYTES, fp8: bool = False) -> float:
        """Return the seconds of one product of rows x depth and depth x columns; each result moves `out` bytes."""
        law = self.law
        slower = (1 + law.tail / rows) * (1 + law.tail / columns) * (1 + law.tail / depth)
        best = self.peak * law.products
        if fp8:
            best = self.peak_fp8 * (law.products if law.products_fp8 is None else law.products_fp8)
        computing = 2 * rows * columns * depth * slower / (best * law.sustained)
        factors = (FP8_BYTES if fp8 else VALUE_BYTES) * (rows + columns) * depth
        return computing + self.streaming(factors + out * rows * columns)

    def cast(self, values: float, casts: Casts, tensors: float = 1) -> float:
        """Return the seconds of casting bf16 values of so many tensors to fp8."""
        moved = CAST_BYTES + LARGEST_BYTES if casts.recipe == "tensor" else CAST_BYTES
        return self.streaming(moved * values) + casts.kernels(tensors) * self.law.launch

    def streaming(self, moved: float) -> float:
        """Return the seconds of moving bytes through memory."""
        return moved / (self.bandwidth * self.law.memory)

    def attention(self, kernel: str, flops: float, tokens: float) -> float:
        """Return the seconds of a fused attention forward over sequences of `tokens`."""
        return flops * (1 + self.law.attention_tail / tokens) / (self.peak * self.law.kernel(kernel))


class Computation(NamedTuple):
    """Seconds of computation of a layer for one microbatch.

    `products`, `core`, `norms`, `activations` and `others` are the parts of F; `up` and `latent` are the parts of
    `products` before the MLP's activation, and from latent vectors to heads; `streams`, of `others`, mixes residuals.
    """

    products: float
    core: float
    norms: float
    activations: float
    others: float
    up: float
    latent: float
    streams: float
    input_grad: float
    weight_grad: float
    alternate: float = 0.0  # seconds that this level recomputes, besides norms and activations

    @property
    def forward(self) -> float:
        """Seconds of F."""
        return self.products + self.core + self.norms + self.activations + self.others

    @property
    def whole(self) -> float:
        """F, I and W together."""
        return self.forward + self.input_grad + self.weight_grad

    def module_seconds(self, modules: Collection[str]) -> float:
        """Return the seconds that recomputing these modules of the forward takes."""
        modules = ["alternate", "norms", "activations"] if "alternate" in modules else modules
        return sum(getattr(self, name) for name in modules)
