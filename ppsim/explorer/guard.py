"""Who may ask: the right Host and Origin, and off loopback the token; and headers that hold the page to itself."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ppsim.explorer.cases import faults_body

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def policy(*pages: str) -> str:
    """The Content-Security-Policy under which just the scripts and styles that stand in `pages` run."""

    def hashes(tag: str) -> str:
        found = [text for page in pages for text in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)]
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Guard:
    """Refuses what does not come from the server's own page, and adds the headers that protect it."""

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
