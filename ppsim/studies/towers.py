"""Layouts of an encoder and a backbone: every encoder is simulated with the backbone's fastest layouts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.config import ConfigSource, value_at
from ppsim.frameworks import ENCODER_SCHEDULES
from ppsim.studies.free_keys import Changes, Key
from ppsim.studies.points import RANKED, Candidate, rank, run_points


class EncoderKey:
    """Dotted keys of an encoder that `choose` can free."""

    PLACEMENT, STAGES, COPIES = "encoder.placement", "encoder.stages", "encoder.copies"
    PASS, PREFETCH = "encoder.batch", "encoder.prefetch"
    TENSOR, DATA = "encoder.layout.tensor", "encoder.layout.data"


# Their product is the encoder's GPUs.
ENCODER_SIZES = (EncoderKey.STAGES, EncoderKey.COPIES, EncoderKey.TENSOR, EncoderKey.DATA)
# Values of each key; the first one is that of a config that leaves it out.
VALUES: Mapping[str, tuple[Any, ...]] = {
    EncoderKey.PLACEMENT: ("separate", "phases", "first"),
    EncoderKey.STAGES: (1, 2, 4),
    EncoderKey.COPIES: (1, 2, 4),
    EncoderKey.PASS: (1, 2, 4, 8),
    EncoderKey.PREFETCH: (0, 2),
    EncoderKey.TENSOR: (1, 2, 4, 8),
    EncoderKey.DATA: (1, 2, 4, 8, 16, 32, 64),
}
MAX_ENCODERS = 6  # encoders that are simulated with every ranked layout of the backbone; all with the fastest layout
NAME = "schedule.name"
# With an encoder in the first stage any schedule runs, with another placement these.
SCHEDULES_WITH_ENCODER = tuple(dict.fromkeys(itertools.chain(*ENCODER_SCHEDULES.values())))

Keys = Iterable[str] | Mapping[str, Iterable[Any]] | None


def split_keys(given: Keys) -> tuple[dict[str, list[Any] | None], Any]:
    """Return the free keys of the encoder, with their values or None, and those of the backbone as they were given.

    Raises ConfigError for a key of the encoder that cannot be free.
    """
    if given is None:
        return {}, None
    values = given if isinstance(given, Mapping) else dict.fromkeys([given] if isinstance(given, str) else given)
    own = {key: None if one is None else list(one) for key, one in values.items() if str(key).startswith("encoder.")}
    if unknown := [key for key in own if key not in VALUES]:
        raise ConfigError(f"free: {shown(unknown[0])} cannot be free; use some of: {', '.join(VALUES)}")
    rest = {key: value for key, value in values.items() if key not in own}
    return own, rest if isinstance(given, Mapping) else list(rest)


def encoder_size(data: Mapping[str, Any], changes: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key of the encoder in a config with changes."""
    return changes.get(key, value_at(data, key) or VALUES[key][0])


