"""Facts that a framework's file states: policies of a layout, the load of its host, and what differs by version."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from ppsim.base.rules import checked_methods


class Host(NamedTuple):
    """Load of the host of one GPU, in kernel launches; `start` of a device's sheet has the seconds of one.

    The time of Python, autograd and hooks is also counted in launches.
    """

    # forward, backward: launches of one block in F and in B
    forward: float
    backward: float
    compiled: bool = False  # True if `layout.fused` means a compiler whose code needs almost no host
    each_expert: bool = False  # True if products of experts that `layout.grouped_experts` joins are launched one by one
    # launches in F and in B of one block with tensor parallelism: its collectives, and any bookkeeping of its tensors
    tensor: tuple[float, float] = (0.0, 0.0)
    # launches for each member of the tensor-parallel group of one block, in F and in B each, in a pipeline of more than
    # one node: hosts that drift apart wait for each other in every collective. A quarter more beyond a node.
    member: float = 0.0
    # launches for each further node of the tensor-parallel group of one block, in F and in B each: its GPUs wait
    node: float = 0.0
    # hooks: launches in F and in B of a block with sharded weights, whose modules fetch and free their own in Python;
    # gathers: more in F and in B each, if other GPUs have parts of them
    hooks: tuple[float, float] = (0.0, 0.0)
    gathers: float = 0.0
    # launches in F and in B in addition to those of plain attention and an MLP: of latent attention, of shared experts,
    # and of a plain exchange of tokens with GPUs of several experts
    latent: tuple[float, float] = (0, 0)
    shared: tuple[float, float] = (0, 0)
    exchange: tuple[float, float] = (0, 0)
    # launches in F and in B of each part but the first of a ring of context parallelism
    ring: tuple[float, float] = (0, 0)
    step: float = 1100.0  # launches between two steps: the norm that it reads, the optimizer step, the next batch


class Stall(NamedTuple):
    """Polling of messages between stages, which delays them; not applied if a config names a framework's version."""

    poll: float = 0.0  # seconds between two looks for a header of a message
    # nodes, group_nodes: nodes of a job, and of a tensor-parallel group, from which on messages are polled
    nodes: float = math.inf
    group_nodes: float = math.inf


class Messages(NamedTuple):
    """Exchange of sharded weights and gradients between data-parallel GPUs."""

    # blocks: blocks that have whole gradients at a time if gradients are sharded. lone: True if sharded gradients that
    # one GPU alone holds are right after several microbatches
    blocks: int = 1
    lone: bool = True
    # bytes of each parameter of a block that copies move out of a gather's buffer, and into a reduction's to scale it
    copies: tuple[float, float] = (0.0, 0.0)


class Moves(NamedTuple):
    """Bytes that separate kernels move through memory, where a framework's source shows them."""

    # bytes of each value in F and in B of a norm of separate kernels. Transformers' (models/llama/modeling_llama.py) in
    # F: cast 6, square 8, mean 4, product with the root 8, cast 6, product with the weights 4. In B: gradient of the
    # weights 8, of their product 4, casts 12, of the product with the root 20, of the square 28, their sum 12
    norm: tuple[float, float] = (36, 84)
    # bytes of each logit in F and in B of a loss that is not fused. PyTorch's cross_entropy: in F a cast to fp32 6, a
    # log of softmax, which reads three times, 16; in B zeros 4, its gradient 16, a cast 6 (ATen/native/cuda/SoftMax.cu)
    loss: tuple[float, float] = (22, 26)
    gates: bool = False  # True if gated models rotate positions and activate by PyTorch's operators, one by one
    experts: bool = False  # True if one kernel activates experts behind DeepEP or HybridEP, even if nothing is fused
    copies: int = 0  # copies of tokens in the order of experts and back, if their dispatcher is no kernel of its own
    # bytes of each gradient that is added in fp32, in each microbatch: one kernel reads and writes the sum
    gradient: float = 8.0
    step: float = 0.0  # bytes of a GPU's parameter at the end of a step: norm of the gradient, clipping, setting to 0


class Extra(NamedTuple):
    """Memory that a framework holds beyond the tensors that the shapes of a model give."""

    # bytes of fragments, which the allocator reserves but no tensor uses, as a fraction of the activations
    fragments: float = 0.0
    gradients: bool = False  # True if a bf16 gradient of every parameter is held until a backward ends
    # inputs, outputs and gradients of a block's products that a backward holds whole with sequence parallelism
    whole: int = 0
    # True if each GPU of a tensor-parallel group holds the logits of the whole vocabulary, and computes their loss
    logits: bool = False
    # first version that holds no outputs of routed experts: the router's weights multiply what is between both products
    # instead; "": all versions hold them
    frees_outputs: str = ""
    # the same as `fragments`, in addition if experts are spread over GPUs: each step sends them other numbers of tokens
    expert_fragments: float = 0.0
    graphs: float = 0.0  # bytes of a device's CUDA graphs in a pipeline, each with buffers of its own


@checked_methods
@dataclass(frozen=True)
class Facts:
    """Facts about one framework."""

    name: str
    policies: Mapping[str, Any]  # keys of `ppsim.Layout` with the framework's values
    host: Host
    host_source: str
    # by version: what differs from `policies` in a version, each from a source; the newest is last
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    messages: Messages = Messages()
    moves: Moves = Moves()
    extra: Extra = Extra()
    stall: Stall = Stall()
    # empty_stages, recompute_blocks: True if its options can give a stage no layer, and recompute some of its blocks
    empty_stages: bool = True
    recompute_blocks: bool = True
    # True if a full recomputation ends with the last tensor that the backward reads: no last product, no combine
    early_stop: bool = False
    pads_words: bool = False  # True if it makes the number of words a multiple of 128 on each GPU
    # by a key of a config, or KEY=VALUE: the first version that has it; "" if none has
    since: Mapping[str, str] = field(default_factory=dict)

    def nearest(self, version: str) -> str:
        """Return the known version that is nearest, for "" the newest; "" if none is known."""
        if not version:
            return [*self.versions][-1] if self.versions else ""
        wanted = _numbers(version)

        def distance(known: str) -> list[int]:  # the first number first
            return [abs(one - other) for one, other in zip_longest(_numbers(known), wanted, fillvalue=0)]

        return min(self.versions, key=distance, default="")

    def lacks(self, version: str, key: str, value: Any = True) -> bool:
        """Return whether a version, "" for the newest, lacks a value of a config's key; "+" joins several values."""
        names = [f"{key}={part}" for part in str(value).split("+")]
        if value is True or value not in (None, False, 1, "none", "even"):  # these need no option
            names.append(key)
        firsts = [self.since[name] for name in names if name in self.since]
        age = _age(f"{self.name} {version}")
        return any(not first or (version and age < _age(first)) for first in firsts)

    def holds_expert_outputs(self, version: str) -> bool:
        """Return whether a version, "" for the newest, holds outputs of routed experts for the backward."""
        first = self.extra.frees_outputs
        return not first or bool(version and _age(f"{self.name} {version}") < _age(first))


def _age(version: str) -> tuple[bool, tuple[int, ...]]:
    return "core" in version.lower(), _numbers(version)  # core 0.4 comes after 2.6


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
