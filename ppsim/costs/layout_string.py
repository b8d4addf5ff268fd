"""Megatron-LM's pipeline layout strings: `Et*3|(tt|)*29,m|L` says piece by piece what each stage holds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from ppsim.base.errors import ConfigError, CostError, shown

PIECES = {"E": "embedding", "t": "block", "m": "prediction", "L": "head"}  # in the order in which a model has them
MOST_PIECES = 100_000
_LETTERS = {name: letter for letter, name in PIECES.items()}
_TOKEN = re.compile(r"\(([EtmL|*0-9]+)\)(?:\*([0-9]{1,6}))?|([EtmL|])(?:\*([0-9]{1,6}))?")
_EXAMPLE = "'Et*3|(tt|)*29,m|L'"


class LayoutString:
    """What each stage holds, one text of the letters E, t, m and L a stage; an empty text is an empty stage.

    E is the embedding, t a block, m a multi-token-prediction module, L the head with the loss. Stage i runs on device
    i mod p of a looped schedule. Source: Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """

    def __init__(self, stages: Iterable[str]):
        self.stages = tuple(stages)

    def __eq__(self, other: object) -> bool:
        return self.stages == other.stages if isinstance(other, LayoutString) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.stages)

    def __str__(self) -> str:
        """The shortest text of the notation: equal neighbouring stages as `(tt|)*29`, equal letters as `t*3`."""
        runs = [(stage, len(list(same))) for stage, same in itertools.groupby(self.stages)]
        last, count = runs.pop()
        parts = [_repeated(stage, times) for stage, times in [*runs, *([(last, count - 1)] if count > 1 else [])]]
        return "".join(parts) + _stage_text(last)

    def __repr__(self) -> str:
        return repr(str(self))

    def layer_counts(self, layer_names: Sequence[str], num_stages: int) -> list[int]:
        """Layers of each stage of a model with these layers; CostError where model or schedule has others.

        `layer_names` are in the model's order, such as embedding, block, block, head.
        """
        if len(self.stages) != num_stages:
            raise CostError(
                f"the partition {self} has {len(self.stages)} stages, but the schedule has {num_stages}; "
                f"give {num_stages} stages, with | between them"
            )
        given, wanted = "".join(self.stages), "".join(_LETTERS[name] for name in layer_names)
        for letter, name in PIECES.items():
            if given.count(letter) != wanted.count(letter):
                raise CostError(
                    f"the partition {self} holds {given.count(letter)} {letter} ({name}), but the model has "
                    f"{wanted.count(letter)}; write {letter} {wanted.count(letter)} times"
                )
        return [len(stage) for stage in self.stages]


def parse(text: str) -> LayoutString:
    """Read a layout string; ConfigError names what is no part of one.

    Blanks and commas mean nothing; `|` ends a stage; `x*n` repeats a letter and `(..)*n` what is between the brackets.
    E comes first and once, then the t, then the m, then L, once.
    """
    plain = re.sub(r"[\s,]", "", text)
    stages = tuple(_expanded(plain, text).split("|"))
    order = "".join(stages)
    if not re.fullmatch(r"Et*m*L", order):
        raise ConfigError(
            f"{shown(text)} holds {shown(order)} in all; a layout string has E first and once, then t, then m, and L "
            f"last and once, such as {_EXAMPLE}"
        )
    return LayoutString(stages)


def of_stages(stages: Iterable[Sequence[str]]) -> LayoutString:
    """The layout string of stages that are given as the names of their layers in order."""
    return LayoutString("".join(_LETTERS[name] for name in stage) for stage in stages)


def looks_like_one(text: str) -> bool:
    """Whether a text is meant as a layout string, right or wrong: it has stages, or begins with the embedding."""
    return "|" in text or text.lstrip().startswith("E")


def _expanded(plain: str, whole: str) -> str:
    """`plain` with its repetitions written out."""
    parts, at = [], 0
    while at < len(plain):
        token = _TOKEN.match(plain, at)
        if token is None:
            raise ConfigError(
                f"{shown(whole)}: {shown(plain[at : at + 12])} is no part of a layout string; use E, t, m, L and |, "
                f"repeated as t*3 or (tt|)*29, such as {_EXAMPLE}"
            )
        group, group_times, letter, letter_times = token.groups()
        inner = _expanded(group, whole) if group else letter
        times = int(group_times or letter_times or 1)
        if times * len(inner) + sum(map(len, parts)) > MOST_PIECES:
            raise ConfigError(f"{shown(whole)} has more than {MOST_PIECES} pieces; repeat less often")
        parts.append(inner * times)
        at = token.end()
    return "".join(parts)


def _stage_text(stage: str) -> str:
    runs = [(letter, len(list(same))) for letter, same in itertools.groupby(stage)]
    return "".join(letter if count == 1 else f"{letter}*{count}" for letter, count in runs)


def _repeated(stage: str, times: int) -> str:
    text = f"{_stage_text(stage)}|"
    if times == 1:
        return text
    return f"({text})*{times}" if stage else f"|*{times}"
