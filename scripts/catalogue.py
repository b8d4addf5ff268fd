"""Print what docs/cost-model.md says of configs/: every published set-up, as published and as simulated."""

import sys
from collections.abc import Iterator
from pathlib import Path

import ppsim
from ppsim import Timeline
from ppsim.base.units import percent_text, seconds_text, value_text
from ppsim.config import Config

CONFIGS = Path(__file__).parent.parent / "configs"
UNITS = {"step": "seconds", "mfu": "fraction", "tokens_per_second": "tokens per second"}
HEADER = (
    "config",
    "parameters",
    "bubble fraction",
    "step",
    "MFU",
    "published",
    "simulated / published time",
    "fitted fraction",
)


def main() -> None:
    """Print one row a config that says what was published."""
    print("| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER), sep="\n")
    for path in sorted(CONFIGS.glob("*.yaml")):
        config = ppsim.load_config(path, overrides={"engine": "compiled"})
        if config.published:
            print("| " + " | ".join(row(path.stem, config)) + " |")
    print(data_parallelism())


def row(name: str, config: Config) -> Iterator[str]:
    """The cells of one config."""
    run = config.simulate()
    yield name
    yield f"{config.model.parameters / 1e9:.1f} B"
    yield percent_text(run.bubble_fraction)
    yield seconds_text(run.makespan)
    yield percent_text(run.mfu)
    yield ", ".join(value_text(value, UNITS[key]) + " MFU" * (key == "mfu") for key, value in published(config))
    yield f"{1 / relative_speed(config, run):.2f}"
    yield percent_text(fitted_fraction(config), 0)  # twelve runs; a reader who wants the cells before it stops here


def published(config: Config) -> list[tuple[str, float]]:
    """What was published of a config: each measure with its number."""
    return [(key, value) for key, value in config.published.items() if key in UNITS]


def data_parallelism() -> str:
    """What 8 copies add to a step of the 530B model; published in Korthikanti et al. 2022, section 6.3."""
    one = ppsim.load_config(CONFIGS / "mt-nlg-530b-280xa100.yaml", overrides={"engine": "compiled"})
    copies = one.changed({"layout.data": 8, "hardware.gpus": 2240})
    run = copies.simulate()
    reduced = [run.reductions.end[run.reductions.device == device] for device in range(run.schedule.devices)]
    began = [run.reductions.start[run.reductions.device == device] for device in range(run.schedule.devices)]
    longest = max(float((end - start).sum()) for start, end in zip(began, reduced, strict=True))
    added = run.makespan - one.simulate().makespan
    return (
        f"530B over 8 copies: reductions {seconds_text(longest, 2)}, step + {seconds_text(added, 2)}; published "
        f"+ 1.32 s, not overlapped"
    )


def relative_speed(config: Config, run: Timeline) -> float:
    """Simulated over published speed, by the first measure that is published."""
    published = config.published
    if "step" in published:
        return published["step"] / run.makespan
    if "mfu" in published:
        return run.mfu / published["mfu"]
    return run.tokens_per_second / published["tokens_per_second"]


def fitted_fraction(config: Config) -> float:
    """The achieved fraction of peak at which the simulated speed is the published one, by bisection; at most 1."""
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        run = config.changed({"hardware.device.achieved": middle}).simulate()
        low, high = (middle, high) if relative_speed(config, run) < 1 else (low, middle)
    return high


if __name__ == "__main__":
    sys.exit(main())
