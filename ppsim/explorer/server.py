"""The explorer's ASGI application: the page, and answers to what it asks, each worked out by the library."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ppsim.explorer.cases import CSV_NAME, ENDINGS, answer, choices, faults_body, file_of, response_of, validated
from ppsim.explorer.guard import LOOPBACK, Guard, policy
from ppsim.explorer.workers import BusyError, GoneError, TimedWorkers, TooLateError
from ppsim.plots.viewer import script, style

MAX_FILE_BYTES = 8 * 2**20  # of a request; a CSV file of a million actions
SECONDS = 60.0
AT_ONCE, WAITING = 2, 16
_PARTS = ("page.html", "page.css", "state.js", "show.js", "controls.js", "page.js")
MEDIA = {"html": "text/html", "csv": "text/csv", "svg": "image/svg+xml", "png": "image/png"}


class RefusedError(Exception):
    """A request that is no case: its HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def make_app(
    configs: Mapping[str, str] | None = None,
    *,
    host: str | None = "127.0.0.1",
    token: str | None = None,
    seconds: float = SECONDS,
) -> Starlette:
    """The application.

    Parameters
    ----------
    configs : mapping of name to path, optional
        The config files that the page may use; it can name no other file.
    host : str or None
        A name by which the server may be asked for beside loopback's; None allows all names.
    token : str, optional
        What every request must carry.
    seconds : float
        Limit of one piece of work.

    Raises ConfigError where a config is faulty.
    """
    endpoints = _Endpoints(dict(configs or {}))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.workers = TimedWorkers(AT_ONCE, seconds, WAITING)
        try:
            yield
        finally:
            app.state.workers.stop()

    hosts = None if host is None else {*LOOPBACK, host.lower()}
    guard = Middleware(Guard, hosts=hosts, token=token, policy=policy(endpoints.page))
    return Starlette(routes=endpoints.routes(), middleware=[guard], lifespan=lifespan)


def page_text() -> str:
    """The explorer's page, with the viewer that draws its charts in it."""
    own = {name: files("ppsim.explorer").joinpath("page", name).read_text(encoding="utf-8") for name in _PARTS}
    parts = {
        "STYLE": f"{style()}{own['page.css']}",
        "SCRIPT": '"use strict";\n' + script() + "".join(own[name] for name in _PARTS if name.endswith(".js")),
    }
    return re.sub("@(STYLE|SCRIPT)@", lambda place: parts[place[1]], own["page.html"])


class _Endpoints:
    """What answers each address, from one page and one set of configs."""

    def __init__(self, configs: Mapping[str, str]):
        self.configs, self.page = configs, page_text()
        self.offered = json.dumps(choices(configs), allow_nan=False).encode()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.show),
            Route("/api/families", self.offer),
            Route("/api/simulate", self.simulate, methods=["POST"]),
            Route("/api/validate", self.validate, methods=["POST"]),
            Route("/api/file/{ending}", self.save, methods=["POST"]),
        ]

    async def show(self, _: Request) -> Response:
        return HTMLResponse(self.page)

    async def offer(self, _: Request) -> Response:
        return Response(self.offered, media_type="application/json")

    async def simulate(self, request: Request) -> Response:
        return await _worked(request, lambda case: (answer, case, self.configs))

    async def validate(self, request: Request) -> Response:
        return await _worked(request, lambda case: (validated, case.get("csv")))

    async def save(self, request: Request) -> Response:
        ending = request.path_params["ending"]
        if ending not in ENDINGS:
            return _no(404, f"there is no file .{ending[:20]}; use one of: {', '.join(ENDINGS)}")
        return await _worked(request, lambda case: (file_of, case, self.configs, ending), MEDIA[ending])


async def _worked(
    request: Request, plan: Callable[[dict[str, Any]], tuple[Any, ...]], media: str = "application/json"
) -> Response:
    """The answer of a worker to a case, or one sentence that says why there is none."""
    try:
        case = await _read(request)
        status, body = await request.app.state.workers.run(response_of, *plan(case), gone=request.is_disconnected)
        return Response(body, status, media_type=media if status == 200 else "application/json")
    except RefusedError as refused:
        return _no(refused.status, refused.sentence)
    except TooLateError:
        return _no(503, "this takes longer than the explorer waits; use fewer microbatches, or `ppsim simulate`")
    except BusyError:
        return _no(503, "the explorer is busy; ask again in a moment")
    except (GoneError, ClientDisconnect):
        return _no(499, "who asked has left")
    except Exception as error:  # its text may hold paths: the terminal shows it, not the page
        print(f"ppsim: {request.url.path}: {type(error).__name__}: {error}")
        return _no(500, "the explorer failed at this; its terminal says more")


async def _read(request: Request) -> dict[str, Any]:
    """The JSON object of a request; RefusedError for anything else."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "Content-Type: send application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FILE_BYTES:
            raise RefusedError(413, f"more than {MAX_FILE_BYTES} bytes; a {CSV_NAME} may have a million actions or so")
    try:
        case = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is no JSON document") from None
    if not isinstance(case, dict):
        raise RefusedError(400, "the body must be a JSON object")
    return case


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _no(status: int, sentence: str) -> Response:
    return Response(faults_body([sentence]), status, media_type="application/json")
