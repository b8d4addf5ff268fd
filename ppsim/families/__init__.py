"""Schedule families: pure functions from sizes to a Schedule, one small module per family."""

# The import order is the order of the registry, of `ppsim list` and of docs/schedules.md. Families that search follow
# in ppsim/search.
from ppsim.families import fill_drain, one_forward_one_backward, interleaved, zero_bubble  # noqa: F401, I001
from ppsim.families import interleaved_zero_bubble, v_shaped, v_fused  # noqa: F401
from ppsim.families import overlapped, grouped_interleaved, grouped_by_slots, dualpipe, stp  # noqa: F401
from ppsim.families import chimera, bitpipe, gems, hanayo  # noqa: F401
from ppsim.families import bpipe, vocabulary, asynchronous, sliced, sliced_interleaved  # noqa: F401
from ppsim.families import sliced_zero_bubble, pipe_offload  # noqa: F401
