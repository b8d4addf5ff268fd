"""Closed forms: every formula that a family prints with "=" or "<=" is compared with simulations."""

from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from closed_forms import BRACES, ClosedForm, closed_forms, forms_of

import ppsim

FAMILIES = list(ppsim.schedules())
SEARCHES = ("v-half", "v-min", "zb-1p", "zb-2p", "zb-auto", "auto")  # slower
CASES, CASES_OF_SEARCHES, LEAST_CASES = 30, 6, 3  # simulations of each formula
SIZES = list(product((1, 2, 3, 4, 6), (1, 2, 3, 4, 6, 8, 11, 12, 16), (None, 1, 3, 4)))
SIZES_OF_SEARCHES = list(product((2, 3, 4), (2, 8), (None,)))
OPTIONS = {  # values that are tried one at a time
    "backward_order": ["lifo"], "grouping": ["torch", "spread"], "group_size": [1, 2, 3, 5, 8], "order": ["b_f"],
    "slices": [1, 3, 4, 8], "variant": [2, "interlaced"], "iterations": [4, 5], "chunks": [2],
    "mode": ["in-advance"], "memory_limit": [2.0, 3.5], "objective": ["span"],
}  # fmt: skip
SECONDS = [  # of F, I and W
    (1, 1, 1), (2, 2, 1), (2, 1, 1), (1, 0.5, 1.5), (1, 1.25, 0.5), (0.5, 1, 2), (3, 1, 1), (1, 3, 2), (4, 4, 3),
]  # fmt: skip
LATENCIES = (0, 0.25, 0.5, 2)
FUSED = {"o", "F&B", "f&b"}


def candidates(family, form):
    """Return sizes, options, seconds of F, I and W, latency, and the excess of a fused slot, in random order."""
    options = [{}, *({key: value} for key in family.options for value in OPTIONS.get(key, ()))]
    if family.name in ("auto", "zb-auto"):
        options = [{"memory_limit": 4.0} | one for one in options]
    cases = list(product(
        SIZES_OF_SEARCHES if family.name in SEARCHES else SIZES, options, SECONDS,
        LATENCIES if {"c", "c'"} & form.names else (0,), (0, 0.5) if FUSED & form.names else (0,),
    ))  # fmt: skip
    return [cases[number] for number in np.random.default_rng(1).permutation(len(cases))]


@cache
def built(name, sizes, options):
    """Return the schedule, or None if the family does not allow the sizes."""
    try:
        return ppsim.schedules()[name].build(*sizes, **dict(options))
    except ppsim.BuildError:
        return None


