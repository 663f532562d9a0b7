"""Models that think before they answer, in the files of real ones: what is asked, what is text, what an error."""

from __future__ import annotations

import json
import re

import pytest
import torch

from sira_cli import load
from sira_cli.core.passes import ImagePrefix
from sira_cli.errors import SettingsError, UnfinishedReasoningError
from sira_cli.look import second_look
from sira_cli.look.second_look import SecondLook
from sira_cli.pictures.sources import open_picture
from sira_cli.run.events import Failed, Finished, Skipped
from sira_cli.run.run import run_pictures
from tests.support.checkpoints import ALWAYS_THINKING, write_qwen
from tests.support.scripted import script, written

QUESTION = "Is there a cat on the table?"
THOUGHT = "There is a cat on the table."
TEXT = "A cat on the table."


@pytest.fixture(scope="module")
def folders(tmp_path_factory, checkpoint_of):
    """Qwen3.5, whose template has a switch; Qwen3-VL-Thinking, which always thinks; Qwen3-VL, which never does."""
    return {
        "switch": checkpoint_of("Qwen3.5"),
        "always": write_qwen(tmp_path_factory.mktemp("qwen") / "always", "3", thinking=ALWAYS_THINKING),
        "never": checkpoint_of("Qwen3-VL"),
        "gemma4": checkpoint_of("Gemma 4 E"),
    }


@pytest.fixture(scope="module")
def loaded(folders):
    """Each of them, asked to think or not."""

    def of(name: str, think: bool = False, **settings):
        return load(folders[name], max_new_tokens=60, dtype="float32", think=think, **settings)

    return of


def end_of(lvlm, inputs) -> str:
    """What the prompt says behind the question."""
    return lvlm.processor.tokenizer.decode(inputs["input_ids"][0]).rpartition(QUESTION)[2]


def plan(lvlm, text: str) -> list[int]:
    """A text as its tokens, with the end token."""
    return [*written(lvlm.processor.tokenizer, text), lvlm.ends.ids[0]]


