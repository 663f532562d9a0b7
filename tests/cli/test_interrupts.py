"""However and whenever the command is ended from outside: exit code 130, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sira_cli import interrupts
from sira_cli.cli.terminal.console import Progress

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str) -> tuple[int, str]:
    """Run a script that is not a job of the background, which would inherit an ignored SIGINT."""
    command = [sys.executable, "-c", script]
    allow = lambda: [signal.signal(number, signal.SIG_DFL) for number in interrupts.SIGNALS]  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=allow, timeout=300, check=False)
    return done.returncode, done.stderr


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in ("transformers", "PIL.Image", "torch.nn")]


@pytest.mark.parametrize("module", ["typer", "sira_cli.cli.caption", *SLOW])
def test_while_modules_are_loaded(module):
    """The signal comes when a module is looked for."""
    script = f"""
import os, signal, sys
class Stop:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
sys.argv = ["sira", "caption", {str(EXAMPLES)!r}, "-p", "demo", "--max-new-tokens", "2"]
from sira_cli.__main__ import main
main()
"""
    assert run(script) == (130, "")


@pytest.mark.parametrize(
    ("number", "as_what"),
    [
        *((each, "pass") for each in interrupts.SIGNALS),
        (signal.SIGINT, "raise ImportError('half loaded')"),
        (signal.SIGINT, "sys.exit(0)"),
    ],
)
def test_an_interrupt_that_a_library_swallows_or_makes_something_else_of(number, as_what):
    script = f"""
import os, sys
import sira_cli.cli
@sira_cli.cli.app.command()
def swallow() -> None:
    try:
        os.kill(os.getpid(), {number.value})
        sys.stdin.read()
    except KeyboardInterrupt:
        {as_what}
sys.argv = ["sira", "swallow"]
from sira_cli.__main__ import main
main()
"""
    assert run(script) == (130, "")


def test_while_threads_end():
    script = """
import atexit, os, sys, signal
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), print("went on", file=sys.stderr)))
sys.argv = ["sira", "presets", "list"]
from sira_cli.__main__ import main
main()
"""
    code, err = run(script)
    assert (code, "went on" in err) == (130, False)


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    yield
    interrupts.raise_interrupts()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_long_loop_ends_at_its_next_turn(handlers):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.raise_interrupts()
    progress = Progress("pieces", 3, silent=True)
    progress.advance()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        progress.advance()


def test_what_nohup_ignores_stays_ignored(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts.raise_interrupts()
    interrupts.quit_on_interrupts()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