def group_size(schedule, options):
    if "grouping" in options:
        rounds = max(1, schedule.microbatches_of_a_step // schedule.devices)
        return -(-schedule.microbatches_of_a_step // rounds)
    return options.get("group_size") or -(-schedule.devices // schedule.slices) * schedule.slices


def values_of(schedule, options, seconds, latency, excess):
    """Return the value of each letter, as fractions, so that conditions compare exact numbers."""
    forward, input_grad, weight_grad = map(Fraction, seconds)
    backward, v = input_grad + weight_grad, Fraction(schedule.num_stages, schedule.devices)
    of_share = {"F": forward, "B": backward, "I": input_grad, "W": weight_grad}
    of_share["F&B"] = max(forward, backward) + Fraction(excess)
    of_stage = {letter.lower(): value / v for letter, value in of_share.items()}
    variant = options.get("variant", 1)
    return of_share | of_stage | {
        "p": Fraction(schedule.devices), "m": Fraction(schedule.microbatches_of_a_step), "v": v,
        "g": Fraction(group_size(schedule, options)), "k": schedule.slices, "n": schedule.slices,
        "o": of_stage["f&b"], "c": Fraction(latency), "c'": Fraction(latency) / 2,
        "S": Fraction(3, 4), "T": Fraction(1, 2), "iterations": schedule.iterations,
        "variant": 3 if variant == "interlaced" else variant, "memory_limit": options.get("memory_limit"),
    }  # fmt: skip


def costs_of(form, values, schedule):
    given = {"forward": "F", "input_grad": "I", "weight_grad": "W", "latency": "c"}
    if schedule.cuts_vocabulary:  # c is the time of its reduction
        del given["latency"]
        given |= {"vocabulary_forward": "S", "vocabulary_backward": "T"}
        given |= {"vocabulary_reduce": "c", "vocabulary_statistics": "c'"}
    if FUSED & form.names:
        given["overlap"] = "F&B"
    return ppsim.Costs(**{name: float(values[letter]) for name, letter in given.items()})


def simulated(family, sizes, options, values, costs):
    """Return the run of a schedule, built for these costs if that makes a difference."""
    fitted = {"costs": costs, "forward": float(values["F"]), "backward": float(values["B"])}
    fitted = {name: value for name, value in fitted.items() if name in family.options}
    return ppsim.simulate(family.build(*sizes, **options, **fitted), costs)


def check(form, run, values, case):
    if form.measure == "peak_activations":
        measured, expected = run.peak_activations, [form.value(values | {"r": r}) for r in range(run.schedule.devices)]
    else:
        measured = run.peak_activations.max() if form.measure == "largest" else getattr(run, form.measure)
        expected = form.value(values)
    about = f"{run.schedule.name}: {form.measure} {form.relation} {form.expression} at {case}"
    if form.relation == "<=":
        assert np.all(measured <= np.multiply(expected, 1 + 1e-9)), about
    else:
        assert measured == pytest.approx(expected, rel=1e-9, abs=1e-12), about


def check_with_simulations(family):
    """Compare each formula of a family with simulations in which its conditions are true."""
    for form in forms_of(family):
        cases = 0
        for sizes, options, *numbers in candidates(family, form):
            schedule = built(family.name, sizes, tuple(options.items()))
            values = values_of(schedule, options, *numbers) if schedule else None
            if values and form.holds(values):
                run = simulated(family, sizes, options, values, costs_of(form, values, schedule))
                check(form, run, values, (sizes, options, numbers))
                cases += 1
            if cases == (CASES_OF_SEARCHES if family.name in SEARCHES else CASES):
                break
        assert cases >= LEAST_CASES, f"{family.name}: no case fulfils the conditions of {form}"


@pytest.mark.parametrize("name", FAMILIES)
def test_closed_forms_are_what_simulations_give(name):
    check_with_simulations(ppsim.schedules()[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_equation_is_evaluated(name):
    family = ppsim.schedules()[name]
    evaluated = {form.measure for form in forms_of(family) if form.relation == "="}
    if family.makespan.startswith(("=", "span =")):
        assert evaluated & {"makespan", "span"}
    if family.peak_activations.startswith("="):
        assert evaluated & {"peak_activations", "largest"}


def test_a_wrong_formula_is_found():
    family = ppsim.schedules()["1f1b"]
    for text in ("= 7m", "= (m+p)(F+B)", "= (m+p-1)(F+B)"):  # the last is right without latency only
        wrong = ppsim.Family(**{**vars(family), "closed_forms": {"makespan": text + "{|, c >= 0}"}})
        with pytest.raises(AssertionError, match="1f1b: makespan"):
            check_with_simulations(wrong)


def test_a_text_gives_its_formulas_and_their_conditions():
    text = (
        "= m(F+I) {with k slices} for m >= p, (m+p-1)F for m < p, max(F, I) <= 2; where c = 0; "
        "span 2mF{: exact|} at F = I: bubble fraction (p-1)/m; ~ 7m; bubble fraction ~ 1/m"
    )
    assert BRACES.sub(r"\1", text).startswith("= m(F+I) with k slices for m >= p, (m+p-1)F")
    assert closed_forms(text, "makespan") == [
        ClosedForm("makespan", "=", "m(F+I)", ["m >= p", "c = 0"]),
        ClosedForm("makespan", "=", "(m+p-1)F", ["m < p", "max(F, I) <= 2", "c = 0"]),
        ClosedForm("span", "=", "2mF", ["F = I"]),
        ClosedForm("bubble_fraction", "=", "(p-1)/m", ["F = I"]),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("2m(p-1)/m", 6), ("m p - p", 28), ("3mf/2", 6), ("2c floor(p/3)", 1), ("(p-1)F&B", 15), ("m mod p", 0)],
)
def test_a_product_needs_no_sign(text, value):
    form = ClosedForm("makespan", "=", text, [])
    assert form.value({"m": 8, "p": 4, "f": 0.5, "c": 0.5, "F&B": 5}) == value
