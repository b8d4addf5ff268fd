"""`ppsim explore`: the server of the live page."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.host import need
from ppsim.commands.reporting import command, say


@command
def explore(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CONFIG.yaml", help="Configs that the page offers; it opens on the first."),
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to serve on. Except on loopback, the page's address has an access token."
        ),
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Serve a page that shows schedules as their sizes and costs change, until Ctrl-C."""
    need("uvicorn", "ppsim explore")
    need("starlette", "ppsim explore")
    from ppsim.explorer.server import is_loopback, make_app, serve

    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    every_address = host in ("0.0.0.0", "::")  # noqa: S104 - only if --host names it
    app = make_app(_named(configs or []), host=None if every_address else host, token=token)
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")
    say(f"ppsim explorer at {address} (Ctrl-C ends it)")
    if not no_browser:
        opening = threading.Timer(0.5, webbrowser.open, [address])
        opening.daemon = True
        opening.start()
    serve(app, listening)


def _named(paths: list[Path]) -> dict[str, str]:
    """Return the paths by their names on the page: a file's name, or its whole path if two files share a name."""
    stems = [path.stem for path in paths]
    return {path.stem if stems.count(path.stem) == 1 else str(path): str(path) for path in paths}


def _listen(host: str, port: int) -> socket.socket:
    """Return the server's socket, whose port is known before the server starts; raise ConfigError if it is not free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)  # requests wait until the server has started
    except (OSError, ValueError) as error:  # a ValueError for text that is not the name of any host
        reason = getattr(error, "strerror", None) or "no name or address of a computer; use one such as 127.0.0.1"
        raise ConfigError(f"--host {host:.60} --port {port}: cannot be served on: {reason}") from None
    return listening
