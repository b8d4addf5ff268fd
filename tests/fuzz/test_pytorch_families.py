"""Every family that the check for PyTorch lets through gives a single process's gradients in PyTorch's runtime."""

import random

import pytest

import ppsim
from tests.fuzz.cases import COUNTS, EXAMPLES

pytest.importorskip("torch")

from pytorch_processes import run, single_process
from test_pytorch_runtime import as_case, equal


def runnable(names, devices, microbatches):
    """Yield the schedules of these families that are reported as fit to run."""
    for name in names:
        try:
            schedule = ppsim.build(name, devices=devices, microbatches=microbatches)
            ppsim.lower(schedule, sharded=True).check("rank", pytorch=True)
        except ppsim.PpsimError:
            COUNTS["families in PyTorch's runtime"]["refusals"] += 1
            continue
        yield name, schedule


LONG = EXAMPLES >= 100


@pytest.mark.parametrize("devices", [2, 4] if LONG else [2])
def test_families_that_pass_the_check_run_in_pytorch(devices, tmp_path):
    """All families in a long run, and two in a short one."""
    names = list(ppsim.schedules())
    names = names if LONG else random.Random(devices).sample(names, 2)  # noqa: S311 - no secret
    cases = [
        as_case(f"{name}-{form}", schedule, tmp_path, form)
        for name, schedule in runnable(names, devices, 2 * devices)
        for form, schedule in (("compute_only", schedule), ("compute_comms", ppsim.lower(schedule, sharded=True)))
    ]
    found = run(devices, cases, tmp_path) if cases else {}
    for case in cases:
        assert equal(found[case.name], single_process(case.stages, case.microbatches)), case.name
        COUNTS["families in PyTorch's runtime"]["answers"] += 1
