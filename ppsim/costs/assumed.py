"""Sentences that state the assumptions of derived costs, one per effect; None if an effect does not apply."""

from __future__ import annotations

from ppsim.base.units import counted, format_quantity, percent_text
from ppsim.costs.host_time import EXPERT_LAUNCH, block_launches, launch_seconds, step_launch_seconds
from ppsim.costs.operators import FUSED_NORM
from ppsim.costs.setup import Setup
from ppsim.costs.shape import boundary_width
from ppsim.costs.sheets import LinkSheet
from ppsim.frameworks.facts import Stall


def computation_rate(setup: Setup) -> str:
    """Return the sentence about the rate of computation, with its source."""
    device = setup.cluster.device
    peak = f"{format_quantity(device.peak, 'FLOP/s')} of {device.name}"
    part = f"{percent_text(setup.rate / device.peak, 0)} of the {peak}"
    if device.achieved is not None:
        return f"computation runs at {format_quantity(setup.rate, 'FLOP/s')}: {part} ({device.achieved_source})"
    return (
        f"matrix products, attention and element-wise operations are each priced by their shape, on average "
        f"{format_quantity(setup.rate, 'FLOP/s')}: {part} ({device.operators.source if device.operators else ''})"
    )


def link_text(link: LinkSheet) -> str:
    """Return a link with its bandwidth, latency and their sources."""
    return (
        f"{link.name}, {format_quantity(link.bandwidth, 'bytes per second')} one way, "
        f"{format_quantity(link.latency, 'seconds')} per message ({link.source}; {link.latency_source})"
    )


def collectives(setup: Setup) -> str | None:
    """Return the sentence about collectives between nodes, and how long their GPUs wait for the last one."""
    cluster, layout = setup.cluster, setup.layout
    if layout.gpus_per_device <= cluster.gpus_per_node:
        return None
    return (
        f"collectives are rings; between nodes their GPUs wait "
        f"{format_quantity(cluster.node_wait, 'seconds')} per node for the last one"
    )


def boundary(setup: Setup) -> str:
    """Return the sentence about the tokens of a microbatch and the bytes of a transfer between stages."""
    model, more = setup.model, ""
    if model.residual_block or model.residual_streams > 1:
        last = boundary_width(model, model.num_layers - 1)
        more = f", up to {last} times before the last block: all residuals"
    return (
        f"one microbatch is {setup.layout.microbatch_size} x {setup.model.sequence} tokens; a transfer between stages "
        f"carries {format_quantity(setup.transfer_bytes, 'bytes')} of bf16 activations{more}"
    )


def attention(setup: Setup) -> str:
    """Return the sentence about the s x s scores of attention: how much is computed and how much is stored."""
    scans = "; scans run at the rate of attention, which no measurement here confirms" if setup.model.has_scans else ""
    return (
        f"attention computes {'half' if setup.model.causal else 'all'} of its s x s matrix of scores "
        f"and stores {'none' if setup.model.attention == 'flash' else 'all'} of it{scans}"
    )


def framework_version(setup: Setup) -> str | None:
    """Return the sentence about the version whose facts are used; None if the config names no version."""
    named = setup.layout.run_by
    if not (named.asked or named.used):
        return None
    if not named.asked:
        return f"facts about {named.facts.name} are of version {named.used}, the newest known one"
    used = "no version, because no source gives one"
    if named.used:
        used = "this version" if named.used == named.asked else f"version {named.used}, the nearest known one"
    return f"facts about {named.facts.name} {named.asked} are of {used}"


def host(setup: Setup) -> str | None:
    """Return the sentence about the framework's host time per block; None if it has none."""
    facts, launch = setup.layout.run_by.facts, launch_seconds(setup)
    if not launch:
        return None
    block = setup.model.layers[setup.model.num_layers]  # the last one; the first layer is the embedding
    forward, backward = (format_quantity(count * launch, "seconds") for count in block_launches(setup, block))
    lasts = "lasts longer, by the time that" if setup.layout.launch_blocking else "lasts at least as long as"
    return (
        f"a block {lasts} the host of {facts.name} needs to launch its kernels: {forward} in F, {backward} in B "
        f"({facts.host_source}){'' if setup.layout.run_by.asked else _stall(facts.stall)}"
    )


