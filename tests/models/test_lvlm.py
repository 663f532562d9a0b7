"""`load`, `caption` and `ask` on checkpoints in the real file formats and on photographs; features that are kept."""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.utils import logging

import sira_cli
from sira_cli import SiraConfig, attach
from sira_cli.core.streams import VIEWS
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import render
from sira_cli.errors import ModelNotFoundError, SettingsError, UnsupportedModelError
from sira_cli.methods import METHODS
from sira_cli.models.encoded import MOST, EncodedPictures
from sira_cli.models.preset import Preset
from sira_cli.models.texts import Answer
from sira_cli.pictures.sources import as_picture, located
from sira_cli.run.items import Item
from sira_cli.run.lvlm import Lvlm, load
from sira_cli.run.task import Caption
from tests.support import helpers, tiny
from tests.support.checkpoints import edited
from tests.support.helpers import case_of, generate_sira, left_pad, under
from tests.support.shards import EXAMPLES

# The keys of a record and their types: a contract with programs that read records.
TEXTS = "schema key file_name status text error prompt preset model revision method finish_reason image_sha256"
NUMBERS = "k layers max_new_tokens seed image_tokens prompt_tokens output_tokens"
RECORD = dict.fromkeys([*TEXTS.split(), "sira_version"], str) | dict.fromkeys(NUMBERS.split(), int)
RECORD |= dict.fromkeys(("alpha", "temperature", "duration_ms"), float)


@pytest.fixture(scope="module")
def llava(llava_folder) -> Lvlm:
    return load(llava_folder, max_new_tokens=8)


@pytest.fixture(scope="module")
def qwen(qwen_folder) -> Lvlm:
    return load(qwen_folder, max_new_tokens=8)


def test_the_processors_image_token_counts_where_the_config_names_none(llava, photos, monkeypatch):
    inputs = llava.prepare([as_picture(photos["chelsea"]).open().image], ["Why?"])
    expected = llava.find_image(inputs["input_ids"])
    monkeypatch.setitem(vars(llava.model.config), "image_token_index", None)
    found = Lvlm(llava.model, llava.processor, llava.preset, METHODS["sira"], llava.revision)
    assert found.sira.image_tokens.ids == (llava.processor.image_token_id,)
    assert torch.equal(found.find_image(inputs["input_ids"]), expected)
    assert int(expected.sum()) > 1


def test_a_generation_config_gives_its_end_tokens_only(qwen, qwen_folder):
    """Algorithm 1 knows no repetition penalty; the real Qwen2.5-VL checkpoint asks for 1.05."""
    on_disk, own = json.loads((qwen_folder / "generation_config.json").read_text()), qwen.model.generation_config
    assert (on_disk["repetition_penalty"], own.repetition_penalty) == (1.05, None)
    assert (own.eos_token_id, own.pad_token_id) == (on_disk["eos_token_id"], on_disk["pad_token_id"])


def test_the_record(llava, photos):
    good = llava.caption(photos["rocket"])
    task = Caption.of(llava.preset, llava.decoder)
    bad = task.record(Answer(error="no such file"), llava, Item(located("missing.jpg"), "missing.jpg", task.prompt))
    for result, task in ((good, "caption"), (bad, "caption"), (llava.ask(photos["rocket"], "Hm?"), "ask")):
        record = json.loads(result.to_json())
        assert {key: type(value) for key, value in record.items()} == RECORD
        assert record["schema"] == f"sira.{task}/1"
    assert good.status == "ok"
    assert good.error == ""
    assert good.finish_reason == "length"
    assert bad.status == "error"
    assert bad.error == "no such file"
    assert bad.finish_reason == "error"
    assert bad.text == ""
    assert good.k == 4
    assert good.layers == 8
    assert good.alpha == 0.5
    assert good.preset == ""
    assert good.output_tokens == 8
    assert good.sira_version == sira_cli.__version__


def test_the_key_depends_on_all_that_decides_the_text(llava, llava_folder, photos, tmp_path):
    photo = shutil.copy(photos["rocket"], tmp_path / "photo.jpg")
    plain = llava.caption(photo)
    key = plain.key
    assert llava.caption(photo).key == load(llava_folder, max_new_tokens=8).caption(photo).key == key
    assert llava.caption(photo, prompt="What?").key != key
    assert llava.ask(photo, "Please describe this image in detail.").key != key
    changes = {"alpha": 0.6, "k": 3, "beta": 0.1, "seed": 1, "top_p": 0.5, "max_new_tokens": 7}
    for name, value in {**changes, "quantization": "8bit", "dtype": "bfloat16", "max_pixels": 9}.items():
        assert under(llava, **{name: value}).caption(photo).key != key, name
    for name, value, held in (("prefix", "x", {"text_settings": {"prefix": "x"}}), ("top_k", 5, {"top_k": 5})):
        other = under(llava, **{name: value}).caption(photo)
        more = {name: value for name, value in other.to_record().items() if name not in plain.to_record()}
        assert more == held
        assert other.key != key
    shutil.copy(photos["coffee"], photo)
    assert llava.caption(photo).key != key


