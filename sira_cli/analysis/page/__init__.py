"""The page of `sira report`: one self-contained HTML file of traces or records, without network or other files."""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sira_cli._version import __version__
from sira_cli.analysis.page.cards import HEIGHT, Card, Scale
from sira_cli.analysis.page.gallery import gallery_of
from sira_cli.analysis.trace.read import TracedText, read_traces, trace_files
from sira_cli.errors import SettingsError
from sira_cli.look.claims import DOUBTED, bare, doubt
from sira_cli.parsing import from_json
from sira_cli.pictures.names import one_line
from sira_cli.pictures.records import is_record

_HERE = Path(__file__).parent
# Of this page and the server's: colours, plain elements, marked words; and the function `element`, to end a script.
STYLE = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("base.css", "marks.css"))
ELEMENT = (_HERE / "element.js").read_text(encoding="utf-8")
_ESCAPED = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})


@dataclass(frozen=True)
class Page:
    """A page: its text, with every picture in it, its content in words (`2 traces`), and notes on what is missing."""

    html: str
    shows: str
    notes: tuple[str, ...] = ()


def make_page(
    *files: str | Path,
    other: str | Path | None = None,
    limit: int | None = None,
    on_picture: Callable[[int, int], None] = lambda done, total: None,
) -> Page:
    """Make a page of traces, several side by side, or a gallery of the records in one file, the doubtful first.

    Args:
        files: what `sira trace` wrote, or folders of it; or one file that `sira caption`, `ask` or `check` wrote.
        other: records of another run over the same pictures, to compare with.
        limit: of a gallery, the number of records that are shown: the most doubtful.
        on_picture: receives how many pictures of a gallery are done, and their total.

    Raises:
        DataError: a file holds neither traces nor records, or the two runs have no picture in common.
    """
    paths = [Path(file) for file in files]
    first = one_line(str(paths[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
        if not any(map(_holds_records, paths)):
            if other is not None or limit is not None:
                raise SettingsError(f"{first}: `with` and `limit` are for records, not for traces")
            traces: list[TracedText] = []
            for path in paths:
                for file in trace_files(path):
                    traces += read_traces(file)
            return Page(render(traces), "1 trace" if len(traces) == 1 else f"{len(traces)} traces")
        if len(paths) > 1:
            raise SettingsError(f"{first} and {len(paths) - 1} more: expected one file of records")
        gallery, shows, notes = gallery_of(paths[0], None if other is None else Path(other), limit, on_picture)
    return Page(_html("gallery", title=paths[0].name, **gallery), shows, notes)


def _holds_records(path: Path) -> bool:
    """Return whether the first line of a file is a record; a file that cannot be read holds none."""
    try:
        with path.open("rb") as file:
            first = from_json(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and is_record(first)


def render(traces: Sequence[TracedText]) -> str:
    """Return the page of traces."""
    scale = Scale.fitted_to(traces)
    cards = [Card(trace, scale) for trace in traces]
    settings = {setting for card in cards for setting in card.settings.items()}
    names = [name for name, _ in settings if name != "Finished"]
    subjects = {card.name for card in cards if card.name}
    count = "Trace" if len(traces) == 1 else f"{len(traces)} traces"
    return _html(
        "trace",
        title=" of ".join([count, *(subjects if len(subjects) == 1 else ())]),
        cards=cards,
        differing={name for name in names if names.count(name) > 1},
        scale=scale,
        doubted=DOUBTED,
        height=HEIGHT,
    )


def _html(name: str, **content: Any) -> str:
    """Fill in a template, and add our style and the script of the same name."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"json": to_script, "bare": bare, "doubt": doubt, "plain": _plain, "signed": _signed}
    style = STYLE + (_HERE / "style.css").read_text(encoding="utf-8")
    script = (_HERE / f"{name}.js").read_text(encoding="utf-8") + ELEMENT
    # Safe with any content: nothing is fetched, and only our own style and script are applied.
    sources = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    return environment.get_template(f"{name}.html.jinja").render(
        **content,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        policy=f"{sources}; base-uri 'none'; form-action 'none'",
    )


def _plain(number: float) -> str:
    return f"{number:z.2f}".replace("-", "\N{MINUS SIGN}")


def _signed(number: float) -> str:
    return f"{number:+z.2f}".replace("-", "\N{MINUS SIGN}")


def _hash(text: str) -> str:
    """Return a text's hash as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def to_script(value: Any) -> Markup:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPED))