EMPTY = "<think>\n\n</think>\n\n"
BEGIN = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("name", "think", "usual", "at_once"),
    [
        ("switch", False, BEGIN + EMPTY, BEGIN + EMPTY),
        ("switch", True, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("always", False, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("always", True, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("never", False, BEGIN, BEGIN),
        ("gemma4", True, "<turn|>\n<|turn>model\n", "<turn|>\n<|turn>model\n"),
    ],
)
def test_prompts_ask_for_a_thought_or_for_none(loaded, photos, name, think, usual, at_once):
    lvlm, image = loaded(name, think), open_picture(photos["chelsea"]).image
    inputs = lvlm.prepare([image], [QUESTION])
    assert end_of(lvlm, inputs) == usual
    inputs = lvlm.prepare([image] * 2, [QUESTION, f"{QUESTION} {QUESTION}"], at_once=True)
    assert end_of(lvlm, inputs) == at_once


def test_an_empty_thought_has_the_tokens_of_the_template_that_writes_one(loaded, photos):
    image = open_picture(photos["chelsea"]).image
    asked = {name: loaded(name).prepare([image], [QUESTION], at_once=name == "always") for name in ("switch", "always")}
    first, second = (inputs["input_ids"][0].tolist() for inputs in asked.values())
    assert first == second


def test_gemma_is_asked_in_the_message_of_the_system(loaded, photos):
    image = open_picture(photos["chelsea"]).image
    for think in (True, False):
        lvlm = loaded("gemma4", think)
        said = lvlm.processor.tokenizer.decode(lvlm.prepare([image], [QUESTION])["input_ids"][0])
        assert said.startswith("<bos><|turn>system\n<|think|><turn|>\n<|turn>user\n") == think


@pytest.mark.parametrize(
    ("name", "think", "before", "behind"),
    [
        ("switch", True, "", "\n</think>\n\n"),
        ("switch", False, "<think>\n", "\n</think>\n\n"),
        ("always", False, "", "\n</think>\n\n"),
        ("gemma4", False, "<|channel>thought\n", "<channel|>"),
        ("never", False, "<think>", "</think>"),
    ],
)
def test_reasoning_is_apart_from_the_text(loaded, photos, monkeypatch, tmp_path, name, think, before, behind):
    lvlm, pieces = loaded(name, think), []
    tokens = plan(lvlm, f"{before}{THOUGHT}{behind}{TEXT}")
    script(monkeypatch, lambda length: tokens)
    result = lvlm.caption(photos["chelsea"], on_text=pieces.append)
    assert (result.text, result.reasoning, result.finish_reason) == (TEXT, THOUGHT, "stop")
    assert ("".join(pieces), result.output_tokens) == (TEXT, len(tokens))
    assert len(pieces) > 3
    assert result.to_record().get("think") == (True if think else None)
    (answer,) = lvlm.answer(lvlm.prepare([open_picture(photos["chelsea"]).image], [QUESTION]), words=True)
    assert [word["word"] for word in answer.words] == TEXT.split()
    for word in answer.words:
        assert TEXT[word["start"] : word["end"]] == word["word"]
        first, last = word["steps"]
        assert lvlm.vocabulary.text(tokens[first:last]).strip() == word["word"]
    paths = [photos[name] for name in ("chelsea", "rocket", "coffee")]
    output = tmp_path / "captions.jsonl"
    list(run_pictures(lvlm, paths, output=output, batch_size=2))
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(record["text"], record["reasoning"]) for record in records] == [(TEXT, THOUGHT)] * 3
    again = list(run_pictures(lvlm, paths, output=output, batch_size=2))
    assert [type(event) for event in again][-3:] == [Skipped] * 3
    if think:
        with pytest.raises(SettingsError, match="think"):
            list(run_pictures(loaded(name), paths, output=output))


def test_a_thought_that_is_cut_off_is_an_error_of_that_picture(loaded, photos, monkeypatch, tmp_path):
    lvlm = loaded("always")
    whole = plan(lvlm, f"{THOUGHT}</think>{TEXT}")
    inner = plan(lvlm, THOUGHT)[:-1]
    image = open_picture(photos["chelsea"]).image
    small = tmp_path / "small.png"
    image.resize((96, 96)).save(small)  # fewer image tokens: the plan goes by the length of the prompt
    _, (length,) = lvlm.lengths(lvlm.prepare([image], [lvlm.preset.prompts.caption]))
    script(monkeypatch, lambda prompt: whole if prompt == length else inner * 20)
    expected = f"{small}: ended inside its reasoning after 60 tokens; raise max_new_tokens"
    with pytest.raises(UnfinishedReasoningError, match=re.escape(expected)):
        lvlm.caption(small)
    for batch_size in (1, 2):
        output = tmp_path / f"{batch_size}.jsonl"
        events = list(run_pictures(lvlm, [photos["chelsea"], small], output=output, batch_size=batch_size))
        assert [type(event) for event in events][-2:] == [Finished, Failed]
        files = sorted(tmp_path.glob(f"{batch_size}*.jsonl"))
        good, bad = sorted(
            (json.loads(line) for file in files for line in file.read_text().splitlines()), key=lambda one: one["error"]
        )
        assert (good["text"], good["reasoning"], good["error"]) == (TEXT, THOUGHT, "")
        assert (bad["status"], bad["text"], bad["error"], bad["finish_reason"]) == ("error", "", expected, "length")
        assert bad["reasoning"].startswith(THOUGHT)
        assert bad.keys() == good.keys()
    alone, together = lvlm.caption_many([small, photos["chelsea"]], batch_size=2)
    assert (alone.status, together.status) == ("error", "ok")


def test_an_answer_that_is_cut_off_before_its_first_word_is_none(loaded, photos, monkeypatch):
    lvlm = loaded("switch", True)
    script(monkeypatch, lambda length: [*plan(lvlm, THOUGHT)[:-1], *written(lvlm.processor.tokenizer, "</think>\n\n")])
    short = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(max_new_tokens=len(plan(lvlm, THOUGHT))))
    with pytest.raises(UnfinishedReasoningError, match=r"raise max_new_tokens or switch thinking off$"):
        short.caption(photos["chelsea"])


