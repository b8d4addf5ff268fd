"""Schedule families: pure functions from sizes to a Schedule, one small module per family."""

# The import order is that of the registry, `ppsim list` and docs/schedules.md; those that search are in ppsim/search.
from ppsim.families import fill_drain, one_forward_one_backward, interleaved, zero_bubble  # noqa: F401, I001
from ppsim.families import v_shaped, v_fused  # noqa: F401
from ppsim.families import overlapped, grouped, dualpipe, stp  # noqa: F401
from ppsim.families import chimera, bitpipe, gems, hanayo  # noqa: F401
from ppsim.families import bpipe, vocabulary, asynchronous, sliced, pipe_offload  # noqa: F401
