"""`sira view`."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sira_cli.cli.listening import LOCAL_NAMES, LOOPBACK, address_of, listening
from sira_cli.cli.options.common import Host, Port, Recursive, Verbose
from sira_cli.cli.terminal.console import note, say, set_verbosity, verbosity
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.view import Collection

EXAMPLES = """
sira view captions.jsonl
sira view captions-sira.jsonl --with captions-greedy.jsonl
sira view captions.jsonl --export mended.jsonl
"""


def view(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Captions: records, .jsonl, .json, .csv, a folder of pictures, a data set.",
            show_default=False,
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Option("--with", metavar="PATH", help="Compare with these captions of the same pictures."),
    ] = None,
    edits: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Log of changes (default: NAME.edits.jsonl next to the captions)."),
    ] = None,
    sidecars: Annotated[
        bool,
        typer.Option("--sidecars", help="Also write changed and accepted texts next to the pictures."),
    ] = False,
    xmp: Annotated[
        bool, typer.Option("--xmp", help="Also write accepted texts to XMP sidecars (extra `xmp`).")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the corrected captions and exit."),
    ] = None,
    recursive: Recursive = False,
    caption_extension: Annotated[
        str, typer.Option(metavar=".EXT", help="File extension of text files next to pictures.")
    ] = ".txt",
    image_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that names the pictures (default: found by name).")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column with the texts (default: found by name).")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that picture names are relative to (default: the file's)."),
    ] = None,
    host: Host = LOOPBACK[0],
    port: Port = 8765,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show errors and the address only.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Look through captions in a browser, compare them with others, edit, accept or reject them.

    The captions' own file is never changed: changes go to a log next to it, from which --export makes a new file. The
    page is served only on this machine, and only at the printed address.
    """
    set_verbosity(quiet, verbose)
    from sira_cli.view import Collection, Edits, OtherCaptions
    from sira_cli.view import export as write_mended
    from sira_cli.view.accepted import AcceptedXmp

    extension = caption_extension if caption_extension.startswith(".") else f".{caption_extension}"
    places: dict[str, Any] = {"recursive": recursive, "caption_extension": extension, "images": images}
    captions = Collection.open(path, image_column=image_column, text_column=text_column, **places)
    log = Edits(
        edits or captions.edits_file, sidecars=extension if sidecars else None, xmp=AcceptedXmp() if xmp else None
    )
    if export is not None or other is not None or log.writes_files:
        captions.catch_up()  # all captions are needed before the page is shown
        captions.check_found()
    if export is not None:
        written = write_mended(captions, log, export)
        note(f"{written:,} of {len(captions):,} captions in {export}")
        return
    try:
        import uvicorn

        from sira_cli.view.app import Viewer
    except ModuleNotFoundError as error:
        raise SettingsError(f"sira view needs {error.name}: pip install 'sira-cli[serve]'") from error
    compared = None if other is None else OtherCaptions(captions, Collection.read(other, **places))
    log.settle(captions.items)
    token = secrets.token_urlsafe(24)
    viewer = Viewer(
        captions, log, token=token, compared=compared, hosts=list(LOCAL_NAMES) if host in LOOPBACK else None
    )
    with listening(host, port) as listener, closing(viewer.live) as live:
        live.start()
        if live.trouble is not None:
            raise live.trouble
        say_found(captions, live.ready)
        address = f"{address_of(host, listener)}/?token={token}"
        say(f"{address} (Ctrl-C ends)")
        level = "info" if verbosity() > 0 else "error"
        config = uvicorn.Config(viewer.app, log_level=level, access_log=False, server_header=False)
        config.timeout_graceful_shutdown = 2  # an open window holds its connection
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # uvicorn shuts down, then sends it again
        with nullcontext() if no_browser or not _has_desktop() else _browser(address):
            uvicorn.Server(config).run(sockets=[listener])


def say_found(captions: Collection, all_read: bool = True) -> None:
    """Print the number of captions, and of broken lines and missing pictures."""
    if not all_read:
        note(f"{captions.source} is large: the page shows the part read so far ({captions.done:.0%})")
        return
    note(f"{_counted(len(captions), 'caption')} in {captions.source}")
    if captions.broken:
        note(f"left out: {_counted(captions.broken, 'broken line')}")
    missing = captions.index.figure("total(missing)")
    if missing:
        note(f"missing, and shown by name: {_counted(missing, 'picture')}")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _has_desktop() -> bool:
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextmanager
def _browser(address: str) -> Iterator[None]:
    """Open a browser through a private file: a command's arguments are visible to all users."""
    import webbrowser

    with TemporaryDirectory(prefix="sira-view-") as folder:
        page = Path(folder, "open.html")
        page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
        webbrowser.open(page.as_uri())
        yield
