"""`sira serve`."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Sequence
from dataclasses import fields

from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose
from sira_cli.cli.options.groups import DecodingOptions, ModelOptions, option, with_options
from sira_cli.cli.terminal.console import note, verbosity
from sira_cli.errors import SettingsError, install
from sira_cli.serve import Limits

CONNECTIONS = 1024  # at once; more: 503
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # reachable only from this machine
LIMITS = {each.name: each for each in fields(Limits)}
LIMITS_IN_WORDS = ", ".join(f"{name}={each.default} ({each.metadata['unit']})" for name, each in LIMITS.items())


@with_options(
    """
sira serve -p demo
sira serve -p llava-1.5-7b --host 0.0.0.0 --api-key "$KEY" -b 16
"""
)
def serve(
    *,
    host: str = option(LOOPBACK[0], "Address to listen on.", metavar="HOST"),
    port: int = option(8000, "Port to listen on; 0: any free port.", metavar="PORT", min=0, max=65535),
    api_key: str | None = option(
        None, "Key that clients must send; required with --host.", metavar="KEY", envvar="SIRA_API_KEY"
    ),
    allow_urls: bool = option(
        False, "Download pictures that requests name by URL, from public addresses.", "--allow-urls"
    ),
    batch_size: int = option(8, "Maximum number of texts decoded together.", "-b", "--batch-size", metavar="N", min=1),
    limit: list[str] | None = option(None, f"A limit: {LIMITS_IN_WORDS}.", metavar="NAME=VALUE"),
    model: ModelOptions,
    decoding: DecodingOptions,
) -> None:
    """Answer programs that speak OpenAI's protocol or Ollama's, on this machine only unless --host is given.

    Requests go to /v1/chat/completions, /api/chat or /api/generate, with pictures as base64. The address itself is a
    page that shows two methods side by side. Prompts and pictures are never logged, no files are opened for
    a client, and nothing is fetched without --allow-urls.
    """
    limits = limits_of(limit or ())
    if api_key is not None and not api_key.strip():
        raise SettingsError("--api-key: is empty: give a key, or leave it out")
    if host not in LOOPBACK and not api_key:
        raise SettingsError(f"--host {host}: others can reach it, so set --api-key, or SIRA_API_KEY")
    with listening(host, port) as listener:  # before torch is imported, so that a taken port is known at once
        preset, method = choose(model, decoding)
        try:
            import fastapi  # noqa: F401 (`serve.app` needs it and the next one, but it imports torch)
            import prometheus_client  # noqa: F401
            import uvicorn
        except ModuleNotFoundError as error:
            raise SettingsError(f"sira serve needs {error.name}: {install('serve')}") from error
        lvlm = load_model(preset, model, method)
        from sira_cli.serve.app import Server
        from sira_cli.serve.program import Program

        server = Server(lvlm, batch_size, limits, api_key=api_key, allow_urls=allow_urls)
        config = uvicorn.Config(
            server.app,
            log_level="info" if verbosity() else "warning",
            access_log=verbosity() > 0,
            server_header=False,
            http="h11",
            ws="none",
            h11_max_incomplete_event_size=2**16,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=int(limits.seconds),
        )
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # uvicorn shuts down, then sends it again
        address = address_of(host, listener)
        name = preset.name or preset.model
        note(f"{name} with {method.name} at {address}/v1, a page to try it at {address} (Ctrl-C ends)")
        Program(server, config).run(sockets=[listener])


def limits_of(given: Sequence[str]) -> Limits:
    """Return all limits, of which some are given as NAME=VALUE."""
    values = {}
    for each in given:
        name, _, value = each.partition("=")
        if name not in LIMITS:
            raise SettingsError(f"--limit {each}: expected NAME=VALUE with NAME one of {', '.join(LIMITS)}")
        most = LIMITS[name].metadata["most"]
        if not (value.isdecimal() and 1 <= int(value) <= most):
            raise SettingsError(f"--limit {each}: expected a whole number from 1 to {most}")
        values[name] = int(value)
    return Limits(**values)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"--port {port}: is taken by another program: give another one, or 0") from error
        raise SettingsError(f"--host {host} --port {port}: cannot listen at this address: {error.strerror}") from error
    # `create_server` leaves the protocol open, and asyncio sets TCP_NODELAY only where it is TCP: without it the second
    # part of each answer waits 40 ms for the client to acknowledge the first one.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())


def address_of(host: str, listener: socket.socket) -> str:
    """Return the URL of the page at a listening socket."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
