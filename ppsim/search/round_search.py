"""Search in rounds: settings of list scheduling change, then single actions of good lists move."""

from __future__ import annotations

from ppsim.search.problem import Lists, Problem
from ppsim.search.search_ahead import SettingSearch

WORK = 1_000_000  # rows that one part of a search schedules: a fifth of a second
MOST_TRIES = 128
MOVES = 40  # times the work in rows, divided by the rows of a list: moves of a round
MOST_MOVES = 4000
USUAL_WORK, USUAL_ROUNDS = 500_000, 48  # of a whole search: rows x rounds, and rounds
BRIEF = 4  # such a part of them takes a brief search
HEATS = (0.0, 0.5, 1.0, 2.0)  # by turns: mean lengths by which lists may get longer at first


class RoundSearch:
    """Lists that a search begins with, and the best ones it has found.

    A round changes some settings of list scheduling, then moves single actions of the best lists; every other round
    the moves begin at another good one, so that the search leaves what it cannot improve.
    """

    def __init__(self, problem: Problem, bases: list[Lists], seed: int, work: int = WORK):
        self.problem, self.seed, self.turn = problem, seed, 0
        self.settings = SettingSearch(problem, seed)
        self.tries = min(max(work // self.settings.trial.rows, 1), MOST_TRIES)
        self.moves = min(max(MOVES * work // problem.rows, 1), MOST_MOVES)
        self.settings.start(self.tries)
        self.others = [*bases, self.settings.best]
        self.best = min(self.others, key=_makespan)

    def advance(self, longer: int = 1) -> None:
        """One round, with so many times the moves."""
        before = self.settings.best
        self.settings.advance(max(self.tries // 4, 1))
        if self.settings.best is not before:
            self.others.append(self.settings.best)
        self.others.sort(key=_makespan)
        del self.others[8:]
        place = self.turn // 2 % len(self.others) if self.turn % 2 else 0
        heat = HEATS[self.turn // 2 % len(HEATS)] * float(self.problem.lengths.mean())
        found = self.problem.improved(self.others[place], self.moves * longer, heat, self.seed + self.turn)
        if found.makespan < self.others[place].makespan:
            self.others[place] = found
        self.best = min([self.best, found], key=_makespan)
        self.turn += 1


def searched_briefly(problem: Problem, bases: list[Lists]) -> Lists:
    """The best lists of a search that takes a quarter of the usual rounds; of the bases alone where that is none."""
    rounds = usual_rounds(problem) // BRIEF
    if bases and not rounds:
        return min(bases, key=_makespan)
    search = RoundSearch(problem, bases, 0, WORK // 2)
    for _ in range(rounds):
        search.advance()
    return search.best


def usual_rounds(problem: Problem) -> int:
    """As many as take some seconds; none where one would."""
    return min(USUAL_WORK // problem.rows, USUAL_ROUNDS)


def _makespan(lists: Lists) -> float:
    return lists.makespan
