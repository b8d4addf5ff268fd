"""Questions that take many runs, or a run and a document: compare, what-if, gate, fits, optimum, calibration."""

from ppsim.studies.calibration import calibrate, predict
from ppsim.studies.evaluation import evaluate
from ppsim.studies.gate import (
    Tolerance,
    check_configs,
    config_findings,
    document,
    findings_text,
    gate_numbers,
    junit_report,
    markdown_report,
    parse_limits,
    read_baseline,
    update_baseline,
    write_baseline,
)
from ppsim.studies.packed_steps import packed_steps
from ppsim.studies.points import Candidate, run_points
from ppsim.studies.step_calibration import calibrated_config, fit_constants
from ppsim.studies.store import RESULTS, Store, store_key
from ppsim.studies.what_if import break_even, changes, failed_device_losses, known_change, rerouted, slow_device_losses
from ppsim.studies.worker_pool import JobRunner, SlurmJobs, dask_executor

__all__ = [
    "RESULTS", "Candidate", "JobRunner", "SlurmJobs", "Store", "Tolerance", "break_even", "calibrate",
    "calibrated_config", "changes", "check_configs", "config_findings", "dask_executor", "document", "evaluate",
    "failed_device_losses", "findings_text", "fit_constants", "gate_numbers", "junit_report", "known_change",
    "markdown_report", "packed_steps", "parse_limits", "predict", "read_baseline", "rerouted", "run_points",
    "slow_device_losses", "store_key", "update_baseline", "write_baseline",
]  # fmt: skip
