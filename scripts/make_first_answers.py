"""Write the explorer's comparison of the first visit, so that its page shows at once what would be better."""

import json
from pathlib import Path

from ppsim.explorer.answers import faster

FIRST = Path("ppsim/explorer/page/first.json")


if __name__ == "__main__":
    case = {"devices": 4, "microbatches": 8, "forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0}
    found = faster({**case, "transport": "async"}, {})["found"]
    FIRST.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
