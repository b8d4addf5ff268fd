"""docs/pytorch.md: its code runs, also in PyTorch, and its commands write the same files."""

import re

import pytest
from command_line import ROOT, ppsim

PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
EXPORT, TRAINING, DEFERRED = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", [EXPORT, EXPORT + DEFERRED], ids=["early", "just-in-time"])
def test_pytorch_trains_with_the_file_that_the_page_writes(folder, code):
    pytest.importorskip("torch")
    exec(code, {})  # noqa: S102 - the page's own code
    (folder / "train.py").write_text(TRAINING)
    from pytorch_processes import run_script

    run_script(2, folder / "train.py")


def test_the_command_line_writes_the_same_files(folder):
    exec(EXPORT, {})  # noqa: S102 - the page's own code
    sizes = ("--schedule", "zb-v", "--devices", 2, "--microbatches", 4)
    ppsim("simulate", *sizes, "--csv", "own-schedule.csv", "--program", "own-program.csv", "--sharded")
    for name in ("schedule.csv", "program.csv"):
        assert (folder / f"own-{name}").read_text() == (folder / name).read_text()
    assert ppsim("validate", "program.csv", "schedule.csv", "--pytorch", "--transport", "rank").status == 0
