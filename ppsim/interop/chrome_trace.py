"""Chrome trace events: the JSON form of a trace, for tools that do not read Perfetto's own."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ppsim.interop.tracks import NO_ARROW, Levels, Slices, Tracks


def json_pieces(trace: Tracks) -> Iterator[bytes]:
    """The file, piece by piece, one event a line: devices are processes, tracks threads, times microseconds."""
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    yield ",\n".join(_names(trace)).encode()
    for every, levels in trace.pieces():
        for lines in (*(_slices(trace, slices) for slices in every), _levels(trace, levels)):
            yield "".join(",\n" + line for line in lines).encode()
    yield b"\n]}\n"


def _names(trace: Tracks) -> Iterator[str]:
    for device in range(trace.schedule.devices):
        yield json.dumps({"ph": "M", "name": "process_name", "pid": device, "args": {"name": f"device {device}"}})
        yield json.dumps({"ph": "M", "name": "process_sort_index", "pid": device, "args": {"sort_index": device}})
    for track in trace.tracks:
        if not track.counts:
            where = {"ph": "M", "pid": track.device, "tid": track.number}
            yield json.dumps({**where, "name": "thread_name", "args": {"name": track.name}})
            yield json.dumps({**where, "name": "thread_sort_index", "args": {"sort_index": track.number}})


def _slices(trace: Tracks, slices: Slices) -> Iterator[str]:
    columns = (column.tolist() for name, column in vars(slices).items() if name != "inside")
    for track, start, end, prefix, suffix, arrow_in, arrow_out, *about in zip(*columns, strict=True):
        where = f'"pid":{trace.tracks[track].device},"tid":{track},"ts":{start / 1000}'
        name = f"{trace.prefixes[prefix]}{trace.suffixes[suffix]}"
        given = _arguments(trace, *about)
        yield f'{{"ph":"X","name":"{name}",{where},"dur":{(end - start) / 1000},"args":{{{given}}}}}'
        if arrow_in != NO_ARROW:
            yield f'{{"ph":"f","bp":"e","name":"data","cat":"data","id":{arrow_in},{where}}}'
        if arrow_out != NO_ARROW:
            step = "s" if _begins(trace, prefix) else "t"
            yield f'{{"ph":"{step}","name":"data","cat":"data","id":{arrow_out},{where}}}'


def _arguments(trace: Tracks, stage: int, microbatch: int, prefix: int, suffix: int) -> str:
    given = [f'"stage":{stage}'] if stage >= 0 else []
    given += [f'"microbatch":{microbatch}'] if microbatch >= 0 else []
    given += [f'"waited for":"{trace.prefixes[prefix]}{trace.suffixes[suffix]}"'] if prefix >= 0 else []
    return ",".join(given)


def _begins(trace: Tracks, prefix: int) -> bool:
    """Whether slices of this name are actions, where arrows begin, and not transfers, where they go on."""
    return "SEND" not in trace.prefixes[prefix]


def _levels(trace: Tracks, levels: Levels) -> Iterator[str]:
    for track, time, value in zip(levels.track.tolist(), levels.time.tolist(), levels.value.tolist(), strict=True):
        yield (
            f'{{"ph":"C","name":"{trace.tracks[track].name}","pid":{trace.tracks[track].device},"ts":{time / 1000},'
            f'"args":{{"microbatches":{value}}}}}'
        )
