"""Write the explorer's comparison of the first visit, so that its page shows at once what would be better."""

import json
from pathlib import Path

from ppsim.explorer.answers import faster

FIRST = Path("ppsim/explorer/page/first.json")


def first() -> str:
    """Return the comparison of the page's first case, as the server would answer it."""
    case = {"devices": 4, "microbatches": 8, "forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0}
    rows = [json.dumps(row) for row in faster({**case, "transport": "async"}, {})["found"]]
    return "[\n" + ",\n".join(rows) + "\n]\n"


if __name__ == "__main__":
    FIRST.write_text(first(), encoding="utf-8")
