"""ZB-V: zero bubble on a V of two stages per device, with no more activations than 1F1B."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, alternate, concatenate


@family(
    "zb-v",
    group="zero bubble",
    title="Zero bubble ZB-V",
    idea="Device r has stages r and 2p-1-r: forwards go down one leg of a V and up the other. The last stage is on "
    "device 0, so backwards start early everywhere, with the activations of 1F1B. At f = i = w no device is idle "
    "between its first and its last action. For m < 2p-1 the lists of 2p-1 microbatches are built and the surplus "
    "is dropped.",
    makespan="= at f = i = w, m >= 2p-1: span = 6mf{ (span bubble 0)}, makespan = (6m+p-1)f",
    peak_activations="= p {on every device} for m >= 2p-1",
    source="Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6; PyTorch 2.13, "
    "ScheduleZBVZeroBubble",
    stages_per_device=2,
)
def zb_v(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield a warm-up of F0 alone, F1 F0 and F1 I1 W1; steady F0 I0 W0 F1 I1 W1; drain of I0 I1, I0 W0, then W."""
    for r in range(p):
        rows = _device_list(p, max(m, 2 * p - 1), r)
        yield rows[rows.microbatch < m]


def _device_list(p: int, m: int, r: int) -> Block:
    """Return the list of device r for m >= 2p-1; `down` and `up` are its stages on the two legs of the V."""
    microbatches = np.arange(m)

    def down(kind: Kind, first: int, end: int) -> Block:
        return Block(kind, r, microbatches[first:end])

    def up(kind: Kind, first: int, end: int) -> Block:
        return Block(kind, 2 * p - 1 - r, microbatches[first:end])

    def down_and_up(first: int, end: int) -> list[Block]:
        shift = p - r
        return [
            *(down(kind, first, end) for kind in (Kind.I, Kind.W)),
            up(Kind.F, first + p, end + p),
            *(up(kind, first + shift, end + shift) for kind in (Kind.I, Kind.W)),
        ]

    alone, warm = 2 * (p - r) - 1, 2 * p - 1 - r
    steady = m - warm
    return concatenate(
        down(Kind.F, 0, alone),
        alternate(up(Kind.F, 0, r), down(Kind.F, alone, warm)),
        alternate(up(Kind.F, r, p), up(Kind.I, 0, p - r), up(Kind.W, 0, p - r)),
        alternate(down(Kind.F, warm, m), *down_and_up(0, steady)),
        alternate(*down_and_up(steady, m - p)),
        alternate(down(Kind.I, m - p, m - p + r), up(Kind.I, m - r, m)),
        alternate(down(Kind.I, m - p + r, m), down(Kind.W, m - p, m - r)),
        up(Kind.W, m - r, m),
        down(Kind.W, m - r, m),
    )
