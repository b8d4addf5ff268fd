"""The explorer's ASGI application: the page, its requests, their protection, and the processes that simulate."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import ipaddress
import json
import logging
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from types import FrameType
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ppsim.base.errors import visible
from ppsim.explorer.answers import Answer, answer_to
from ppsim.explorer.cases import CSV_NAME, choices, load_later
from ppsim.explorer.page_words import faults_body
from ppsim.plots.viewer import filled, script, style
from ppsim.studies.worker_pool import Workers

MAX_FILE_BYTES = 8 * 2**20  # per request: a CSV file of a million actions
SECONDS = 60.0  # limit of one piece of work
AT_ONCE, WAITING = 2, 16  # pieces of work
LONG_WORK = ("better", "search")  # in a process of its own, so that simulations do not wait for it
_PARTS = ("page.html", "page.css", "state.js", "setup.js", "show.js", "better.js", "page.js")
JSON = "application/json"
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
    named, page = dict(configs or {}), page_text()
    offered = json.dumps(choices(named), allow_nan=False)

    async def save(request: Request) -> Response:
        ending = request.path_params["ending"]
        if ending not in MEDIA:
            return _no(404, f"there is no file .{ending[:20]}; use one of: {', '.join(MEDIA)}")
        return await _worked(request, ending, named)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.workers = RequestWorkers(AT_ONCE, seconds, WAITING)
        app.state.searchers = RequestWorkers(1, seconds, WAITING, starts=False)
        try:
            yield
        finally:
            _end(app)

    routes = [
        Route("/", HTMLResponse(page), methods=["GET"]),
        Route("/api/families", Response(offered, media_type=JSON), methods=["GET"]),
        *(
            Route(f"/api/{work}", functools.partial(_worked, work=work, configs=named), methods=["POST"])
            for work in ("simulate", "validate", *LONG_WORK)
        ),
        Route("/api/file/{ending}", save, methods=["POST"]),
    ]
    hosts = None if host is None else {*LOOPBACK, host.lower()}
    guard = Middleware(Guard, hosts=hosts, token=token, policy=policy(page))
    return Starlette(routes=routes, middleware=[guard], lifespan=lifespan)


def serve(app: Starlette, listening: socket.socket) -> None:
    """Serve the application on a socket until a signal ends the process, within 2 seconds."""
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, ws="none")
    _Server(config, app).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Server that gives up its work when it is to end, before it waits for requests in progress."""

    def __init__(self, config: uvicorn.Config, app: Starlette):
        super().__init__(config)
        self._app = app

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Let SIGHUP end the server like the signals that uvicorn knows, unless it is ignored."""
        with super().capture_signals():
            number = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                signal.signal(number, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(number, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server; Ctrl-C is the usual way, so that it alone gives exit status 0."""
        if sig == signal.SIGINT:
            self.should_exit, self.force_exit = True, self.should_exit
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # requests that end here are no faults
        _end(self._app)
        await super().shutdown(sockets)


def _end(app: Starlette) -> None:
    """End all processes of an application."""
    app.state.workers.end()
    app.state.searchers.end()


def page_text() -> str:
    """Return the explorer's page, including the viewer that draws its charts."""
    own = {name: files("ppsim.explorer").joinpath("page", name).read_text(encoding="utf-8") for name in _PARTS}
    parts = {
        "STYLE": f"{style()}{own['page.css']}",
        "SCRIPT": '"use strict";\n' + script() + "".join(own[name] for name in _PARTS if name.endswith(".js")),
    }
    return filled(own["page.html"], parts)


async def _worked(request: Request, work: str, configs: Mapping[str, str]) -> Response:
    """Return a worker's response to the case in a request, or the reason for a failure in one sentence."""
    try:
        body = await _read(request)
        workers = request.app.state.searchers if work in LONG_WORK else request.app.state.workers
        status, body = await workers.answer((work, configs, body), request.is_disconnected)
        if work == "simulate":
            request.app.state.searchers.start()  # which the page asks next
    except RefusedError as refused:
        return _no(refused.status, refused.sentence)
    except ClientDisconnect:
        return _no(499, _LEFT)
    except OSError as error:  # no process can be started
        status, body = 500, str(error).encode()
    if status == 500:  # its text may contain paths, which only the terminal may show
        print(visible(f"ppsim: {request.url.path}: {body.decode()}"), file=sys.stderr)
        return _no(500, "the explorer failed at this; its terminal says more")
    return Response(body, status, media_type=MEDIA.get(work, JSON) if status == 200 else JSON)


