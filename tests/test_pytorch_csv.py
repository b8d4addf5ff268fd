"""CSV files pass both ways between ppsim and torch.distributed.pipelining, with and without transfers."""

import pytest

import ppsim

pytest.importorskip("torch")

from pytorch_stages import multi_stage, runtime, texts

FORMATS = ("compute_only", "compute_comms")
TWO_COPIES, SLICES = "PyTorch runs each stage on one device", "PyTorch knows whole microbatches only"
REFUSED = {
    **dict.fromkeys(("dualpipe", "chimera", "bitpipe", "gems"), TWO_COPIES),
    **dict.fromkeys(("seq1f1b", "terapipe", "seq1f1b-i", "slimpipe", "seq1f1b-zb"), SLICES),
    **dict.fromkeys(("ripipe", "mario"), "knows no R"),
    "pipe-offload": "knows no OFFLOAD",
    "bpipe": "'bpipe' has 6 activations that are evicted to other devices",
    "pipedream": "'pipedream' has 3 training steps in one list and up to 4 versions of the weights",
    "pipedream-2bw": "'pipedream-2bw' has 3 training steps in one list and up to 2 versions of the weights",
    "vocab-1f1b": "knows no S",
}
THEIRS = ("ScheduleLoopedBFS", "ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble",
          "ScheduleDualPipeV")  # fmt: skip


@pytest.mark.parametrize("name", ppsim.schedules())
def test_pytorch_loads_every_family_or_the_check_says_why_not(name, tmp_path):
    schedule = ppsim.build(name, devices=4, microbatches=12)
    program = ppsim.lower(schedule, sharded=True)
    if name in REFUSED:
        with pytest.raises(ppsim.ScheduleError, match=REFUSED[name]):
            program.check(pytorch=True)
        return
    program.check(pytorch=True)
    schedule.to_csv(tmp_path / "compute_only.csv")
    program.to_csv(tmp_path / "compute_comms.csv")
    for form in FORMATS:
        loaded = runtime(schedule)
        loaded._load_csv(str(tmp_path / f"{form}.csv"), format=form)
        assert texts(loaded.pipeline_order_with_comms) == program.orders()


@pytest.mark.parametrize("name", THEIRS)
def test_we_read_what_pytorch_writes(name, tmp_path):
    theirs = multi_stage(name, 4, 8, 2)
    for form in FORMATS:
        theirs._dump_csv(str(tmp_path / f"{form}.csv"), format=form)
    schedule = ppsim.Schedule.from_csv(tmp_path / "compute_only.csv")
    assert not schedule.is_program
    assert schedule.orders() == texts(theirs.pipeline_order)
    program = ppsim.Schedule.from_csv(tmp_path / "compute_comms.csv")
    program.check("rank", pytorch=True)
    assert program.orders() == texts(theirs.pipeline_order_with_comms)
    assert program == ppsim.lower(schedule, sharded=True)


def test_idle_slots_pass_in_schedules_and_stay_out_of_programs(tmp_path):
    theirs = multi_stage("ScheduleInterleaved1F1B", 2, 4, 2)
    theirs._dump_csv(str(tmp_path / "theirs.csv"), format="compute_only")
    schedule = ppsim.Schedule.from_csv(tmp_path / "theirs.csv")
    schedule.to_csv(tmp_path / "ours.csv")
    assert (tmp_path / "ours.csv").read_text() == (tmp_path / "theirs.csv").read_text()
    cells = [[*row, None] for row in ppsim.lower(schedule).orders()]
    program = ppsim.Schedule.from_orders(cells)
    program.to_csv(tmp_path / "program.csv")
    runtime(schedule)._load_csv(str(tmp_path / "program.csv"), format="compute_comms")


def test_pytorchs_own_actions_are_taken_as_orders():
    theirs = multi_stage("ScheduleDualPipeV", 2, 4, 2)
    orders = [theirs.pipeline_order_with_comms[rank] for rank in range(2)]
    assert ppsim.Schedule.from_orders(orders).orders() == texts(theirs.pipeline_order_with_comms)
