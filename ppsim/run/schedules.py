"""Schedule and Program with all methods for users, the families that build them, and `lower`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from ppsim.base.errors import (
    BuildError,
    ConfigError,
    DeadlockError,
    PpsimError,
    ScheduleError,
    UnknownNameError,
    listing,
)
from ppsim.base.files import write_atomically
from ppsim.base.immutable import as_class
from ppsim.base.rules import argument, checked_call, checked_methods, choice, described
from ppsim.base.tables import html_table
from ppsim.checks.faults import pytorch_faults, validate
from ppsim.checks.program_faults import crossed_transfers
from ppsim.costs.given import Costs
from ppsim.costs.table import CostModel
from ppsim.costs.tower_costs import EncoderTower
from ppsim.engines.running import run_plan
from ppsim.families import registry
from ppsim.families.encoder import add_encoder
from ppsim.lowering.posts import TRANSPORTS
from ppsim.lowering.program import ReceiveBuffers, find_receive_buffers, lower_schedule
from ppsim.lowering.rows import has_transfers
from ppsim.lowering.sharding import FULL, MAX_ACTIVE_STAGES, Window
from ppsim.plan.resolve import make_plan
from ppsim.plots.slot_table import MAX_TIMED, schedule_html, schedule_table
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.orders import csv_text, orders, read_csv, read_orders
from ppsim.schedule.recurrence import waiting_message
from ppsim.search import find_family, split_stages
from ppsim.search.memory_actions import add_copies, add_recomputes, build_with_memory_actions
from ppsim.timeline import TimelineColumns, timeline_of_plan


@checked_methods
class Schedule(ScheduleColumns):
    """Ordered actions per device; `ScheduleColumns` lists its columns. It contains no times and never changes."""

    @classmethod
    def of(cls, columns: ScheduleColumns) -> Schedule:
        """Return a Schedule with these columns, or a Program if they hold transfers or sharding actions."""
        if isinstance(columns, cls):
            return columns
        return as_class(Program if columns.is_program else cls, columns)

    @classmethod
    def from_orders(cls, orders: Iterable[Iterable[Any]], *, name: str = "custom", slices: int = 1) -> Schedule:
        """Read one list of action strings per device, or one line of them, such as "0F0 0F1 0B0 0B1".

        `None`, an empty string or an empty cell between commas is an idle slot. Objects whose `str()` is an action,
        such as PyTorch's actions, are legal too. Lists with transfers give a Program. Raises ScheduleError with device,
        position and text of every cell that is not an action.
        """
        return cls.of(read_orders(orders, name, slices))

    @classmethod
    def from_csv(cls, path: str | PathLike[str], *, name: str | None = None, slices: int = 1) -> Schedule:
        """Read a CSV file with one row per device and no header; an empty cell is an idle slot, rows may be ragged.

        Blank lines at the end are ignored. A blank line between rows is a device without actions, which `validate`
        reports. Lists with transfers give a Program. Raises ScheduleError with row, column (both 1-based) and cell of
        every fault, ConfigError if the file cannot be read.
        """
        return cls.of(read_csv(path, name, slices))

    def orders(self) -> list[list[str]]:
        """Return the list of action strings of each device, without idle slots."""
        return orders(self)

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write a CSV file atomically, one row per device; idle slots are empty cells, except in a program."""
        write_atomically(path, csv_text(self))

    def to_text(self) -> str:
        """Return a table of time slots and devices; each action appears once, and idle slots are kept."""
        return schedule_table(self, _slots(self))

    def to_html(self, theme: str | None = None) -> str:
        """Return the table that a notebook shows, as HTML, in the theme "light", "dark" or "grey".

        By default, it is light or dark as the page around it. A notebook shows the returned text as HTML. Raises
        ConfigError for another theme.
        """
        return schedule_html(self, _slots(self), theme)

    def _repr_html_(self) -> str:
        return self.to_html()

    def validate(self) -> None:
        """Raise ScheduleError with every fault found; return None if there is none.

        `error.faults` holds one sentence for each fault. A deadlock is shown as the cycle of waits (as a DeadlockError
        if it is the only fault).
        """
        validate(self)

    def check(self, transport: str | None = None, *, pytorch: bool = False) -> None:
        """Raise ScheduleError if the lists are valid but could not run; a schedule is lowered first.

        Each pair of devices must receive transfers in the order in which they are sent. ConfigError for an unknown
        transport.

        Parameters
        ----------
        transport : {"async", "directed", "directions", "pair", "rank", "blocking"}, optional
            Also check for deadlocks under it. If that is the only fault: a DeadlockError with the cycle of waits.
        pytorch : bool
            Also check the rules that PyTorch's runtime needs and does not check: each stage on one device, the last
            stage's forwards in microbatch order, a REDUCE_GRAD for each stage.
        """
        if transport is not None:
            argument("transport", transport, choice(*TRANSPORTS))
        validate(self)
        program = self if has_transfers(self) else lower_schedule(self, sharded=pytorch)
        faults = [*crossed_transfers(program), *(pytorch_faults(program) if pytorch else ())]
        if transport is not None:
            table = Costs().table(program.compute)  # no length changes whether a program deadlocks
            try:
                run_plan(make_plan(program, table, transport), "auto")
            except DeadlockError as deadlock:
                if not faults:
                    raise
                faults.append(waiting_message(f"it deadlocks under transport {transport!r}", deadlock.cycle))
        if faults:
            raise ScheduleError(listing(f"program {self.name!r} has {len(faults)} faults", faults), faults)


