"""Sequences of unequal length: drawn or read, packed into microbatches, and simulated over many steps."""

import json
from itertools import product
from random import Random

import numpy as np
import pytest
from command_line import ppsim as run_command

import ppsim
from ppsim.config import as_config
from ppsim.costs import MicrobatchSlots, context_groups, packed
from ppsim.studies import packed_steps

GIVEN = {
    "schedule": {"name": "1f1b", "devices": 2},
    "costs": {"forward": 1, "backward": 2, "per": "stage"},
    "lengths": {"sequences": 4, "median": 8, "spread": 0, "tokens": 8, "attention": 0.5, "batches": 2},
}
MODEL = {
    "model": {"num_layers": 8, "hidden": 512, "heads": 8, "vocabulary": 1000, "sequence": 1024},
    "hardware": {"device": "H100 SXM", "link": "NVLink 4"},
    "layout": {"data": 2},
    "schedule": {"name": "interleaved-1f1b", "devices": 2, "stages_per_device": 2},
    "lengths": {"sequences": 24, "median": 300, "spread": 0.8, "batches": 3},
}


def factors(lengths, packing, **slots):
    return packed(np.array(lengths), packing, MicrobatchSlots(**{"tokens": 10, **slots})).tolist()


def test_work_is_linear_in_tokens_and_quadratic_in_attention():
    assert MicrobatchSlots(8, attention=0.5).work(np.array([8, 4])).tolist() == [1.0, 0.5 * 0.5 + 0.5 * 0.25]


def test_padding_takes_the_longest_of_a_microbatch():
    assert factors([10, 2, 4, 4], "pad", microbatch_size=2) == [[1.0, 0.4]]


def test_packing_fills_microbatches_and_the_last_copies_may_have_empty_ones():
    assert factors([6, 5, 5, 4], "pack") == [[1.0, 1.0]]
    assert factors([6, 5, 5, 4, 1], "pack", copies=2) == [[1.0, pytest.approx(0.1)], [1.0, 0.0]]


def test_balancing_evens_out_the_squares_that_packing_does_not_see():
    """Equal tokens in both microbatches, but one sequence of 8 attends to more than four of 2."""
    lengths = [6, 6, 2, 2, 2, 2]
    assert factors(lengths, "balance", attention=1.0) == [[pytest.approx(0.44), pytest.approx(0.44)]]
    drawn = Random(5).choices(range(1, 11), k=60)  # noqa: S311 - no secret
    spread = [
        np.ptp(np.array(factors(drawn, packing, copies=4, attention=0.5)).sum(axis=1))
        for packing in ("pack", "balance")
    ]
    assert spread[1] < 0.5 * spread[0]


def test_best_fit_takes_at_most_11_9_of_the_fewest_bins():
    random = Random(1)  # noqa: S311 - no secret
    for _ in range(30):
        lengths = [random.randint(1, 10) for _ in range(5)]
        fewest = min(
            len({*where})
            for where in product(range(5), repeat=5)
            if all(sum(length for length, at in zip(lengths, where, strict=True) if at == one) <= 10 for one in where)
        )
        assert fewest <= len(factors(sorted(lengths)[::-1], "pack")[0]) <= 11 / 9 * fewest + 1


def test_a_long_sequence_takes_two_gpus_and_short_ones_take_the_others():
    """Four GPUs of 5 tokens: 10 on two of them, 5 on each of the others; all have half of a full sequence."""
    groups = {"copies": 2, "context": 2}
    assert factors([10, 5, 5], "dynamic-context", **groups) == [[1.0]]
    assert factors([10], "dynamic-context", **groups) == [[0.5]]  # free GPUs double the group
    assert factors([10, 10, 10, 10], "dynamic-context", **groups) == [[2.0]]


