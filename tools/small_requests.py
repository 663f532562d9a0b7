"""Measure small requests to `sira serve`: `python -m tools.small_requests -o docs/bench/cpu-demo-small-requests.json`.

The bundled model is served on this machine by the command's own socket and connections. One client asks for `/health`,
and for a caption of one token, in turn on a connection that it keeps and on a new one for each request.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn

from sira_cli import load
from sira_cli.analysis.bench.measure import device_name
from sira_cli.cli.listening import LOOPBACK, listening
from sira_cli.serve.app import Server
from sira_cli.serve.connections import Connection

TIMES = 200
# A picture of one pixel.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
CAPTION = {
    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}],
    "max_tokens": 1,
}
REQUESTS: dict[str, tuple[str, str, str | None]] = {
    "health": ("GET", "/health", None),
    "caption of one token": ("POST", "/v1/chat/completions", json.dumps(CAPTION)),
}


@contextmanager
def served() -> Iterator[int]:
    """Serve the bundled model in a thread; yields the port."""
    with listening(LOOPBACK[0], 0) as listener:
        config = uvicorn.Config(Server(load("demo")).app, log_level="error", http=Connection, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def seconds(client: http.client.HTTPConnection, method: str, path: str, body: str | None) -> float:
    """Return the seconds of one request, those of a new connection included."""
    before = time.perf_counter()
    client.request(method, path, body, {"Content-Type": "application/json"})
    answer = client.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: status {answer.status}")
    return time.perf_counter() - before


def measured(port: int, times: int) -> dict[str, dict[str, Any]]:
    """Return the median and the 95th percentile of each request's seconds, on kept and on new connections."""
    found: dict[str, dict[str, Any]] = {}
    kept = http.client.HTTPConnection(LOOPBACK[0], port)
    for name, request in REQUESTS.items():
        taken: dict[str, list[float]] = {"kept": [], "new": []}
        for _ in range(times + 1):
            taken["kept"].append(seconds(kept, *request))
            new = http.client.HTTPConnection(LOOPBACK[0], port)
            taken["new"].append(seconds(new, *request))
            new.close()
        found[name] = {
            kind: {"median": statistics.median(each[1:]), "p95": statistics.quantiles(each[1:], n=20)[-1]}
            for kind, each in taken.items()  # the first one warms up
        }
    kept.close()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--times", type=int, default=TIMES)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with served() as port:
        record = {
            "schema": "sira.small-requests/1",
            "device": device_name(torch.device("cpu")),
            "requests": given.times,
            "seconds": measured(port, given.times),
        }
    text = json.dumps(record, indent=1) + "\n"
    print(text, end="")
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
