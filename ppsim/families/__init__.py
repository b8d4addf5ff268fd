"""Schedule families: pure functions from sizes to a Schedule, a module per family or group of them."""

# The import order is the order of the registry, of `ppsim list` and of docs/schedules.md. Families that search follow
# in ppsim/search.
from ppsim.families import fill_drain, one_forward_one_backward, interleaved, zero_bubble, v_fused  # noqa: F401, I001
from ppsim.families import overlapped, grouped_interleaved, dualpipe, stp, two_directions, hanayo  # noqa: F401
from ppsim.families import bpipe, vocabulary, asynchronous, sliced, pipe_offload  # noqa: F401