def test_the_end_token_ends_an_answer(llava, llava_folder, photos, tmp_path):
    tokens = llava.processor.tokenizer(" " + llava.caption(photos["rocket"]).text)["input_ids"][1:]
    end = tokens[3]
    folder = edited(llava_folder, tmp_path / "ends", "generation_config.json", eos_token_id=[0, end])
    result = load(folder, max_new_tokens=8).caption(photos["rocket"])
    assert (result.finish_reason, result.output_tokens) == ("stop", tokens.index(end) + 1)


def test_no_template_at_all_is_refused(qwen_folder, photos, tmp_path):
    folder = edited(qwen_folder, tmp_path / "bare", "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.json").unlink()
    with pytest.raises(UnsupportedModelError, match="no chat template"):
        load(folder).caption(photos["coffee"])


def test_image_tokens_by_text_and_between_markers(qwen, qwen_folder, photos):
    between, expected = {"start": "<|vision_start|>", "end": "<|vision_end|>"}, qwen.caption(photos["coffee"])
    rules = {"tokens": ["<|image_pad|>"]}, {"between": between}, {"between": between | {"inclusive": True}}
    for rule, markers in zip(rules, (0, 0, 2), strict=True):
        preset = Preset.model_validate_json(json.dumps({"model": str(qwen_folder), "image_tokens": rule}))
        lvlm = load(preset, max_new_tokens=8)
        result = lvlm.caption(photos["coffee"])
        assert result.image_tokens == expected.image_tokens + markers
        assert markers or result.text == expected.text
    assert isinstance(lvlm.sira.image_tokens.between.start, int)  # looked up: `attach` has no tokenizer


def test_a_choice_is_the_contrast_s_where_the_full_stream_has_another(demo):
    lvlm, image = under(demo, alpha=3.0), render(held_out(7_700_003))[0]
    [answer] = lvlm.choose(lvlm.prepare([image], ["Is there a fence in the image?"]), ["Yes", "No"])
    likeliest = {view: max(answer.choices, key=lambda each: each["logprob"][view])["choice"] for view in VIEWS}
    assert likeliest["full"] == "Yes"
    assert likeliest["contrast"] == "No"
    assert answer.text == "No"


def test_a_placeholder_in_the_prompt_is_refused(llava, qwen, photos):
    for lvlm, placeholder in ((llava, "<image>"), (qwen, "<|image_pad|>"), (qwen, "<|video_pad|>")):
        with pytest.raises(SettingsError, match=f"the prompt holds {re.escape(placeholder)}"):
            lvlm.ask(photos["coffee"], f"What is {placeholder}?")


def test_missing_and_torn_weights_are_never_made_up(llava_folder, tmp_path):
    folder = edited(llava_folder, tmp_path / "holes")
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors[next(name for name in tensors if name.endswith("layers.3.mlp.up_proj.weight"))]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ModelNotFoundError, match=r"lack 1 tensors, among them .*layers\.3\.mlp\.up_proj\.weight"):
        load(folder)
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelNotFoundError, match=f"the model in {folder} cannot be loaded: "):
        load(folder)


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
def test_a_model_of_too_many_layers_is_refused_before_it_is_built(llava_folder, tmp_path, part):
    sizes = json.loads((llava_folder / "config.json").read_text())[part] | {"num_hidden_layers": 100_000}
    folder = edited(llava_folder, tmp_path / "tall", "config.json", **{part: sizes})
    with pytest.raises(UnsupportedModelError, match=r"tall/config.json: 100,000 layers; expected at most 1,000"):
        load(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "siren"}, r"no method named 'siren'; did you mean sira\?; available: sira, greedy"),
        ({"device": "gpu"}, "device gpu does not exist here: expected auto, cpu"),
        ({"quantization": "3bit"}, "`quantization=` 3bit: expected 8bit or 4bit, or none"),
        ({"revision": "abc"}, "a folder has no revisions: leave out revision 'abc'"),
        ({"k": 8}, r"L = 8 decoder layers, so k must be 1\.\.7"),
    ],
)
def test_bad_settings(llava_folder, settings, message):
    with pytest.raises(SettingsError, match=message):
        load(llava_folder, **settings)