def _stall(stall: Stall) -> str:
    """Return the clause about late messages in the sentence about hosts; "" if none are late."""
    if not stall.poll:
        return ""
    return (
        f"; from {stall.nodes} nodes on, and with a tensor-parallel group over {stall.group_nodes}, messages between "
        f"stages are polled every {format_quantity(stall.poll, 'seconds')}, twice each, as in its published steps"
    )


def experts(setup: Setup) -> str | None:
    """Return the sentence about a GPU's routed experts; None if a fraction prices them, or there is at most one."""
    layout, law, held = setup.layout, setup.cluster.device.operators, setup.model.experts // setup.layout.expert
    if held < 2 or law is None or setup.cluster.device.achieved is not None:
        return None
    launches = f"are launched one by one, each in at least {format_quantity(EXPERT_LAUNCH, 'seconds')} of the host"
    copies = 1 + layout.extra_permutes(setup.model)
    return (
        f"the products of a GPU's {held} experts {'are one kernel' if layout.groups_experts else launches}"
        f"{f'; tokens are copied into their order and back {copies} times' if copies > 1 else ''}"
    )


def unfused(setup: Setup) -> str | None:
    """Return the sentence about kernels that are not fused; None if they are."""
    layout, moves = setup.layout, setup.layout.run_by.facts.moves
    if layout.chosen("fused"):
        return None
    times = sum(moves.norm) / sum(FUSED_NORM)
    norms = "" if layout.chosen("fused_norms") else f" and norms in fp32 ({times:g} times the bytes of one kernel)"
    return f"kernels are not fused: results of activation functions{norms} are held, too"


def held_beyond(setup: Setup) -> str | None:
    """Return the sentence about the memory that a framework holds beyond tensors; None if nothing is known."""
    facts, extra, shared = setup.layout.run_by.facts, setup.layout.run_by.facts.extra, setup.expert_fragments
    held = {
        f"{percent_text(extra.fragments, 0)} more than the activations in fragments": extra.fragments > 0,
        f"{percent_text(shared, 0)} more than the activations, as GPUs share experts": shared > 0,
        "a bf16 gradient of each parameter": extra.gradients and setup.layout.gradient_bytes > 2,
        f"{extra.whole} whole inputs and gradients of a tensor-parallel block": extra.whole > 0,
        "the logits of the whole vocabulary on each GPU": extra.logits,
        f"{extra.graphs / 1e9:g} GB of CUDA graphs on each device of a pipeline": setup.graph_bytes > 0,
        f"a buffer of {setup.exchange_bytes / 1e9:.3g} GB for the tokens of experts": setup.exchange_bytes > 0,
    }
    found = ", ".join(what for what, is_held in held.items() if is_held)
    return f"{facts.name} also holds {found}" if found else None


def state(setup: Setup) -> str:
    """Return the sentence about the bytes per parameter, and the GPUs that share them."""
    split = ""
    if setup.layout.sharded:
        gathered = f"at most {counted(setup.layout.max_active_stages, 'stage')} of a device gathered"
        if setup.layout.shards_by("block"):
            gathered = "embedding, head and two blocks gathered"
        elif setup.layout.shards_by("step"):
            gathered = "all gathered from the first forward of a step to its last backward"
        split = f", weights and state split over data-parallel GPUs, {gathered}"
    elif setup.layout.reduces_blocks:
        split = ", gradients and state split over data-parallel GPUs"
    elif setup.layout.distributed_optimizer:
        split = ", optimizer state split over data-parallel GPUs"
    size, state_size = setup.layout.gradient_bytes, setup.layout.chosen("optimizer_bytes")
    kinds = f"gradients in {'fp32' if size == 4 else 'bf16'}, {state_size} bytes of optimizer state"
    return f"weights in bf16, {kinds}: {2 + size + state_size} bytes per parameter{split}"


