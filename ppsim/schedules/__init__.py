"""Schedule families: pure functions from sizes to a Schedule, one small module a family."""

# The import order is the order of the registry, of `ppsim list` and of docs/schedules.md.
from ppsim.schedules import fill_drain, one_forward_one_backward, interleaved, zero_bubble  # noqa: F401, I001
from ppsim.schedules import interleaved_zero_bubble, v_shaped, v_memory, search  # noqa: F401
from ppsim.schedules import overlapped, grouped_interleaved, dualpipe, chimera, gems, hanayo  # noqa: F401
from ppsim.schedules import bpipe, asynchronous, sliced  # noqa: F401
from ppsim.schedules.registry import Family, build, schedules

__all__ = ["Family", "build", "schedules"]
