"""However and whenever the command is ended from outside: exit code 130, and no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sira_cli import interrupts

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


KILL, LOOP = "os.kill(os.getpid(), {})", "progress = Progress('pieces', 3, silent=True)\n    progress.advance()"
CAUGHT = "    try:\n        {}\n        sys.stdin.read()\n    except KeyboardInterrupt:\n        {}"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        *((CAUGHT.format(KILL.format(each.value), "pass"), 130) for each in interrupts.SIGNALS),
        (CAUGHT.format(KILL.format(2), "raise ImportError('half loaded')"), 130),
        (CAUGHT.format(KILL.format(2), "sys.exit(0)"), 130),
        (f"    atexit.register(lambda: ({KILL.format(2)}, print('went on', file=sys.stderr)))", 130),
        (f"    {LOOP}\n{CAUGHT.format(KILL.format(2), 'progress.advance()')}\n    os._exit(0)", 130),
        (f"    {KILL.format(1)}", 0),  # ignored, as under nohup
    ],
)
def test_an_interrupt_within_a_command(body, code):
    script = f"""
import atexit, os, signal, sys
{"signal.signal(signal.SIGHUP, signal.SIG_IGN)" * (code == 0)}
import sira_cli.cli
from sira_cli.cli.terminal.console import Progress
@sira_cli.cli.app.command()
def odd() -> None:
{body}
sys.argv = ["sira", "odd"]
from sira_cli.__main__ import main
main()
"""
    assert run(script) == (code, "")