def loss(setup: Setup) -> str:
    """Return the sentence about what the loss holds."""
    chunks = setup.layout.chosen("loss_chunks")
    stored = "fp32 logits" if chunks == 1 else f"fp32 logits of one of {chunks} parts"
    return f"the loss stores {stored}; its backward adds {setup.layout.chosen('loss_bytes')} bytes per logit"


def reduction(setup: Setup) -> str | None:
    """Return the sentence about the reduction of gradients; None without data parallelism."""
    layout, group = setup.layout, max(setup.layout.data_groups)
    kind = "reduce-scatter" if layout.distributed_optimizer or layout.sharded else "all-reduce"
    if group == 1:
        return None
    if layout.reduces_blocks:
        return f"gradients are reduced by a ring {kind} of {group} GPUs for each microbatch, block by block"
    return (
        f"gradients are reduced once per step by a ring {kind} of {group} GPUs while devices compute, each stage's "
        f"{'during' if layout.chosen('overlap_data') else 'after'} its last backward"
    )


def buckets(setup: Setup) -> str | None:
    """Return the sentence about reductions that overlap computation; None if none do."""
    if max(setup.layout.data_groups) == 1 or not setup.layout.chosen("overlap_data"):
        return None
    return "the last backward hides reductions of gradients in buckets, the first forward hides gathers of weights"


def optimizer(setup: Setup) -> str | None:
    """Return the sentence about the bytes of an optimizer step; None if the memory's bandwidth is unknown."""
    bandwidth = setup.cluster.device.memory_bandwidth
    if bandwidth is None:
        return None
    waits = step_launch_seconds(setup)
    return (
        f"an optimizer step, if enabled, moves {setup.step_bytes} bytes per parameter at "
        f"{format_quantity(bandwidth, 'bytes per second')} through memory"
        + (f", and its device waits {format_quantity(waits, 'seconds')} for the host" if waits else "")
    )


def contention(setup: Setup) -> str | None:
    """Return the sentence about communication that overlaps computation; None if a fraction includes it."""
    if setup.cluster.device.achieved:
        return None
    part = percent_text(setup.cluster.contention, 0)
    return f"communication that overlaps computation slows it by {part} of the overlapped time"


def cards(setup: Setup) -> str | None:
    """Return the sentence about network cards; None if each GPU has its own."""
    cluster, sharers = setup.cluster, min(setup.layout.gpus_per_device, setup.cluster.gpus_per_card)
    if cluster.cards_per_node is None and sharers == 1:
        return None
    return (
        f"{cluster.cards} network cards per node; {sharers} GPUs of a device send through one at once, and transfers "
        f"through one card wait for each other"
    )


def not_counted(setup: Setup) -> str:
    """Return the sentence about what the costs leave out."""
    if setup.cluster.device.achieved is None:
        return "not counted: data loading"
    return "not counted: norms and element-wise operations beyond the achieved fraction, data loading"


def fp8(setup: Setup) -> str | None:
    """Return the sentence about fp8; None if products run in bf16."""
    casts, peak = setup.layout.casts, setup.cluster.device.peak_fp8
    if casts.recipe == "none" or peak is None:
        return None
    scales = {"tensor": "a scale for each tensor", "delayed": "scales of the steps before", "block": "scales by block"}
    return (
        f"products of the blocks run in fp8 ({scales[casts.recipe]}), peak {format_quantity(peak, 'FLOP/s')}, "
        f"{'' if casts.experts else 'those of routed experts not, '}their inputs held in "
        f"{'fp8' if casts.holds_inputs else 'bf16'}; attention, router, norms"
        f"{' and loss' if casts.head else ', loss and head'} in bf16"
    )
