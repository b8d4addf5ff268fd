"""Blocks of a model from its shape: matrices, attention, scans and element-wise passes of each sublayer.

A block is one or more sublayers, each with a norm before it and an addition to the residual after it. Their letters
are those of Megatron-LM's hybrid patterns (core/models/hybrid/layers/utils.py), and K:

    *  attention                          -  MLP
    +  multi-head latent attention        E  mixture of experts
    D  the same with DeepSeek's indexer   M  Mamba-2
    W  attention within the window        G  gated delta net
                                          K  Kimi delta attention

Scans: their matrices and FLOPs, with s tokens, heads of width p, and a state of n by p for each head, are

    M  h x (2 heads p + 2 groups n + heads) and heads p x h, a convolution of heads p + 2 groups n; 7 heads p n a token:
       Dao and Gu 2024, arXiv 2405.21060; Megatron-LM, training/training.py, mamba_layer_flops
    G  h x (2 groups n + 2 heads p + 2 heads) and heads p x h, a convolution of 2 groups n + heads p; 8 heads n p:
       Yang et al. 2024, arXiv 2412.06464; transformers, models/qwen3_next; Megatron-LM, gdn_layer_flops
    K  h x 3 heads p and heads p x h, two gates of rank p, a rate per head, a convolution each: Kimi Team 2025,
       arXiv 2510.26692; Megatron-LM, core/ssm/gated_delta_net/kda.py; FLOPs as G

A scan is priced as attention with heads of width p. It holds its projected input, and its output before the gated norm;
its kernels recompute the rest: state-spaces/mamba, ops/triton/ssd_combined.py.

Several residuals of width h: a sublayer reads a sum of them.

    n streams    the output is added to each; n h x (n^2 + 2 n) gives the weights of a token, of which n^2 become doubly
                 stochastic in 20 Sinkhorn iterations. Norm, sum, n x n product, expansion and addition read (5 n + 1) h
                 and write (3 n + 1) h values; the streams and the sublayer's output are held: Xie et al. 2025 (mHC),
                 arXiv 2512.24880, after Zhu et al. 2024, arXiv 2409.19606; NVIDIA/Megatron-LM d98e8a6,
                 core/transformer/hyper_connection.py, whose kernels are separate
    m of blocks  norms, scores by one vector, and a sum weighted by their softmax read 3 m h and write (m + 1) h; m h
                 are held: Kimi K3 in AMD-AGI/Primus, kimi_k3_block.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ppsim.costs.layers import VALUE_BYTES, AttentionCore, Held, Layer, Linear, Operators
from ppsim.costs.shape import Shape

LOGIT_BYTES = 4
NORM_COPY_BYTES = 4  # an unfused norm computes in fp32
SCORE_BYTES = 5  # softmax output and dropout output of two bytes each, dropout mask of one
SCORE_BYTES_WITHOUT_DROPOUT = 2
CLAMP_BYTES = 16  # moved per value after a clamped activation: both halves of its input clamped and concatenated
# Moved per value of a state, which a scan keeps for each chunk of so many tokens: in fp32 written, read, written again
# and read (state-spaces/mamba, ops/triton/ssd_state_passing.py; Megatron-LM, mamba_mixer.py); by delta nets in bf16
# written and read (fla-org/flash-linear-attention, ops/common/chunk_delta_h.py).
STATE_BYTES, CHUNK = {"M": 16, "G": 4, "K": 4}, {"M": 128, "G": 64, "K": 64}
EXPERT_BIAS_BYTES = 28  # moved per value of an expert's output: bias x router weight in fp32, added, joined, cast
SINKHORN_ITERATIONS = 20


def block(model: Shape, letters: str, residuals: int = 1) -> Layer:
    """Return a block of these sublayers, such as `*-` for attention and MLP, that reads so many residuals."""
    return _sum("block", [_sublayer(model, letter, residuals) for letter in letters])


def _mixing(model: Shape, n: int) -> list[Layer]:
    """Return the part that mixes n residuals around a sublayer, without the addition to one residual; none for one."""
    s, h = model.sequence, model.hidden
    if n == 1:
        return []
    if model.residual_block:
        moved = Operators(other_bytes=float(VALUE_BYTES * s * (4 * n + 1) * h), passes=4)
        return [_layer("mixing", s, [], moved, parameters=2 * h, held=(Held(s * VALUE_BYTES * n * h),))]
    again = float(VALUE_BYTES * s * (7 * n + 2 - 3) * h)  # all but the norm; an addition to one residual moves 3 h
    sinkhorn = SINKHORN_ITERATIONS * 2 * 3 * n * n  # sums of rows or columns read n^2 values, divisions read and write
    moved = Operators(
        other_bytes=again + VALUE_BYTES * s * (n * h + sinkhorn), stream_bytes=again,
        passes=5 + SINKHORN_ITERATIONS * 2 * 3,
    )  # fmt: skip
    mapping = Linear(n * h, n * n + 2 * n, parallel="copy", holds_output=True, bias=True, module="streams", fp8=False)
    return [_layer("mixing", s, [mapping], moved, parameters=3, held=(Held(s * VALUE_BYTES * h, module="streams"),))]


def _sublayer(model: Shape, letter: str, residuals: int) -> Layer:
    """Return norm, sublayer and addition to the residuals: norms and additions read and write bf16 values.

    In a parallel block one pass adds both sublayers.
    """
    s, h, is_mlp = model.sequence, model.hidden, letter in MLPS
    is_added = not (model.parallel_block and is_mlp)
    part = replace(_BY_LETTER[letter](model, letter), sums=int(is_added))
    around = Layer(
        "block", copied_parameters=_norm_parameters(model),
        held=(
            Held(s * h * (VALUE_BYTES + model.dropout), module="routed" if letter == "E" else ""),
            Held(float(NORM_COPY_BYTES * s * h), module="norms", unfused=True),
        ),
        input_bytes=float(VALUE_BYTES * s * h * (1 if model.residual_block else residuals)),
        operators=Operators(
            norm_bytes=float(VALUE_BYTES * s * 2 * h), passes=1 + is_added,
            other_bytes=float(VALUE_BYTES * s * (2 if model.parallel_block else 3) * h),
        ),
    )  # fmt: skip
    return replace(_sum("block", [around, *_mixing(model, residuals), part]), mlp=part if is_mlp else None)


def _norm_parameters(model: Shape) -> int:
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def _unfused(s: int, values: float) -> Held:
    """Return what kernels that are not fused hold in addition: values per token, split over the group."""
    return Held(float(VALUE_BYTES * s * values), split=True, module="activations", unfused=True)


def embedding(model: Shape) -> Layer:
    """Return the look-up of tokens, and of learned positions: no matrix product. Dropout holds a mask."""
    s, h = model.sequence, model.hidden
    positions = s * h if model.positions == "learned" else 0
    return Layer(
        "embedding", split_parameters=model.vocabulary * h, copied_parameters=positions, recomputable=False,
        held=(Held(float(s * h * model.dropout)),), input_bytes=VALUE_BYTES * s * h,
        operators=Operators(other_bytes=2.0 * VALUE_BYTES * s * h, passes=1),
    )  # fmt: skip


def head(model: Shape) -> Layer:
    """Return final norm, projection to the vocabulary, loss on fp32 logits: Korthikanti et al. 2022, section 4.3."""
    s, h, vocabulary = model.sequence, model.hidden, model.vocabulary
    layer = _layer(
        "head", s, [Linear(h, vocabulary, fp8=False, module="head")],
        Operators(norm_bytes=2.0 * VALUE_BYTES * s * h, passes=4),
        held=(Held(s * VALUE_BYTES * h), Held(s * LOGIT_BYTES * vocabulary, split=True)),
        parameters=_norm_parameters(model), input_bytes=VALUE_BYTES * s * h,
    )  # fmt: skip
    return replace(layer, recomputable=False, losses=1, logits=float(s * vocabulary))


def joined_heads(model: Shape) -> Layer:
    """Return the head with the losses of the model and of each prediction module, which share its matrix."""
    module = replace(head(model), split_parameters=0)
    return _sum("head", [head(model), *[module] * model.prediction_layers])


def prediction(model: Shape, inner: Layer) -> Layer:
    """Return a multi-token-prediction module: two norms, a 2h x h projection and a block.

    DeepSeek-AI 2024, DeepSeek-V3 technical report, arXiv 2412.19437, section 2.2. Its head and loss are where the
    model's are: NVIDIA/Megatron-LM d98e8a6, core/models/gpt/gpt_model.py, `_postprocess`, and `process_mtp_loss`.
    """
    s, h = model.sequence, model.hidden
    projection = _layer(
        "prediction", s, [Linear(2 * h, h, parallel="copy")], Operators(norm_bytes=4.0 * VALUE_BYTES * s * h, passes=2),
        held=(Held(s * 2 * VALUE_BYTES * h),),
        parameters=2 * _norm_parameters(model), input_bytes=2 * VALUE_BYTES * s * h,
    )  # fmt: skip
    return _sum("prediction", [projection, inner])


def attention_matrices(model: Shape, sparse: bool = False) -> list[Linear]:
    """Return the matrices of a block's attention; `sparse`: with those of DeepSeek's indexer."""
    return _latent_matrices(model, sparse) if model.key_value_rank else _plain_matrices(model)


def _plain_matrices(model: Shape) -> list[Linear]:
    queries, keys = model.heads * model.head_size, model.key_value_heads * model.head_size
    gate = queries * model.attention_gate
    return [
        Linear(model.hidden, queries + gate + 2 * keys, holds_output=True, bias=model.attention_bias),
        Linear(queries, model.hidden, parallel="row", bias=model.projection_bias),
    ]


def _latent_matrices(model: Shape, sparse: bool) -> list[Linear]:
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
    if model.attention_gate:
        up.append(Linear(h, a * model.value_head_size, holds_input=False, holds_output=True))
    if sparse:
        size = model.index_head_size
        down.append(Linear(h, size + model.index_heads, parallel="copy", holds_input=False, holds_output=True))
        indexed = model.index_heads * size
        up.append(Linear(model.query_rank or h, indexed, parallel="copy", holds_input=False, holds_output=True))
    return [*down, *up, Linear(a * model.value_head_size, h, parallel="row")]


def _pairs(model: Shape, nearest: int) -> float:
    """Return the pairs of a query and a token before or after it that attend; `nearest`: tokens per query, 0: all."""
    s = model.sequence
    return float(s * s - (s - nearest) ** 2 if 0 < nearest < s else s * s)


def _attention(model: Shape, letter: str) -> Layer:
    """Return attention: its matrices, Q K^T and attention over V for one sequence, and rotation of queries and keys.

    DeepSeek's sparse attention attends to `index_tokens` tokens; its indexer scores all of them: DeepSeek-V3.2-Exp,
    2025, section 2.1; Megatron-LM, core/models/hybrid/layers/flops.py, _dsa_layer_flops.
    """
    s, a, latent = model.sequence, model.heads, model.key_value_rank > 0
    query = model.head_size + (model.rotary_head_size if latent else 0)
    value = model.value_head_size if latent else model.head_size
    halved = 2 if model.causal else 1
    sparse = model.index_heads > 0 and letter != "+"
    nearest = model.window if letter == "W" else model.index_tokens if sparse else 0
    flops = 2.0 * _pairs(model, nearest) * a * (query + value) / halved
    # softmax, and dropout with its mask, read and write; the products' own reading is in their time
    moved = held = 0
    if model.attention == "full":
        moved = 4 * VALUE_BYTES + 1 if model.dropout else 2 * VALUE_BYTES
        held = SCORE_BYTES if model.dropout else SCORE_BYTES_WITHOUT_DROPOUT
    window = model.window if letter == "W" and model.window < s else 0
    cores = [AttentionCore(a, query, value, flops, float(moved * a * s * s), model.attention, window)]
    if sparse:
        scores = 2.0 * _pairs(model, 0) * model.index_heads * model.index_head_size / halved
        cores.append(AttentionCore(model.index_heads, model.index_head_size, 0, scores, 0.0, "flash"))
    matrices = attention_matrices(model, sparse)
    by_head = 2 * model.head_size * (model.heads + model.key_value_heads)  # read and written
    turned = VALUE_BYTES * s * by_head if model.positions == "rotary" else 0
    normed = VALUE_BYTES * s * by_head if model.head_norm else 0
    if latent:
        norms = model.key_value_rank + (model.query_rank or 0) + 2 * model.index_head_size * sparse
    else:
        norms = 2 * model.head_size if model.head_norm else 0
    moving = Operators(
        activation_bytes=float(turned), head_norm_bytes=float(normed), passes=2 * (bool(turned) + bool(normed))
    )
    scores = Held(float(held * a * s * s), split=True, module="core")
    return _layer("attention", s, matrices, moving, parameters=norms, held=(scores,), cores=tuple(cores))


def _scan(model: Shape, letter: str) -> Layer:
    """Return a Mamba-2 layer, gated delta net or Kimi delta attention; the module's docstring has their sizes."""
    h, heads, width, state = model.hidden, model.state_heads, model.state_head_size, model.state_size
    values, keys = heads * width, model.state_groups * state
    rates = {"M": heads, "G": 2 * heads, "K": heads}[letter]
    projected = 2 * values + 2 * keys + rates - (values if letter == "K" else 0)
    matrices = [Linear(h, projected, holds_output=True), Linear(values, h, parallel="row")]
    if letter == "K" and model.full_gate:
        matrices.append(Linear(h, values, holds_input=False, holds_output=True))
    if letter == "K":
        for outputs in (keys, values)[: 2 - model.full_gate]:  # of the decay, and of the output's gate
            matrices.append(Linear(h, width, parallel="copy", holds_input=False, holds_output=True))
            matrices.append(Linear(width, outputs, holds_input=False, holds_output=True))
    convolved = values + 2 * keys
    conv = convolved * (model.conv_size + (letter == "M"))  # Mamba's has a bias
    own = {"M": 3 * heads + values, "G": 2 * heads + width, "K": heads + keys + width}[letter]
    tokens = model.sequence
    flops = tokens * ((7 if letter == "M" else 8) * values * state + 2.0 * model.conv_size * convolved)
    moved = VALUE_BYTES * tokens * 2 * (convolved + 2 * values)  # convolution and scan, gate and norm: read and written
    moved += STATE_BYTES[letter] * tokens * values * state / CHUNK[letter]
    scan = AttentionCore(heads, width, state, flops, 0.0, "flash")
    return _layer(
        "scan", tokens, matrices, Operators(activation_bytes=float(moved), passes=3), split_parameters=conv + own,
        held=(Held(tokens * VALUE_BYTES * values, split=True), _unfused(tokens, convolved)), scans=(scan,),
    )  # fmt: skip


