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

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))[:4]


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=12)


def comparable(result) -> dict:
    record = result.to_record()
    del record["duration_ms"]
    return record


@pytest.mark.parametrize("settings", [{"temperature": 1.0, "seed": 3}, {"method": "vcd"}])
def test_many_pictures_have_the_results_of_single_ones(settings):
    lvlm = load("demo", max_new_tokens=12, **settings)
    together = list(lvlm.caption_many(EXAMPLES, batch_size=3))
    assert [comparable(result) for result in together] == [comparable(lvlm.caption(path)) for path in EXAMPLES]


def test_a_bad_picture_among_many_is_a_result_of_its_own(demo, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(EXAMPLES[0].read_bytes()[:500])
    results = list(demo.caption_many([EXAMPLES[0], bad, tmp_path / "none.png", EXAMPLES[1]]))
    assert [result.status for result in results] == ["ok", "error", "error", "ok"]
    assert "bad.png: is damaged" in results[1].error
    assert results[2].error == f"{tmp_path}/none.png: no such file"
    assert results[3].text == demo.caption(EXAMPLES[1]).text


def test_pictures_are_taken_a_few_ahead(demo):
    taken = []
    results = demo.caption_many((taken.append(path) or path for path in 10 * EXAMPLES), batch_size=1)
    next(results)
    assert len(taken) < 2 * (READERS + WINDOW)
    results.close()
    with pytest.raises(SettingsError, match="batch_size must be 1 or more; got 0"):
        next(demo.caption_many(EXAMPLES, batch_size=0))


def test_a_picture_may_be_bytes_a_stream_an_image_or_an_array(demo):
    path = EXAMPLES[0]
    expected = demo.caption(path).text
    with Image.open(path) as image:
        for source in (path.read_bytes(), bytearray(path.read_bytes()), io.BytesIO(path.read_bytes()), image):
            assert demo.caption(source).text == expected
        assert demo.caption(np.asarray(image)).text == expected
        alone, pair = demo.caption_many([image, [image, path]])
        assert (alone.text, pair.text) == (expected, demo.caption([path, path]).text)
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
def prepared(demo):
    """A prompt as the checkpoint's own processor makes it."""
    inputs = demo.chat_inputs([open_picture(EXAMPLES[0]).image], [demo.preset.prompts.caption])
    return {name: inputs[name] for name in ("input_ids", "attention_mask", "pixel_values")}


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("icd", "vcd", "opera")])
def test_attach_decodes_with_any_method(demo, prepared, method):
    other = demo.under(METHODS[method])  # with its calibration, if it needs one
    with attach(demo.model, SiraConfig(k=7), method=other.decoder, inputs=prepared):
        tokens = demo.model.generate(**prepared, max_new_tokens=12, do_sample=False)
    new = tokens[0, prepared["input_ids"].shape[1] :].tolist()
    expected = other.caption(EXAMPLES[0]).text
    assert demo.vocabulary.text(demo.ends.until_end(new)).strip() == expected


def test_attach_takes_a_method_s_settings_and_a_seed(demo, prepared):
    def tokens(**settings) -> torch.Tensor:
        with attach(demo.model, method="vcd", inputs=prepared, **settings):
            return demo.model.generate(
                **prepared, max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True
            ).logits[0]

    assert torch.equal(tokens(seed=1), tokens(seed=1))
    assert not torch.equal(tokens(seed=1), tokens(seed=2))
    assert not torch.equal(tokens(), tokens(noise_step=999))


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
