"""Writes the tables of docs/flags.md: each config key with the flags that ppsim prints for it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import PpsimError
from ppsim.base.files import write_atomically
from ppsim.config import as_config
from ppsim.launch import FRAMEWORKS, flags_in, megatron_model
from ppsim.launch.reading import Row

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
BEGIN, END = "<!-- {}: written by scripts/make_flags_page.py -->\n", "<!-- end of {} -->"
MACHINE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 8}
DENSE: dict[str, Any] = {
    "model": {
        "num_layers": 32, "hidden": 4096, "heads": 32, "key_value_heads": 8, "ffn": 14336, "gated": True,
        "vocabulary": 128256, "sequence": 8192, "norm": "rmsnorm",
    },
    "hardware": MACHINE,
    "layout": {"tensor": 2, "data": 2, "microbatch_size": 1},
    "schedule": {"name": "1f1b", "devices": 4, "microbatches": 32},
    "transport": "directed",
    "optimizer": "sync",
}  # fmt: skip
MOE: dict[str, Any] = {
    **DENSE,
    "model": {**DENSE["model"], "experts": 8, "experts_per_token": 2, "expert_ffn": 14336},
    "layout": {"data": 8, "expert": 4, "microbatch_size": 1},
}
OWN = {  # sections of a layout that each framework can run
    "Megatron-LM": {"framework": "megatron-core", "overlap_tensor": False, "overlap_data": False},
    "torchtitan": {"framework": "torchtitan", "sharded": True, "sharded_by": "stage"},
    "Primus": {"framework": "primus", "overlap_tensor": False, "overlap_data": False},
}
LONGEST = 90  # characters of a flag with its argument
CHANGES: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
    (DENSE, {"layout.tensor": 4}),
    (DENSE, {"layout.sequence_parallel": True}),
    (DENSE, {"layout.context": 2}),
    (DENSE, {"schedule.devices": 8}),
    (DENSE, {"layout.data": 4}),
    (DENSE, {"layout.microbatch_size": 2}),
    (DENSE, {"schedule.microbatches": 64}),
    (DENSE, {"schedule.name": "interleaved-1f1b", "schedule.stages_per_device": 2}),
    (DENSE, {"schedule.name": "zb-v"}),
    (DENSE, {"layout.partition": [9, 9, 9, 5]}),
    (DENSE, {"layout.recompute": "core"}),
    (DENSE, {"layout.recompute": "norms+activations"}),
    (DENSE, {"layout.recompute": "alternate"}),
    (DENSE, {"layout.recompute": "full"}),
    (DENSE, {"layout.recompute": "full", "layout.recompute_blocks": 2}),
    (DENSE, {"layout.distributed_optimizer": True}),
    (DENSE, {"layout.sharded": True, "layout.sharded_by": "block"}),
    (DENSE, {"layout.overlap_data": True}),
    (DENSE, {"layout.sequence_parallel": True, "layout.overlap_tensor": True}),
    (DENSE, {"layout.fp8": "tensor"}),
    (DENSE, {"model.attention": "full", "model.causal": False}),
    (MOE, {"layout.expert": 2}),
    (MOE, {"layout.expert_exchange": "hierarchical"}),
    (MOE, {"layout.grouped_experts": True}),
    (MOE, {"layout.fused_router": True}),
)


def rows() -> str:
    """Return the rows of Megatron-LM's table: a key, its flag, and the flag's arguments by value."""
    states = megatron_model.SIZES
    names = ("model", "attention", "latent", "experts", *states, "expert_layout", "layout", "context", "tensor")
    tables = [megatron_model.ROWS[name] for name in names]
    lines = ["| key | flag | arguments |", "|---|---|---|"]
    lines += [f"| `{row.key}` | `--{row.flag}` | {_arguments(row)} |" for table in tables for row in table]
    return "\n".join(lines) + "\n"


def _arguments(row: Row) -> str:
    if row.words is None:
        return "a number"
    printed = {str(value): word for word, value in reversed(row.words.items())}  # of several, the first
    words = [f"`{value}`: {f'`{word}`' if word else 'the flag alone'}" for value, word in reversed(printed.items())]
    return "; ".join(word.replace("`True`", "`true`").replace("`False`", "`false`") for word in words)


def policies() -> str:
    """Return a row per change of a config: the flags that it adds for each framework."""
    lines = [f"| change | {' | '.join(FRAMEWORKS)} |", "|---" * (len(FRAMEWORKS) + 1) + "|"]
    for base, changes in CHANGES:
        keys = ", ".join(f"`{key}: {str(value).lower()}`" for key, value in changes.items())
        cells = ("<br>".join(_added(name, base, changes)) for name in FRAMEWORKS)
        lines.append(f"| {keys}{' (with experts)' * (base is MOE)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _added(framework: str, base: Mapping[str, Any], changes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags that a change adds, or why the framework cannot run it."""
    config = as_config({**base, "layout": {**base["layout"], **OWN[framework]}})
    before, after = (flags_in(framework, one) for one in (config, config.changed(dict(changes))))
    if isinstance(before, PpsimError) or isinstance(after, PpsimError):
        reason = str(after).removeprefix(f"{framework} cannot run ").removeprefix("this config: ")
        yield f"cannot run it: {reason}".replace("|", "\\|")
        return
    added = [flag for flag in after if flag not in before]
    shown = (flag if len(flag) <= LONGEST else f"{flag[:LONGEST]}..." for flag in added)
    yield from (f"`{flag}`".replace("|", "\\|") for flag in shown)
    if not added:
        gone = [flag for flag in before if flag not in after]
        yield ", ".join(f"without `{flag}`" for flag in gone) or "no flag"


TABLES = {"rows": rows, "policies": policies}


def page(text: str) -> str:
    """Return the page with today's tables."""
    for name, table in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = text.partition(begin)
        text = head + begin + table() + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))
