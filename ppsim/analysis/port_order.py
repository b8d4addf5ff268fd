"""Who let whom through shared ports in a run, as pairs of transfers."""

from __future__ import annotations

import heapq

import numpy as np

from ppsim.plan.ports import Ports
from ppsim.plan.resolve import Posts
from ppsim.timeline import TimelineColumns


def port_edges(
    run: TimelineColumns, ports: Ports, posts: Posts, ready: np.ndarray, depth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of transfers (before, after) where the later one took the place of the earlier, both by consuming row.

    A transfer that reached the head of a line because another let it pass also counts behind what had held that one up.
    `ready` is when each transfer joined its lines; of those that take no time and start at one moment, `depth` says
    which wait for others, and those come later. The order is that of this run: with other costs it may be another.
    """
    turn = np.zeros(len(ready), np.int64)
    turn[posts.transfer[posts.is_send]] = np.flatnonzero(posts.is_send)
    through = np.flatnonzero((ports.of_transfer >= 0).any(axis=1))
    through = through[np.lexsort((turn[through], depth[through], ready[through], run.transfer_start[through]))]
    places = [[(-np.inf, -1)] * count for count in ports.capacity.tolist()]
    last_in_line: dict[int, int] = {}
    let_in: dict[int, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    starts, ends, joined = run.transfer_start.tolist(), run.transfer_end.tolist(), ready.tolist()
    for transfer, lines in zip(through.tolist(), ports.of_transfer[through].tolist(), strict=True):
        start, end = starts[transfer], ends[transfer]
        used = [port for port in lines if port >= 0]
        free = [heapq.heappop(places[port]) for port in used]
        let_in[transfer] = [before for until, before in free if until == start]
        if start > joined[transfer] and not let_in[transfer]:
            heads = {last_in_line[port] for port in used if port in last_in_line}
            let_in[transfer] = [before for head in heads if starts[head] == start for before in let_in[head]]
        earlier = {before for until, before in free if before >= 0 and until <= start}
        pairs += [(before, transfer) for before in sorted(earlier | {*let_in[transfer]} - {-1})]
        for port in used:
            heapq.heappush(places[port], (end, transfer))
            last_in_line[port] = transfer
    before, after = np.array(pairs, np.int64).reshape(-1, 2).T
    return before, after