async def _read(request: Request) -> bytes:
    """Return the body of a request; raise RefusedError if it is not JSON or too large."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise RefusedError(415, f"Content-Type: send {JSON}")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FILE_BYTES:
            raise RefusedError(413, f"more than {MAX_FILE_BYTES} bytes; a {CSV_NAME} may have a million actions or so")
    return bytes(body)


def _no(status: int, sentence: str) -> Response:
    return Response(faults_body([sentence]), status, media_type=JSON)


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
        app = Response(faults_body([fault]), 403, media_type=JSON) if fault else self.app
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


Asked = tuple[str, Mapping[str, str], bytes]  # arguments of `answer_to`
Gone = Callable[[], Awaitable[bool]]  # whether the client has left


class RequestWorkers:
    """Processes for up to `count` requests at once; one that dies, or works longer than `seconds`, is replaced."""

    def __init__(self, count: int, seconds: float, max_waiting: int, starts: bool = True):
        self.seconds, self.max_requests = seconds, count + max_waiting
        self._free = asyncio.Semaphore(count)
        self._requests = 0
        self._has_ended = False
        self._busy: set[Workers] = set()
        self._idle = [_started() for _ in range(count if starts else 0)]  # else the first request starts one

    async def answer(self, request: Asked, gone: Gone) -> Answer:
        """Return a worker's answer; RefusedError says why there is none, such as `gone()`: the client has left."""
        if self._requests >= self.max_requests:
            raise RefusedError(503, "the explorer is busy; ask again in a moment")
        self._requests += 1
        try:
            async with self._free:
                for _ in range(2):  # the system may kill any process if memory runs out
                    with suppress(BrokenExecutor):
                        return await self._answer_of_one(request, gone)
        finally:
            self._requests -= 1
        raise RefusedError(
            503, "the process of this work ended twice, possibly for lack of memory; use fewer microbatches"
        )

    async def _answer_of_one(self, request: Asked, gone: Gone) -> Answer:
        """Return the answer of one worker; BrokenExecutor if it dies."""
        if await gone():
            raise RefusedError(499, _LEFT)
        if self._has_ended:  # asked last: nothing may start a process afterwards
            raise RefusedError(503, _ENDS)
        while self._idle and self._idle[-1].dead():
            self._idle.pop().shutdown()
        worker = self._idle.pop() if self._idle else _started()
        self._busy.add(worker)
        is_usable = False
        try:
            answer = asyncio.wrap_future(worker.submit(answer_to, *request))
            end = time.monotonic() + self.seconds
            while not (await asyncio.wait([answer], timeout=min(max(end - time.monotonic(), 0.0), 0.5)))[0]:
                has_left = await gone()
                if has_left or time.monotonic() >= end:
                    answer.cancel()
                    raise RefusedError(499, _LEFT) if has_left else RefusedError(503, _TOO_LONG)
            if answer.cancelled():
                raise BrokenExecutor
            found = answer.result()
            is_usable = True
            return found
        finally:
            self._busy.discard(worker)
            if not is_usable:
                worker.shutdown()
            if not self._has_ended:
                self._idle.append(worker if is_usable else _started())

    def start(self) -> None:
        """Start a process if there is none."""
        if not (self._busy or self._idle or self._has_ended):
            self._idle.append(_started())

    def end(self) -> None:
        """End all processes; requests in progress are rejected."""
        self._has_ended = True
        for worker in [*self._busy, *self._idle]:
            worker.shutdown()
        self._idle.clear()


_LEFT = "who asked has left"
_ENDS = "the explorer ends"
_TOO_LONG = "this takes longer than the explorer waits; use fewer microbatches, or `ppsim simulate`"


def _started() -> Workers:
    """Return a new worker process, which loads what it needs."""
    worker = Workers(1)
    worker.submit(load_later)
    return worker
