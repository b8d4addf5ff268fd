"""One GPU's streams, played by streams of virtual time: the harness measures what the simulator predicts."""

import contextlib
import threading

import numpy as np
import pytest
from synthetic_traces import read_document

import ppsim

pytest.importorskip("torch")

import torch

from validation import one_gpu, options
from validation.clocks import Clocks
from validation.gradients import compare_gradients, own_gradients
from validation.traces import trace_document
from validation.walk import Walker

FORWARD, INPUT_GRAD, WEIGHT_GRAD, LATENCY = 0.5, 0.375, 0.25, 0.125  # exact in binary and in milliseconds


class Stream:
    """Work enqueued so far ends at `time`."""

    def __init__(self, *_):
        self.time = 0.0

    def wait_event(self, event):
        self.time = max(self.time, event.time)

    def synchronize(self):
        raise AssertionError("the host must not wait inside a step")


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        self.time = stream.time

    def elapsed_time(self, other):
        return (other.time - self.time) * 1e3


class Kernel:
    """A spin lasts as long as asked; a gate opens at once, at virtual time 0."""

    def __init__(self, name):
        self.name = name

    def __call__(self, grid, block, args, stream):
        if self.name == "spin":
            stream.time += args[0] / 1e9


@pytest.fixture
def _virtual_gpu(monkeypatch):
    current = threading.local()

    @contextlib.contextmanager
    def stream(chosen):
        before = getattr(current, "stream", None)
        current.stream = chosen
        yield
        current.stream = before

    fakes = {
        "Stream": Stream, "Event": Event, "stream": stream, "current_stream": lambda: current.stream,
        "synchronize": lambda *_: None, "_compile_kernel": lambda _source, name: Kernel(name),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake, raising=False)
    monkeypatch.setattr(one_gpu, "host_flag", lambda: torch.zeros(1, dtype=torch.int32))
    monkeypatch.setattr(one_gpu.VirtualDevice, "device", torch.device("cpu"))


@pytest.mark.usefixtures("_virtual_gpu")
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipe", "interleaved-1f1b"])
def test_streams_and_events_are_the_directed_transport(name):
    flags = ["--schedule", name, "--devices", "2", "--microbatches", "4", "--compute", "sleep"]
    asked = one_gpu.parse_arguments([*flags, "--latency", str(LATENCY)])
    asked.forward, asked.input_grad, asked.weight_grad = FORWARD, INPUT_GRAD, WEIGHT_GRAD
    program = options.load_programs(asked, 2)[0]
    shape, costs = options.make_shape(asked, program), options.sleep_costs(asked)
    fabric = one_gpu.Fabric(asked.latency)
    pad = {kind: one_gpu._spin(fabric, value) for kind, value in options.sleep_seconds(costs, program).items()}
    walkers = [
        Walker(program, rank, shape, one_gpu.VirtualDevice(rank, fabric, torch.cuda.Stream()), pad) for rank in range(2)
    ]
    columns, in_time = one_gpu.run_step(walkers, fabric)
    assert in_time
    document = trace_document(program, [[c] for c in columns], [Clocks(0, 0, 0, "one GPU")] * 2, 1024, {}, asked)

    trace = read_document(document, "one GPU")
    assert trace.notes == []
    assert trace.transport == "directed"
    measured = trace.timeline()
    predicted = ppsim.simulate(
        program,
        ppsim.Costs(forward=FORWARD, input_grad=INPUT_GRAD, weight_grad=WEIGHT_GRAD, latency=LATENCY),
        transport="directed",
    )
    np.testing.assert_allclose(measured.row_start, predicted.row_start, atol=1e-6)
    np.testing.assert_allclose(measured.row_end, predicted.row_end, atol=1e-6)
    assert compare_gradients(program, [own_gradients(walker) for walker in walkers], shape) is None


@pytest.mark.usefixtures("_virtual_gpu")
def test_a_device_that_fails_ends_the_others():
    asked = one_gpu.parse_arguments(["--schedule", "1f1b", "--devices", "2", "--compute", "sleep"])
    program = options.load_programs(asked, 2)[0]
    fabric = one_gpu.Fabric(0.0)
    walkers = [
        Walker(program, rank, options.make_shape(asked, program), one_gpu.VirtualDevice(rank, fabric, Stream()))
        for rank in range(2)
    ]
    walkers[0].inputs = []
    with pytest.raises(IndexError):
        one_gpu.run_step(walkers, fabric)


@pytest.mark.parametrize("flag", [["--backend", "nccl"], ["--layout", "pair"], ["--blocking"], ["--timeout", "5"]])
def test_flags_that_only_ranks_have_are_refused(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        one_gpu.parse_arguments(["--schedule", "1f1b", "--devices", "2", *flag])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {flag[0]}" in capsys.readouterr().err