def _feed_forward(model: Shape, letter: str) -> Layer:
    """Return an MLP or a mixture of experts, with activations, and copies of tokens to experts and back.

    Clamped activations and biases of experts follow Megatron-LM: core/fusions/fused_bias_geglu.py,
    core/transformer/moe/experts.py; one kernel of experts clamps too (ScaledClampedQGeGLU there).
    """
    s, routed_model = model.sequence, letter == "E"
    matrices = _routed_mlp(model) if routed_model else _mlp(model, model.ffn)
    ups = [linear for linear in matrices if linear.module == "up"]
    routed = sum(linear.visits for linear in ups if linear.expert)
    passes = 3 / 2 if model.gated else 2
    each = VALUE_BYTES * passes + CLAMP_BYTES * model.clamped / (2 if model.gated else 1)  # bytes of an output
    activated, between = (
        sum(linear.visits * linear.outputs * each for linear in ups if every or linear.expert)
        for every in (True, False)
    )
    width = model.expert_hidden or model.hidden
    biased, passing = EXPERT_BIAS_BYTES * model.mlp_bias * width * routed, 4 * width * routed
    moved = Operators(
        activation_bytes=float(s * activated),
        other_bytes=float(VALUE_BYTES * s * passing + s * biased), regrouped_bytes=float(VALUE_BYTES * s * passing),
        passes=len(ups) + 4 * bool(routed), routed_bytes=float(s * between),
    )  # fmt: skip
    inputs = sum(one.visits * one.inputs for one in matrices if one.module == "down")
    gate = model.hidden * (routed_model and model.shared_gate)
    held = (_unfused(s, inputs * model.gated),)
    return _layer("mlp", s, matrices, moved, parameters=gate, held=held, input_bytes=VALUE_BYTES * s * model.hidden)


