"""Layout: how a model is spread over GPUs beside the pipeline, cut into stages, and what is recomputed."""

from __future__ import annotations

from dataclasses import dataclass

from ppsim.base.errors import ConfigError, shown
from ppsim.costs import partition
from ppsim.costs.layers import RECOMPUTE, Layer
from ppsim.costs.model import Model

GRADIENT_BYTES, WEIGHT_BYTES, OPTIMIZER_BYTES = 4, 2, 12


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel groups, and the policies that go with them.

    One pipeline device stands for one GPU of a group of `tensor x context x data` GPUs that all do the same.

    Parameters
    ----------
    tensor, context, expert, data : int >= 1
        Sizes of the tensor-, context-, expert- and data-parallel groups. Expert-parallel groups lie within the data-
        and context-parallel ones, as in Megatron-LM.
    sequence_parallel : bool
        Split what tensor parallelism leaves whole along the sequence (Korthikanti et al. 2022).
    distributed_optimizer : bool
        Split the optimizer state over the data- and context-parallel group (ZeRO stage 1).
    sharded : bool
        Split weights and optimizer state over that group: UNSHARD gathers a stage's weights before use and REDUCE_GRAD
        scatters its gradients (ZeRO stage 3).
    microbatch_size : int >= 1
        Sequences in one microbatch.
    partition : "even", "by_cost(greedy)", "by_cost(optimal)" or blocks of each stage
        `even` spreads the blocks, embedding with the first and head with the last stage; the other two balance the
        seconds of all layers, and `greedy` and `optimal` are short for them.
    first_stage_layers, last_stage_layers : int, optional
        Blocks of the first and of the last stage, which also hold embedding and head; `even` spreads the rest.
    recompute : one of "none", "selective", "full", or one of them a stage
    recompute_stages : int, optional
        Apply `recompute` to this many first stages only.
    overlap : bool
        Whether an OVERLAP_F_B slot hides collectives: it lasts as long as the longer of both parts' computation and
        both parts' collectives. Otherwise the parts run one after the other.

    Raises
    ------
    ConfigError
        Names the parameter, its value and what is legal.
    """

    tensor: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    sharded: bool = False
    microbatch_size: int = 1
    partition: str | tuple[int, ...] = "even"
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    recompute: str | tuple[str, ...] = "none"
    recompute_stages: int | None = None
    overlap: bool = False

    def __post_init__(self) -> None:
        for name in ("tensor", "context", "expert", "data", "microbatch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        object.__setattr__(self, "partition", partition.method(self.partition))
        for name in ("first_stage_layers", "last_stage_layers"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ConfigError(f"{name}={shown(value)} must be a whole number of at least 0")
            if value is not None and self.partition != "even":
                raise ConfigError(f"{name}={value} goes with partition 'even'; leave one of them out")
        for level in (self.recompute,) if isinstance(self.recompute, str) else self.recompute:
            if level not in RECOMPUTE:
                raise ConfigError(f"recompute={level!r} is not known; use one of: {', '.join(RECOMPUTE)}")

    @property
    def gpus_per_device(self) -> int:
        """GPUs that one pipeline device stands for."""
        return self.tensor * self.context * self.data

    def faults(self, model: Model) -> list[str]:
        """One sentence for each size that `model` cannot be split into; empty where all fit."""
        found = []
        if model.heads % self.tensor:
            found.append(_no_divisor("tensor", self.tensor, "attention heads", model.heads))
        elif model.key_value_heads % self.tensor and self.tensor % model.key_value_heads:
            found.append(_no_divisor("tensor", self.tensor, "key-value heads", model.key_value_heads))
        if model.sequence % self.context:
            found.append(_no_divisor("context", self.context, "tokens of a sequence", model.sequence))
        if self.expert > 1 and not model.experts:
            found.append(f"expert={self.expert}: the model has no experts; use 1")
        elif model.experts % self.expert:
            found.append(_no_divisor("expert", self.expert, "experts", model.experts))
        if (self.data * self.context) % self.expert:
            found.append(_no_divisor("expert", self.expert, "data x context parallel GPUs", self.data * self.context))
        return found

    def stage_layers(self, model: Model, num_stages: int, layer_costs: list[float]) -> list[list[Layer]]:
        """The layers of each stage; `layer_costs` (one a layer) balance the methods that go by cost.

        Raises CostError where the partition does not fit `num_stages`.
        """
        if self.partition in ("greedy", "optimal"):
            counts = partition.by_cost(layer_costs, num_stages, self.partition)
        else:
            counts = self._blocks(model.num_layers, num_stages)
            counts[0] += 1
            counts[-1] += len(model.layers) - model.num_layers - 1
        ends = [sum(counts[: stage + 1]) for stage in range(num_stages)]
        return [model.layers[end - count : end] for count, end in zip(counts, ends, strict=True)]

    def _blocks(self, num_layers: int, num_stages: int) -> list[int]:
        if not isinstance(self.partition, str):
            return partition.explicit(self.partition, num_layers, num_stages)
        return partition.even(num_layers, num_stages, self.first_stage_layers, self.last_stage_layers)

    def recompute_of(self, num_stages: int) -> list[str]:
        """The recompute level of each stage."""
        if not isinstance(self.recompute, str):
            if len(self.recompute) != num_stages:
                raise ConfigError(
                    f"recompute lists {len(self.recompute)} levels, but the schedule has {num_stages} stages; "
                    f"list {num_stages}, or give one level"
                )
            return list(self.recompute)
        first = num_stages if self.recompute_stages is None else self.recompute_stages
        return [self.recompute if stage < first else "none" for stage in range(num_stages)]

    @property
    def data_groups(self) -> tuple[int, int]:
        """GPUs that hold the same dense parameters, and the same routed experts."""
        group = self.data * self.context
        return group, max(1, group // self.expert)

    @property
    def optimizer_groups(self) -> tuple[int, int]:
        """GPUs over which the optimizer state of dense parameters, and of routed experts, is split."""
        return self.data_groups if self.distributed_optimizer or self.sharded else (1, 1)

    def held(self, layer: Layer) -> tuple[float, float]:
        """Dense parameters and parameters of routed experts of one layer on one GPU, before any sharding of weights."""
        experts = layer.expert_parameters / (self.tensor * self.expert)
        return layer.split_parameters / self.tensor + layer.copied_parameters, experts

    def state_bytes(self, held: tuple[float, float], gathered: float = 1.0) -> tuple[float, float, float]:
        """Bytes of weights, gradients and optimizer state of `held` parameters on one GPU.

        18 bytes a parameter: bf16 weights 2, fp32 gradients 4, fp32 weights and both Adam moments 12; with a
        distributed optimizer 6 + 12/d over a group of d. Source: Megatron-LM, docs/source/api-guide/dist_optimizer.md.
        Sharded weights take 2/d and, for the part of the time or of the stages that they are `gathered`, 2 more.
        """
        total = sum(held)
        split = sum(part / size for part, size in zip(held, self.optimizer_groups, strict=True))
        weights = split + gathered * total if self.sharded else total
        return WEIGHT_BYTES * weights, GRADIENT_BYTES * total, OPTIMIZER_BYTES * split


def _no_divisor(word: str, value: int, of: str, number: int) -> str:
    legal = [count for count in range(1, min(number, 4096) + 1) if number % count == 0]
    near = [count for count in legal if count < value][-1:] + [count for count in legal if count > value][:1]
    return f"{word}={value} does not divide the {number} {of}; use {' or '.join(map(str, near))}"
