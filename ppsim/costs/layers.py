"""Layers of a transformer: FLOPs, parameters and activation bytes, which follow from the matrices in the layer.

All amounts are for one sequence of `model.sequence` tokens on one device; b sequences cost b times as much.

Sources: FLOPs from Narayanan et al. 2021, arXiv 2104.04473, appendix, and the split of the backward from Qi et al. 2023
(zero bubble), arXiv 2401.10241, table 1; activation bytes from Korthikanti et al. 2022, arXiv 2205.05198, section 4.
For a plain block (all heads their own keys and values, GELU MLP of 4h, dropout, attention held in full), with s tokens,
b sequences, width h and a heads, they come to:

    forward              s b h (24 h + 4 s)
    input gradient       s b h (24 h + 8 s)
    weight gradient      24 s b h^2
    activation bytes     s b h (34 + 5 a s / h), of which W needs 32 s b h
    tensor parallel t    s b h (10 + 24/t + 5 a s / (h t)), with sequence parallelism all of it / t
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

VALUE_BYTES = 2
RECOMPUTE = ("none", "selective", "full")
MODULES = ("norms", "activations", "up", "core", "latent", "streams", "alternate")


@dataclass(frozen=True)
class Linear:
    """Matrix that every token (or a part of the tokens) is multiplied with."""

    inputs: int
    outputs: int
    # "column": the input is whole on each device, the group splits the output; "row": the reverse; "copy": not split
    parallel: str = "column"
    # holds_input, holds_output: True if the forward holds it for the backward; of an input that two matrices share,
    # only one holds it
    holds_input: bool = True
    holds_output: bool = False
    bias: bool = False
    # tokens that pass, relative to the tokens of the sequence (experts per token for a routed expert)
    visits: float = 1
    copies: int = 1  # number of such matrices (routed experts); each token visits `visits` of them
    expert: bool = False
    # "up", "down": before, after the activation of an MLP; "latent": from the latent vectors of attention to its heads;
    # "streams": from residual streams to the numbers that mix them; "": none of them
    module: str = ""
    fp8: bool = True  # True if fp8 recipes run it in fp8; they leave router and head in bf16

    @property
    def parameters(self) -> int:
        """Parameters of all copies."""
        return self.copies * (self.inputs * self.outputs + self.bias * self.outputs)

    @property
    def held_bytes(self) -> tuple[float, float]:
        """Bytes of its input and of its output that one token's forward holds."""
        value_bytes = VALUE_BYTES * self.visits
        return value_bytes * self.inputs * self.holds_input, value_bytes * self.outputs * self.holds_output

    @property
    def flops(self) -> float:
        """FLOPs for one token."""
        return 2 * self.visits * self.inputs * self.outputs


@dataclass(frozen=True)
class AttentionCore:
    """Attention itself: Q K^T and its product with V, for one sequence."""

    # heads, query, value: number of heads, and the widths of a query and of a value
    heads: int
    query: int
    value: int
    flops: float  # FLOPs of the forward
    # bytes that element-wise passes over the s x s matrices move; 0 if one kernel keeps them on the chip
    score_bytes: float
    kernel: str = "full"
    window: int = 0  # tokens that each token attends to at most; 0: all before it