class Program(Schedule):
    """A schedule whose lists also hold transfers, sharding actions or copies to host memory."""

    @cached_property
    def schedule(self) -> Schedule:
        """Schedule of the compute actions alone."""
        return as_class(Schedule, self.compute)

    def receive_buffers(self, pool: str = "stage") -> ReceiveBuffers:
        """Return the buffers of all receives: how long each one lives, its slot, and each device's peak.

        Parameters
        ----------
        pool : {"stage", "direction", "device"}
            Buffers that share slots: those of one stage and direction of travel, of one direction, or of one device.

        Raises
        ------
        ScheduleError
            The program is invalid.
        ConfigError
            Unknown `pool`.
        """
        validate(self)
        return find_receive_buffers(self, pool)


def _slots(schedule: ScheduleColumns) -> np.ndarray | None:
    """Return the slot of each row if every action lasts one slot; None for programs, large and invalid schedules."""
    if schedule.is_program or len(schedule.kind) > MAX_TIMED:
        return None
    one = Costs(forward=1.0, backward=1.0, input_grad=1.0, weight_grad=1.0, overlap=1.0, per="stage")
    try:
        validate(schedule)
        table = one.table(schedule)
        run = timeline_of_plan(TimelineColumns, make_plan(schedule, table, "async"), table, one, "event")
    except PpsimError:
        return None
    return np.rint(run.row_start * schedule.slices).astype(np.int64)


@described
class Family(registry.RegisteredFamily):
    """A schedule family: its generator, closed forms and sources; docs/schedules.md has the notation."""

    def build(self, devices: int, microbatches: int, stages_per_device: int | None = None, **options: Any) -> Schedule:
        """Check the sizes and options, and build; BuildError names the rule that a size breaks."""
        return Schedule.of(self.columns(devices, microbatches, stages_per_device, **options))

    def __repr__(self) -> str:
        return f"<Family {self.name}: {self.title}>"

    def _repr_html_(self) -> str:
        texts = [(word.replace("_", " "), text) for word, text in self.describe().items()]
        first, *rows = ([cell.replace(">=", "≥").replace("<=", "≤") for cell in row] for row in texts)
        return html_table(first, rows)


