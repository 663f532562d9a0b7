"""What tests of vLLM share: pictures, checkpoints, and engines in processes of their own."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.vllm.models import FAMILIES

ROOT = Path(__file__).parents[2]
# vLLM's model runner V2 on a CPU: `interpreter/sitecustomize.py` stands for the backend that Triton lacks there.
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}
V2 |= {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "interpreter"), *sys.path])}


def pytest_itemcollected(item: pytest.Item) -> None:
    """The versions that vLLM wants warn of what newer ones have mended."""
    kinds = ("Deprecation", "Future", "User")
    item.add_marker(pytest.mark.filterwarnings(*(f"ignore::{kind}Warning" for kind in kinds)))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Sixteen pictures of four sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = []
    for index, source in enumerate(sorted((ROOT / "examples").glob("scene-*.png"))[:16]):
        paths.append(str(folder / f"{index}.png"))
        Image.open(source).convert("RGB").resize((84 + 28 * (index % 4), 112)).save(paths[-1])
    return paths


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a family, made once."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")

    @functools.cache
    def make(family: str) -> Path:
        path = tmp_path_factory.mktemp("checkpoints") / family
        FAMILIES[family][0](path)
        return path

    return make


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Run an engine in a process of its own; return what it wrote, or the end of its log as an error.

    `v1`: in vLLM's first model runner, which machines without Triton have.
    """
    asked, out, log = (tmp_path / name for name in ("job.json", "out.json", "log.txt"))

    def start(do: str, model: Path, *, v1: bool = False, **job: Any) -> Any:
        asked.write_text(json.dumps({"do": do, "model": str(model), **job}), encoding="utf-8")
        command = [sys.executable, "-m", "tests.vllm.engine", str(asked), str(out)]
        with log.open("w", encoding="utf-8") as file:
            code = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=os.environ | ({} if v1 else V2),
                timeout=600,
            ).returncode
        if code:
            raise RuntimeError(log.read_text(encoding="utf-8")[-3000:])
        return json.loads(out.read_text(encoding="utf-8"))

    return start