@dataclass(frozen=True)
class Operators:
    """Operators of one layer's forward, for one sequence."""

    products: tuple[Linear, ...] = ()
    cores: tuple[AttentionCore, ...] = ()
    activation_bytes: float = 0.0  # bytes that element-wise passes move which the tensor-parallel group splits
    # norm_bytes, other_bytes: bytes of norms and other passes, whole on each GPU of the group unless sequence-parallel
    norm_bytes: float = 0.0
    other_bytes: float = 0.0
    regrouped_bytes: float = 0.0  # bytes moved to sort a GPU's tokens by its experts, and back
    passes: int = 0  # number of element-wise kernels
    routed_bytes: float = 0.0  # part of `activation_bytes` between the two products of routed experts
    stream_bytes: float = 0.0  # part of `other_bytes` that mixes residual streams again if they are recomputed

    def __add__(self, other: Operators) -> Operators:
        return Operators(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


@dataclass(frozen=True, eq=False)
class Layer:
    """Costs of one layer for one sequence."""

    name: str  # "embedding", "block", "prediction" or "head"
    forward: float = 0.0  # FLOPs
    input_grad: float = 0.0  # FLOPs
    weight_grad: float = 0.0  # FLOPs
    # FLOPs: part of `forward` in Q K^T and in attention over V, which selective recompute repeats
    attention_core: float = 0.0
    sums: int = 0  # number of its outputs that the tensor-parallel group sums
    # split_parameters, copied_parameters, expert_parameters: parameters that the tensor-parallel group splits; that
    # each of its GPUs holds; of routed experts
    split_parameters: int = 0
    copied_parameters: int = 0
    expert_parameters: int = 0
    # split_bytes, copied_bytes, score_bytes: activations that the group splits; whole on each GPU unless
    # sequence-parallel; attention matrices (split)
    split_bytes: float = 0.0
    copied_bytes: float = 0.0
    score_bytes: float = 0.0
    # norm_bytes, activated_bytes, up_bytes, latent_bytes, stream_bytes: parts of `copied_bytes` and `split_bytes` that
    # recomputation of a module frees: outputs of norms; outputs of the MLP's activation; its inputs; queries, keys and
    # values of latent attention; residual streams
    norm_bytes: float = 0.0
    activated_bytes: float = 0.0
    up_bytes: float = 0.0
    latent_bytes: float = 0.0
    stream_bytes: float = 0.0
    routed_bytes: float = 0.0  # of `copied_bytes`: inputs of the up products of routed experts, outputs of the others
    # fp8_copied_bytes, fp8_split_bytes, fp8_norm_bytes, fp8_activated_bytes: parts of `copied_bytes`, `split_bytes`,
    # `norm_bytes` and `activated_bytes` that are inputs of products in fp8; held in fp8 they have half the bytes
    fp8_copied_bytes: float = 0.0
    fp8_split_bytes: float = 0.0
    fp8_norm_bytes: float = 0.0
    fp8_activated_bytes: float = 0.0
    # unfused_split_bytes, unfused_copied_bytes: further activations if no kernels are fused, split and whole like
    # `split_bytes` and `copied_bytes`: results of the MLP's non-linearity; fp32 copies of what norms read
    unfused_split_bytes: float = 0.0
    unfused_copied_bytes: float = 0.0
    weight_grad_bytes: float = 0.0  # bytes that W needs: inputs of the matrices and gradients of their outputs
    input_bytes: float = 0.0  # the layer's input, which is all that full recompute holds
    operators: Operators = field(default_factory=Operators)  # operators whose seconds add up to the layer's
    recomputable: bool = True  # True if a recompute policy applies (blocks and prediction modules)
    losses: int = 0
    logits: float = 0.0  # number of logits of this layer's losses

    @property
    def parameters(self) -> int:
        """All parameters of the layer."""
        return self.split_parameters + self.copied_parameters + self.expert_parameters

    def activation_bytes(
        self, tensor: int = 1, sequence_parallel: bool = False, recompute: str = "none", fp8: bool = False,
        fused: bool = True, fused_norms: bool = False,
    ) -> float:  # fmt: skip
        """Return the bytes held for one sequence on each of `tensor` devices between forward and backward.

        Korthikanti et al. 2022, arXiv 2205.05198, table 2; with full recompute and sequence parallelism the stored
        input is split too. `fp8`: inputs of products that run in fp8 are held in fp8. Without `fused` kernels more
        is held, which recomputing norms and activations frees.
        """
        whole = tensor if sequence_parallel else 1
        if recompute == "full" and self.recomputable:
            return self.input_bytes / whole
        modules = recompute.split("+") if self.recomputable else []
        grouped = bool(self.expert_parameters)  # grouped products are all recomputed
        ups = 1.0 if "up" in modules else (1 + grouped) / 2 * ("alternate" in modules)
        no_norms = {"alternate", "norms"} & {*modules}
        no_activated = {"alternate", "activations"} & {*modules}
        scores = 0.0 if {"selective", "core"} & {*modules} else self.score_bytes
        copied = self.copied_bytes - (self.norm_bytes if no_norms else 0.0) - self.stream_bytes * ("streams" in modules)
        copied -= self.routed_bytes * ("alternate" in modules)
        split = self.split_bytes - (self.activated_bytes if no_activated else 0.0)
        split -= self.latent_bytes * ("latent" in modules)
        if fp8:
            copied -= (self.fp8_copied_bytes - (self.fp8_norm_bytes if no_norms else 0.0)) / 2
            split -= (self.fp8_split_bytes - (self.fp8_activated_bytes if no_activated else 0.0)) / 2
        if not fused:
            copied += 0.0 if no_norms or fused_norms else self.unfused_copied_bytes
            split += 0.0 if no_activated else self.unfused_split_bytes
        return copied / whole + (split - ups * self.up_bytes + scores) / tensor
