"""The folder for the Hub: `generate(custom_generate=...)` is SIRA, loaded by transformers from files."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from sira_cli._version import __version__
from sira_cli.core.hooks import attached_hooks
from sira_cli.errors import AttachError, ImageTokenError, SettingsError
from tests.support import tiny
from tests.support.decoding import case_of
from tests.support.helpers import generate, slow_contrast

FOLDER = Path(__file__).parents[2] / "custom_generate"
OURS = {"custom_generate": str(FOLDER), "trust_remote_code": True}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """Transformers copies the code that it runs; here it must not go into the user's cache."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))


def decode(case: tiny.Tiny, **settings: object) -> torch.Tensor:
    return generate(case.model, case.inputs, **OURS | settings)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
def test_texts_are_those_of_the_slow_contrast(name: str):
    """Without K, the fork is in the middle."""
    case = case_of(name)
    expected = generate(case.model, case.inputs, logits_processor=[slow_contrast(case, 3, 1.0)])
    assert torch.equal(decode(case, k=3, alpha=1.0), expected)
    assert torch.equal(decode(case, alpha=1.0), expected)


def test_wrong_settings_and_prompts_without_a_picture_are_refused_and_leave_no_hooks(llava):
    with pytest.raises(SettingsError, match="k = 99 is out of range"):
        decode(llava, k=99)
    with pytest.raises(SettingsError, match=r"\['gamma'\].*: the settings of SIRA are k, alpha and beta"):
        decode(llava, gamma=2.0)
    with pytest.raises(ImageTokenError):
        llava.model.generate(input_ids=torch.tensor([[1, 2, 3]]), max_new_tokens=1, **OURS)
    assert torch.equal(decode(llava, alpha=0.0), generate(llava.model, llava.inputs))


def test_of_two_threads_that_attach_at_once_one_is_refused(monkeypatch):
    """Both look whether the model is free before either has taken it, unless looking and taking are one."""
    norm, both = torch.nn.LayerNorm(2), Barrier(2)

    class Slow(set):
        def __contains__(self, value: object) -> bool:
            return super().__contains__(value) or time.sleep(0.2) is not None

    def attach_once(_: int) -> None:
        both.wait(60)
        with attached_hooks(norm, norm):
            time.sleep(1)

    monkeypatch.setattr("sira_cli.core.hooks._attached", Slow())
    with ThreadPoolExecutor(2) as pool, pytest.raises(AttachError):
        [*pool.map(attach_once, range(2))]


def test_it_asks_for_this_version_of_the_package():
    requirements = (FOLDER / "custom_generate" / "requirements.txt").read_text().split()
    assert requirements == [f"sira-cli>={__version__}"]
