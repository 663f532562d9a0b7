"""Models with a video input: the numbers of the official processor, and SIRA exact against the slow reference."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor
from transformers.video_utils import VideoMetadata

from sira_cli import load
from sira_cli.analysis.proof.exact import compare_real
from sira_cli.methods.vcd import signal_share
from sira_cli.models.answering.preparing import BRANCH
from sira_cli.models.loading import presets
from sira_cli.pictures.clip import Clip, Sampling
from sira_cli.pictures.sources import as_picture
from tests.support.checkpoints_all import ALL
from tests.support.clips import PLACES, with_place_for_clips, write_clip

QUICK = ("Qwen3-VL",)  # of patches of two frames; one of frames apart takes half a minute
FAMILIES = [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in PLACES]
STAMPED = ("Qwen3-VL", "Qwen3.5", "Gemma 4 E")  # times as text before the frames


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("video"), {}

    def folder_of(family):
        if family not in made:
            made[family] = with_place_for_clips(ALL[family](root / family.replace(" ", "-")), family)
        return made[family]

    return folder_of


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Clip:
    path = write_clip(tmp_path_factory.mktemp("clips") / "a.mp4", frames=30, size=(128, 96))
    return as_picture(path).open(Sampling(frames=6)).image


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clip_is_exact_against_the_reference(folders, clip, picture, family):
    """Alone, and next to a picture before it."""
    preset = presets.for_model(str(folders(family)))
    run = partial(compare_real, preset, offline=True, device="cpu", quantization=None)
    for shown in (clip, [picture, clip]):
        compared = run(picture=shown).compared
        assert compared.verdict == "exact", compared


@pytest.mark.parametrize("family", [each for each in FAMILIES if "Qwen" in str(each)])
def test_samples_equal_those_of_the_frames_themselves(folders, clip, family):
    lvlm = load(str(folders(family)))
    own = lvlm.processor.video_processor(videos=[[*clip.frames]], do_sample_frames=False, return_tensors="pt")
    assert torch.equal(lvlm.prepare([clip], ["?"])["pixel_values_videos"], own["pixel_values_videos"])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_counterfactual_hides_every_frame_and_no_text(folders, clip, picture, family):
    lvlm = load(str(folders(family)))
    ids = {}
    for name, shown in (("clip", clip), ("picture", picture), ("both", [picture, clip])):
        inputs = lvlm.prepare([shown], ["What is shown?"])
        ids[name] = inputs["input_ids"][0][~lvlm.find_image(inputs["input_ids"])[0]]
        hidden = inputs["input_ids"][0][lvlm.find_image(inputs["input_ids"])[0]].unique().tolist()
        assert 1 <= len(hidden) <= 2
        assert int(lvlm.find_image(inputs["input_ids"]).sum()) > (10 if name != "picture" else 0)
    text = lvlm.processor.tokenizer.decode(ids["clip"], skip_special_tokens=False)
    assert "What is shown?" in text
    if family in STAMPED:  # 6 frames, at 0.6 s from each other; Qwen has a time for each two of them
        stamps = (
            ("00:00", "00:01", "00:02")
            if family == "Gemma 4 E"
            else ("<0.3 seconds>", "<1.4 seconds>", "<2.6 seconds>")
        )
        assert all(stamp in text for stamp in stamps), text


@pytest.mark.parametrize("family", FAMILIES)
def test_clips_and_pictures_in_a_batch_equal_single_ones(folders, clip, picture, family):
    lvlm = load(str(folders(family)), max_new_tokens=4, dtype="float32")
    shown = [clip, picture, replace(clip, frames=clip.frames[::-1])]
    prompts = ["What is shown?", "Where?", "Describe it."]
    batch = lvlm.answer(lvlm.to_device(lvlm.prepare(shown, prompts)))
    for row, answer in enumerate(batch):
        (alone,) = lvlm.answer(lvlm.to_device(lvlm.prepare([shown[row]], [prompts[row]])))
        assert (answer.tokens, answer.image_tokens) == (alone.tokens, alone.image_tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_vcd_noises_every_frame_with_noise_of_its_own(folders, clip, picture, family):
    lvlm = load(str(folders(family)), method="vcd")

    def noise(*shown):
        inputs = lvlm.prepare(shown, ["What?"] * len(shown), [f"{id(each)}" for each in shown])
        share, scale = signal_share(500), 2 if family == "Gemma 4 E" else 1  # its own pixels go from 0 to 1
        names = [name for name in ("pixel_values", "pixel_values_videos") if name in inputs]
        found = [(scale * inputs[each] - (scale - 1), scale * inputs[BRANCH + each] - (scale - 1)) for each in names]
        return [(mixed - share**0.5 * x) / (1 - share) ** 0.5 for x, mixed in found]

    *_, alone = noise(clip)
    rows = alone.flatten(0, 1) if family == "Gemma 4 E" else alone
    rows = rows[rows.flatten(1).std(dim=1) > 0.5]  # without Gemma's padding
    assert float(rows.mean()) == pytest.approx(0, abs=0.05)
    assert float(rows.std()) == pytest.approx(1, abs=0.05)
    together = noise(picture, clip)
    if len(together) == 2:  # inputs of their own
        torch.testing.assert_close(together[1], alone)
        torch.testing.assert_close(together[0], noise(picture)[0])
    halves = alone.flatten().chunk(len(clip.frames))
    assert abs(float(torch.corrcoef(torch.stack([halves[0], halves[-1]]))[0, 1])) < 0.1


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_equal_those_of_the_official_processor(folders, clip, family):
    lvlm = load(str(folders(family)))
    mine = lvlm.prepare([clip], ["What is shown?"])
    official = AutoProcessor.from_pretrained(folders(family))
    part = {"type": "video", "video": np.stack([np.asarray(frame) for frame in clip.frames])}
    line, metadata = clip.timeline, {"total_num_frames": clip.timeline.count, "frames_indices": list(clip.numbers)}
    metadata |= {"fps": line.fps, "duration": line.seconds, "width": line.width, "height": line.height}
    theirs = official.apply_chat_template(
        [{"role": "user", "content": [part, {"type": "text", "text": "What is shown?"}]}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        **({"enable_thinking": False} if family == "Qwen3.5" else {}),
        processor_kwargs={"videos_kwargs": {"video_metadata": [VideoMetadata(**metadata)], "do_sample_frames": False}},
    )
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(torch.as_tensor(mine[name]), torch.as_tensor(value), atol=1e-6, rtol=0)