class Families(dict[str, Family]):
    """Mapping of the name of each schedule family to its `Family`, in the order of docs/schedules.md.

    An unknown name raises a ConfigError that is a KeyError, and names similar ones.
    """

    def __getitem__(self, name: str) -> Family:
        try:
            return super().__getitem__(name)
        except (KeyError, TypeError):
            raise UnknownNameError(registry.unknown_family(name, [*self])) from None

    def __repr__(self) -> str:
        return f"<{len(self)} schedule families: {', '.join(list(self)[:8])}, ...>"


def schedules() -> Families:
    """Return every family by name, in the order of docs/schedules.md: a mapping name -> `Family`."""
    return Families({name: Family(**vars(known)) for name, known in registry.families().items()})


@checked_call()
def build(
    name: str,
    *,
    devices: int,
    microbatches: int,
    stages_per_device: int | None = None,
    recompute: str | None = None,
    recompute_placing: str = "backward",
    offload: str | None = None,
    costs: CostModel | None = None,
    memory_limit: float | Sequence[float] | None = None,
    **options: Any,
) -> Schedule:
    """Build a schedule of a family by name.

    Parameters
    ----------
    name : str
        A key of `ppsim.schedules()`; "interleaved-1f1b:4" also gives the stages per device.
    devices, microbatches : int
        Pipeline devices, and microbatches of one step (both directions counted).
    stages_per_device : int, optional
        Default: the family's number.
    recompute, recompute_placing, offload : str, optional
        Apply `with_recompute(stages=recompute, placing=recompute_placing)` or `with_offload(stages=offload)`.
    costs, memory_limit : optional
        For families that search, and for `with_recompute`. If the family searches within a limit, `recompute="needed"`
        returns the shorter of two schedules: one found within the limit, and one found without it that fits with R.
    **options
        The family's options, which `ppsim.schedules()[name].options` lists, such as `group_size=8`.

    Raises
    ------
    BuildError
        The name or an option is unknown, or the family does not allow a size; the message names the rule and the
        nearest legal values.
    """
    family_name, stages = split_stages(name)
    if None not in (stages, stages_per_device) and stages != stages_per_device:
        raise BuildError(f"{name}: stages_per_device={stages_per_device!r} is another number; give it once")
    family = find_family(family_name)
    sizes = devices, microbatches, stages_per_device if stages is None else stages
    given = {"costs": costs, "memory_limit": memory_limit}
    given = {key: value for key, value in given.items() if value is not None}
    options |= {key: value for key, value in given.items() if key in family.options or recompute is None}
    actions = {"recompute": recompute, "recompute_placing": recompute_placing, "offload": offload}
    return Schedule.of(build_with_memory_actions(family, sizes, options, actions, costs, memory_limit))


@checked_call()
def with_recompute(
    schedule: Schedule,
    stages: str = "all",
    *,
    placing: str = "backward",
    costs: CostModel | None = None,
    memory_limit: float | Sequence[float] | None = None,
) -> Schedule:
    """Return the schedule with R (the forward repeated from the stored input) for chosen activations.

    An R waits only for its forward, so it can run while its backward waits for a gradient. A step is never longer than
    with backwards that include the recompute; it is equally long if no backward waits for a gradient. A backward in one
    slot with its own F gets no R.

    Parameters
    ----------
    schedule : Schedule
        Without R, transfers, sharding actions and evictions.
    stages : {"all", "first:n", "needed"}
        All stages; the first n of each device, whose activations live longest; or as few activations as keep the
        schedule within `memory_limit`.
    placing : {"backward", "idle", "idle+forwards"}
        Directly before each backward; earlier, in idle time of the device (as RiPipe does); or also with forwards moved
        into idle time (as Mario does). The last two leave R out if a backward directly follows its forward, and never
        give a longer step than "backward".
    costs : Costs or another cost model, optional
        Costs that determine the idle time of devices. Default: F, I and W of a device share take 1 s each.
    memory_limit : float or one per device, optional
        Maximum live activations in device shares. Default for the placings in idle time: the peaks without R.

    Raises
    ------
    BuildError
        The lists hold other actions, recomputing cannot keep the limit, or a word is unknown.
    CostError
        The costs do not fit the schedule.
    """
    validate(schedule)
    return Schedule.of(add_recomputes(schedule, stages, placing, costs, memory_limit))