def _mlp(model: Shape, width: int, visits: float = 1, copies: int = 1, expert: bool = False) -> list[Linear]:
    up = 2 * width if model.gated else width
    bias, hidden = model.mlp_bias, (model.expert_hidden if expert else 0) or model.hidden
    return [
        Linear(hidden, up, holds_output=True, bias=bias, visits=visits, copies=copies, expert=expert,
               module="up"),
        Linear(width, hidden, parallel="row", bias=bias, visits=visits, copies=copies, expert=expert,
               holds_output=expert, module="down"),
    ]  # fmt: skip


def _routed_mlp(model: Shape) -> list[Linear]:
    """Return router, routed experts on a copy of their tokens, shared experts. Each expert's output is held."""
    router = [Linear(model.hidden, model.experts, parallel="copy", holds_input=not model.shared_experts, fp8=False)]
    routed = _mlp(model, model.expert_ffn, model.experts_per_token, model.experts, expert=True)
    shared = _mlp(model, model.shared_experts * model.expert_ffn) if model.shared_experts else []
    if model.expert_hidden:
        h, width = model.hidden, model.expert_hidden
        router.append(Linear(h, width, parallel="copy", holds_input=False, holds_output=True))
        router.append(Linear(width, h, parallel="copy"))
    return [*router, *routed, *shared]