def test_public_names():
    names = (
        "AttachError Between DataError Fork GenerationSettingsWarning HugePictureError ImageTokenError ImageTokens "
        "LongPromptError Lvlm ModelNotFoundError NoAnswerError NotCalibratedError PictureError PictureMemoryError "
        "PictureSettingsError Preset PrivatePictureError Result SettingsError SiraConfig SiraError Step "
        "UnfinishedJsonError UnfinishedReasoningError UnsupportedModelError UntestedModelWarning __version__ attach "
        "load run_pictures"
    )
    assert sira_cli.__all__ == names.split()
    assert dir(sira_cli) == sorted(sira_cli.__all__)
    assert all(getattr(sira_cli, name) for name in sira_cli.__all__)
    assert not hasattr(sira_cli, "nothing")


def test_a_method_is_given_by_its_name_or_refused_in_a_sentence(demo, photos):
    demo = under(demo, max_new_tokens=8)
    for task, *ask in (("caption", photos["chelsea"]), ("ask", photos["chelsea"], "Is there a cat?")):
        found, expected = getattr(demo, task)(*ask, method="vcd"), getattr(demo.under("vcd"), task)(*ask)
        assert found.method == "vcd"
        assert found.key == expected.key
        assert found.text == expected.text
    for wrong in (42, None, METHODS["vcd"].__class__, "vdc"):
        for refused in (lambda wrong=wrong: demo.under(wrong), attach(demo.model, method=wrong).__enter__):
            with pytest.raises(SettingsError, match="available: sira, greedy"):
                refused()


@pytest.fixture(scope="module")
def lvlm(demo):
    return under(demo, max_new_tokens=8)


def test_a_picture_may_be_bytes_a_stream_an_image_or_an_array(lvlm):
    path = EXAMPLES[0]
    expected, data = lvlm.caption(path).text, path.read_bytes()
    with Image.open(path) as image:
        for source in (data, bytearray(data), io.BytesIO(data), image, np.asarray(image)):
            assert lvlm.caption(source).text == expected
        alone, missing, pair = lvlm.caption_many([image, "none.png", [image, path]], batch_size=3)
        assert (alone.text, pair.text) == (expected, lvlm.caption([path, path]).text)
        assert (missing.status, missing.error) == ("error", "none.png: no such file")
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert as_picture(grey).open().image.getpixel((1, 2)) == (9, 9, 9)


def test_load_shows_no_progress_bar_and_leaves_those_of_others(capsys, llava_folder):
    logging.enable_progress_bar()
    load(llava_folder)
    assert capsys.readouterr().err == ""
    assert logging.is_progress_bar_enabled() is True


@pytest.fixture(scope="module")
def prepared(lvlm):
    """A prompt as the checkpoint's own processor makes it."""
    inputs = lvlm.chat_inputs([as_picture(EXAMPLES[0]).open().image], [lvlm.preset.prompts.caption])
    return {name: inputs[name] for name in ("input_ids", "attention_mask", "pixel_values")}


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("icd", "vcd", "opera")])
def test_attach_decodes_with_any_method(lvlm, prepared, method):
    other = lvlm.under(METHODS[method])  # with its calibration, if it needs one
    with attach(lvlm.model, SiraConfig(k=7), method=other.decoder, inputs=prepared):
        tokens = lvlm.model.generate(**prepared, max_new_tokens=8, do_sample=False)
    new = tokens[0, prepared["input_ids"].shape[1] :].tolist()
    assert lvlm.vocabulary.text(lvlm.ends.until_end(new)).strip() == other.caption(EXAMPLES[0]).text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "vcd"}, "method vcd prepares its contrast stream from the prompts: give `inputs`"),
        ({"method": "icd", "inputs": True}, "needs the processor: use `load` instead of `attach`"),
        ({"method": "vcd", "on_step": print}, "on_step needs method sira or greedy, not vcd"),
    ],
)
def test_attach_refuses_what_a_method_cannot(demo, prepared, given, message):
    given = {**given, "inputs": prepared} if "inputs" in given else given
    with pytest.raises(SettingsError, match=message), attach(demo.model, **given):
        pass


# --- a picture is encoded once for questions that follow each other, and the features are its own


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch):
    """Have a list get an entry whenever a model's image encoder runs."""

    def watched(model: Any) -> list[int]:
        runs, kind = list[int](), type(model.base_model)
        encode = kind.get_image_features
        counted = functools.wraps(encode)(lambda *args, **more: runs.append(1) or encode(*args, **more))
        monkeypatch.setattr(kind, "get_image_features", counted)
        return runs

    return watched