@checked_call()
def with_offload(schedule: Schedule, stages: str = "all") -> Program:
    """Return the schedule with an OFFLOAD after each F, and a RELOAD one backward before the backward that needs it.

    No copy splits a fused slot, and no RELOAD comes before its OFFLOAD: if the slot with the F also holds that earlier
    backward, the RELOAD comes directly before its own backward. A backward in one slot with its own F gets no copies.
    These are PipeOffload's copies (arXiv 2503.01328); `ppsim.build("pipe-offload", ...)` also has its order.

    Parameters
    ----------
    schedule : Schedule
        Without R, copies, transfers, sharding actions and evictions.
    stages : {"all", "first:n"}
        All stages, or the first n of each device, whose activations live longest.

    Raises
    ------
    BuildError
        The lists hold other actions, or `stages` is another text.
    """
    validate(schedule)
    return as_class(Program, add_copies(schedule, stages))


@checked_call()
def with_encoder(schedule: Schedule, encoder: EncoderTower) -> Schedule:
    """Return the schedule with an encoder's stages before its own, for costs of `ppsim.costs.TowerCosts`.

    The encoder's stages get the first numbers. On devices of its own, which come first too, it runs 1F1B: before each
    backward as many forwards as the schedule's first stage needs by then, and one for each encoder stage from there on.
    In `phases`, each device of the schedule forwards its part of the microbatches, runs its list, and then the
    backwards of that part. With placement `first`, the first stage's device runs the encoder around that stage.

    Parameters
    ----------
    schedule : Schedule
        Without transfers, slices and several steps; in one direction, if the encoder has devices of its own.
    encoder : EncoderTower
        A `ppsim.costs.EncoderTower`: its stages, copies and how it runs.

    Raises
    ------
    BuildError
        The schedule has no room for such an encoder; the message names the reason.
    """
    validate(schedule)
    combined = add_encoder(schedule, encoder)
    validate(combined)
    return Schedule.of(combined)


@checked_call()
def lower(
    schedule: Schedule,
    sharded: bool = False,
    receive: str = "early",
    *,
    max_active_stages: int = MAX_ACTIVE_STAGES,
    look_ahead: str | int | Sequence[int] = FULL,
) -> Program:
    """Return the program of a schedule, in the order of PyTorch's pipeline runtime.

    A SEND and a RECV are inserted if producer and consumer are on different devices.

    Parameters
    ----------
    schedule : Schedule or Program
        Other actions of a program than compute actions, OFFLOAD and RELOAD are ignored.
    sharded : bool
        Also insert the actions of sharded data parallelism: UNSHARD before a stage's use, RESHARD when the stage is not
        among the next ones, and REDUCE_GRAD after a stage's last backward.
    receive : {"early", "just-in-time"}
        Post a RECV together with its SEND, or as late as possible: directly before the action that needs it, unless the
        order of the pair's SENDs requires an earlier RECV. The latter is PyTorch's `defer_pp_recv=True`, if that does
        not cross receives.
    max_active_stages : int
        Stages of a device that hold whole weights: a stage is resharded when it is not among this many next ones.
    look_ahead : {"full", "auto"}, int, or one int per device
        A stage is unsharded when it is among this many next stages of its device. "full": `max_active_stages`; "auto":
        min(device + 2, `max_active_stages`).

    Raises
    ------
    ScheduleError
        The schedule is invalid.
    DeadlockError
        The two parts of a fused slot wait for each other through another device.
    ConfigError
        Unknown `receive`; invalid `max_active_stages` or `look_ahead`, or one of them without `sharded`.
    """
    if not isinstance(schedule, ScheduleColumns):
        raise ConfigError(f"lower takes a Schedule or a Program, not {type(schedule).__name__}; see ppsim.build")
    validate(schedule)
    return as_class(Program, lower_schedule(schedule, sharded, receive, Window(max_active_stages, look_ahead)))