def _layer(
    name: str, s: int, linears: list[Linear], moved: Operators, *, held: Sequence[Held], parameters: int = 0,
    split_parameters: int = 0, input_bytes: float = 0.0, cores: tuple[AttentionCore, ...] = (),
    scans: tuple[AttentionCore, ...] = (),
) -> Layer:  # fmt: skip
    """Return a layer of these matrices, cores and scans for s tokens, with parameters and activations besides theirs.

    `parameters` are on each GPU of a tensor-parallel group, `split_parameters` are split over it.
    """
    products = s * sum(linear.flops for linear in linears)
    attention_core, scanned = (sum((one.flops for one in group), 0.0) for group in (cores, scans))
    plain = [linear for linear in linears if not linear.expert]
    return Layer(
        name,
        forward=products + attention_core + scanned,
        input_grad=products + 2 * (attention_core + scanned),
        weight_grad=float(products),
        attention_core=attention_core,
        split_parameters=split_parameters + sum(linear.parameters for linear in plain if linear.parallel != "copy"),
        copied_parameters=parameters + sum(linear.parameters for linear in plain if linear.parallel == "copy"),
        expert_parameters=sum(linear.parameters for linear in linears if linear.expert),
        held=(*held, *(one for linear in linears for one in _held(linear, s))),
        weight_grad_bytes=s * sum(one.held_bytes[0] + VALUE_BYTES * one.visits * one.outputs for one in linears),
        input_bytes=float(input_bytes),
        operators=moved + Operators(tuple(linears), cores + scans),
    )


