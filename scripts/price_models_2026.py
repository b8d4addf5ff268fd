"""Prices the runs of docs/data/models_2026.yaml once; writes docs/data/models_2026.json, which docs/accuracy.md shows.

`python scripts/price_models_2026.py` takes some seconds. The results stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml
from price_out_of_view import COLUMNS, Found, config_of, priced, schedule_of
from published import DATA

from ppsim.base.files import write_atomically

RUNS, OUT = DATA / "models_2026.yaml", DATA / "models_2026.json"
ABOUT = (
    "Runs of docs/data/models_2026.yaml, priced once by scripts/price_models_2026.py; columns as in out_of_view.json."
)


def main() -> None:
    """Price every run and write the results."""
    rows = []
    for run in runs():
        row = priced(run)
        print(f"{run.name}: {row['measured']:.3f} s, predicted {row['predicted'] / row['measured'] - 1:+.1%}")
        rows.append([row.get(name) for name in COLUMNS])
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    write_atomically(
        OUT, f'{{"about": {json.dumps(ABOUT)},\n"columns": {json.dumps(COLUMNS)},\n"runs": [\n{lines}\n]}}\n'
    )


def runs() -> Iterator[Found]:
    """Yield each run as its source describes it."""
    data = yaml.safe_load(RUNS.read_text(encoding="utf-8"))
    for run in data["runs"]:
        model: dict[str, Any] = data["models"][run["model"]] | {"sequence": run["sequence"]}
        schedule = schedule_of(run.get("devices", 1), run["microbatches"], run.get("stages", 1))
        sequences = run["microbatches"] * run["layout"]["microbatch_size"] * run["layout"]["data"]
        seconds = run.get("seconds") or sequences * run["sequence"] / (run["tokens"] * run["gpus"])
        config = config_of(data, model, run["device"], run["gpus"], run["layout"], schedule)
        yield Found(run["id"], run["source"], config, seconds, f"{run['source']}: {run['model']}, {run['device']}")


if __name__ == "__main__":
    main()
