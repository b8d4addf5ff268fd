"""What the compiled engine's kernels share, as named tuples of columns."""

from typing import Any, NamedTuple

import numpy as np

from ppsim.base.compiling import kernel


class Rows(NamedTuple):
    """The rows of a plan, as `Plan` has them; device d owns rows `offsets[d]:offsets[d + 1]`."""

    offsets: np.ndarray
    device: np.ndarray
    seconds: np.ndarray
    fused: np.ndarray
    source: np.ndarray
    remote: np.ndarray
    transfer_seconds: np.ndarray
    blocking: bool


class RowTimes(NamedTuple):
    """Start and end of each row and of its transfer; a transfer that has not ended has nan as its end."""

    row_start: np.ndarray
    row_end: np.ndarray
    transfer_start: np.ndarray
    transfer_end: np.ndarray


class Queues(NamedTuple):
    """The posts of a plan, as `Posts` has them; `links`, made by `apart`, has four numbers for each transfer.

    What it still waits for, the transfers behind it in the queues of its SEND and of its RECV, or -1, and the receiving
    device, or -1 where a row needs no transfer: they lie beside each other because they are looked at together.
    """

    offsets: np.ndarray
    transfer: np.ndarray
    is_send: np.ndarray
    before: np.ndarray
    queue: np.ndarray
    links: np.ndarray


WAITS, NEXT_OF_SEND, NEXT_OF_RECV, RECEIVER = range(4)  # columns of `Queues.links`

# Lists of devices are often as long as a power of two, and entries so far apart push each other out of the processor's
# caches. A few entries left out after each thousand put them elsewhere, which makes a walk more than twice as fast.
_TOGETHER_BITS, _GAP = 10, 20


def apart(rows: int, width: int, dtype: Any) -> np.ndarray:
    """An empty array, some more than `rows` by `width`, in which the entry of row i is at `place(i)`."""
    return np.empty((place(rows), width), dtype)


@kernel
def place(row: Any) -> Any:
    """Where an array made by `apart` holds the entry of a row, or of each of some rows."""
    return row + (row >> _TOGETHER_BITS) * _GAP


class GatherColumns(NamedTuple):
    """The gathers of a plan with their times, and by row the gather that it waits for, or -1; empty without gathers."""

    offsets: np.ndarray
    before: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray
    of_row: np.ndarray


class CopyColumns(NamedTuple):
    """The copies of a plan with their times, and by row the RELOAD that it waits for, or -1; empty without copies.

    `waits` is how much a copy waits for: its post, the copy before it on its engine, an OFFLOAD. `next_of_engine` and
    `reload` are the copies that wait for it, or -1; `free` says of each line whether its switch is free.
    """

    offsets: np.ndarray
    way: np.ndarray
    before: np.ndarray
    after: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray
    of_row: np.ndarray
    device: np.ndarray
    line: np.ndarray
    waits: np.ndarray
    next_of_engine: np.ndarray
    reload: np.ndarray
    free: np.ndarray


class BarrierColumns(NamedTuple):
    """The barriers of a plan, by row the one that it waits for and the one that it feeds, or -1; empty without any.

    `waits` counts what a barrier still needs, its rows and the barrier before it; `start` is the latest of their ends,
    `end` inf until the last; `following` is the barrier behind it, or -1.
    """

    needs: np.ndarray
    feeds: np.ndarray
    following: np.ndarray
    waits: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray


class PortColumns(NamedTuple):
    """Ports of each transfer, places of each port, and by transfer its SEND, an index of the posts."""

    of_transfer: np.ndarray
    capacity: np.ndarray
    send_post: np.ndarray


class Devices(NamedTuple):
    """Where each device stands: its row, the posts made, and the transfer that it waits for, -1, or -2 - a copy.

    `running_until` is the row behind the slot that it runs, or -1; `free_at` when it had ended its last slot;
    `sends_done` the posts up to which it knows when SENDs ended, `sent_at` the latest of those ends; `next_gather`
    what its gather stream takes next, `gathered_at` when that is free;
    `next_copy` the copy that it posts next, `copied_at` when its copy engines are free, by device and way;
    `waiting_at` the barrier that it waits for or -1.
    """

    position: np.ndarray
    posted: np.ndarray
    waiting_for: np.ndarray
    running_until: np.ndarray
    free_at: np.ndarray
    sends_done: np.ndarray
    sent_at: np.ndarray
    next_gather: np.ndarray
    gathered_at: np.ndarray
    next_copy: np.ndarray
    copied_at: np.ndarray
    waiting_at: np.ndarray


class Lines(NamedTuple):
    """Of each port the free places, the first and the last of its line; and who stands behind each transfer."""

    free: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    behind: np.ndarray


class Agenda(NamedTuple):
    """Lists of events, of SENDs whose transfers are ready for their ports, and of ports where something changed.

    Beside them copies that are ready for their switch, and the lines before switches where something changed.
    """

    events: list
    ready: list
    changed: list
    ready_copies: list
    changed_lines: list