def test_who_cannot_be_asked_to_think_is_refused_before_its_weights_are_read(folders, photos, monkeypatch, sira):
    with monkeypatch.context() as patched:
        patched.setattr("sira_cli.models.load.load_model", lambda *args, **more: pytest.fail("were read"))
        with pytest.raises(SettingsError, match="has no switch for reasoning"):
            load(folders["never"], think=True)
    code, out, err = sira("caption", photos["chelsea"], "-m", folders["never"], "--think")
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert "--think: the model's chat template has no switch for reasoning" in line


def prompt_behind_an_empty_thought(lvlm, image, question: str):
    """The prompt of Qwen3, by hand."""
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"<|vision_start|><|image_pad|><|vision_end|>{question}{BEGIN}{EMPTY}"
    )
    return lvlm.processor(images=[[image]], text=[text], return_tensors="pt")


@pytest.mark.parametrize(("name", "think"), [("always", False), ("switch", True)])
def test_a_second_look_and_choices_ask_behind_an_empty_thought(loaded, photos, monkeypatch, name, think):
    lvlm, image = loaded(name, think, method="greedy"), open_picture(photos["chelsea"]).image
    look = SecondLook.__new__(SecondLook)  # the tiny tokenizer has no token for yes
    look._lvlm, look._worded = lvlm, {}
    inputs = prompt_behind_an_empty_thought(lvlm, image, QUESTION)
    with torch.no_grad():
        expected = lvlm.model(**inputs).logits[0, -1].float()
    passes = []
    monkeypatch.setattr(second_look, "ImagePrefix", lambda *args: passes.append(args) or ImagePrefix(*args))
    found = look.last_logits(image, [QUESTION, "Is there a dog?"])
    assert len(passes) == 1  # the picture is shown once
    torch.testing.assert_close(found[0], expected, atol=1e-4, rtol=1e-4)

    (answer,) = lvlm.choose(lvlm.prepare([image], [QUESTION], at_once=True), ["a cat", "a dog"])
    for choice in answer.choices:
        ids = torch.tensor([written(lvlm.processor.tokenizer, choice["choice"])])
        grown = {**inputs, "input_ids": torch.cat([inputs["input_ids"], ids], dim=1)}
        grown["attention_mask"] = torch.ones_like(grown["input_ids"])
        grown["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, ids.shape[1]))
        with torch.no_grad():
            logprobs = lvlm.model(**grown).logits[0, -ids.shape[1] - 1 : -1].float().log_softmax(dim=-1)
        assert choice["logprob"]["full"] == pytest.approx(logprobs.gather(1, ids.T).sum().item(), abs=1e-3)


def test_choices_of_a_run_are_scored_behind_an_empty_thought(loaded, photos, tmp_path):
    lvlm, image = loaded("always", method="greedy"), open_picture(photos["chelsea"]).image
    (expected,) = lvlm.choose(prompt_behind_an_empty_thought(lvlm, image, QUESTION), ["a cat", "a dog"])
    output = tmp_path / "answers.jsonl"
    run = {"task": "ask", "prompt": QUESTION, "choices": ("a cat", "a dog"), "output": output}
    list(run_pictures(lvlm, [photos["chelsea"]], **run))
    record = json.loads(output.read_text())
    assert record["choices"] == json.loads(json.dumps(expected.choices))
    assert "reasoning" not in record
    with pytest.raises(SettingsError, match="leave out `think=`"):
        list(run_pictures(loaded("always", True), [photos["chelsea"]], **run))
