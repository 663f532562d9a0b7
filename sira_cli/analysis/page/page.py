"""Traces -> one self-contained HTML file: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sira_cli._version import __version__
from sira_cli.analysis.doubt import DOUBTED
from sira_cli.analysis.page.cards import cards_of
from sira_cli.analysis.page.chart import HEIGHT, Scale
from sira_cli.analysis.trace.read import Trace
from sira_cli.pictures.picture import OpenedPicture
from sira_cli.web import base_style, element_script, marks_style

_HERE = Path(__file__).parent
_ESCAPED = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})


def render(
    traces: Sequence[Trace], title: str | None = None, pictures: Mapping[str, OpenedPicture] | None = None
) -> str:
    """Return the page.

    Args:
        traces: at least one; several are shown side by side.
        title: of the page; default: the trace's name.
        pictures: pictures in memory, by sha256; others are looked for in files.
    """
    style, script = _style(), _script()
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"json": to_script, "plain": _plain, "signed": _signed}
    scale = Scale.of(traces)
    cards = cards_of(traces, scale, pictures)
    subjects = sorted({card.picture.name for card in cards if card.picture.name})
    traces_in_words = "Trace" if len(traces) == 1 else f"{len(traces)} traces"
    return environment.get_template("template.html.jinja").render(
        title=title or " of ".join([traces_in_words, *(subjects if len(subjects) == 1 else [])]),
        cards=cards,
        scale=scale,
        doubted=DOUBTED,
        height=HEIGHT,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        # Safe with any trace: nothing is fetched, and only our own style and script are applied.
        policy=f"default-src 'none'; img-src data:; style-src {_source(style)}; script-src {_source(script)}; "
        "base-uri 'none'; form-action 'none'",
    )


def policy_sources() -> dict[str, str]:
    """Return the names of the page's style and script in a content security policy, by directive.

    A report that a page opens as a `blob:` inherits the page's policy, which has to allow both.
    """
    return {"style-src": _source(_style()), "script-src": _source(_script())}


def _style() -> str:
    return base_style() + marks_style() + (_HERE / "style.css").read_text(encoding="utf-8")


def _script() -> str:
    return (_HERE / "script.js").read_text(encoding="utf-8") + element_script()


def to_script(value: Any) -> Markup:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPED))


def _plain(value: float) -> str:
    return f"{value:z.2f}".replace("-", "\N{MINUS SIGN}")


def _signed(value: float) -> str:
    return f"{value:+z.2f}".replace("-", "\N{MINUS SIGN}")


def _source(text: str) -> str:
    """Return the name of an inline style or script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
