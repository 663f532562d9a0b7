"""One self-contained HTML file from traces or records: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sira_cli._version import __version__
from sira_cli.analysis.doubt import DOUBTED
from sira_cli.analysis.page.cards import cards_of
from sira_cli.analysis.page.chart import HEIGHT, Scale
from sira_cli.analysis.page.gallery import gallery_of
from sira_cli.analysis.page.shared import element_script, shared_style
from sira_cli.analysis.trace.read import Trace, read_traces, trace_files
from sira_cli.errors import SettingsError
from sira_cli.pictures.names import one_line

_HERE = Path(__file__).parent
_ESCAPED = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        html: its text, with every picture in it.
        shows: its content in words: `2 traces`, `40 captions`.
        notes: what is missing.
    """

    html: str
    shows: str
    notes: tuple[str, ...] = ()


def make_page(
    *files: str | Path,
    other: str | Path | None = None,
    title: str | None = None,
    limit: int | None = None,
    on_picture: Callable[[int, int], None] = lambda done, total: None,
) -> Page:
    """Make a page of traces, several side by side, or a gallery of the records in one file, the doubtful first.

    Args:
        files: what `sira trace` wrote, or folders of it; or one file that `sira caption`, `ask` or `check` wrote.
        other: records of another run over the same pictures, to compare with.
        title: of the page; default: the picture's or the file's name.
        limit: of a gallery, the number of records that are shown: the most doubtful.
        on_picture: receives how many pictures of a gallery are done, and their total.

    Raises:
        DataError: a file holds neither traces nor records, or the two runs have no picture in common.
        SettingsError: an argument does not fit the files.
    """
    paths = [Path(file) for file in files]
    if not any(map(_holds_records, paths)):
        if other is not None or limit is not None:
            raise SettingsError(f"{one_line(str(paths[0]))}: `with` and `limit` are for records, not for traces")
        traces = [trace for path in paths for file in trace_files(path) for trace in read_traces(file)]
        return Page(render(traces, title), f"{len(traces)} trace{'s' * (len(traces) > 1)}")
    if len(paths) > 1:
        raise SettingsError(f"{one_line(str(paths[0]))} and {len(paths) - 1} more: expected one file of records")
    gallery = gallery_of(paths[0], None if other is None else Path(other), limit, on_picture)
    html = _html("gallery.html.jinja", "gallery.js", title=title or paths[0].name, gallery=gallery)
    return Page(html, gallery.shows, gallery.notes)


def _holds_records(path: Path) -> bool:
    """Return whether the first line of a file is a record; a file that cannot be read holds none."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "file_name" in first and "type" not in first


def render(traces: Sequence[Trace], title: str | None = None) -> str:
    """Return the page of traces."""
    scale = Scale.of(traces)
    cards = cards_of(traces, scale)
    subjects = sorted({card.picture.name for card in cards if card.picture.name})
    traces_in_words = "Trace" if len(traces) == 1 else f"{len(traces)} traces"
    return _html(
        "trace.html.jinja",
        "trace.js",
        title=title or " of ".join([traces_in_words, *(subjects if len(subjects) == 1 else [])]),
        cards=cards,
        scale=scale,
        doubted=DOUBTED,
        height=HEIGHT,
    )


def _html(template: str, script_name: str, **content: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"json": to_script, "plain": _plain, "signed": _signed}
    style = shared_style() + (_HERE / "style.css").read_text(encoding="utf-8")
    script = (_HERE / script_name).read_text(encoding="utf-8") + element_script()
    return environment.get_template(template).render(
        **content,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        # Safe with any content: nothing is fetched, and only our own style and script are applied.
        policy=f"default-src 'none'; img-src data:; style-src {_source(style)}; script-src {_source(script)}; "
        "base-uri 'none'; form-action 'none'",
    )


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
