"""Writes the counts of docs/reliability.md from docs/data/reliability.json; `make fuzz` gives the folder of its run."""

import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from ppsim.base.files import write_atomically

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, DATA = DOCS / "reliability.md", DOCS / "data" / "reliability.json"
BEGIN, END = "<!-- {}: written by scripts/make_reliability_docs.py -->\n", "<!-- end of {} -->"


def merged(folder: Path) -> dict:
    """Return the date, the commits, and the counts: what was tried -> how it ended -> how often, over all processes."""
    counts: dict[str, Counter] = {}
    commits: dict[str, int] = {}
    for file in sorted(folder.glob("*.json")):
        run = json.loads(file.read_text())
        for what, counter in run["cases"].items():
            counts.setdefault(what, Counter()).update(counter)
        commits[run["commit"]] = commits.get(run["commit"], 0) + sum(map(_total, run["cases"].values()))
    cases = {what: dict(sorted(counter.items())) for what, counter in sorted(counts.items())}
    return {"date": datetime.now(UTC).date().isoformat(), "commits": commits, "cases": cases}


def _total(counter: dict[str, int]) -> int:
    return sum(counter.values())


def fuzz_table(run: dict) -> str:
    """A row for each thing that was tried."""
    rows = [
        f"| {what} | {ends.get('answers', 0):,} | {ends.get('refusals', 0):,} |" for what, ends in run["cases"].items()
    ]
    total = sum(map(_total, run["cases"].values()))
    commits = ", ".join(f"{count:,} at commit {commit}" for commit, count in sorted(run["commits"].items()))
    counted = f"{total:,} cases on {run['date']} ({commits}); every case that ended otherwise was mended and rerun."
    heading = f"{counted}\n\n| cases | answered | rejected |\n|---|---|---|\n"
    return heading + "\n".join(rows) + "\n"


def mutation_table(mutations: dict) -> str:
    """A row for each room, and what became of the changes that were not noticed."""
    rows = [
        f"| `ppsim/{room}/` | {row['places']:,} | {row['tried']} | {row['noticed']} | {row['survived']} |"
        for room, row in mutations["rooms"].items()
    ]
    heading = "| package | places for a change | tried | noticed | not noticed |\n|---|---|---|---|---|\n"
    judged = [f"- {why}: {', '.join(f'`{place}`' for place in places)}" for why, places in mutations["judged"].items()]
    table = f"{mutations['date']}:\n\n{heading}" + "\n".join(rows)
    lines = "\n".join(judged)
    return f"{table}\n\nThe changed lines that no test noticed, at the commit that was tried:\n\n{lines}\n"


def page(text: str, data: dict) -> str:
    """The page with the counts of `data`."""
    for name, table in (("fuzz", fuzz_table(data["fuzz"])), ("mutations", mutation_table(data["mutations"]))):
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + table + end + after
    return text


def main(folder: str | None = None) -> None:
    """Take in a fuzz run, where one is given, and write the page."""
    data = json.loads(DATA.read_text())
    if folder:
        data["fuzz"] = merged(Path(folder))
        write_atomically(DATA, json.dumps(data, indent=2) + "\n")
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8"), data))


if __name__ == "__main__":
    main(*sys.argv[1:])
