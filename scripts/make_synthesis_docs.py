"""Write the table of docs/synthesis.md: what is published, what the search finds, and the bound that nothing beats."""

import re
from pathlib import Path

import numpy as np

import ppsim
from ppsim.base.units import percent_text

PAGE = Path(__file__).parent.parent / "docs" / "synthesis.md"
STAGES = {"one": 1, "loop": 2, "v": 2, "wave": 4}
SAMPLE = 24  # random cases without a limit below p
COSTS = {
    "F = I = W = 1": ppsim.Costs(forward=1, input_grad=1, weight_grad=1),
    "F = I = W = 2": ppsim.Costs(forward=2, input_grad=2, weight_grad=2),
    "F 200, I 210, W 150, latency 10": ppsim.Costs(forward=200, input_grad=210, weight_grad=150, latency=10),
    "F 10, I 14, W 6": ppsim.Costs(forward=10, input_grad=14, weight_grad=6),
}
AUTHORS = "authors' search, sail-sg/zero-bubble-pipeline-parallelism"
SOLVER = "optimum, OR-Tools CP-SAT 9.15"
# placement, p, m, costs, limit in activations, the shortest that is known from elsewhere, its source
CASES = (
    ("one", 4, 8, "F = I = W = 1", 2, 41, SOLVER),
    ("one", 4, 8, "F = I = W = 1", 3, 31, SOLVER),
    ("one", 4, 8, "F = I = W = 1", 4, 27, SOLVER),
    ("one", 6, 9, "F = I = W = 1", 3, 46, SOLVER),
    ("v", 4, 8, "F = I = W = 2", 2, 59, SOLVER),
    ("v", 4, 8, "F = I = W = 2", 3, 53, f"V-Half: {AUTHORS}; {SOLVER}"),
    ("v", 4, 8, "F = I = W = 2", 4, 51, SOLVER),
    ("v", 8, 32, "F = I = W = 2", 5, 209, f"V-Half: {AUTHORS}"),
    ("v", 9, 36, "F = I = W = 2", 4, 245, f"V-Min: {AUTHORS}"),
    ("v", 4, 16, "F 200, I 210, W 150, latency 10", 3, 9825, f"V-Half: {AUTHORS}"),
    ("v", 16, 64, "F 200, I 210, W 150, latency 10", 9, 41565, f"V-Half: {AUTHORS}"),
    ("v", 12, 12, "F 10, I 14, W 6", 12, 445, f"ZB-V: {AUTHORS}"),
)


def main() -> None:
    """Put the table and the sample between their marks."""
    text = PAGE.read_text(encoding="utf-8")
    for mark, lines in (("table", "\n".join(table())), ("sample", sample())):
        text = re.sub(rf"(?<=<!-- {mark} -->\n).*?(?=\n<!-- end -->)", lambda _, new=lines: new, text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


def sample() -> str:
    """How far what the search finds is from the bound in random cases without a limit below p."""
    random = np.random.default_rng(14)
    gaps = np.array([gap_of_some_case(random) for _ in range(SAMPLE)])
    proven = int((gaps == 0).sum())
    return (
        f"Over {SAMPLE} random cases (p from 2 to 16, m from 4p to 6p, all placements, F, I and W from 0.5 to 2, in"
        f"\ntwo of five cases uneven over stages by up to 40 %, latencies up to 0.3, no limit or one from p to 2p) the"
        f"\ngap is {percent_text(gaps.mean())} on average and {percent_text(gaps.max())} at most; "
        f"{proven} are proven shortest."
    )


def gap_of_some_case(random: np.random.Generator) -> float:
    """The gap of one random case, the search in its usual rounds, seed 0."""
    placement = list(STAGES)[random.choice(len(STAGES))]
    p = int(random.integers(2, 17))
    m, stages = int(random.integers(4 * p, 6 * p + 1)), p * STAGES[placement]
    uneven = random.uniform(1.0, 1.4, (3, stages)) if random.random() < 0.4 else np.ones((3, stages))
    f, i, w = (random.choice([0.5, 0.8, 1.0, 1.2, 1.5, 2.0], (3, 1)) * uneven).tolist()
    costs = ppsim.Costs(forward=f, input_grad=i, weight_grad=w, latency=float(random.choice([0.0, 0.02, 0.1, 0.3])))
    limit = (None, float(p), 1.5 * p, 2.0 * p)[random.choice(4)]
    schedule = ppsim.build(
        "auto", devices=p, microbatches=m, placement=placement, stages_per_device=STAGES[placement], costs=costs,
        memory_limit=limit,
    )  # fmt: skip
    return ppsim.simulate(schedule, costs).lower_bound().gap


def table() -> list[str]:
    """The rows, a header first."""
    header = (
        "placement",
        "p",
        "m",
        "costs",
        "limit",
        "published",
        "ours",
        "bound",
        "gap",
        "source of what is published",
    )
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *map(row, CASES)]


def row(case: tuple) -> str:
    """One case: the search in its usual rounds, seed 0."""
    placement, p, m, label, limit, published, source = case
    schedule = ppsim.build(
        "auto", devices=p, microbatches=m, placement=placement, stages_per_device=STAGES[placement],
        costs=COSTS[label], memory_limit=limit,
    )  # fmt: skip
    run = ppsim.simulate(schedule, COSTS[label])
    bound = run.lower_bound()
    gap = "0: proven shortest" if bound.gap == 0 else percent_text(bound.gap)
    return (
        f"| {placement} | {p} | {m} | {label} | {limit} | {published} | {run.makespan:g} | {bound.seconds:g} | {gap} | "
        f"{source} |"
    )


if __name__ == "__main__":
    main()