@pytest.mark.parametrize(
    ("lengths", "groups", "expected"),
    [
        # one sequence for two GPUs would be late: it waits, and then has both
        ([6, 6, 6], {"copies": 2, "tokens": 10}, [[(1, [6]), (1, [6])], [(2, [6])]]),
        # no short sequence fits beside the longest; then free GPUs double the groups
        ([20, 5, 5], {"copies": 1, "context": 4, "tokens": 20}, [[(4, [20])], [(2, [5]), (2, [5])]]),
        # two buckets, [10, 10] and [10, 5, 5]: the head of the second blocks it, and is taken away again
        ([10, 10, 10, 5, 5], {"copies": 2, "context": 2, "tokens": 10},
         [[(2, [10]), (2, [10])], [(1, [5]), (1, [5]), (2, [10])]]),
    ],
)  # fmt: skip
def test_dynamic_context_groups_follow_from_megatrons_rules(lengths, groups, expected):
    """Buckets of equal work, the least loaded group, trimmed overload, free GPUs: on cases worked out by hand."""
    found = context_groups(np.array(lengths), MicrobatchSlots(**groups))
    assert [[(one.gpus, one.lengths) for one in microbatch] for microbatch in found] == expected


def test_full_sequences_are_the_step_without_lengths():
    config = as_config(GIVEN)
    plain = as_config({key: value for key, value in GIVEN.items() if key != "lengths"} | {
        "schedule": {"name": "1f1b", "devices": 2, "microbatches": 4}
    }).simulate()  # fmt: skip
    assert config.simulate().makespan == plain.makespan
    for steps in packed_steps(GIVEN):
        assert steps.seconds.tolist() == [plain.makespan] * 2


def test_a_step_waits_for_its_slowest_copy_and_counts_its_own_tokens():
    config = as_config(MODEL)
    run = config.simulate()
    steps = {one.packing: one for one in packed_steps(MODEL)}
    assert run.makespan <= steps["pack"].seconds[0] * (1 + 1e-12)
    assert run.tokens_per_second == pytest.approx(config.lengths.drawn[0].sum() / run.makespan)
    assert run.schedule.microbatches % 2 == 0  # interleaved 1F1B needs a multiple of its devices
    assert steps["balance"].imbalance.mean() < steps["pack"].imbalance.mean()


def test_the_command_prints_quantiles_on_one_screen(tmp_path):
    (tmp_path / "lengths.txt").write_text("100\n900\n\n1024\n")
    config = {**MODEL, "lengths": {"sequences": 16, "file": "lengths.txt", "batches": 2}}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(config))
    page = run_command("lengths", path).out
    assert page.startswith("balancing ")
    assert len(page.splitlines()) <= 24
    rows = json.loads(run_command("lengths", path, "--json", "-").out)["rows"]
    assert [row["packing"] for row in rows] == ["pad", "pack", "balance"]
    assert all(row["step"]["p5"] <= row["step"]["p50"] <= row["step"]["p95"] for row in rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; write one length per line"),
        ("5\n-3\n", "line 2: '-3' is not a length"),
        ("2000\n", "line 1: '2000' is not a length; write whole numbers of tokens, from 1 to the 1024"),
        ("3.5\n", "line 1: '3.5' is not a length"),
    ],
)
def test_a_wrong_file_is_one_error(tmp_path, text, message):
    (tmp_path / "lengths.txt").write_text(text)
    (tmp_path / "job.yaml").write_text(json.dumps({**MODEL, "lengths": {"sequences": 4, "file": "lengths.txt"}}))
    with pytest.raises(ppsim.ConfigError, match=message):
        ppsim.load_config(tmp_path / "job.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": {"sequences": 4}}, "lengths: needs file or median"),
        ({"lengths": {"median": 4}}, "lengths.sequences: is missing; give the sequences of one step"),
        ({"lengths": {"sequences": 4, "median": 8, "tokens": 8}}, "lengths.attention: needed without model"),
        ({"lengths": {**GIVEN["lengths"], "packing": "dynamic-context"}}, "runs without a pipeline"),
        (
            {"schedule": {"name": "1f1b", "devices": 2, "microbatches": 4}},
            "schedule.microbatches: follows from lengths",
        ),
        ({"costs": {"microbatch_scale": [1]}}, "costs.microbatch_scale: excludes lengths"),
    ],
)
def test_what_does_not_go_together_is_one_error(change, message):
    with pytest.raises(ppsim.ConfigError, match=message):
        as_config({**GIVEN, **change})
