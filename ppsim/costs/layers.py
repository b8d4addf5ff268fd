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

from dataclasses import dataclass, field, fields, replace
from typing import Any

from ppsim.costs.shape import Shape

VALUE_BYTES = 2
LOGIT_BYTES = 4
NORM_COPY_BYTES = 4  # an unfused norm computes in fp32
SCORE_BYTES = 5  # softmax output and dropout output of two bytes each, dropout mask of one
SCORE_BYTES_WITHOUT_DROPOUT = 2
LOSS_BYTES = 10  # moved per logit in a forward: bf16 read, fp32 written, read once by a fused loss
CLAMP_BYTES = 16  # moved per value after a clamped activation: both halves of its input clamped and concatenated
EXPERT_BIAS_BYTES = 28  # moved per value of an expert's output: bias x router weight in fp32, added, joined, cast
RECOMPUTE = ("none", "selective", "full")
MODULES = ("norms", "activations", "up", "core", "latent", "alternate")


@dataclass(frozen=True)
class Linear:
    """Matrix that every token (or a part of the tokens) is multiplied with.

    Attributes
    ----------
    inputs, outputs : int
    parallel : {"column", "row", "copy"}
        Column-parallel: the input is whole on each device, and the tensor-parallel group splits the output;
        row-parallel: the reverse; copy: not split.
    holds_input, holds_output : bool
        If the forward holds them for the backward; of an input that two matrices share, only one holds it.
    visits : float
        Tokens that pass, relative to the tokens of the sequence (experts per token for a routed expert).
    module : {"", "up", "down", "latent"}
        Before ("up") or after ("down") the activation of an MLP; from the latent vectors of attention to its heads.
    copies : int
        Number of such matrices (routed experts); each token visits `visits` of them.
    fp8 : bool
        If fp8 recipes run it in fp8; they leave router and head in bf16.
    """

    inputs: int
    outputs: int
    parallel: str = "column"
    holds_input: bool = True
    holds_output: bool = False
    bias: bool = False
    visits: float = 1
    copies: int = 1
    expert: bool = False
    module: str = ""
    fp8: bool = True

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
    """Attention itself: Q K^T and its product with V, for one sequence.

    Attributes
    ----------
    heads, query, value : int
        Number of heads, and the widths of a query and of a value.
    flops : float
        FLOPs of the forward.
    score_bytes : float
        Bytes that element-wise passes over the s x s matrices move; 0 if one kernel keeps them on the chip.
    """

    heads: int
    query: int
    value: int
    flops: float
    score_bytes: float
    kernel: str = "full"


