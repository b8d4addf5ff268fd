"""Sequences of unequal length: where lengths come from, and how sequences are packed into microbatches of a step."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, shown
from ppsim.base.files import MAX_CONFIG_BYTES, read_text
from ppsim.base.rules import (
    check_fields,
    choice,
    declared,
    described,
    is_number,
    positive,
    rule,
    seed,
    share,
    text,
    whole_number,
)

DYNAMIC = "dynamic-context"
PACKINGS = ("pad", "pack", "balance", DYNAMIC)
MAX_SEQUENCES = 100_000
BALANCED = 0.05  # relative difference of loads that Megatron-LM's scheduler accepts


def _spread(value: Any) -> float:
    return rule(lambda one: is_number(one) and 0 <= one <= 3, "must be a spread from 0 to 3, such as 1.0", float)(value)


@described
@dataclass(frozen=True)
class SequenceLengths:
    """Lengths of the sequences of a step, and how they are packed.

    Raises ConfigError with the field, its value and what is legal.
    """

    sequences: int = declared(
        "sequences of one step, all data-parallel copies together", whole_number(1, MAX_SEQUENCES), example="512"
    )
    file: str | None = declared(
        "path of a text file with one length per line, relative to the config; sequences are drawn from it", text, None,
        example="lengths.txt", default_text="none: lognormal",
    )  # fmt: skip
    median: float | None = declared(
        "median of a lognormal distribution, tokens",
        positive,
        None,
        example="1500",
        default_text="needed, unless `file`",
    )
    spread: float = declared("sigma of the logarithm of that distribution, 0 to 3", _spread, 1.0, example="1.4")
    packing: str = declared(
        "`pad`: the sequences of a microbatch have the length of the longest; `pack`: sequences share a microbatch up "
        "to its tokens, in the order drawn, best fit; `balance`: as few microbatches as best fit needs, longest first, "
        "of nearly equal work; "
        "`dynamic-context`: a sequence runs on as many GPUs of the data and context groups as its tokens need",
        choice(*PACKINGS), "pack", example="balance",
    )  # fmt: skip
    attention: float | None = declared(
        "fraction of a full sequence's computation in attention over tokens, which grows with the square of a length",
        share, None, example="0.2", default_text="derived from the model; needed without one",
    )  # fmt: skip
    tokens: int | None = declared(
        "tokens of a full sequence", whole_number(1, 2**40), None, example="8192",
        default_text="the model's; needed without one",
    )  # fmt: skip
    batches: int = declared("steps to draw", whole_number(1, 10_000), 20, example="100")
    seed: int = declared("equal seeds draw equal steps", seed, 0, example="7")

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.file is None) == (self.median is None):
            raise ConfigError("needs file or median, and takes only one of them, such as median: 1500")

    def draw(self, longest: int) -> np.ndarray:
        """Return the lengths of all steps, int64 (batches, sequences), at most `longest` tokens each.

        Longer draws of the distribution are cut to `longest`; a longer length in the file is a ConfigError.
        """
        random, size = np.random.default_rng(self.seed), (self.batches, self.sequences)
        if self.file is not None:
            return random.choice(read_lengths(self.file, longest), size)
        drawn = np.exp(np.log(self.median or 1.0) + self.spread * random.standard_normal(size))
        return np.clip(np.rint(drawn), 1, longest).astype(np.int64)


def read_lengths(path: str, longest: int) -> np.ndarray:
    """Return the lengths in a text file, int64; ConfigError names the first line that is no length."""
    found = []
    for number, line in enumerate(read_text(path, most=MAX_CONFIG_BYTES).splitlines(), 1):
        word = line.strip()
        if not word:
            continue
        if not (word.isascii() and word.isdecimal()) or not 1 <= int(word[:20]) <= longest:
            raise ConfigError(
                f"{path}, line {number}: {shown(word)} is no length; write whole numbers of tokens, "
                f"from 1 to the {longest} of the config's sequence, one per line"
            )
        found.append(int(word))
    if not found:
        raise ConfigError(f"{path}: is empty; write one length per line, such as 1500")
    return np.array(found, np.int64)


@dataclass(frozen=True)
class MicrobatchSlots:
    """Limits of the microbatches of a step, and the work of sequences in them.

    Attributes
    ----------
    tokens : int
        Tokens of a full sequence.
    microbatch_size : int
        Full sequences of a microbatch.
    copies, context : int
        Sizes of the data- and context-parallel groups.
    attention : float
        Fraction of a full sequence's time in attention over tokens.
    """

    tokens: int
    microbatch_size: int = 1
    copies: int = 1
    context: int = 1
    attention: float = 0.0

    def work(self, lengths: np.ndarray) -> np.ndarray:
        """Return the work of sequences, in full sequences: linear in tokens, with attention's part quadratic."""
        part = np.asarray(lengths, np.float64) / self.tokens
        return (1.0 - self.attention) * part + self.attention * part**2


def packed(lengths: np.ndarray, packing: str, slots: MicrobatchSlots) -> np.ndarray:
    """Return the factors of the microbatches of one step, float64 (copies, microbatches).

    A factor is the work of a microbatch in units of one with `microbatch_size` full sequences. Copies have equally many
    microbatches, of which some may be empty. With `dynamic-context` all copies run the same microbatches together, and
    the busiest GPU sets the factor; there is one row.
    """
    if packing == DYNAMIC:
        return _dynamic(lengths, slots)[None]
    bins = {"pad": _padded, "pack": _best_fit, "balance": _balanced}[packing](lengths, slots)
    work = np.array([slots.work(one).sum() for one in bins]) / slots.microbatch_size
    work = np.append(work, np.zeros(-len(work) % slots.copies))
    if packing != "balance":
        return work.reshape(-1, slots.copies).T
    rows = np.argsort(-work, kind="stable").reshape(-1, slots.copies)
    rows[1::2] = rows[1::2, ::-1].copy()  # there and back, so that copies get nearly equal sums
    return work[rows].T


