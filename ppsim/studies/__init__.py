"""Questions that take many runs, or a run and a document: compare, what-if, gate, fits, optimum, calibration."""

from ppsim.studies.calibration import calibrate, predict
from ppsim.studies.evaluation import evaluate
from ppsim.studies.gate import (
    Limits,
    Tolerance,
    check_configs,
    document,
    findings_text,
    judge,
    junit_report,
    markdown_report,
    measured,
    read_baseline,
    update_baseline,
    write_baseline,
)
from ppsim.studies.points import Candidate, run_points
from ppsim.studies.recipe import config_yaml, megatron_flags, torchtitan_flags
from ppsim.studies.what_if import Change, break_even, changes, failed, rerouted, slowed
from ppsim.studies.worker_pool import SlurmJobs, dask_executor

__all__ = [
    "Candidate",
    "Change",
    "Limits",
    "SlurmJobs",
    "Tolerance",
    "break_even",
    "calibrate",
    "changes",
    "check_configs",
    "config_yaml",
    "dask_executor",
    "document",
    "evaluate",
    "failed",
    "findings_text",
    "judge",
    "junit_report",
    "markdown_report",
    "measured",
    "megatron_flags",
    "predict",
    "read_baseline",
    "rerouted",
    "run_points",
    "slowed",
    "torchtitan_flags",
    "update_baseline",
    "write_baseline",
]