@dataclass(frozen=True)
class Operators:
    """Operators of one layer's forward, for one sequence.

    Attributes
    ----------
    products : tuple of Linear
    cores : tuple of AttentionCore
    activation_bytes : float
        Bytes that element-wise passes move which the tensor-parallel group splits.
    norm_bytes, other_bytes : float
        Bytes that norms and other passes move, whole on each GPU of the group unless sequence-parallel.
    regrouped_bytes : float
        Bytes moved to sort a GPU's tokens by its experts, and back.
    passes : int
        Number of element-wise kernels.
    """

    products: tuple[Linear, ...] = ()
    cores: tuple[AttentionCore, ...] = ()
    activation_bytes: float = 0.0
    norm_bytes: float = 0.0
    other_bytes: float = 0.0
    regrouped_bytes: float = 0.0
    passes: int = 0

    def __add__(self, other: Operators) -> Operators:
        return Operators(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


@dataclass(frozen=True, eq=False)
class Layer:
    """Costs of one layer for one sequence.

    Attributes
    ----------
    name : {"embedding", "block", "prediction", "head"}
    forward, input_grad, weight_grad : FLOPs
    attention_core : FLOPs
        Part of `forward` in Q K^T and in attention over V, which selective recompute repeats.
    split_parameters, copied_parameters, expert_parameters : int
        Parameters that the tensor-parallel group splits; that each of its GPUs holds; of routed experts.
    split_bytes, copied_bytes, score_bytes : bytes
        Activations that the group splits; whole on each GPU unless sequence-parallel; attention matrices (split).
    norm_bytes, activated_bytes, up_bytes, latent_bytes : bytes
        Parts of `copied_bytes` and `split_bytes` that recomputation of a module frees: outputs of norms; outputs of
        the MLP's activation; its inputs; queries, keys and values of latent attention.
    fp8_copied_bytes, fp8_split_bytes, fp8_norm_bytes, fp8_activated_bytes : bytes
        Parts of `copied_bytes`, `split_bytes`, `norm_bytes` and `activated_bytes` that are inputs of products which an
        fp8 recipe runs in fp8; held in fp8 they have half the bytes.
    unfused_split_bytes, unfused_copied_bytes : bytes
        Further activations if no kernels are fused, split and whole like `split_bytes` and `copied_bytes`: results of
        the MLP's non-linearity, copies of queries, keys, values and heads' outputs in another order; fp32 copies of
        what norms read.
    weight_grad_bytes : bytes
        Bytes that W needs: inputs of the matrices and gradients of their outputs.
    input_bytes : bytes
        The layer's input, which is all that full recompute holds.
    operators : Operators
        Operators whose seconds add up to the layer's.
    recomputable : bool
        If a recompute policy applies (blocks and prediction modules).
    logits : float
        Number of logits of this layer's loss.
    """

    name: str
    forward: float = 0.0
    input_grad: float = 0.0
    weight_grad: float = 0.0
    attention_core: float = 0.0
    split_parameters: int = 0
    copied_parameters: int = 0
    expert_parameters: int = 0
    split_bytes: float = 0.0
    copied_bytes: float = 0.0
    score_bytes: float = 0.0
    norm_bytes: float = 0.0
    activated_bytes: float = 0.0
    up_bytes: float = 0.0
    latent_bytes: float = 0.0
    fp8_copied_bytes: float = 0.0
    fp8_split_bytes: float = 0.0
    fp8_norm_bytes: float = 0.0
    fp8_activated_bytes: float = 0.0
    unfused_split_bytes: float = 0.0
    unfused_copied_bytes: float = 0.0
    weight_grad_bytes: float = 0.0
    input_bytes: float = 0.0
    operators: Operators = field(default_factory=Operators)
    recomputable: bool = True
    logits: float = 0.0

    @property
    def parameters(self) -> int:
        """All parameters of the layer."""
        return self.split_parameters + self.copied_parameters + self.expert_parameters

    def activation_bytes(
        self,
        tensor: int = 1,
        sequence_parallel: bool = False,
        recompute: str = "none",
        fp8: bool = False,
        fused: bool = True,
    ) -> float:
        """Return the bytes held for one sequence on each of `tensor` devices between forward and backward.

        Korthikanti et al. 2022, arXiv 2205.05198, table 2; with full recompute and sequence parallelism the stored
        input is split too. `fp8`: inputs of products that run in fp8 are held in fp8. Without `fused` kernels more
        is held, which recomputing norms and activations frees.
        """
        whole = tensor if sequence_parallel else 1
        if recompute == "full" and self.recomputable:
            return self.input_bytes / whole
        modules = recompute.split("+") if self.recomputable else []
        ups = 1.0 if "up" in modules else 0.5 if "alternate" in modules else 0.0
        no_norms = {"alternate", "norms"} & {*modules}
        no_activated = {"alternate", "activations"} & {*modules}
        scores = 0.0 if {"selective", "core"} & {*modules} else self.score_bytes
        copied = self.copied_bytes - (self.norm_bytes if no_norms else 0.0)
        split = self.split_bytes - (self.activated_bytes if no_activated else 0.0)
        split -= self.latent_bytes * ("latent" in modules)
        if fp8:
            copied -= (self.fp8_copied_bytes - (self.fp8_norm_bytes if no_norms else 0.0)) / 2
            split -= (self.fp8_split_bytes - (self.fp8_activated_bytes if no_activated else 0.0)) / 2
        if not fused:
            copied += 0.0 if no_norms else self.unfused_copied_bytes
            split += 0.0 if no_activated else self.unfused_split_bytes
        return copied / whole + (split - ups * self.up_bytes + scores) / tensor


def block(model: Shape, routed: bool, windowed: bool = False) -> Layer:
    """Return a transformer block: norm, attention, norm, MLP; with `routed` the MLP is a mixture of experts.

    With `windowed` a query attends to the tokens of the model's window.
    """
    s, h = model.sequence, model.hidden
    attention = attention_matrices(model)
    mlp = _routed_mlp(model) if routed else _mlp(model, model.ffn)
    core, scores = _attention_core(model, windowed)
    moved = _passes(model, [linear for linear in mlp if linear.parallel == "column"])
    norms = 2 * h * (2 if model.norm == "layernorm" else 1) + _attention_norms(model)
    masks = 2 * h if model.dropout else 0
    activated = sum(one.visits * one.inputs for one in mlp if one.module == "down") * model.gated
    ordered = sum(one.outputs if one.parallel != "row" else one.inputs for one in attention)
    layer = _layer(
        "block", s, [*attention, *mlp], moved, core=core, score_bytes=scores, norm_parameters=norms,
        copied_bytes_per_token=2 * VALUE_BYTES * h + masks, input_bytes=VALUE_BYTES * s * h,
    )  # fmt: skip
    return replace(
        layer,
        unfused_split_bytes=float(VALUE_BYTES * s * (activated + ordered)),
        unfused_copied_bytes=float(2 * NORM_COPY_BYTES * s * h),
    )


def embedding(model: Shape) -> Layer:
    """Return the look-up of tokens, and of learned positions: no matrix product. Dropout holds a mask."""
    s, h = model.sequence, model.hidden
    positions = s * h if model.positions == "learned" else 0
    return Layer(
        "embedding",
        split_parameters=model.vocabulary * h,
        copied_parameters=positions,
        copied_bytes=float(s * h * model.dropout),
        input_bytes=VALUE_BYTES * s * h,
        operators=Operators(other_bytes=2.0 * VALUE_BYTES * s * h, passes=1),
        recomputable=False,
    )


def head(model: Shape) -> Layer:
    """Return final norm, projection to the vocabulary, loss on fp32 logits: Korthikanti et al. 2022, section 4.3."""
    s, h, vocabulary = model.sequence, model.hidden, model.vocabulary
    layer = _layer(
        "head", s, [Linear(h, vocabulary, fp8=False)],
        Operators(activation_bytes=float(LOSS_BYTES * s * vocabulary), norm_bytes=2.0 * VALUE_BYTES * s * h, passes=4),
        norm_parameters=h * (2 if model.norm == "layernorm" else 1),
        copied_bytes_per_token=VALUE_BYTES * h, split_bytes_per_token=LOGIT_BYTES * vocabulary,
        input_bytes=VALUE_BYTES * s * h,
    )  # fmt: skip
    return replace(layer, recomputable=False, logits=float(s * vocabulary))


def prediction(model: Shape, inner: Layer) -> Layer:
    """Return a multi-token-prediction module: two norms, a 2h x h projection, a block, and the shared head.

    DeepSeek-AI 2024, DeepSeek-V3 technical report, arXiv 2412.19437, section 2.2. Embedding and head are shared, so
    their parameters are not counted again.
    """
    s, h = model.sequence, model.hidden
    projection = _layer(
        "prediction", s, [Linear(2 * h, h, parallel="copy")], Operators(norm_bytes=4.0 * VALUE_BYTES * s * h, passes=2),
        norm_parameters=2 * h * (2 if model.norm == "layernorm" else 1),
        copied_bytes_per_token=2 * VALUE_BYTES * h, input_bytes=2 * VALUE_BYTES * s * h,
    )  # fmt: skip
    output = replace(head(model), split_parameters=0)
    return _sum("prediction", [projection, inner, output])


def attention_matrices(model: Shape) -> list[Linear]:
    """Return the matrices of a block's attention."""
    return _latent_attention(model) if model.key_value_rank else _attention(model)


def _attention(model: Shape) -> list[Linear]:
    queries, keys = model.heads * model.head_size, model.key_value_heads * model.head_size
    return [
        Linear(model.hidden, queries + 2 * keys, holds_output=True, bias=model.attention_bias),
        Linear(queries, model.hidden, parallel="row", bias=model.projection_bias),
    ]


def _latent_attention(model: Shape) -> list[Linear]:
    """Return low-rank factors of queries, keys and values: DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1."""
    h, a = model.hidden, model.heads
    query = a * (model.head_size + model.rotary_head_size)
    rank = model.key_value_rank
    down = [Linear(h, rank + model.rotary_head_size, parallel="copy", holds_output=True)]
    keys_and_values = a * (model.head_size + model.value_head_size)
    up = [Linear(rank, keys_and_values, holds_output=True, module="latent")]
    if model.query_rank:
        down.append(Linear(h, model.query_rank, parallel="copy", holds_input=False, holds_output=True))
        up.append(Linear(model.query_rank, query, holds_output=True, module="latent"))
    else:
        up.append(Linear(h, query, holds_input=False, holds_output=True))
    return [*down, *up, Linear(a * model.value_head_size, h, parallel="row")]


def _attention_norms(model: Shape) -> int:
    if model.key_value_rank:
        return model.key_value_rank + (model.query_rank or 0)
    return 2 * model.head_size if model.head_norm else 0


def _passes(model: Shape, ups: list[Linear]) -> Operators:
    """Return the element-wise passes of a block over one sequence; they read and write bf16 values.

    These are two norms (read, written) and two additions to the residual (read twice, written once; both in one pass in
    a parallel block) of width h; the activations between the matrices `ups` and the next ones; rotation of queries and
    keys; and copies of tokens to experts and back, again for each of a GPU's experts. Clamped activations and biases of
    experts follow Megatron-LM: core/fusions/fused_bias_geglu.py, core/transformer/moe/experts.py.
    """
    h, routed = model.hidden, sum(linear.visits for linear in ups if linear.expert)
    activated = sum(linear.visits * linear.outputs * (3 / 2 if model.gated else 2) for linear in ups)
    by_head = 2 * model.head_size * (model.heads + model.key_value_heads)  # read and written
    rotated = by_head * ((model.positions == "rotary") + model.head_norm)
    clamped = model.clamped * sum(linear.visits * linear.outputs / (2 if model.gated else 1) for linear in ups)
    biased = EXPERT_BIAS_BYTES * model.mlp_bias * h * routed
    values, passing = VALUE_BYTES * model.sequence, 4 * h * routed
    return Operators(
        activation_bytes=float(values * (activated + rotated) + CLAMP_BYTES * model.sequence * clamped),
        norm_bytes=float(values * 4 * h),
        other_bytes=float(values * ((4 if model.parallel_block else 6) * h + passing) + model.sequence * biased),
        regrouped_bytes=float(values * passing),
        passes=(3 if model.parallel_block else 4)
        + len(ups)
        + 2 * ((model.positions == "rotary") + model.head_norm)
        + 4 * bool(routed),
    )


def _pairs(model: Shape, windowed: bool) -> float:
    """Return the number of pairs of tokens, in both directions: all s^2, or those less than a window apart."""
    s, window = model.sequence, model.window
    return float(s * s - (s - window) ** 2 if windowed and 0 < window < s else s * s)


def _attention_core(model: Shape, windowed: bool) -> tuple[AttentionCore, float]:
    """Return Q K^T and attention over V for one sequence, and the bytes held of the s x s matrices."""
    s, a = model.sequence, model.heads
    query = model.head_size + (model.rotary_head_size if model.key_value_rank else 0)
    value = model.value_head_size if model.key_value_rank else model.head_size
    flops = 2.0 * _pairs(model, windowed) * a * (query + value) / (2 if model.causal else 1)
    if model.attention != "full":
        return AttentionCore(a, query, value, flops, 0.0, model.attention), 0.0
    held = SCORE_BYTES if model.dropout else SCORE_BYTES_WITHOUT_DROPOUT
    # softmax, and dropout with its mask, read and write; the products' own reading is in their time
    moved = 2 * VALUE_BYTES + (2 * VALUE_BYTES + 1) * model.dropout
    return AttentionCore(a, query, value, flops, float(moved * a * s * s)), float(held * a * s * s)


def _mlp(model: Shape, width: int, visits: float = 1, copies: int = 1, expert: bool = False) -> list[Linear]:
    up = 2 * width if model.gated else width
    bias = model.mlp_bias
    return [
        Linear(model.hidden, up, holds_output=True, bias=bias, visits=visits, copies=copies, expert=expert,
               module="up"),
        Linear(width, model.hidden, parallel="row", bias=bias, visits=visits, copies=copies, expert=expert,
               holds_output=expert, module="down"),
    ]  # fmt: skip


def _routed_mlp(model: Shape) -> list[Linear]:
    """Return router, routed experts on a copy of their tokens, shared experts. Each expert's output is held."""
    router = [Linear(model.hidden, model.experts, parallel="copy", holds_input=not model.shared_experts, fp8=False)]
    routed = _mlp(model, model.expert_ffn, model.experts_per_token, model.experts, expert=True)
    shared = _mlp(model, model.shared_experts * model.expert_ffn) if model.shared_experts else []
    return [*router, *routed, *shared]


def _layer(
    name: str, s: int, linears: list[Linear], moved: Operators, *, norm_parameters: int, copied_bytes_per_token: float,
    input_bytes: float, core: AttentionCore | None = None, score_bytes: float = 0.0, split_bytes_per_token: float = 0.0,
) -> Layer:  # fmt: skip
    products = s * sum(linear.flops for linear in linears)
    attention_core = core.flops if core else 0.0
    copied, split, weight_part = copied_bytes_per_token, split_bytes_per_token, 0.0
    for linear in linears:
        held_input, held_output = linear.held_bytes
        row, column = linear.parallel == "row", linear.parallel == "column"
        split += (held_input if row else 0.0) + (held_output if column else 0.0)
        copied += (0.0 if row else held_input) + (0.0 if column else held_output)
        weight_part += held_input + VALUE_BYTES * linear.visits * linear.outputs
    plain = [linear for linear in linears if not linear.expert]
    fp8 = [linear for linear in linears if linear.fp8]
    fp8_whole = [linear for linear in fp8 if linear.parallel != "row"]

    return Layer(
        name,
        forward=products + attention_core,
        input_grad=products + 2 * attention_core,
        weight_grad=float(products),
        attention_core=attention_core,
        split_parameters=sum(linear.parameters for linear in plain if linear.parallel != "copy"),
        copied_parameters=norm_parameters + sum(linear.parameters for linear in plain if linear.parallel == "copy"),
        expert_parameters=sum(linear.parameters for linear in linears if linear.expert),
        split_bytes=s * split,
        copied_bytes=s * copied,
        score_bytes=score_bytes,
        norm_bytes=s * sum(linear.held_bytes[0] for linear in plain if linear.parallel != "row"),
        activated_bytes=s * sum(linear.held_bytes[0] for linear in linears if linear.module == "down"),
        up_bytes=s * sum(linear.held_bytes[1] for linear in linears if linear.module == "up"),
        latent_bytes=s * sum(linear.held_bytes[1] for linear in linears if linear.module == "latent"),
        fp8_copied_bytes=s * sum(linear.held_bytes[0] for linear in fp8_whole),
        fp8_split_bytes=s * sum(linear.held_bytes[0] for linear in fp8 if linear.parallel == "row"),
        fp8_norm_bytes=s * sum(linear.held_bytes[0] for linear in fp8_whole if not linear.expert),
        fp8_activated_bytes=s * sum(linear.held_bytes[0] for linear in fp8 if linear.module == "down"),
        weight_grad_bytes=s * weight_part,
        input_bytes=float(input_bytes),
        operators=moved + Operators(tuple(linears), (core,) if core else ()),
    )


def _sum(name: str, layers: list[Layer]) -> Layer:
    """Return one layer that is the sum of `layers`."""
    all_operators = sum((layer.operators for layer in layers), Operators())
    others = ("name", "recomputable", "input_bytes", "operators")
    amounts = [item.name for item in fields(Layer) if item.name not in others]
    totals: dict[str, Any] = {name: sum(getattr(layer, name) for layer in layers) for name in amounts}
    return replace(layers[0], name=name, operators=all_operators, **totals)
