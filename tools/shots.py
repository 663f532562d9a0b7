"""Pictures of the pages, for the manual: `python -m tools.shots` makes the PNG files of `docs/`.

It needs Chromium and chromedriver. The gallery has the captions of `examples/`; the report and the server's page show
README's example.
"""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from sira_cli.run.lvlm import load
from tests.serve.helpers import described, opened, running
from tests.support.browser import Browser, running_browser
from tools.examples import FOLDER, readme_picture

DOCS = FOLDER.parent / "docs"
EXAMPLE = FOLDER / readme_picture()
COLORS = 256


def shot(browser: Browser, name: str, width: int, height: int, scale: float = 1.0) -> None:
    """Keep what a window of this many CSS pixels shows."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
    browser.devtools("Emulation.setDeviceMetricsOverride", **size)
    png = base64.b64decode(browser.devtools("Page.captureScreenshot", format="png")["data"])
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    few = picture.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # rare colours stay
    few.save(DOCS / name, optimize=True)


def run(folder: Path, *arguments: str) -> None:
    """Run a command line in a folder; it has to succeed."""
    subprocess.run([sys.executable, "-m", "sira_cli", *arguments, "-q"], cwd=folder, check=True)


def gallery(browser: Browser, folder: Path) -> None:
    """Show captions with a second look, the doubtful first."""
    run(folder, "caption", "examples", "-p", "demo", "--verify", "flag", "-o", "captions.jsonl")
    run(folder, "report", "captions.jsonl")
    browser.open((folder / "captions.html").as_uri())
    shot(browser, "gallery.png", 1100, 700)


def report(browser: Browser, folder: Path) -> None:
    """Show one picture traced under both decoders."""
    shutil.copy(EXAMPLE, folder)
    for method in ("greedy", "sira"):
        run(folder, "trace", EXAMPLE.name, "-p", "demo", "--method", method, "-o", f"{method}.jsonl")
    run(folder, "report", "greedy.jsonl", "sira.jsonl", "-o", "traces.html")
    browser.open((folder / "traces.html").as_uri())
    shot(browser, "report.png", 1200, 1300)


def server(browser: Browser) -> None:
    """Show the server's page with a picture described by both decoders."""
    with running(load("demo")) as address:
        opened(browser, address)
        browser.type("#file", str(EXAMPLE))
        browser.click("#run")
        described(browser)
        shot(browser, "server.png", 1040, 570, scale=1.5)


def main() -> None:
    """Make the pictures."""
    with running_browser() as browser, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(FOLDER, folder / "examples", ignore=shutil.ignore_patterns("*.md", "*.ipynb"))
        gallery(browser, folder)
        report(browser, folder)
        server(browser)


if __name__ == "__main__":
    main()
