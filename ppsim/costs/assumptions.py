"""What derived costs assume, in sentences with units and sources."""

from __future__ import annotations

from collections.abc import Iterator

from ppsim.base.units import format_quantity, percent_text
from ppsim.costs.data_parallel import STEP_BYTES
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.hardware import LinkSheet


def assumptions(costs: DerivedCosts) -> Iterator[str]:
    """One sentence for each assumption of these costs."""
    cluster, layout, model = costs.cluster, costs.layout, costs.model
    device = cluster.device
    yield (
        f"computation runs at {format_quantity(costs.rate, 'FLOP/s')}: {percent_text(device.achieved, 0)} of the "
        f"{format_quantity(device.peak, 'FLOP/s')} of {device.name} ({device.achieved_source})"
    )
    yield f"inside a node of {cluster.gpus_per_node} GPUs: {_link_text(cluster.link)}"
    yield f"between nodes: {_link_text(cluster.network)}"
    yield (
        f"one microbatch is {layout.microbatch_size} x {model.sequence} tokens; a border carries "
        f"{format_quantity(costs.transfer_bytes, 'bytes')} of bf16 activations"
    )
    yield (
        f"attention counts {'half of' if model.causal else 'all of'} the s x s matrix "
        f"and {'holds none' if model.attention == 'flash' else 'holds all'} of it"
    )
    yield f"weights in bf16, gradients and Adam state in fp32: 18 bytes a parameter{_how_state_is_split(costs)}"
    yield from _of_the_step(costs)
    yield "not counted: norms and element-wise operations beyond the achieved fraction, data loading"
    given = ", ".join(name for name in costs.given if name != "per")
    if given:
        yield f"given instead of derived: {given}"


def _link_text(link: LinkSheet) -> str:
    return (
        f"{link.name}, {format_quantity(link.bandwidth, 'bytes per second')} one way, "
        f"{format_quantity(link.latency, 'seconds')} a message ({link.source}; {link.latency_source})"
    )


def _how_state_is_split(costs: DerivedCosts) -> str:
    if costs.layout.sharded:
        return ", weights and state split over data-parallel GPUs, at most three stages of a device gathered"
    return ", the state's 12 split over data-parallel GPUs" if costs.layout.distributed_optimizer else ""


def _of_the_step(costs: DerivedCosts) -> Iterator[str]:
    """What is done once a step, and what transfers share."""
    cluster, layout = costs.cluster, costs.layout
    group = max(layout.data_groups)
    if group > 1:
        kind = "reduce-scatter" if layout.distributed_optimizer or layout.sharded else "all-reduce"
        yield (
            f"gradients are reduced once a step by a ring {kind} of {group} GPUs beside the computation, each stage's "
            f"when its last backward is done"
        )
    if cluster.device.memory_bandwidth is not None:
        yield (
            f"an optimizer step, where it is asked for, moves {STEP_BYTES} bytes a parameter at "
            f"{format_quantity(cluster.device.memory_bandwidth, 'bytes per second')} through memory"
        )
    sharers = min(layout.gpus_per_device, cluster.gpus_per_card)
    if cluster.cards_per_node is not None or sharers > 1:
        yield (
            f"{cluster.cards} network cards a node; {sharers} GPUs of a device send through one at once, and transfers "
            f"through one card wait for each other"
        )