def asked(case: tiny.Tiny, picture: int, question: int) -> dict[str, torch.Tensor]:
    """The case's prompt with another picture of the same size, and other text of another length behind it."""
    pixels = next(name for name in ("pixel_values", "images") if name in case.inputs)
    inputs = {**case.inputs, pixels: tiny.pixels(*case.inputs[pixels].shape, seed=picture)}
    shape = inputs["input_ids"].shape
    for name, value in inputs.items():
        if value.shape == shape:
            more = {"input_ids": 5 + question, "attention_mask": 1}.get(name, 0)
            inputs[name] = torch.nn.functional.pad(value, (0, question), value=more)
    return inputs


def same(found: Any, expected: Any) -> bool:
    """Whether tokens are equal, and the logits of every step."""
    steps = zip(found[1], expected[1], strict=True)
    return torch.equal(found[0], expected[0]) and all(torch.equal(a.contrast, b.contrast) for a, b in steps)


@pytest.mark.parametrize("name", [*tiny.REPRESENTATIVES, "Pixtral (LLaVA)", "aria", "molmo2", "qwen3_vl_moe"])
def test_the_next_question_gets_the_same_numbers(name: str, runs):
    """Also in types that no table lists."""
    case, encoded = case_of(name), EncodedPictures()
    count = runs(case.model)
    for picture in range(2):
        for question in range(2):
            inputs = asked(case, picture, question)
            expected = generate_sira(case.model, inputs, max_new_tokens=3)
            count.clear()
            with encoded.used_by(case.model, 1):
                assert same(generate_sira(case.model, inputs, max_new_tokens=3), expected)
            assert len(count) == (question == 0)
    assert "get_image_features" not in vars(case.model.base_model)
    if name not in tiny.FAMILIES:  # a batch: which part is a picture is not known
        count.clear()
        with encoded.used_by(case.model, 2):
            generate_sira(case.model, case.inputs, max_new_tokens=1)
        assert len(count) == 1


def test_a_batch_encodes_each_picture_once(every_family: tiny.Tiny, runs):
    family, encoded, count = every_family, EncodedPictures(), runs(every_family.model)
    batches = [((0, 0), (0, 2), (1, 1)), ((1, 2), (2, 0), (3, 1))]  # picture and question
    for batch, new in zip(batches, (2, 2), strict=True):
        rows = [asked(family, *one) for one in batch]
        count.clear()
        with encoded.used_by(family.model, len(rows)):
            tokens, steps = generate_sira(family.model, left_pad(rows), max_new_tokens=3)
        assert len(count) == new
        for row, inputs in enumerate(rows):
            alone, expected = generate_sira(family.model, inputs, max_new_tokens=3)
            assert tokens[row].tolist() == alone[0].tolist()
            for step, other in zip(steps, expected, strict=True):
                torch.testing.assert_close(step.contrast[row], other.contrast[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "LLaVA-NeXT", "Qwen3-VL"])
def test_beams_which_repeat_the_features_leave_them_as_they_were(name: str, runs):
    case = case_of(name)
    expected, count = generate_sira(case.model, case.inputs, num_beams=3)[0], runs(case.model)
    with EncodedPictures().used_by(case.model, 1):
        found = [generate_sira(case.model, case.inputs, num_beams=3)[0] for _ in range(2)]
        assert len(count) == 1
    assert all(torch.equal(each, expected) for each in found)


def test_few_pictures_are_kept_and_new_ones_go_together(runs):
    llava = case_of("LLaVA-1.5")
    count = runs(llava.model)
    with EncodedPictures().used_by(llava.model, 1):
        for picture in (*range(MOST), 0, MOST, 0, 1):
            generate_sira(llava.model, asked(llava, picture, 0), max_new_tokens=1)
    assert len(count) == MOST + 2  # the second one again: the first one was used since
    count.clear()
    with EncodedPictures().used_by(llava.model, 3):
        generate_sira(llava.model, left_pad([asked(llava, picture, 0) for picture in range(3)]), max_new_tokens=1)
    assert len(count) == 1
    with pytest.raises(ZeroDivisionError), EncodedPictures().used_by(llava.model, 1):
        raise ZeroDivisionError
    assert "get_image_features" not in vars(llava.model.base_model)


def test_a_steered_encoder_and_the_plain_one_share_no_features():
    """As in an answer under `vti` with a second look, which runs without the method."""
    case, steer = case_of("LLaVA-1.5"), functools.partial(helpers.decoded, METHODS["vti"])
    steered, plain = steer(case)[1], generate_sira(case.model, case.inputs)[1]
    with EncodedPictures().used_by(case.model, 1):
        for _ in range(2):
            assert torch.equal(steer(case)[1], steered)
            found = generate_sira(case.model, case.inputs)[1]
            assert all(torch.equal(step.full, other.full) for step, other in zip(found, plain, strict=True))
