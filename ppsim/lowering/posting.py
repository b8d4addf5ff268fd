"""The compiled loops of lowering: posts of SENDs and RECVs written while devices take their turns, without sorting."""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import kernel

AT_ONCE = 32  # posts, two lines of the processor's cache


class SenderLists(NamedTuple):
    """What of a schedule says who sends to whom; `links` becomes 2 x the row that a transfer takes each row to, or -2.

    The bit below it says whether what the row itself needs from another device has been posted.
    """

    offsets: np.ndarray
    device: np.ndarray
    source: np.ndarray
    joined: np.ndarray
    links: np.ndarray


class Staged(NamedTuple):
    """Scratch: by device its row, the post to write next and how many are waiting; by device and number those posts.

    Lists of equal lengths that are powers of two lie so in memory that posts written to all of them by turns push each
    other out of the processor's cache; so posts are written some at a time.
    """

    position: np.ndarray
    written: np.ndarray
    waiting: np.ndarray
    code: np.ndarray  # 2 x transfer + whether it is a SEND
    before: np.ndarray
    queue: np.ndarray


class PostColumns(NamedTuple):
    """The columns of `Posts`, to be filled, and what a peer and being a SEND add to the number of a queue."""

    offsets: np.ndarray
    transfer: np.ndarray
    is_send: np.ndarray
    before: np.ndarray
    queue: np.ndarray
    by_peer: int
    by_end: int


@kernel
def post_by_turns(order, lists, staged, posts):
    """Fill `posts` while slots take their turns: in this order of rows, or where it is empty device by device.

    When a slot takes its turn its SENDs are posted behind it, and at the same moment the RECVs of their receivers.
    False where the devices stand still, or where most of them miss most turns.
    """
    offsets, device, joined, links = lists.offsets, lists.device, lists.joined, lists.links
    begin_posts(lists, staged, posts)
    devices, rows, count = len(offsets) - 1, offsets[-1], 0
    one, missed, visits = -1, 0, -64 * devices
    while count < rows:
        one = one + 1 if one + 1 < devices else 0
        if len(order) > 0:
            one = device[order[count]]
        row, first, last = staged.position[one], offsets[one], offsets[one + 1]
        stop = row + 2 if row + 1 < last and joined[row + 1] else row + 1
        ready = row < last
        for member in range(row, min(stop, last)):
            needed = lists.source[member]
            if needed >= first and needed < last:
                ready = ready and needed < row
            elif needed >= 0:
                ready = ready and links[member] & 1 == 1
        visits, missed = visits + 1, missed + 1
        if not ready:
            if missed == devices or visits > 8 * count:
                return False
            continue
        missed, count = 0, count + stop - row
        staged.position[one] = stop
        for producer in range(row, stop):
            transfer = links[producer] >> 1
            if transfer >= 0:
                links[transfer] |= 1
                for is_send in (1, 0):
                    owner, peer = (one, device[transfer]) if is_send else (device[transfer], one)
                    place = owner * AT_ONCE + staged.waiting[owner]
                    staged.code[place], staged.before[place] = 2 * transfer + is_send, staged.position[owner]
                    staged.queue[place] = owner * devices * 2 + peer * posts.by_peer + is_send * posts.by_end
                    staged.waiting[owner] += 1
                    if staged.waiting[owner] == AT_ONCE:
                        write_staged(owner, staged, posts)
    for owner in range(devices):
        write_staged(owner, staged, posts)
    return True


@kernel
def begin_posts(lists, staged, posts):
    """Find out who sends to whom, and where the posts of each device begin."""
    offsets, links = lists.offsets, lists.links
    devices = len(offsets) - 1
    for one in range(devices):
        first, last, count = offsets[one], offsets[one + 1], 0
        staged.position[one] = first
        for row in range(first, last):
            needed = lists.source[row]
            if needed >= 0 and (needed < first or needed >= last):
                links[needed] = 2 * row
                count += 1
        posts.offsets[one + 1] = count
    for one in range(devices):
        count = staged.written[one] = posts.offsets[one]
        count += posts.offsets[one + 1]
        for row in range(offsets[one], offsets[one + 1]):
            if links[row] >= 0:
                count += 1
        posts.offsets[one + 1] = count


@kernel
def write_staged(owner, staged, posts):
    """Write the staged posts of a device to the columns."""
    post = staged.written[owner]
    for place in range(owner * AT_ONCE, owner * AT_ONCE + staged.waiting[owner]):
        posts.transfer[post], posts.is_send[post] = staged.code[place] >> 1, staged.code[place] & 1
        posts.before[post], posts.queue[post] = staged.before[place], staged.queue[place]
        post += 1
    staged.written[owner], staged.waiting[owner] = post, 0
