"""The explorer's ASGI application: the page, its requests, their protection, and the processes that simulate."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import multiprocessing
import re
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from multiprocessing.pool import Pool
from typing import Any
from urllib.parse import parse_qs

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ppsim.explorer.cases import (
    CSV_NAME,
    ENDINGS,
    choices,
    faults_body,
    file_of,
    load_engine,
    response_of,
    simulated_case,
    validated,
)
from ppsim.plots.viewer import script, style

MAX_FILE_BYTES = 8 * 2**20  # per request: a CSV file of a million actions
SECONDS = 60.0  # limit of one piece of work
AT_ONCE, WAITING = 2, 16  # pieces of work
POLL_SECONDS = 0.004
QUIET_SECONDS = 1.5  # the page sends its first requests meanwhile; loading the compiled engine would delay them
_PARTS = ("page.html", "page.css", "state.js", "show.js", "controls.js", "page.js")
MEDIA = {"html": "text/html", "csv": "text/csv", "svg": "image/svg+xml", "png": "image/png"}


class RefusedError(Exception):
    """A rejected request: its HTTP status and one sentence."""

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
    """Return the application.

    Parameters
    ----------
    configs : mapping of name to path, optional
        The config files that the page may use; it cannot name other files.
    host : str or None
        A host name that requests may use in addition to loopback names; None allows all names.
    token : str, optional
        Secret that every request must contain (default: none).
    seconds : float
        Limit of one piece of work.

    Raises ConfigError for a faulty config.
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
    """Return the explorer's page, including the viewer that draws its charts."""
    own = {name: files("ppsim.explorer").joinpath("page", name).read_text(encoding="utf-8") for name in _PARTS}
    parts = {
        "STYLE": f"{style()}{own['page.css']}",
        "SCRIPT": '"use strict";\n' + script() + "".join(own[name] for name in _PARTS if name.endswith(".js")),
    }
    return re.sub("@(STYLE|SCRIPT)@", lambda place: parts[place[1]], own["page.html"])


class _Endpoints:
    """The response of each address, for one page and one set of configs."""

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
        return await _worked(request, lambda case: (simulated_case, case, self.configs))

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
    """Return a worker's response to the case in a request, or the reason for a failure in one sentence."""
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
    except Exception as error:  # its text may contain paths, which only the terminal may show
        print(f"ppsim: {request.url.path}: {type(error).__name__}: {error}")
        return _no(500, "the explorer failed at this; its terminal says more")


async def _read(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; raise RefusedError for anything else."""
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


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server at `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def policy(*pages: str) -> str:
    """Return the Content-Security-Policy that allows only the scripts and styles in `pages`."""

    def hashes(tag: str) -> str:
        found = [text for page in pages for text in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)]
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Guard:
    """Middleware that rejects requests from other pages, and adds headers that protect the own page."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None, token: str | None, policy: str):
        self.app, self.token = app, token
        self.hosts = None if hosts is None else frozenset(hosts)
        self.headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "cache-control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 with a sentence, or pass the request on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
            await send(message)

        fault = self._fault(Headers(scope=scope), scope["query_string"])
        app = Response(faults_body([fault]), 403, media_type="application/json") if fault else self.app
        await app(scope, receive, protected)

    def _fault(self, headers: Headers, query: bytes) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        if len(headers.getlist("host")) != 1 or (self.hosts is not None and name.strip("[]").lower() not in self.hosts):
            return "Host: this server is not called so; open the address that `ppsim explore` printed"
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return "Origin: only the explorer's own page may ask"
        if headers.get("sec-fetch-site", "same-origin") == "cross-site":
            return "Sec-Fetch-Site: only the explorer's own page may ask"
        if self.token is not None:
            given = headers.get("x-ppsim-token") or parse_qs(query.decode("latin-1")).get("token", [""])[0]
            if not secrets.compare_digest(given.encode(), self.token.encode()):
                return "token: missing or wrong; open the whole address that `ppsim explore` printed"
        return None


class TooLateError(Exception):
    """A piece of work has taken longer than its limit."""


class BusyError(Exception):
    """Too many pieces of work are waiting."""


class GoneError(Exception):
    """The client has disconnected before the response."""


class TimedWorkers:
    """Pool of `count` processes; a piece of work that takes longer than `seconds` ends its process."""

    def __init__(self, count: int, seconds: float, max_waiting: int):
        self.seconds, self.max_requests = seconds, count + max_waiting
        self._context = multiprocessing.get_context("spawn")
        self._idle = [self._started() for _ in range(count)]
        self._free = anyio.Semaphore(count)
        self._requests = 0

    def _started(self) -> Pool:
        return self._context.Pool(1, initializer=_ready)

    async def run(self, work: Callable[..., Any], *arguments: Any, gone: Callable[[], Awaitable[bool]]) -> Any:
        """Return the result of `work`; raise TooLateError, BusyError, or GoneError as soon as `gone()` is true."""
        if self._requests >= self.max_requests:
            raise BusyError
        self._requests += 1
        try:
            async with self._free:
                return await self._run(work, arguments, gone)
        finally:
            self._requests -= 1

    async def _run(self, work: Callable[..., Any], arguments: Any, gone: Callable[[], Awaitable[bool]]) -> Any:
        if await gone():
            raise GoneError
        pool = self._idle.pop()
        try:
            result = pool.apply_async(work, arguments)
            await self._wait(result.ready, gone)
        except BaseException:
            pool.terminate()
            pool = self._started()
            raise
        finally:
            self._idle.append(pool)
        return result.get()

    async def _wait(self, ready: Callable[[], bool], gone: Callable[[], Awaitable[bool]]) -> None:
        begun = last_check = time.monotonic()
        while not ready():
            await anyio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if now - begun > self.seconds:
                raise TooLateError
            if now - last_check > 0.5:  # a new process would take longer than short work
                last_check = now
                if await gone():
                    raise GoneError

    def stop(self) -> None:
        """End all processes."""
        for pool in self._idle:
            pool.terminate()
            pool.join()
        self._idle = []


def _ready() -> None:
    """Prepare a new process: ignore Ctrl-C, which the server handles, and load the compiled engine a little later."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loading = threading.Timer(QUIET_SECONDS, load_engine)
    loading.daemon = True
    loading.start()
