"""Faults in the words of the page: a sentence, the fields that it is about, and values that set it right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ppsim.config import config_source
from ppsim.explorer.cases import Case, scaled_rows
from ppsim.explorer.keys import keys_of
from ppsim.search import families

_SIZES = ("devices", "microbatches", "stages_per_device")
# Field of the page -> its name in a sentence.
_LABELS = {
    "devices": "devices", "microbatches": "microbatches", "stages_per_device": "stages per device",
    "forward": "cost F", "input_grad": "cost I", "weight_grad": "cost W", "latency": "transfer",
    "overlap": "fused F and B", "memory_limit": "memory limit", "by_device": "cost by device", "transport": "transport",
    "hardware.gpus": "GPUs", "batch": "batch size",
}  # fmt: skip
_PLACES = re.compile(r"^\S+\.ya?ml: |^explorer: | \(line \d+\)|, (?:another group_size, )?or grouping=.*")
_ARGUMENT = re.compile(r"(at least )?\b([a-z]\w*)=('?)([\w.]+)\3")
_KEY = re.compile(r"\b[a-z]+(?:[._][a-z_]+)+|^\w+(?= lists|: | is )")
_LEGAL = re.compile(
    r"; use (?:at (?:least|most) |a multiple of \d+: )?(\d+)(?: or (\d+))?\b|: use \w+=(\d+)|mean (.+?)(?: or (.+?))?\?"
)
_LARGE = re.compile(r"(?<![\w.,'-])\d{4,}(?![\w.,])")  # numbers that get commas
_TOTAL = re.compile(r"(batch is )?(\d+)(?: GPUs)?, but .* make (\d+)$")
_ABOUT = {"in one proportion": "by_device", "the partition lists": "layout.partition"}


def faults_body(faults: Sequence[str | Mapping[str, Any]]) -> bytes:
    """Return the body of every response that reports faults: each has `text`, `keys` of fields, and `use`."""
    listed = [{"text": one, "keys": [], "use": []} if isinstance(one, str) else one for one in faults]
    return json.dumps({"faults": listed}).encode()


def in_page_words(fault: str, case: Case, path: str | None) -> dict[str, Any]:
    """Return a fault of a case as the page shows it: its `text`, the `keys` of its fields, and what to `use`.

    `use` lists values that set it right: `key`, `value` and the `text` of a button. `path` is that of the config.
    """
    labels = {key: key.replace("_", " ") for family in families().values() for key in family.options} | _LABELS
    labels |= {row["key"]: row["name"] for row in (keys_of(path) if path else [])}
    text = _PLACES.sub("", fault).removeprefix(f"{case.get('schedule')}: ")
    text = re.sub(r"^override '([\w.]+)'", r"\1", text)
    text = text.replace(f"the schedule has {case.get('devices')} stages;", f"there are {case.get('devices')} devices;")
    text = re.sub(r"^hardware\.gpus is (\d+)", r"\1 GPUs", text)
    section, total, legal = re.match(r"(layout|model): (?=(\w+=\w+))", text), _TOTAL.match(text), _LEGAL.search(text)
    prefix = f"{section[1]}." if section else ""
    if section:  # one rule of several that the same value breaks
        text = text.removeprefix(section[0]).partition(f"; {section[2]} ")[0]
    keys = [key for words, key in _ABOUT.items() if words in text]

    def argument(found: re.Match[str]) -> str:
        least, name, _, value = found.groups(default="")
        keys.append(prefix + name)
        word = labels.get(prefix + name, name.replace("_", " "))
        return least + value if least else f"{value} {word}" if name in _SIZES else f"{word} {value}"

    def named(found: re.Match[str]) -> str:
        key = found[0] if found[0] in labels else found[0].removeprefix("costs.").removeprefix("schedule.")
        keys.append(key)
        return labels.get(key, key)

    text = _KEY.sub(named, _ARGUMENT.sub(argument, text))
    text = re.sub(r"^([^:]+): ('[^']*'|[-\d.]+) must ", r"\1 \2: must ", text).replace(" x ", " × ")
    keys = [key for key in dict.fromkeys(keys) if key in labels]
    use: list[tuple[str, Any]] = []
    if total:
        has, needs = int(total[2]), int(total[3])
        keys = ["batch" if total[1] else "hardware.gpus"]
        use = [("batch", needs)] if total[1] else [("hardware.gpus", needs), *_data_for(case, path, has, needs)]
    elif legal and keys:
        use = [(keys[0], int(value) if value.isdecimal() else value) for value in legal.groups() if value]
    elif "in one proportion" in text:
        use = [("by_device", scaled_rows(case))]
    return {
        "text": re.sub(r"(?<=[ '])-(?=\d)", "−", _LARGE.sub(lambda one: f"{int(one[0]):,}", text)),
        "keys": keys,
        "use": [{"key": key, "value": value, "text": _button(key, value, labels)} for key, value in use],
    }


def _data_for(case: Case, path: str | None, has: int, needs: int) -> list[tuple[str, int]]:
    """Return the data parallelism with which a config needs no more GPUs than it has, if there is one."""
    own = config_source(path).data.get("layout", {}).get("data", 1) if path else 1
    data, rest = divmod(int(case.get("changes", {}).get("layout.data", own)) * has, needs)
    return [] if rest or not data else [("layout.data", data)]


def _button(key: str, value: Any, labels: Mapping[str, str]) -> str:
    if key == "by_device":
        return "Scale F, I and W alike"
    word = labels.get(key, key)
    return f"Use {value:,} {word}" if key in (*_SIZES, "hardware.gpus") else f"Use {word} {value}"
