"""The page at `/`, which uses the server as any client does: its files, the headers that isolate it, its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from sira_cli.analysis.page import ELEMENT, STYLE
from sira_cli.language import function_words
from sira_cli.look.claims import DOUBTED, STEPS
from sira_cli.methods.base import Ability
from sira_cli.run.lvlm import Lvlm

# Of every file: its type is final, other sites cannot embed it, and they get no referrer.
HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# Scripts, styles and answers of its own server alone, and no text that becomes elements.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`, for any model and without a key."""

    def text_of(name: str) -> str:
        return (Path(__file__).parent / name).read_text(encoding="utf-8")

    files = {
        "/": (text_of("page.html"), "text/html", {"Content-Security-Policy": POLICY}),
        "/page/style.css": (STYLE + text_of("style.css"), "text/css", {}),
        "/page/script.js": (text_of("script.js"), "text/javascript", {}),
        "/page/element.js": (f"{ELEMENT}\nexport {{ element }};\n", "text/javascript", {}),
    }

    async def served(request: Request) -> Response:
        content, kind, headers = files[request.url.path]
        return Response(content, media_type=kind, headers=HEADERS | headers)

    for path in files:
        app.add_route(path, served, methods=["GET", "HEAD"])  # HEAD: Ollama's heartbeat


def page_settings(lvlm: Lvlm) -> dict[str, Any]:
    """Return the model's name, the methods to show side by side, and which words to doubt (`look.claims`)."""
    first = "sira" if lvlm.method == "greedy" else lvlm.method
    methods = []
    for name in (first, "greedy"):
        method = lvlm.preset.method(name)
        methods.append({"name": method.name, "scores_words": Ability.TRACES in method.abilities})
    return {
        "model": lvlm.preset.name or lvlm.preset.model,
        "methods": methods,
        "doubted": DOUBTED,
        "steps": STEPS,
        "function_words": sorted(function_words()),
    }
