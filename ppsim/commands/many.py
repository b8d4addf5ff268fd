"""What commands that simulate many points share: who works, where results are kept, and how to go on when stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError
from ppsim.commands.case import settings_of
from ppsim.commands.reporting import INTERRUPTED, say

StoreFile = Annotated[
    Path | None, typer.Option("--store", metavar="FILE", help="Keep results in an SQLite file; a stopped run goes on.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Processes. [default: one a processor]")
]
Dask = Annotated[
    str | None, typer.Option("--dask", metavar="ADDRESS", help="Run on the Dask cluster with this scheduler.")
]
Slurm = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="Run on Slurm with a parameter of submitit. Repeatable."),
]


@contextmanager
def crew(
    workers: int | None, dask: str | None, slurm: Sequence[str] | None, store: Path | None
) -> Iterator[Executor | None]:
    """The cluster that was asked for, None for this machine; an interrupt ends in a sentence that says how to go on."""
    if sum(map(bool, (workers, dask, slurm))) > 1:
        raise ConfigError("--workers, --dask and --slurm say who works; give one of them")
    executor = _cluster(dask, slurm)
    try:
        yield executor
    except KeyboardInterrupt:
        if store is None:
            say("ppsim: stopped; with --store FILE results are kept, and the same command goes on from there")
        else:
            say(f"ppsim: stopped; results so far are kept in {store}: give the same command again to go on from there")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if executor is not None:
            executor.shutdown(wait=False)


def _cluster(dask: str | None, slurm: Sequence[str] | None) -> Executor | None:
    if not (dask or slurm):
        return None
    from ppsim.base.documents import read_yaml
    from ppsim.studies.worker_pool import SlurmJobs, dask_executor

    given = {key: read_yaml(text, f"--slurm {key}").value for key, text in settings_of(slurm, "--slurm").items()}
    return dask_executor(dask) if dask else SlurmJobs(given)
