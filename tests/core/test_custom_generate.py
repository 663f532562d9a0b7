"""The folder for the Hub: `generate(custom_generate=...)` is SIRA, loaded by transformers from files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from sira_cli._version import __version__
from sira_cli.core.hooks import attached_hooks
from sira_cli.errors import AttachError, ImageTokenError, SettingsError
from tests.support import tiny
from tests.support.decoding import case_of
from tests.support.helpers import SlowContrast, generate

FOLDER = Path(__file__).parents[2] / "custom_generate"


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """Transformers copies the code that it runs; here it must not go into the user's cache."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))


OURS = {"custom_generate": str(FOLDER), "trust_remote_code": True}


def decode(case: tiny.Tiny, **settings: object) -> torch.Tensor:
    return generate(case.model, case.inputs, **OURS | settings)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
def test_texts_are_those_of_the_slow_contrast(name: str):
    """Without K, the fork is in the middle."""
    case = case_of(name)
    expected = generate(case.model, case.inputs, logits_processor=[SlowContrast(case, 3, 1.0)])
    assert torch.equal(decode(case, k=3, alpha=1.0), expected)
    assert torch.equal(decode(case, alpha=1.0), expected)
    assert torch.equal(decode(case, alpha=0.0), generate(case.model, case.inputs, max_new_tokens=6))


def test_a_streamer_sees_each_token_as_it_is_picked():
    class Kept(BaseStreamer):
        def __init__(self) -> None:
            self.parts = []

        def put(self, value: torch.Tensor) -> None:
            self.parts.append(value.flatten().tolist())

        def end(self) -> None:
            self.parts.append("end")

    case, kept = case_of("LLaVA-1.5"), Kept()
    tokens = decode(case, k=3, streamer=kept)
    assert kept.parts == [case.inputs["input_ids"][0].tolist(), *[[token] for token in tokens[0].tolist()], "end"]


def test_wrong_settings_and_prompts_without_a_picture_are_refused_and_leave_no_hooks(monkeypatch, llava):
    for settings, message in [
        ({"k": 99}, "k = 99 is out of range"),
        ({"gamma": 2.0}, r"\['gamma'\].*: the settings of SIRA are k, alpha and beta"),
    ]:
        with pytest.raises(SettingsError, match=message):
            decode(llava, **settings)
    with pytest.raises(ImageTokenError):
        llava.model.generate(input_ids=torch.tensor([[1, 2, 3]]), max_new_tokens=1, **OURS)
    assert torch.equal(decode(llava, alpha=0.0), generate(llava.model, llava.inputs, max_new_tokens=6))

    def fails(**arguments):
        raise ValueError("something else")

    monkeypatch.setattr(llava.model, "generate", fails)
    with pytest.raises(ValueError, match="something else") as other:
        decode(llava)
    assert not isinstance(other.value, SettingsError)


def test_a_second_thread_is_refused_while_the_first_one_generates():
    """It is told what to do; the first one's text is what it is alone, and then the model is free."""
    case, found = case_of("LLaVA-1.5"), []
    alone = decode(case, k=3)

    class Meanwhile(BaseStreamer):
        def put(self, value: torch.Tensor) -> None:
            if not found:
                with ThreadPoolExecutor(1) as pool:
                    found.append(pool.submit(decode, case, k=3).exception())

        def end(self) -> None:
            pass

    assert torch.equal(decode(case, k=3, streamer=Meanwhile()), alone)
    assert isinstance(found[0], AttachError)
    assert "take turns, with their own lock, or generate together as one batch" in str(found[0])
    assert torch.equal(decode(case, k=3), alone)


def test_of_two_threads_that_attach_at_once_one_is_refused(monkeypatch):
    """Both look whether the model is free before either has taken it, unless looking and taking are one."""
    norm, both, refused = torch.nn.LayerNorm(2), Barrier(2), Event()

    class Slow(set):
        def __contains__(self, value: object) -> bool:
            found = super().__contains__(value)
            with suppress(BrokenBarrierError):
                both.wait(0.2)
            return found

    def attach_once() -> None:
        try:
            with attached_hooks(norm, norm):
                refused.wait(1)
        except AttachError:
            refused.set()
            raise

    monkeypatch.setattr("sira_cli.core.hooks._attached", Slow())
    with ThreadPoolExecutor(2) as pool:
        tries = [pool.submit(attach_once) for _ in range(2)]
    assert [type(error) for one in tries if (error := one.exception())] == [AttachError]


def test_its_code_runs_only_for_those_who_trust_it_and_asks_for_the_package(llava):
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        decode(llava, trust_remote_code=False)
    requirements = (FOLDER / "custom_generate" / "requirements.txt").read_text().split()
    assert requirements == [f"sira-cli>={__version__}"]
