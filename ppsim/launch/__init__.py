"""Launch files of frameworks: from a config to its script or job file, and from such a file to a config."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ppsim.base.errors import ConfigError, PpsimError, shown
from ppsim.base.rules import argument, checked_call, whole_number
from ppsim.config import AnyConfig, Config, as_config, value_at
from ppsim.costs.derive import DerivedCosts
from ppsim.frameworks import (
    DEFAULT,
    LAUNCH_OPTIONS,
    SCHEDULES_OF_LAUNCH,
    SEARCHED_LAYOUTS,
    framework,
    frameworks_running,
    megatron,
    primus,
    spellings,
)
from ppsim.launch.megatron_model import model_flags
from ppsim.launch.megatron_script import from_text, megatron_faults, script_flags, script_text
from ppsim.launch.primus_experiment import (
    experiment_keys,
    experiment_text,
    from_experiment,
    model_keys,
    primus_faults,
)
from ppsim.launch.reading import Launch, Reading, Rejects, cannot_run
from ppsim.launch.torchtitan_job import job_flags, job_text, torchtitan_faults
from ppsim.launch.torchtitan_reading import from_job
from ppsim.schedule.columns import ScheduleColumns


class Launcher(NamedTuple):
    """Functions of one framework: config to flags and launch file, and launch file to config."""

    schedules: Sequence[str]  # that it runs; empty if it runs the lists of a CSV file
    faults: Rejects
    flags: Callable[[Launch, str], list[str]]  # of a version, once they read back as the job
    of_model: Callable[[Launch, str], Iterable[str]]  # the flags among them that the model alone gives
    text: Callable[[Launch, str, list[str]], str]  # the launch file of a job with the flags of a version
    read: Callable[[str, int | None], Reading]


FRAMEWORKS: Mapping[str, Launcher] = {
    "Megatron-LM": Launcher(megatron.LAUNCHED, megatron_faults, script_flags, model_flags, script_text, from_text),
    "torchtitan": Launcher((), torchtitan_faults, job_flags, lambda job, version: (), job_text, from_job),
    "Primus": Launcher(primus.SCHEDULES, primus_faults, experiment_keys, model_keys, experiment_text, from_experiment),
}


def launch_faults(costs: object, schedule: ScheduleColumns, microbatches: int, runners: Collection[str]) -> list[str]:
    """Return why none of `runners` launches a schedule; empty if one of them does, or if no framework runs it.

    `runners` are names in SCHEDULES.
    """
    if not isinstance(costs, DerivedCosts) or not runners:
        return []
    running = frameworks_running(schedule.name, costs.model.experts > 0)
    if not running:
        return []
    found = list[str]()
    for name, runner in SCHEDULES_OF_LAUNCH.items():
        if runner in running and runner in runners:
            faults = list(FRAMEWORKS[name].faults(costs, schedule, microbatches))
            if not faults:
                return []
            found.append(f"{name} cannot run this config: {'; '.join(faults)}")
    return found or [f"{' and '.join(runners)} do not run {schedule.name}"]


def own_framework(config: Config) -> str | None:
    """Return the framework with launch files that a config names, also by a part such as megatron-core, or None."""
    named = str(value_at(config.data, "layout.framework") or "").lower()
    return next((name for name in FRAMEWORKS if named.startswith(name.lower().removesuffix("-lm"))), None)


def named_framework(config: Config) -> str:
    """Return the framework whose policies price a config: one of `FRAMEWORKS`, or one without launch files."""
    facts = framework(value_at(config.data, "layout.framework") or DEFAULT).facts.name
    names = ((name, SEARCHED_LAYOUTS[runner].policies) for name, runner in SCHEDULES_OF_LAUNCH.items())
    return next((name for name, policies in names if facts.lower() in (policies, name.lower())), facts)


def step_of_launch(config: Config, name: str) -> float:
    """Return the seconds of a step of a framework's launch file of a config, with the policies of this framework."""
    policies = SEARCHED_LAYOUTS[SCHEDULES_OF_LAUNCH[name]].policies
    return from_launch(name, to_launch(config, name)).changed({"layout.framework": policies}).simulate().iteration_time


def flags_in(name: str, config: Config) -> list[str] | PpsimError:
    """Return a framework's flags for a config, or the error if it has no launch file for it."""
    return flags_by_framework(config, [name])[name]


def flags_by_framework(config: Config, names: Iterable[str] = ()) -> dict[str, list[str] | PpsimError]:
    """Return `flags_in` each framework, or in these; the config's own is first."""
    own, job, found = own_framework(config), Launch(config), dict[str, list[str] | PpsimError]()
    for name in names or sorted(FRAMEWORKS, key=lambda name: name != own):
        try:
            found[name] = _flags(name, job, LAUNCH_OPTIONS[name]["version"])
        except PpsimError as error:
            found[name] = error
    return found


