"""Real stage modules whose backward splits into I (input gradient) and W (weight gradient)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


class _DeferredWeightGrad(torch.autograd.Function):
    """A linear map whose backward gives the input gradient and leaves the weight gradient for later."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, layer: SplitLinear) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.layer.deferred.append((x.flatten(0, -2), grad.flatten(0, -2)))
        return grad @ weight, None, None


class SplitLinear(nn.Module):
    """A bias-free linear layer; `deferred` holds what its weight gradient needs until W runs."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator, dtype: torch.dtype):
        super().__init__()
        values = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64) / inputs**0.5
        self.weight = nn.Parameter(values.to(dtype))
        self.deferred: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _DeferredWeightGrad.apply(x, self.weight, self)

    def add_weight_grad(self, x: torch.Tensor, grad: torch.Tensor) -> None:
        """Add one deferred weight gradient to `weight.grad`."""
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        self.weight.grad.addmm_(grad.t(), x)


class MlpBlock(nn.Module):
    """x + W2 tanh(W1 x): small, smooth, exact to compare."""

    def __init__(self, hidden: int, generator: torch.Generator, dtype: torch.dtype):
        super().__init__()
        self.up = SplitLinear(hidden, 4 * hidden, generator, dtype)
        self.down = SplitLinear(4 * hidden, hidden, generator, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class TransformerBlock(nn.Module):
    """A pre-norm transformer block with causal attention; its norms have no parameters, so W is matrix products."""

    def __init__(self, hidden: int, heads: int, generator: torch.Generator, dtype: torch.dtype):
        super().__init__()
        self.heads = heads
        self.attention_in = SplitLinear(hidden, 3 * hidden, generator, dtype)
        self.attention_out = SplitLinear(hidden, hidden, generator, dtype)
        self.up = SplitLinear(hidden, 4 * hidden, generator, dtype)
        self.down = SplitLinear(4 * hidden, hidden, generator, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        query, key, value = (
            part.view(batch, sequence, self.heads, -1).transpose(1, 2)
            for part in self.attention_in(nn.functional.layer_norm(x, (hidden,))).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.down(nn.functional.gelu(self.up(nn.functional.layer_norm(x, (hidden,)))))


@dataclass(frozen=True)
class Shape:
    """The model that is replayed: `layers` blocks in equal stages; one microbatch is (batch, sequence, hidden)."""

    block: str = "mlp"
    layers: int = 0
    hidden: int = 16
    heads: int = 4
    sequence: int = 4
    batch: int = 2
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def microbatch(self, number: int, device: torch.device) -> torch.Tensor:
        """Input of one microbatch, the same on every rank."""
        generator = torch.Generator().manual_seed(1_000_003 + 7919 * self.seed + number)
        values = torch.randn(self.batch, self.sequence, self.hidden, generator=generator, dtype=torch.float64)
        return values.to(device=device, dtype=self.dtype)

    def buffer(self, device: torch.device) -> torch.Tensor:
        """An empty tensor of one microbatch's activations, to receive into."""
        return torch.empty(self.batch, self.sequence, self.hidden, device=device, dtype=self.dtype)


class Stage(nn.Module):
    """One stage: its blocks, and the three things that a program asks of it.

    The same stage number gives the same weights wherever it is built.
    """

    def __init__(self, number: int, num_stages: int, shape: Shape, device: torch.device):
        super().__init__()
        self.number, self.is_last = number, number == num_stages - 1
        first, last = (shape.layers * edge // num_stages for edge in (number, number + 1))
        blocks = []
        for layer in range(first, last):
            generator = torch.Generator().manual_seed(104_729 * (shape.seed + 1) + layer)
            blocks.append(_block(shape, generator))
        self.blocks = nn.ModuleList(blocks).to(device)
        self.linears = [module for module in self.modules() if isinstance(module, SplitLinear)]
        self.live: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.deferred: dict[int, list[tuple[SplitLinear, torch.Tensor, torch.Tensor]]] = {}
        self.loss = 0.0

    def run_forward(self, microbatch: int, x: torch.Tensor) -> torch.Tensor:
        """F: keep input and output for the backward; the last stage's output is the loss."""
        x = x.detach().requires_grad_()
        y = x
        for block in self.blocks:
            y = block(y)
        if self.is_last:
            y = y.float().square().mean() if y.dtype != torch.float64 else y.square().mean()
        self.live[microbatch] = (x, y)
        return y.detach()

    def run_input_grad(self, microbatch: int, grad: torch.Tensor | None) -> torch.Tensor:
        """I: the gradient of the stage's input; what W needs is put aside."""
        x, y = self.live.pop(microbatch)
        torch.autograd.backward(y, grad)
        self.deferred[microbatch] = [(linear, *pair) for linear in self.linears for pair in linear.deferred]
        for linear in self.linears:
            linear.deferred.clear()
        return x.grad

    def run_weight_grad(self, microbatch: int) -> None:
        """W: add the weight gradients of one microbatch."""
        for linear, x, grad in self.deferred.pop(microbatch):
            linear.add_weight_grad(x, grad)


def _block(shape: Shape, generator: torch.Generator) -> nn.Module:
    if shape.block == "mlp":
        return MlpBlock(shape.hidden, generator, shape.dtype)
    return TransformerBlock(shape.hidden, shape.heads, generator, shape.dtype)


def reference_gradients(num_stages: int, microbatches: int, shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """Weight gradients of a step in one process, stage by stage, summed over microbatches in order."""
    stages = [Stage(number, num_stages, shape, device) for number in range(num_stages)]
    for microbatch in range(microbatches):
        x = shape.microbatch(microbatch, device)
        for stage in stages:
            x = stage.run_forward(microbatch, x)
        grad = None
        for stage in reversed(stages):
            grad = stage.run_input_grad(microbatch, grad)
            stage.run_weight_grad(microbatch)
    return [linear.weight.grad for stage in stages for linear in stage.linears]


def sleep_out(seconds: float) -> Callable[[Callable[[], None]], None]:
    """A wrapper that does its work, then sleeps until `seconds` have passed since it began.

    The system ends a sleep about 0.1 ms late, so that the last 0.3 ms are spent looking at the clock.
    """

    def padded(work: Callable[[], None]) -> None:
        until = time.perf_counter() + seconds
        work()
        if (left := until - time.perf_counter() - 3e-4) > 0:
            time.sleep(left)
        while time.perf_counter() < until:
            pass

    return padded
