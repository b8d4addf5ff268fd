"""Lists equal those of the schedules' authors, size by size, fixed as one digest per family.

The digests are of lists that the authors' own code printed: sail-sg/zero-bubble-pipeline-parallelism at 39f2c186
(scheduler/v1f1b.py, scheduler/group_interleaved_1f1b.py), MICLAB-BUPT/STP at 15517884 (stp/schedule.py), the loops
of wuhouming/BitPipe (bitpipe_schedule.py), and sail-sg/VocabularyParallelism at 6191c3bf (vocab_parallel_schedule.py,
interlaced_schedule.py; sizes that these run, without the T of variant 2, which is part of S here). Both parts of a
fused slot are listed in the order written.
"""

from hashlib import sha256

import pytest

import ppsim

SIZES = {
    "1f1b-v": [(p, m, {}) for p in range(1, 13) for m in range(1, 3 * p + 3)],
    "gis": [
        (p, m, {"stages_per_device": v, "group_size": g})
        for p in range(1, 9)
        for v in range(1, 6)
        for g in range(1, p + 1)
        for m in (1, p, 2 * p, 2 * p + 1)
    ],
    "stp": [(p, m, {}) for p in range(1, 9) for m in range(3 * p - 1, 4 * p + 4)],
    "vocab-1f1b": [
        (p, m, {"variant": variant, **options})
        for p in range(1, 13)
        for m in range(p + 2, 3 * p + 4)
        for variant, options in ((1, {}), (1, {"backward": 3.5}), (2, {}), (2, {"backward": 1.0}), ("interlaced", {}))
        if variant != "interlaced" or (p % 2 == 0 and m >= 3 * p // 2)
    ],
    "bitpipe": [(p, p * units, {}) for p in (2, 4, 6, 8, 10) for units in range(1, 6)],
}
DIGESTS = {
    "1f1b-v": "05482b5eb3f7e2d5",
    "gis": "94570a8dd75e5a11",
    "stp": "71797713c3251638",
    "vocab-1f1b": "07990597d3de6783",
    "bitpipe": "52c09ac3b60391f7",
}


def parts(order):
    """The actions of one list, both parts of a fused slot after each other."""
    return [
        part
        for action in order
        for part in (action[1 : action.index(")")].split(";") if action.startswith("(") else [action])
    ]


@pytest.mark.parametrize("name", SIZES)
def test_lists_of_every_size_are_the_authors(name):
    texts = []
    for p, m, options in SIZES[name]:
        schedule = ppsim.build(name, devices=p, microbatches=m, **options)
        texts.append("\n".join(" ".join(parts(order)) for order in schedule.orders()))
    assert sha256("\n\n".join(texts).encode()).hexdigest()[:16] == DIGESTS[name]
