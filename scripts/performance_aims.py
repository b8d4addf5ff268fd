"""The aims of speed and memory: what each asks, the figure of one run of the benchmarks, and why it is not met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log

Select = Callable[..., list[dict]]  # of a test's name and what its notes must hold: its benchmarks


@dataclass(frozen=True)
class Aim:
    """What is asked for, how it is found among the benchmarks, and what keeps it from being met where it is not."""

    words: str
    limit: float
    figure: Callable[[Select], float]
    unit: str = ""
    at_least: bool = False
    reason: str = ""

    def row(self, select: Select) -> list[str]:
        """The row of the page's table."""
        figure = self.figure(select)
        met = figure >= self.limit if self.at_least else figure <= self.limit
        asked = f"at {'least' if self.at_least else 'most'} {self.limit:,g}{self.unit}"
        return [
            self.words,
            asked,
            f"{figure:.3g}{self.unit}",
            "yes" if met else f"no{self.reason and ': '}{self.reason}",
        ]


def _largest(test: str, note: Callable[[dict], float], **notes: object) -> Callable[[Select], float]:
    return lambda select: max(note(bench) for bench in select(test, **notes))


def _smallest(test: str, note: Callable[[dict], float], **notes: object) -> Callable[[Select], float]:
    return lambda select: min(note(bench) for bench in select(test, **notes))


def _seconds(bench: dict) -> float:
    return bench["stats"]["min"]


def _ratio(bench: dict) -> float:
    return bench["extra_info"]["ratio"]


def _times(bench: dict) -> float:
    return 1 / _ratio(bench)


def _bytes_of_an_action(bench: dict) -> float:
    return bench["extra_info"]["bytes"] / bench["extra_info"]["actions"]


def _grown(select: Select) -> float:
    """Return an action's time at 8 million actions over its time at 131,072."""
    paths = select("test_whole_path_against_the_limit", family="1f1b")
    each = {bench["extra_info"]["actions"]: _seconds(bench) / bench["extra_info"]["actions"] for bench in paths}
    return each[8_000_000] / each[131_072]


def _first_answer(placement: str) -> Callable[[Select], float]:
    return lambda select: max(
        _seconds(bench) for bench in select("test_first_answer") if bench["params"]["placement"] == placement
    )


def _beyond_n_log_n(select: Select) -> float:
    """The growth of a call from its smallest to its largest size over that of n log n, the most of all calls."""
    calls: dict[str, list[tuple[int, float]]] = {}
    for bench in select("test_growth"):
        calls.setdefault(bench["extra_info"]["call"], []).append((bench["extra_info"]["actions"], _seconds(bench)))
    return max(_growth_over_n_log_n(*min(sizes), *max(sizes)) for sizes in calls.values())


def _growth_over_n_log_n(small: int, first: float, large: int, last: float) -> float:
    return last / first / (large * log(large) / (small * log(small)))


_PATH, _ENGINES, _MEMORY = "test_whole_path_against_the_limit", "test_compiled_against_event", "test_peak_memory"
_HELD_UP = (
    "each transfer frees the queues of two devices, so that every step of the walk is on another one, out of the caches"
)
_LONG = (
    "columns of that length are no longer in the caches, and a machine that shares its memory hands it out slowly "
    "where a call finds none that an earlier one left to it"
)

AIMS = [
    Aim(
        "Whole path against the limit, 131,072 actions",
        5,
        _largest(_PATH, _times, actions=131_072),
        " times",
        reason="the whole path makes the lists, checks them and simulates, and the limit does the last alone",
    ),
    Aim(
        "Time of an action at 8 million over that at 131,072",
        2,
        _grown,
        " times",
        reason=_LONG,
    ),
    Aim("Memory of an action, `async`", 64, _largest(_MEMORY, _bytes_of_an_action, transport="async"), " bytes"),
    Aim("Memory of an action, `directed`", 128, _largest(_MEMORY, _bytes_of_an_action, transport="directed"), " bytes"),
    Aim("Memory of an action, `rank`", 128, _largest(_MEMORY, _bytes_of_an_action, transport="rank"), " bytes"),
    Aim("Compiled over event, `async`", 400, _smallest(_ENGINES, _ratio, transport="async"), " times", at_least=True),
    Aim(
        "Compiled over event, `directed`",
        100,
        _smallest(_ENGINES, _ratio, transport="directed"),
        " times",
        at_least=True,
        reason="one kernel serves every kind of queue; a second one for plain plans was less than 1.5 times as fast",
    ),
    Aim(
        "Compiled over event, `rank`",
        100,
        _smallest(_ENGINES, _ratio, transport="rank"),
        " times",
        at_least=True,
        reason=_HELD_UP,
    ),
    Aim(
        "Event model over a plain SimPy model",
        1.5,
        _smallest("test_event_model_against_plain_simpy", _ratio),
        " times",
        at_least=True,
    ),
    Aim(
        "Each family by search, 64 devices and 512 microbatches",
        0.5,
        _largest("test_families_by_search", _seconds),
        " s",
    ),
    Aim(
        "First answer of `auto`, 64 devices and 512 microbatches, one stage per device", 0.5, _first_answer("one"), " s"
    ),
    Aim("First answer of `auto`, 64 devices and 512 microbatches, V", 1, _first_answer("v"), " s"),
    Aim("10,000 points of at most 16 devices and 256 microbatches", 60, _largest("test_10_000_points", _seconds), " s"),
    Aim(
        "`choose` for Llama 3 70B on 512 GPUs",
        120,
        _largest("test_choose_for_llama_3_70b_on_512_gpus_with_all_axes_free", _seconds),
        " s",
    ),
    Aim(
        "First compilation of all that building and simulating need",
        8,
        _largest("test_first_compilation", _seconds),
        " s",
    ),
    Aim(
        "`auto` over the event model where nothing is compiled yet",
        1.1,
        _largest("test_auto_without_a_cache", _times),
        " times",
    ),
    Aim(
        "A chart with the simulation of 8 million actions",
        3,
        _largest("test_simulate_8_million_actions_with_a_chart", _times),
        " times",
    ),
    Aim("Growth of a call from 10^4 to 10^7 actions over n log n", 1, _beyond_n_log_n, " times", reason=_LONG),
]


def aim_rows(select: Select) -> Iterator[list[str]]:
    """The rows of the table of aims."""
    return (aim.row(select) for aim in AIMS)
