"""Every family that the check for PyTorch lets through gives a single process's gradients in PyTorch's runtime."""

import pytest

import ppsim
from tests.fuzz.cases import COUNTS

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


@pytest.mark.slow  # test_pytorch_runtime.py runs five families, and what `auto` finds, in every run of the tests
@pytest.mark.parametrize("devices", [2, 4])
def test_families_that_pass_the_check_run_in_pytorch(devices, tmp_path):
    cases = [
        as_case(f"{name}-{form}", schedule, tmp_path, form)
        for name, schedule in runnable(list(ppsim.schedules()), devices, 2 * devices)
        for form, schedule in (("compute_only", schedule), ("compute_comms", ppsim.lower(schedule, sharded=True)))
    ]
    found = run(devices, cases, tmp_path)
    for case in cases:
        assert equal(found[case.name], single_process(case.stages, case.microbatches)), case.name
        COUNTS["families in PyTorch's runtime"]["answers"] += 1
