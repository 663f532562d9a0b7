"""`--engine vllm` ended from outside: at any moment, in seconds, and with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from sira_cli.vllm.processes import OWNER
from tests.vllm.conftest import ROOT

MOMENTS = {
    "vLLM is imported": "'vllm' in sys.modules",
    "its process was started": "len(psutil.Process().children()) > 1",  # the other one watches shared memory
    "the model is loaded": "any('EngineCore' in child.name() for child in psutil.Process().children())",
    "texts are decoded": "os.path.exists(out) and os.path.getsize(out)",
}
# The command, with a thread that sends it a signal when the moment has come.
SCRIPT = """
import os, sys, threading, time
import psutil
number, out = int(sys.argv[1]), sys.argv[-1]
def send():
    while not ({moment}):
        time.sleep(0.1)
    os.kill(os.getpid(), number)
threading.Thread(target=send, daemon=True).start()
sys.argv = ["sira", *sys.argv[2:]]
from sira_cli.__main__ import main
main()
"""


def left_of(owner: int) -> list[str]:
    """The processes of a run of vLLM that live on, after they had time to end."""
    names: list[str] = []
    for _ in range(600):
        names = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(OWNER) == str(owner) and process.status() != psutil.STATUS_ZOMBIE:
                    names.append(f"{process.pid} {process.name()}")
            except psutil.Error:
                continue
        if not names:
            break
        time.sleep(0.1)
    return names


@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        (signal.SIGTERM, "vLLM is imported", 130),
        (signal.SIGTERM, "its process was started", 130),
        (signal.SIGINT, "the model is loaded", 130),
        (signal.SIGTERM, "texts are decoded", 130),
        (signal.SIGKILL, "texts are decoded", -9),
    ],
)
def test_a_signal_ends_the_command_and_all_of_vllm(number, moment, code, folder, pictures, tmp_path):
    script = SCRIPT.format(moment=MOMENTS[moment])
    options = ["--engine", "vllm", "--dtype", "float32", "--max-new-tokens", "900", "-b", "2"]
    asked = ["caption", *pictures, "-m", str(folder("llava")), *options, "-o", str(tmp_path / "out.jsonl")]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", script, str(int(number)), *asked]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=300)
        assert process.returncode == code, said
        assert left_of(process.pid) == []
    finally:
        process.kill()
