"""A process that is killed while it writes leaves the old file or the new one, never a part."""

import random
import subprocess
import sys
import time

from command_line import ENVIRONMENT

from tests.fuzz.cases import COUNTS, EXAMPLES

WRITES = """
import itertools, sys
from ppsim.base.files import write_atomically
print("ready", flush=True)
for number in itertools.count():
    write_atomically(sys.argv[1], [b"%d\\n" % number * 20_000 for _ in range(50)])
"""


def test_a_kill_leaves_a_whole_file(tmp_path):
    target = tmp_path / "table.csv"
    generator = random.Random(0)  # noqa: S311 - moments of kills
    for _ in range(max(3, EXAMPLES // 25)):
        process = subprocess.Popen([sys.executable, "-c", WRITES, target], stdout=subprocess.PIPE, env=ENVIRONMENT)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while not target.exists():
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.1))
        process.kill()
        process.wait()
        lines = target.read_bytes().splitlines()
        assert len(lines) == 50 * 20_000
        assert len(set(lines)) == 1
        COUNTS["kills while a file is written"]["answers"] += 1
