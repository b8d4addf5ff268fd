"""Answers of a worker: a request's work done and packed, or its faults with the nearest size that has none."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.explorer.better import faster, searched
from ppsim.explorer.cases import MAX_ACTIONS, Case, Configs, file_of, simulated_case, validated
from ppsim.search import families


def request_for(work: str, configs: Configs, body: bytes) -> bytes:
    """Return the message to a worker: "simulate", "validate" or the ending of a file, configs, and a request's body."""
    return json.dumps([work, dict(configs)]).encode() + b"\n" + body


def answer_to(request: bytes) -> bytes:
    """Return a worker's answer: three digits of an HTTP status, and the body.

    An error in the user's input gives 422 with its faults; a fault of the program gives 500 with its text.
    """
    about, _, body = request.partition(b"\n")
    work, configs = json.loads(about)
    case: dict[str, Any] = {}
    try:
        case = _case_in(body)
        done = (
            simulated_case(case, configs) if work == "simulate"
            else validated(case) if work == "validate"
            else faster(case, configs) if work == "better"
            else searched(case, configs) if work == "search"
            else file_of(case, configs, work)
        )  # fmt: skip
        return b"200" + (done if isinstance(done, bytes) else json.dumps(done, allow_nan=False).encode())
    except PpsimError as error:
        faults = [fault.removeprefix("override ") for fault in error.faults]
        return b"422" + faults_body(faults, nearest_legal(case, configs) if work == "simulate" else None)
    except MemoryError:
        return b"422" + faults_body(["not enough memory for this many actions; use fewer microbatches"])
    except Exception as error:
        return b"500" + f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")


def parsed_answer(answer: bytes) -> tuple[int, bytes]:
    """Return the HTTP status and the body of a worker's answer."""
    return int(answer[:3]), answer[3:]


def _case_in(body: bytes) -> dict[str, Any]:
    """Return the JSON object in the body of a request; raise ConfigError for anything else."""
    try:
        case = json.loads(body, parse_constant=_reject)
    except (ValueError, RecursionError):
        raise ConfigError("the body is no JSON document") from None
    if not isinstance(case, dict):
        raise ConfigError("the body must be a JSON object")
    return case


def _reject(name: str) -> Any:
    raise ValueError(name)


def faults_body(faults: list[str], fix: dict[str, int] | None = None) -> bytes:
    """Return the body of every response that reports faults; `fix` has the nearest size at which the case runs."""
    return json.dumps({"faults": faults} | ({"fix": fix} if fix else {})).encode()


def nearest_legal(case: Case, configs: Configs) -> dict[str, int] | None:
    """Return the size nearest to a case's own at which its family can be built, such as {"microbatches": 128}."""
    sizes = [case.get(key) for key in ("devices", "microbatches", "stages_per_device")]
    family = families().get(str(case.get("schedule")))
    p, m, v = sizes
    if family is None or "costs" in family.options or type(p) is not int or type(m) is not int or p < 1 or m < 1:
        return None
    if max(p, 64) * max(m, 2 * p) > MAX_ACTIONS // 16:
        return None
    with suppress(PpsimError, TypeError):
        family.columns(p, m, v, **case.get("options", {}))
        return None  # another key is at fault
    others = {m // unit * unit + more for unit in (2, p, 2 * p) for more in (0, unit)} | {2 * p}
    tried = [("microbatches", number) for number in others] + [("devices", number) for number in (p - 1, p + 1, p + 2)]
    own = {"microbatches": m, "devices": p}
    for key, number in sorted(tried, key=lambda one: (one[0] == "devices", abs(one[1] - own[one[0]]))):
        with suppress(PpsimError, TypeError):
            if number > 0:
                family.columns(**(own | {key: number}), stages_per_device=v, **case.get("options", {}))
                return {key: number}
    return None