def _held(linear: Linear, s: int) -> Iterator[Held]:
    """Yield what the forward of `s` tokens holds of a matrix's input and output, and which recomputation frees it."""
    reads, writes = linear.held_bytes
    if reads:
        frees = "routed" if linear.expert else "" if linear.parallel == "row" else "norms"
        frees = {"down": "activations", "streams": "streams"}.get(linear.module, frees)
        yield Held(s * reads, linear.parallel == "row", frees, linear.fp8)
    if writes:
        frees = "outputs" if linear.expert and linear.module == "down" else linear.module
        yield Held(s * writes, linear.parallel == "column", frees if frees in ("up", "latent", "outputs") else "")


def _sum(name: str, layers: list[Layer]) -> Layer:
    """Return one layer that is the sum of `layers`."""
    all_operators = sum((layer.operators for layer in layers), Operators())
    others, held = ("name", "recomputable", "input_bytes", "operators", "held", "mlp"), (one.held for one in layers)
    amounts = [item.name for item in fields(Layer) if item.name not in others]
    totals: dict[str, Any] = {name: sum(getattr(layer, name) for layer in layers) for name in amounts}
    mlp = next((layer.mlp for layer in layers if layer.mlp), None)
    return replace(layers[0], name=name, operators=all_operators, held=sum(held, ()), mlp=mlp, **totals)


MLPS = "-E"
_BY_LETTER: Mapping[str, Callable[[Shape, str], Layer]] = {
    **dict.fromkeys("*+DW", _attention), **dict.fromkeys("MGK", _scan), **dict.fromkeys(MLPS, _feed_forward),
}  # fmt: skip
