"""A server that nobody here wrote: `transformers serve`, with the bundled model. It tells no probabilities."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from sira_cli import load
from sira_cli.models.presets import BUNDLED_FOLDER

PICTURES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[:3]
TEXT = "A dog under an umbrella and a cow."


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of the server, which needs some seconds to start."""
    home = tmp_path_factory.mktemp("hf")
    (home / "hub").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--device", "cpu", "--port", str(port)]
    with subprocess.Popen(
        command, env=os.environ | {"HF_HOME": str(home)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            for _ in range(240):
                try:
                    if httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        break
                except httpx2.TransportError:
                    assert server.poll() is None
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.kill()


@pytest.mark.slow
def test_answers_are_those_of_the_model_loaded_here(sira, address, tmp_path):
    captions, checks, lvlm = tmp_path / "said.csv", tmp_path / "checks.jsonl", load("demo", method="greedy")
    with captions.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "text"), *((path, TEXT) for path in PICTURES)])
    served = ("--endpoint", address, "--model", BUNDLED_FOLDER)
    code, _, err = sira("check", captions, "-p", "demo", *served, "-o", checks)
    assert code == 0, err
    found = [json.loads(line) for line in checks.read_text(encoding="utf-8").splitlines()]
    for path, record in zip(PICTURES, found, strict=True):
        expected = [(claim.thing, float(claim.support > 0.5)) for claim in lvlm.check(path, TEXT).objects]
        assert [(claim["thing"], claim["support"]) for claim in record["objects"]] == expected
        assert record["verify"]["source"] == "answer"
    assert len({claim["support"] for record in found for claim in record["objects"]}) == 2