def flags_of_layout(name: str, config: Config, flags: Iterable[str]) -> list[str]:
    """Return those of a framework's flags of a config that its model alone does not give."""
    of_model = {*FRAMEWORKS[name].of_model(Launch(config), LAUNCH_OPTIONS[name]["version"])}
    return [flag for flag in flags if flag not in of_model]


def launched_by(config: Config) -> list[str]:
    """Return the names in SCHEDULES of the frameworks that have a launch file of a config."""
    found = flags_by_framework(config)
    return [SCHEDULES_OF_LAUNCH[name] for name, flags in found.items() if isinstance(flags, list)]


def _flags(name: str, job: Launch, version: str) -> list[str]:
    """Return the flags of a framework; ConfigError names why it cannot run the job."""
    launcher, family = FRAMEWORKS[name], job.given.schedule.get("name")
    if not isinstance(job.given.costs, DerivedCosts):
        if job.given.derived:
            raise ConfigError(f"{name}: ppsim writes no flags for an encoder and its backbone")
        raise ConfigError(f"{name} needs sections model and hardware; this config gives costs without a model")
    if launcher.schedules and family not in launcher.schedules:  # before its lists are built, which may take a search
        known = ", ".join(launcher.schedules)
        raise ConfigError(f"{name} cannot run schedule.name={family or 'of a CSV'}: it runs {known}")
    cannot_run(name, [*launcher.faults(job.costs, job.schedule, job.schedule.microbatches)])
    return launcher.flags(job, version)


@checked_call()
def to_launch(config: AnyConfig, framework: str) -> str:
    """Return the text that launches a config in a framework.

    A script of Megatron-LM is read back before it is returned: it has the config's model, groups, stages and order.

    Parameters
    ----------
    config : path, dict or Config
        Its costs come from a model.
    framework : str
        "Megatron-LM": a bash script for pretrain_gpt.py, or for pretrain_hybrid.py if the model has a pattern.
        "torchtitan": one for torchtitan.train; the model's own config is a variable in it, unless torchtitan has the
        model.
        "Primus": the YAML of an experiment. A version may follow each name, as in "Megatron-LM core 0.16.1".

    Raises
    ------
    ConfigError
        The framework cannot run the config; the message names each reason and what to change.
    """
    name, version = _framework(framework)
    job = Launch(as_config(config))
    return FRAMEWORKS[name].text(job, version, _flags(name, job, version))


@checked_call()
def from_launch(
    framework: str, text: str, *, gpus: int | None = None, hardware: Mapping[str, Any] | None = None
) -> Config:
    """Return the config of what a user runs.

    Parameters
    ----------
    framework : str
        "Megatron-LM", "torchtitan" or "Primus".
    text : str
        A launch script, its flags alone, the TOML of a torchtitan job, or the YAML of an experiment of Primus. Nothing
        in it is run.
    gpus : int, optional
        GPUs of the job, if the text does not say.
    hardware : mapping, optional
        Keys of the section `hardware`, of which a script says nothing. Default: H100 SXM with NVLink 4 and
        InfiniBand, or MI300X for Primus.

    Raises
    ------
    ConfigError
        A flag that is needed is missing, or has a value that cannot be read.
    """
    return read_launch(framework, text, gpus=gpus).config(hardware)


def read_launch(framework: str, text: str, *, gpus: int | None = None) -> Reading:
    """Return the config's sections with what was left out, assumed and not understood; errors as `from_launch`."""
    if not isinstance(text, str):
        raise ConfigError(f"text={shown(text)} must be the text of a launch script, not its path")
    if gpus is not None:
        argument("gpus", gpus, whole_number())
    return FRAMEWORKS[_framework(framework)[0]].read(text, gpus)


def _framework(text: str) -> tuple[str, str]:
    """Return a framework and the version of `NAME` or `NAME VERSION`; without one, the version it prints for."""
    known = spellings({one: one for one in FRAMEWORKS})
    first, _, version = text.strip().partition(" ") if isinstance(text, str) else ("", "", "")
    if first.lower() not in known:
        raise ConfigError(f"framework {shown(text)} has no launch files here; use one of: {', '.join(FRAMEWORKS)}")
    record = LAUNCH_OPTIONS[name := known[first.lower()]]
    versions = {one.removeprefix("core "): one for one in (record["version"], *record["others"])}
    given_version = version.strip().removeprefix("core ") or next(iter(versions))
    if given_version not in versions:
        raise ConfigError(f"framework {shown(text)}: its options are known for {', '.join(versions)}; use one of these")
    return name, versions[given_version]
