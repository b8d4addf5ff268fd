"""Writes the table of docs/howto/fill.md that compares Optimus's published steps with ours."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppsim.base.files import write_atomically
from ppsim.base.units import percent_text, seconds_text
from ppsim.config import as_config

PAGE = Path(__file__).resolve().parents[1] / "docs" / "howto" / "fill.md"
PARTS = 48  # layers of the encoder: each pass of one is a piece


class Published(NamedTuple):
    """Published seconds of a step, and the part of the encoder's work that coarse bubbles took."""

    megatron: float
    balanced: float
    optimus: float
    coarse: float


# Feng et al. 2025 (USENIX ATC), arXiv 2408.03505v2, tables 5 and 7, batch 1536; by GPUs
PUBLISHED = {
    1536: Published(10.65, 10.43, 9.80, 0.343),
    2048: Published(8.26, 8.06, 7.29, 0.458),
    3072: Published(5.91, 5.87, 4.87, 0.687),
}
BATCH, STAGES, TENSOR, SEQUENCES = 1536, 8, 8, 2  # appendix D; sequences of a microbatch
ENCODER = {"num_layers": PARTS, "hidden": 6144, "heads": 48, "ffn": 24576, "sequence": 2048}  # ViT-22B: appendix A
CONFIG: dict[str, Any] = {
    "model": {"num_layers": 96, "hidden": 12288, "heads": 96, "vocabulary": 51200, "sequence": 2048},  # GPT-175B
    "hardware": {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 8},
    "layout": {
        "framework": "megatron-core", "tensor": TENSOR, "sequence_parallel": True, "distributed_optimizer": True,
        "microbatch_size": SEQUENCES,
    },
    "schedule": {"name": "1f1b", "devices": STAGES},
    "transport": "directed", "optimizer": "sync",
}  # fmt: skip
INTERLEAVED = {"schedule.name": "interleaved-1f1b", "schedule.stages_per_device": 12}
ALONE = {"schedule.devices": 1, "schedule.microbatches": 1}
_PLACE = re.compile(r"(<!-- made by make_fill_docs.py -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Write the page."""
    write_atomically(PAGE, refreshed(PAGE.read_text(encoding="utf-8")))


def refreshed(page: str) -> str:
    """A page with its table made anew, between its two comments."""
    return _PLACE.sub(lambda place: place[1] + "".join(f"{row}\n" for row in rows()) + place[2], page)


def rows() -> Iterator[str]:
    """Published numbers and ours, by GPUs."""
    yield "| GPUs | encoder on the first stage | balanced | filled | filling against balanced | encoder that fits |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for gpus, there in PUBLISHED.items():
        first, balanced, filled, fits = predicted(gpus // (STAGES * TENSOR))
        yield (
            f"| {gpus:,} | {_pair(there.megatron, first)} | {_pair(there.balanced, balanced)} "
            f"| {_pair(there.optimus, filled)} | {percent_text(there.optimus / there.balanced - 1)}, "
            f"{percent_text(filled / balanced - 1)} | {percent_text(there.coarse)}, {percent_text(fits)} |"
        )


def predicted(copies: int) -> tuple[float, float, float, float]:
    """Return steps with the encoder on the first stage, spread evenly and filled in, and the part that fits."""
    microbatches = BATCH // (copies * SEQUENCES)
    sizes = {
        "layout": CONFIG["layout"] | {"data": copies},
        "schedule": CONFIG["schedule"] | {"microbatches": microbatches},
    }
    tower = {"model": ENCODER, "layout": {"tensor": TENSOR, "data": copies}, "placement": "first"}
    first = as_config(CONFIG | sizes | {"encoder": tower}).simulate().makespan
    language = as_config(CONFIG | sizes).changed(INTERLEAVED).simulate()
    encoder = as_config(CONFIG | sizes | {"model": ENCODER | {"vocabulary": 1, "causal": False}}).changed(ALONE).costs
    costs = encoder.for_stages(1)
    passes = np.array([costs.forward[0], costs.input_grad[0] + costs.weight_grad[0]])
    count = microbatches * PARTS
    filling = language.fill([{"name": name, "duration": seconds / PARTS, "count": count}
                             for name, seconds in zip("FB", passes, strict=True)])  # fmt: skip
    whole, left = passes.sum() * microbatches, float(filling.left_over @ passes) / PARTS
    balanced = language.makespan + whole / STAGES / (1 - language.bubble_fraction)
    return first, balanced, language.makespan + left / STAGES, 1 - left / whole


def _pair(published: float, ours: float) -> str:
    return f"{seconds_text(published, 3)}, {seconds_text(ours, 3)}"


if __name__ == "__main__":
    main()
