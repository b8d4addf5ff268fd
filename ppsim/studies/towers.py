"""Layouts of an encoder and a backbone: every encoder is tried beside the backbone's fastest layouts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ppsim.analysis.memory import usable_bytes
from ppsim.base.errors import ConfigError, shown
from ppsim.config import ConfigSource, value_at
from ppsim.studies.free_keys import DEVICES, Changes
from ppsim.studies.points import Candidate, rank

PLACEMENT, STAGES, COPIES, PASS = (f"encoder.{name}" for name in ("placement", "stages", "copies", "batch"))
PREFETCH, TENSOR, DATA = "encoder.prefetch", "encoder.layout.tensor", "encoder.layout.data"
ENCODER_SIZES = (STAGES, COPIES, TENSOR, DATA)  # their product is the encoder's GPUs
# Values of each key; the first one is that of a config that leaves it out.
VALUES: Mapping[str, tuple[Any, ...]] = {
    PLACEMENT: ("separate", "phases", "first"),
    STAGES: (1, 2, 4),
    COPIES: (1, 2, 4),
    PASS: (1, 2, 4, 8),
    PREFETCH: (0, 2),
    TENSOR: (1, 2, 4, 8),
    DATA: (1, 2, 4, 8, 16, 32, 64),
}
KEPT = 6  # encoders that are tried beside every ranked layout of the backbone; all are tried beside the fastest
NAME = "schedule.name"
ONE_PIPELINE = "1f1b"  # the schedule of Megatron-LM's pipelines of several towers; beside `first` any schedule runs

Keys = Iterable[str] | Mapping[str, Iterable[Any]] | None


def split_keys(given: Keys) -> tuple[dict[str, list[Any] | None], Any]:
    """Return the free keys of the encoder, with their values or None, and those of the backbone as they were given.

    Raises ConfigError for a key of the encoder that cannot be free.
    """
    if given is None:
        return {}, None
    values = given if isinstance(given, Mapping) else dict.fromkeys([given] if isinstance(given, str) else given)
    own = {
        key: None if value is None else list(value) for key, value in values.items() if str(key).startswith("encoder.")
    }
    if unknown := [key for key in own if key not in VALUES]:
        raise ConfigError(f"free: {shown(unknown[0])} cannot be free; use some of: {', '.join(VALUES)}")
    rest = {key: value for key, value in values.items() if key not in own}
    return own, rest if isinstance(given, Mapping) else list(rest)


def encoder_size(data: Mapping[str, Any], changes: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key of the encoder in a config with changes."""
    return changes.get(key, value_at(data, key) or VALUES[key][0])


