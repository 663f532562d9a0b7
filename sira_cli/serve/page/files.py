"""The files of the page, and the headers that isolate it."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response

from sira_cli.analysis.page.page import policy_sources
from sira_cli.serve.http import SAFE_HEADERS, page_policy
from sira_cli.serve.page import examples
from sira_cli.web import base_style, marks_style, modules

_HERE = Path(__file__).parent
SCRIPTS = ("script.js", "picture.js", "column.js", "differences.js", "marks.js", "server.js")
UNKEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}  # headers of answers that no cache keeps


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`: its style, scripts and example pictures, for any model and without a key."""
    style = base_style() + marks_style() + _read("style.css")
    _add(app, "/", _read("page.html"), "text/html", {"Content-Security-Policy": policy()})
    _add(app, "/page/style.css", style, "text/css")
    for name in SCRIPTS:
        _add(app, f"/page/{name}", _read(name), "text/javascript")
    for name, script in modules().items():
        _add(app, f"/page/{name}", script, "text/javascript")
    for seed in examples.SEEDS:
        _add_example(app, seed)


def policy() -> str:
    """Return the page's content security policy: nothing from other servers, and no text becomes code.

    It includes the report's style and script: a report is opened as a `blob:`, to which this policy also applies.
    """
    report = policy_sources()
    return page_policy(
        {
            "script-src": f"'self' {report['script-src']}",
            "style-src": f"'self' {report['style-src']}",
            "img-src": "data: blob:",
            "require-trusted-types-for": "'script'",
        }
    )


def _add(app: FastAPI, path: str, content: str, media_type: str, headers: dict[str, str] | None = None) -> None:
    async def served() -> Response:
        return Response(content, media_type=media_type, headers={**UNKEPT, **SAFE_HEADERS, **(headers or {})})

    app.add_api_route(path, served, methods=["GET", "HEAD"], response_model=None)  # HEAD: Ollama's heartbeat


def _add_example(app: FastAPI, seed: int) -> None:
    def drawn() -> Response:  # in a thread: drawing takes a while
        return Response(examples.draw(seed), media_type="image/png", headers={**UNKEPT, **SAFE_HEADERS})

    app.add_api_route(f"/page/{examples.name_of(seed)}", drawn, methods=["GET"], response_model=None)


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
