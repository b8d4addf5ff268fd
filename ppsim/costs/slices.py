"""What causal attention makes of the slices of a sequence: a later slice attends to more tokens."""

from ppsim.base.errors import CostError, shown


def causal_slice_costs(slices: int, attention: float) -> list[float]:
    """Relative times of equally long slices of a sequence, for `Costs(slice_costs=...)`; they sum to 1.

    Slice i of n attends to its own half square and to the i slices before it, (2i+1)/n^2 of the causal triangle; all
    else is linear in tokens (arXiv 2504.14519, section 4.2, where exchanging context evens the slices).

    Parameters
    ----------
    slices : int
        Slices of a sequence, at least 1.
    attention : float
        Part of a whole microbatch's time in the attention core, 0 to 1.

    Raises CostError where a value is not legal.
    """
    if isinstance(slices, bool) or not isinstance(slices, int) or slices < 1:
        raise CostError(f"slices={shown(slices)} must be a whole number of at least 1")
    if isinstance(attention, bool) or not isinstance(attention, int | float) or not 0 <= attention <= 1:
        raise CostError(f"attention={shown(attention)} must be a part of the time from 0 to 1")
    return [(1 - attention) / slices + attention * (2 * i + 1) / slices**2 for i in range(slices)]