@dataclass(frozen=True)
class TowerSpace:
    """Free keys of an encoder, and what is free of its backbone.

    Attributes
    ----------
    source : ConfigSource
        The config of both towers; it may lack keys.
    gpus : int
        GPUs of both towers; 0 if the config gives their costs without a model.
    values : mapping of dotted key to list
        Values of the encoder's free keys.
    free, only : as in `choose`
        Free keys of the backbone.
    any_schedule : bool
        If the backbone beside a separate encoder, or one in phases, may have another schedule than `ONE_PIPELINE`.
    first_only : bool
        If the framework runs no other placement than `first`.
    """

    source: ConfigSource
    gpus: int
    values: Mapping[str, list[Any]]
    free: Any
    only: Mapping[str, Iterable[Any]]
    any_schedule: bool
    first_only: bool

    @classmethod
    def of(cls, source: ConfigSource, free: Keys, only: Keys, framework: str | None, research: bool) -> TowerSpace:
        """Return the space; without `free`, all keys of the encoder that the config leaves out are free.

        Given costs are of one encoder, so that none of its keys is free unless it is named.
        """
        (own, rest), (limited, others) = split_keys(free), split_keys(only)
        frees = VALUES if free is None and source.data.get("model") is not None else ()
        left_out = {key: None for key in frees if value_at(source.data, key) is None}
        wanted = left_out | own | limited
        if not value_at(source.data, "encoder.frozen"):
            wanted.pop(PREFETCH, None)  # a trained encoder waits for its new weights
        gpus = value_at(source.data, "hardware.gpus")
        if gpus is None:
            config = source.config()
            workload = config.costs.table(config.build()).workload
            gpus = workload.gpus if workload else 0
        values = {key: given or list(VALUES[key]) for key, given in wanted.items()}
        named = value_at(source.data, NAME) is not None or NAME in (rest or ()) or NAME in (others or ())
        first_only = framework not in (None, "Megatron-LM")
        return cls(source, gpus, values, rest, others or {}, named or research, first_only)

    def encoders(self) -> Iterator[tuple[Changes, int]]:
        """Yield the keys of each encoder, and the GPUs that it leaves: at least half of them.

        An encoder on the backbone's devices has one stage and no copies; its data-parallel copies follow.
        """
        context = value_at(self.source.data, "encoder.layout.context") or 1
        gpus = self.gpus - self._gpus_of_another()
        for chosen in itertools.product(*self.values.values()):
            encoder = dict(zip(self.values, chosen, strict=True))
            size = {key: encoder_size(self.source.data, encoder, key) for key in VALUES}
            own = math.prod(size[key] for key in ENCODER_SIZES) * context
            if size[PLACEMENT] != "first" and self.first_only:
                continue
            if size[PLACEMENT] == "separate":
                if 2 * own <= gpus or not self.gpus:
                    yield encoder, max(gpus - own, 0)
                continue
            once = encoder.pop(DATA, None) in (None, self.values.get(DATA, (None,))[0])
            if once and (size[STAGES], size[COPIES], size[PREFETCH]) == (1, 1, 0):
                yield encoder, max(gpus, 0)

    def _gpus_of_another(self) -> int:
        """Return the GPUs of a further encoder, whose keys are not free."""
        section = value_at(self.source.data, "encoder.another") or {}
        if not section or section.get("placement", "separate") != "separate":
            return 0
        layout = section.get("layout") or {}
        return section.get("stages", 1) * math.prod(layout.get(key, 1) for key in ("tensor", "context", "data"))

    def joined(self, encoder: Changes, backbone: Candidate, gpus: int) -> Changes:
        """Return the changes of both towers, if the backbone has so many GPUs."""
        if DATA in self.values and DATA not in encoder:
            devices = backbone.changes.get(DEVICES, value_at(self.source.data, DEVICES))
            encoder = {**encoder, DATA: max(gpus // devices // encoder_size(self.source.data, encoder, TENSOR), 1)}
        return {**backbone.changes, **encoder}

    def backbone(self, gpus: int, placement: str) -> tuple[ConfigSource, Any, Mapping[str, Iterable[Any]]]:
        """Return the config without the encoder on a number of GPUs, with its free keys and those with few values."""
        only = self.only
        if placement != "first" and not self.any_schedule:
            only = {**only, NAME: [ONE_PIPELINE]}
        changes = {"encoder": None, "hardware.gpus": gpus} if self.gpus else {"encoder": None}
        return self.source.changed(changes), self.free, only


@dataclass
class TowerSearch:
    """Search over both towers.

    The backbone's step alone is a lower bound on the step of both: an encoder only adds work and waits. So if the
    fastest backbone of a size alone is slower than the last ranked point, its encoders are skipped.

    Attributes
    ----------
    space : TowerSpace
    headroom : float
    top : int
        Number of ideas to rank.
    measured : function
        Simulates points of both towers.
    fitting, too_large : list of Candidate
    counts, left_out, batch, values
        As in `ppsim.studies.choose.Choice` and its space.
    refusal : str
        A rule that refused a point.
    """

    space: TowerSpace
    headroom: float
    top: int
    measured: Callable[[list[Changes]], Iterable[Candidate]]
    fitting: list[Candidate] = field(default_factory=list)
    too_large: list[Candidate] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=lambda: Counter(points=0, simulated=0, memory=0, step=0, refused=0))
    left_out: list[Changes] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)
    batch: int = 0
    limit: float = np.inf
    refusal: str = "use more GPUs or more free keys"

    def run(self, alone: Callable[..., Any]) -> None:
        """Search; `alone` is `choose` for a backbone."""
        groups: dict[tuple[int, bool], list[Changes]] = {}
        for encoder, gpus in self.space.encoders():
            placement = encoder_size(self.space.source.data, encoder, PLACEMENT)
            groups.setdefault((gpus, placement == "first"), []).append(encoder)
        backbones: dict[tuple[int, bool], list[Candidate]] = {}
        for gpus, is_first in groups:
            source, free, only = self.space.backbone(gpus, "first" if is_first else "separate")
            found = alone(source, free, only=only)
            backbones[gpus, is_first] = sorted(found.ranked, key=lambda one: one.expected)
            self.counts.update(found.counts)
            self.left_out += found.left_out
            self.batch = found.space.batch
            for key, values in found.space.values.items():
                self.values[key] = [*dict.fromkeys([*self.values.get(key, []), *values])]
            if found.space.config.derived:
                self.limit = usable_bytes(found.space.config.derived.cluster.device.capacity, self.headroom)
        for key in sorted(filter(backbones.get, groups), key=lambda key: backbones[key][0].expected):
            self._try(groups[key], backbones[key], key[0])

    def _try(self, encoders: list[Changes], backbones: list[Candidate], gpus: int) -> None:
        last = rank(self.fitting, self.top)[self.top - 1 :]
        if last and last[0].expected < backbones[0].expected:
            self.counts.update(points=len(encoders), step=len(encoders))
            return
        found = self._simulated([(encoder, backbones[0]) for encoder in encoders], gpus)
        order = sorted(found, key=lambda index: (found[index].memory > self.limit, found[index].rank))
        kept = [encoders[index] for index in order[:KEPT]]
        self._simulated([*itertools.product(kept, backbones[1:])], gpus)

    def _simulated(self, pairs: list[tuple[Changes, Candidate]], gpus: int) -> dict[int, Candidate]:
        """Simulate pairs of an encoder and a backbone; return those that are legal, by their index."""
        found: dict[int, Candidate] = {}
        measured = self.measured([self.space.joined(*pair, gpus) for pair in pairs])
        for index, (one, (_, backbone)) in enumerate(zip(measured, pairs, strict=True)):
            if one.measures is None:
                self.refusal = str(one.refused)
                continue
            found[index] = one = replace(one, stragglers=backbone.stragglers)
            fits = one.numbers["peak_memory"] is None or one.memory <= self.limit
            (self.fitting if fits else self.too_large).append(one)
        self.counts.update(points=len(pairs), simulated=len(found), refused=len(pairs) - len(found))
        return found
