"""Shared fixtures, and the conformance table at the end of a run."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import logging
import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may look for a hub; those of the hub client start their own
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# One thread per process, here and in the commands that tests start: two on busy cores take four times as long.
os.environ["OMP_NUM_THREADS"] = "1"

from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image
from skimage import data

from sira_cli import interrupts
from sira_cli.cli import main
from sira_cli.models import load as loading
from sira_cli.models import presets
from sira_cli.run.lvlm import Lvlm, load
from tests.support import tiny
from tests.support.browser import CHROMIUM, DRIVER, MISSING, Browser, running_browser
from tests.support.checkpoints import ALL, write_layout
from tests.support.helpers import case_of

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HOMES = itertools.count()
# Commands are put together once in this process, as in one that is started; it takes a tenth of a second.
typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.fixture(scope="session", autouse=True)
def bundled_weights() -> Iterator[None]:
    """The bundled model is read and judged once in this process; each model that is loaded has a copy of its own."""
    read, kept = loading.load_model, dict[str, Any]()

    def load_model(folder: Path, options: loading.WeightOptions) -> Any:
        if folder != presets.BUNDLED_FOLDER:
            return read(folder, options)
        how = repr(options)
        if how not in kept:
            kept[how] = read(folder, options)
        return copy.deepcopy(kept[how])

    judge = loading._without_weights
    judge_once = functools.cache(judge)

    def without_weights(folder: Path, *args: Any) -> Any:
        return (judge_once if folder == presets.BUNDLED_FOLDER else judge)(folder, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_model", load_model)
        patch.setattr(loading, "_without_weights", without_weights)
        yield


@pytest.fixture(scope="session")
def demo() -> Lvlm:
    """The bundled model, for reading only: a test has other settings of it by `helpers.under`."""
    return load("demo")


@pytest.fixture(params=list(tiny.FAMILIES))
def every_family(request: pytest.FixtureRequest) -> tiny.Tiny:
    return case_of(request.param)


@pytest.fixture(params=tiny.REPRESENTATIVES)
def family(request: pytest.FixtureRequest) -> tiny.Tiny:
    return case_of(request.param)


@pytest.fixture
def llava() -> tiny.Tiny:
    return case_of("LLaVA-1.5")


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The checkpoint of a family on disk: each is written once, and a test that changes files copies it first."""
    folder = tmp_path_factory.mktemp("checkpoints")
    stamps: dict[Path, int] = {}

    def files(place: Path) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}

    @functools.cache
    def written(family: str) -> Path:
        place = ALL[family](folder / family.lower())
        stamps.update(files(place))
        return place

    yield written
    assert files(folder) == stamps


@pytest.fixture(scope="session")
def llava_folder(checkpoint_of: Callable[[str], Path]) -> Path:
    """A LLaVA-1.5 checkpoint on disk, for reading only."""
    return checkpoint_of("LLaVA-1.5")


@pytest.fixture(scope="session")
def qwen_folder(checkpoint_of: Callable[[str], Path]) -> Path:
    """A Qwen2.5-VL checkpoint on disk, for reading only."""
    return checkpoint_of("Qwen2.5-VL")


@pytest.fixture(scope="session")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a shipped preset's model, in the layout of the hub; each is written once."""
    folder = tmp_path_factory.mktemp("layouts")

    @functools.cache
    def written(name: str) -> Path:
        return write_layout(name, folder / name)

    return written


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real photographs as JPEG files: square, wide, tall."""
    folder = tmp_path_factory.mktemp("photos")
    images = {name: getattr(data, name)() for name in ("astronaut", "chelsea", "rocket", "coffee")}
    for name, pixels in (images | {"tall": images["rocket"].transpose(1, 0, 2)}).items():
        Image.fromarray(pixels).save(folder / f"{name}.jpg", quality=90)
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture(scope="session")
def benchmarks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The benchmarks' own files: pope/, amber/ and chair/ (see tests/data/README.md)."""
    folder = tmp_path_factory.mktemp("benchmarks")
    for archive in sorted((Path(__file__).parent / "data" / "benchmarks").glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # since 3.11.4
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands find the user's presets and calibrations, and keep what they cache: each test has its own."""
    home = tmp_path_factory.getbasetemp() / "homes" / str(next(_HOMES))
    monkeypatch.setenv("SIRA_HOME", str(home))
    log = logging.getLogger("sira_cli")  # a command of an earlier test may have left it quiet
    log.propagate = True
    log.setLevel(logging.NOTSET)
    return home


@pytest.fixture
def sira(monkeypatch, capsys, home):
    """Run a command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.delenv("SIRA_PRESET", raising=False)

    def run(*args: object, stdin: bytes = b"", home: Path = home) -> tuple[int, str, str]:
        monkeypatch.setenv("SIRA_HOME", str(home))
        monkeypatch.setattr(sys, "argv", ["sira", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = 0
        handlers = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(MISSING)
    with running_browser() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The window as a new one would be. No page may say anything to its console."""
    window.devtools("Emulation.clearDeviceMetricsOverride")
    window.devtools("Emulation.setEmulatedMedia", media="", features=[])
    yield window
    assert window.log("browser") == []


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave browsers to the nightly run, but for a few tests of each page."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()) and item.get_closest_marker("smoke") is None:
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the conformance test measured per family against Algorithm 1 in float32."""
    measured: dict[str, list[tuple[float, float]]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for family, *pair in (value for name, value in report.user_properties if name == "conformance"):
            measured.setdefault(family, []).append(tuple(pair))
    for family, pairs in measured.items():
        worst, least = max(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
        terminalreporter.write_line(f"{family}: worst |logit difference| {worst:.1e}, least |full - cf| {least:.2f}")
