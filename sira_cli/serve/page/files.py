"""The page of the server: its files, the headers that isolate it, and what it has to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response

from sira_cli.analysis.page import element_script, shared_style
from sira_cli.language import function_words
from sira_cli.look.claims import DOUBTED, STEPS
from sira_cli.methods.base import Ability
from sira_cli.run.lvlm import Lvlm
from sira_cli.serve.http import SAFE_HEADERS, page_policy

_HERE = Path(__file__).parent
POLICY = page_policy({"img-src": "data: blob:", "require-trusted-types-for": "'script'"})


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`, for any model and without a key."""
    style = shared_style() + _read("style.css")
    _add(app, "/", _read("page.html"), "text/html", {"Content-Security-Policy": POLICY})
    _add(app, "/page/style.css", style, "text/css")
    _add(app, "/page/script.js", _read("script.js"), "text/javascript")
    _add(app, "/page/element.js", f"{element_script()}\nexport {{ element }};\n", "text/javascript")


def _add(app: FastAPI, path: str, content: str, media_type: str, headers: dict[str, str] | None = None) -> None:
    async def served() -> Response:
        return Response(content, media_type=media_type, headers={**SAFE_HEADERS, **(headers or {})})

    app.add_api_route(path, served, methods=["GET", "HEAD"], response_model=None)  # HEAD: Ollama's heartbeat


def page_settings(lvlm: Lvlm) -> dict[str, Any]:
    """Return the model's name, the methods to show side by side, and which words to doubt (`look.claims`)."""
    names = dict.fromkeys(["sira" if lvlm.method == "greedy" else lvlm.method, "greedy"])
    methods = [lvlm.preset.method(name) for name in names]
    return {
        "model": lvlm.preset.name or lvlm.preset.model,
        "methods": [{"name": each.name, "scores_words": Ability.TRACES in each.abilities} for each in methods],
        "doubted": DOUBTED,
        "steps": STEPS,
        "function_words": sorted(function_words()),
    }


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