@dataclass
class TowerSearch:
    """Search over an encoder and its backbone.

    The backbone's step alone is a lower bound on the step of both: an encoder only adds work and waits. So if the
    fastest backbone of a size alone is slower than the last ranked point, its encoders are skipped.
    """

    source: ConfigSource  # the config of both towers; it may lack keys
    gpus: int  # GPUs of both towers; 0 if the config gives their costs without a model
    values: Mapping[str, list[Any]]  # by dotted key: values of the encoder's free keys
    # free, only: free keys of the backbone, as in `choose`
    free: Any
    only: Mapping[str, Iterable[Any]]
    # True if a backbone with an encoder may have any schedule, not only `SCHEDULES_WITH_ENCODER`
    any_schedule: bool
    first_only: bool  # True if the framework runs no other placement than `first`
    fitting: list[Candidate] = field(default_factory=list)
    too_large: list[Candidate] = field(default_factory=list)
    # as in `ppsim.studies.choose.Choice`
    counts: Counter[str] = field(default_factory=lambda: Counter(points=0, simulated=0, memory=0, step=0, refused=0))
    refusal: str = "use more GPUs or more free keys"  # why nothing can run

    @classmethod
    def of(cls, source: ConfigSource, free: Keys, only: Keys, framework: str | None, research: bool) -> TowerSearch:
        """Return the search; without `free`, all keys of the encoder that the config leaves out are free.

        Given costs are of one encoder, so that none of its keys is free unless it is named.
        """
        (own, rest), (encoder_only, others) = split_keys(free), split_keys(only)
        default_keys = VALUES if free is None and source.data.get("model") is not None else ()
        wanted = {key: None for key in default_keys if value_at(source.data, key) is None} | own | encoder_only
        if not value_at(source.data, "encoder.frozen"):
            wanted.pop(EncoderKey.PREFETCH, None)  # a trained encoder waits for its new weights
        gpus = value_at(source.data, "hardware.gpus")
        if gpus is None:
            config = source.config()
            workload = config.costs.table(config.build()).workload
            gpus = workload.gpus if workload else 0
        values = {key: given or list(VALUES[key]) for key, given in wanted.items()}
        listed = rest.get(NAME) if isinstance(rest, Mapping) else None
        own_name = value_at(source.data, NAME) if framework is None and NAME not in (rest or ()) else None
        named = bool(own_name or listed or NAME in (others or ()))
        first_only = framework not in (None, *ENCODER_SCHEDULES)
        found = cls(source, gpus, values, rest, others or {}, named or research, first_only)
        if first_only:
            found.refusal = f"{framework} runs an encoder in the first stage only (encoder.placement=first)"
        return found

    def run(
        self, choose_backbone: Callable[..., Any], top: int, headroom: float, resources: Mapping[str, Any]
    ) -> list[Any]:
        """Search, and return what `choose_backbone` returned for each number of GPUs."""
        options = {"label": "adding encoders", "fast": True, "measures": RANKED, "headroom": headroom, **resources}
        groups: dict[tuple[int, bool], list[Changes]] = {}
        for encoder, gpus in self.encoders():
            is_first = encoder_size(self.source.data, encoder, EncoderKey.PLACEMENT) == "first"
            groups.setdefault((gpus, is_first), []).append(encoder)
        found: dict[tuple[int, bool], Any] = {}
        for gpus, is_first in groups:
            changes = {"encoder": None, "hardware.gpus": gpus} if self.gpus else {"encoder": None}
            only = self.only if is_first or self.any_schedule else {**self.only, NAME: [*SCHEDULES_WITH_ENCODER]}
            found[gpus, is_first] = choose_backbone(self.source.changed(changes), self.free, only=only)
            self.counts.update(found[gpus, is_first].counts)
        ranked = {key: sorted(one.ranked, key=lambda one: one.expected) for key, one in found.items() if one.ranked}
        for key, backbones in sorted(ranked.items(), key=lambda item: item[1][0].expected):
            last = rank(self.fitting, top)[top - 1 :]
            if last and last[0].expected < backbones[0].expected:
                self.counts.update(points=len(groups[key]), step=len(groups[key]))
                continue
            first = [(encoder, backbones[0]) for encoder in groups[key]]
            legal = self._simulated(first, key[0], options)
            best = sorted(legal, key=lambda index: (legal[index].fits is False, legal[index].rank))
            kept = [groups[key][index] for index in best[:MAX_ENCODERS]]
            self._simulated([*itertools.product(kept, backbones[1:])], key[0], options)
        return [*found.values()]

    def encoders(self) -> Iterator[tuple[Changes, int]]:
        """Yield the keys of each encoder, and the GPUs that it leaves: at least half of them.

        An encoder on the backbone's devices has one stage and no copies; its data-parallel copies follow.
        """
        data = self.source.data
        context = value_at(data, "encoder.layout.context") or 1
        another: dict[str, Any] = value_at(data, "encoder.another") or {"placement": "first"}
        gpus = self.gpus
        if another.get("placement", "separate") == "separate":
            sizes = {"stages": another.get("stages"), **(another.get("layout") or {})}
            gpus -= math.prod(sizes.get(key) or 1 for key in ("stages", "tensor", "context", "data"))
        for chosen in itertools.product(*self.values.values()):
            encoder = dict(zip(self.values, chosen, strict=True))
            size = {key: encoder_size(data, encoder, key) for key in VALUES}
            own = math.prod(size[key] for key in ENCODER_SIZES) * context
            if size[EncoderKey.PLACEMENT] != "first" and self.first_only:
                continue
            if size[EncoderKey.PLACEMENT] == "separate":
                if 2 * own <= gpus or not self.gpus:
                    yield encoder, max(gpus - own, 0)
                continue
            is_first_value = encoder.pop(EncoderKey.DATA, None) in (None, self.values.get(EncoderKey.DATA, (None,))[0])
            alone = (EncoderKey.STAGES, EncoderKey.COPIES, EncoderKey.PREFETCH)
            if is_first_value and all(size[key] == VALUES[key][0] for key in alone):
                yield encoder, max(gpus, 0)

    def _simulated(
        self, pairs: list[tuple[Changes, Candidate]], gpus: int, options: Mapping[str, Any]
    ) -> dict[int, Candidate]:
        """Simulate pairs of an encoder and a backbone on some GPUs; return those that are legal, by their index."""
        found: dict[int, Candidate] = {}
        points = [self._joined(*pair, gpus) for pair in pairs]
        measured = run_points(self.source, points, **options)
        for index, (one, (_, backbone)) in enumerate(zip(measured, pairs, strict=True)):
            if one.measures is None:
                self.refusal = str(one.refused)
                continue
            found[index] = one = replace(one, stragglers=backbone.stragglers)
            (self.too_large if one.fits is False else self.fitting).append(one)
        self.counts.update(points=len(pairs), simulated=len(found), refused=len(pairs) - len(found))
        return found

    def _joined(self, encoder: Changes, backbone: Candidate, gpus: int) -> Changes:
        """Return the changes of both towers, with `gpus` for the backbone."""
        if EncoderKey.DATA in self.values and EncoderKey.DATA not in encoder:
            devices = backbone.changes.get(Key.DEVICES, value_at(self.source.data, Key.DEVICES))
            tensor = encoder_size(self.source.data, encoder, EncoderKey.TENSOR)
            encoder = {**encoder, EncoderKey.DATA: max(gpus // devices // tensor, 1)}
        return {**backbone.changes, **encoder}
