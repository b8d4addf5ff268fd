"""Default outputs: each fits one screen of 24 lines and 100 columns on the catalogue's first config."""

import pytest
from command_line import LLAMA, ROOT, ppsim

RECORDED = ROOT / "validation" / "data" / "cpu" / "sleep"
COMMANDS = {
    "evaluate": (
        (RECORDED / "1f1b.json", RECORDED / "gpipe.json", "--profile", RECORDED / "profile.yaml"),
        "held-out runs: ",
    ),
    "sweep": ((LLAMA, "--over", "schedule.name=1f1b,zb-h1", "--over", "schedule.microbatches=8,16"), "best that fits"),
    "hardware": ((), "device"),
    "import": (("megatron", ROOT / "docs" / "howto" / "gpt3-175b.sh", "-o", "job.yaml"), "job.yaml: TP 8"),
    "what-if": ((LLAMA, "--set", "schedule.microbatches=64"), "the step is 88 % longer"),
    "what-if --slow": ((LLAMA, "--slow", "2=1.2", "--schedule", "1f1b,zb-h1,dualpipe"), "device 2 takes 1.2 times"),
    "optimum": ((LLAMA, "--set", "schedule.microbatches=4", "--time-limit", 1), ""),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_of_a_command_comes_first_and_fits_one_screen(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, first = COMMANDS[name]
    outcome = ppsim(name.split()[0], *arguments)
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith(first)
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True), outcome.out
