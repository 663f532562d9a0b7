"""What people who call sira from Python expect: many pictures, pictures of any kind, any method inside `generate`."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sira_cli import PictureError, SettingsError, SiraConfig, attach, load
from sira_cli.methods import METHODS
from sira_cli.pictures.sources import as_picture, open_picture
from sira_cli.run.runner import READERS, WINDOW
from tests.support.helpers import under

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))[:4]


@pytest.fixture(scope="module")
def lvlm(demo):
    return under(demo, max_new_tokens=8)


def comparable(result) -> dict:
    record = result.to_record()
    del record["duration_ms"]
    return record


@pytest.mark.parametrize(("method", "settings"), [("sira", {"temperature": 1.0, "seed": 3}), ("vcd", {})])
def test_many_pictures_have_the_results_of_single_ones_and_a_bad_one_has_its_own(lvlm, tmp_path, method, settings):
    lvlm, bad = under(lvlm, method, **settings), tmp_path / "bad.png"
    bad.write_bytes(EXAMPLES[0].read_bytes()[:500])
    good, (damaged, missing) = EXAMPLES[:3], (bad, tmp_path / "none.png")
    results = list(lvlm.caption_many([good[0], damaged, missing, *good[1:]], batch_size=3))
    assert [comparable(results[at]) for at in (0, 3, 4)] == [comparable(lvlm.caption(path)) for path in good]
    assert [result.status for result in results] == ["ok", "error", "error", "ok", "ok"]
    assert "bad.png: is damaged" in results[1].error
    assert results[2].error == f"{tmp_path}/none.png: no such file"


def test_pictures_are_taken_a_few_ahead(lvlm):
    taken = []
    results = lvlm.caption_many((taken.append(path) or path for path in 10 * EXAMPLES), batch_size=1)
    next(results)
    assert len(taken) < 2 * (READERS + WINDOW)
    results.close()
    with pytest.raises(SettingsError, match="batch_size must be 1 or more; got 0"):
        next(lvlm.caption_many(EXAMPLES, batch_size=0))


def test_a_picture_may_be_bytes_a_stream_an_image_or_an_array(lvlm):
    path = EXAMPLES[0]
    expected, data = lvlm.caption(path).text, path.read_bytes()
    with Image.open(path) as image:
        for source in (data, bytearray(data), io.BytesIO(data), image, np.asarray(image)):
            assert lvlm.caption(source).text == expected
        alone, pair = lvlm.caption_many([image, [image, path]])
        assert (alone.text, pair.text) == (expected, lvlm.caption([path, path]).text)
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert open_picture(grey).image.getpixel((1, 2)) == (9, 9, 9)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a.png", "b.png"}, "a set is not a picture: expected a path.*`caption_many` takes several pictures"),
        ([], "a group of pictures is empty"),
        (np.zeros((2, 2, 3)), r"an array of float64 \[2, 2, 3\] is not a picture: expected uint8"),
        (np.zeros((0, 2), np.uint8), r"an array of uint8 \[0, 2\] is not a picture"),
    ],
)
def test_what_is_no_picture_is_named(source, message):
    with pytest.raises(PictureError, match=message):
        as_picture(source)


def test_a_model_says_what_it_is(demo):
    assert repr(demo) == "<Lvlm demo: sira, K = 7 of 8, alpha = 0.5, float32 on cpu>"
    assert repr(demo.under(METHODS["greedy+apc"])) == "<Lvlm demo: greedy+apc, float32 on cpu>"


def test_load_shows_no_progress_bar_and_leaves_those_of_others():
    from transformers.utils import logging

    logging.enable_progress_bar()
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        load("demo")
    assert shown.getvalue() == ""
    assert logging.is_progress_bar_enabled()


@pytest.fixture(scope="module")
def prepared(lvlm):
    """A prompt as the checkpoint's own processor makes it."""
    inputs = lvlm.chat_inputs([open_picture(EXAMPLES[0]).image], [lvlm.preset.prompts.caption])
    return {name: inputs[name] for name in ("input_ids", "attention_mask", "pixel_values")}


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("icd", "vcd", "opera")])
def test_attach_decodes_with_any_method(lvlm, prepared, method):
    other = lvlm.under(METHODS[method])  # with its calibration, if it needs one
    with attach(lvlm.model, SiraConfig(k=7), method=other.decoder, inputs=prepared):
        tokens = lvlm.model.generate(**prepared, max_new_tokens=8, do_sample=False)
    new = tokens[0, prepared["input_ids"].shape[1] :].tolist()
    assert lvlm.vocabulary.text(lvlm.ends.until_end(new)).strip() == other.caption(EXAMPLES[0]).text


def test_attach_takes_a_method_s_settings_and_a_seed(demo, prepared):
    def logits(**settings) -> torch.Tensor:
        how = {"max_new_tokens": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        with attach(demo.model, method="vcd", inputs=prepared, **settings):
            return demo.model.generate(**prepared, **how).logits[0]

    assert torch.equal(logits(seed=1), logits(seed=1))
    assert not torch.equal(logits(seed=1), logits(seed=2))
    assert not torch.equal(logits(), logits(noise_step=999))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "vcd"}, "method vcd prepares its contrast stream from the prompts: give `inputs`"),
        ({"method": "icd", "inputs": True}, "needs the processor: use `load` instead of `attach`"),
        ({"method": "vcd", "noise": 3}, "method 'vcd' has no setting 'noise'"),
        ({"method": "vcd", "on_step": print}, "on_step needs method sira or greedy, not vcd"),
    ],
)
def test_attach_refuses_what_a_method_cannot(demo, prepared, given, message):
    given = {**given, "inputs": prepared} if "inputs" in given else given
    with pytest.raises(SettingsError, match=message), attach(demo.model, **given):
        pass


def test_on_step_sees_both_streams_of_greedy(demo, prepared):
    steps = []
    with attach(demo.model, SiraConfig(k=7), method="greedy", on_step=steps.append):
        demo.model.generate(**prepared, max_new_tokens=2, do_sample=False)
    assert torch.equal(steps[0].contrast, steps[0].full)
    assert not torch.equal(steps[0].cf, steps[0].full)
