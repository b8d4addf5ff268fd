"""A vocabulary cut over devices, priced from shapes: seconds of S and T, bytes of a part, reductions over all parts.

Source of what is cut and reduced: Yeung et al. 2024, arXiv 2411.05288, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from ppsim.actions import Kind
from ppsim.costs.collectives import all_reduce
from ppsim.costs.layers import VALUE_BYTES, Layer, embedding, head
from ppsim.costs.model import Model
from ppsim.costs.setup import Setup
from ppsim.costs.summed_effects import exchange
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns


def with_output_parts(
    setup: Setup, schedule: ScheduleColumns, table: CostTable, stages: Sequence[int], given: Set[str]
) -> CostTable:
    """The table of stages without an output layer, with a part of it on each of `stages`, which have S in the lists.

    A part is the output layer of so much of the vocabulary, and the rows of the embedding's matrix for it. Its seconds,
    and those of the reductions over all parts, replace no cost that was `given`, nor do its bytes. S holds its logits
    until T, or where there is none while it runs.
    """
    part = head(_part_of(setup, len(stages)))
    holds = np.isin(np.arange(schedule.num_stages), stages)
    changed: dict[str, object] = {}
    if not given & {"vocabulary_forward", "vocabulary_backward"}:
        changed["vocabulary_seconds"] = np.outer(_seconds(setup, part), holds)
    changed |= _reductions(setup, schedule, given)
    if table.state_bytes is not None and not given & {"weight_bytes", "gradient_bytes", "optimizer_bytes"}:
        changed["state_bytes"] = table.state_bytes + np.outer(
            setup.layout.state_bytes(held_by_part(setup, len(stages))), holds
        )
    if "activation_bytes" not in given:
        changed["vocabulary_bytes"] = holds * _logits(setup, part)
    return replace(table, **changed)


def _seconds(setup: Setup, part: Layer) -> tuple[float, float]:
    """Of S and T: forward and backward of a part, with the collectives of its tensor-parallel group."""
    work, beside = setup.work(part), exchange(setup, part)
    return work.forward + beside.forward, work.input_grad + work.weight_grad + beside.input_grad


def _reductions(setup: Setup, schedule: ScheduleColumns, given: Set[str]) -> dict[str, object]:
    """Seconds of the all-reduces of the input gradient, and of the statistics, three fp32 numbers a token one by one.

    Maximum, predicted logit and sum of exponentials; where no T stands in the lists they go with the gradient. The
    statistics follow a gradient that was given, unless they were given too.
    Source: sail-sg/VocabularyParallelism, vocab_parallel_schedule.py, `reduce_lm_head_res_alg1` and `_alg2`.
    """
    if "vocabulary_reduce" in given:
        return {}
    cluster, group = setup.cluster, setup.layout.gpus_per_device
    nodes = cluster.nodes(schedule.devices, group)
    link = cluster.link if len(set(nodes)) == 1 else cluster.network_of_group(group)
    gradient = setup.own_border_bytes
    statistics = 3 * all_reduce(schedule.devices, gradient * 4 / (VALUE_BYTES * setup.model.hidden), link)
    seconds = all_reduce(schedule.devices, gradient, link)
    if not (schedule.kind == Kind.T).any():
        return {"vocabulary_reduce_seconds": seconds + statistics}
    if "vocabulary_statistics" in given:
        return {"vocabulary_reduce_seconds": seconds}
    return {"vocabulary_reduce_seconds": seconds, "vocabulary_statistics_seconds": statistics}


def _part_of(setup: Setup, parts: int) -> Model:
    """The model with so much of the vocabulary as one of `parts` has."""
    return replace(setup.model, vocabulary=-(-setup.model.vocabulary // parts))


def held_by_part(setup: Setup, parts: int) -> tuple[float, float]:
    """Dense parameters of one of `parts` on one GPU, and 0 of experts: of both matrices, or of one where they are tied.

    The final norm is on every device; learned positions stay with the first stage.
    """
    model = _part_of(setup, parts)
    layers = [head(model), replace(embedding(model), copied_parameters=0)]
    dense, experts = (
        sum(one) for one in zip(*map(setup.layout.held, layers[: 2 - model.tied_embeddings]), strict=True)
    )
    return dense, experts


def _logits(setup: Setup, part: Layer) -> float:
    layout = setup.layout
    held = part.activation_bytes(layout.tensor, layout.sequence_parallel, "none")
    return held * layout.microbatch_size / layout.context