@dataclass(frozen=True)
class PackedLengths:
    """Lengths of all steps, int64 (batches, sequences), and the slots and packing of their microbatches."""

    drawn: np.ndarray
    slots: MicrobatchSlots
    packing: str

    def factors(self, step: int, packing: str | None = None) -> np.ndarray:
        """Return the factors of a step's microbatches, float64 (copies, microbatches), as `packed`."""
        return packed(self.drawn[step], packing or self.packing, self.slots)


def _padded(lengths: np.ndarray, slots: MicrobatchSlots) -> list[np.ndarray]:
    size = slots.microbatch_size
    return [np.full(len(one), one.max()) for one in np.split(lengths, range(size, len(lengths), size))]


def _best_fit(lengths: np.ndarray, slots: MicrobatchSlots) -> list[np.ndarray]:
    """Return bins of sequences, each in the fullest bin that has room, in the order given.

    In any order these are at most 1.7 times the fewest bins, plus 1; the longest first, at most 11/9 of them, plus 1
    (Johnson et al. 1974).
    """
    capacity = slots.tokens * slots.microbatch_size
    room: list[tuple[int, int]] = []  # tokens left, bin; sorted
    held: list[list[int]] = []
    for length in lengths.tolist():
        place = bisect_left(room, (length, -1))
        if place == len(room):
            left, number = capacity, len(held)
            held.append([])
        else:
            left, number = room.pop(place)
        insort(room, (left - length, number))
        held[number].append(length)
    return [np.array(one) for one in held]


def _balanced(lengths: np.ndarray, slots: MicrobatchSlots) -> list[np.ndarray]:
    """Return as many bins as best fit needs, each sequence in the least loaded bin that has room, longest first.

    This is Graham's rule for makespans (1969), with the capacity as a side condition; if it finds no room, the bins of
    best fit stay.
    """
    packed_first, capacity = _best_fit(np.sort(lengths)[::-1], slots), slots.tokens * slots.microbatch_size
    count = -(-len(packed_first) // slots.copies) * slots.copies
    loads = [(0.0, number) for number in range(count)]
    room, held = [capacity] * count, [list[int]() for _ in range(count)]
    for length, work in zip(*_longest_first(lengths, slots), strict=True):
        full = []
        while loads and room[loads[0][1]] < length:
            full.append(heapq.heappop(loads))
        if not loads:
            return packed_first
        load, place = loads[0]
        heapq.heapreplace(loads, (load + work, place))
        for one in full:
            heapq.heappush(loads, one)
        room[place] -= length
        held[place].append(length)
    return [np.array(one, np.int64) for one in held]


def _longest_first(lengths: np.ndarray, slots: MicrobatchSlots) -> tuple[list[int], list[float]]:
    ordered = np.sort(lengths)[::-1]
    return ordered.tolist(), slots.work(ordered).tolist()


# Dynamic context parallelism


@dataclass
class _Group:
    """GPUs that share sequences, each cut over all of them: works of the sequences on all GPUs together."""

    gpus: int
    works: list[float]

    @property
    def load(self) -> float:
        return sum(self.works) / self.gpus


def _dynamic(lengths: np.ndarray, slots: MicrobatchSlots) -> np.ndarray:
    """Return the factors of microbatches under dynamic context parallelism.

    A sequence runs on the fewest GPUs, a power of two, that hold its tokens. Sequences go, the longest first, to the
    least loaded group of their size, or to free GPUs. A microbatch ends when no group fits the next sequences, or when
    loads differ by less than 5 % after the size has shrunk. Free GPUs at its end double the smallest groups.
    Source: NVIDIA/Megatron-LM d98e8a6, megatron/core/pipeline_parallel/hybrid_cp_schedule.py, whose work of a sequence
    is its length squared; here it is the work of `MicrobatchSlots`. Its buckets of equal work are left out.
    """
    gpus, own = slots.copies * slots.context, slots.tokens * slots.microbatch_size / slots.context
    ordered, works = _longest_first(lengths, slots)
    sizes = [min(1 << max(int(np.ceil(np.log2(length / own))), 0), gpus) for length in ordered]
    waiting = list(zip(sizes, works, strict=True))
    factors = []
    while waiting:
        groups, waiting = _microbatch(waiting, gpus)
        factors.append(max(group.load for group in groups))
    return np.array(factors) * slots.context / slots.microbatch_size


def _microbatch(waiting: Sequence[tuple[int, float]], gpus: int) -> tuple[list[_Group], list[tuple[int, float]]]:
    """Return the groups of the next microbatch, and the sequences that wait for later ones, as (GPUs, work)."""
    groups: list[_Group] = []
    free, left, last, is_balanced = gpus, list[tuple[int, float]](), waiting[0][0], False
    for number, (size, work) in enumerate(waiting):
        if is_balanced:
            left += waiting[number:]
            break
        equal = [group for group in groups if group.gpus == size]
        if size <= free and (not equal or min(group.load for group in equal) > 0):
            groups.append(_Group(size, [work]))
            free -= size
        elif equal:
            min(equal, key=lambda group: group.load).works.append(work)
        else:
            left.append((size, work))
            continue
        loads = [group.load for group in groups] + [0.0] * (free > 0)
        is_balanced = size < last and max(loads) - min(loads) <= BALANCED * max(loads)
        last = size
    while free:
        smallest = min((group for group in groups if group.gpus <= free), key=lambda group: group.gpus, default=None)
        if smallest is None:
            break
        free -= smallest.gpus
        smallest.gpus *= 2
    return groups, left
