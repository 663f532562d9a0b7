"""Models that think before they answer, in the files of real ones: what is asked, what is text, what an error."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import load
from sira_cli.analysis.trace.task import Trace, TraceOutput, run_traces
from sira_cli.core.passes import ImagePrefix
from sira_cli.errors import SettingsError, UnfinishedReasoningError
from sira_cli.look import second_look
from sira_cli.look.second_look import SecondLook
from sira_cli.pictures.sources import located, open_picture
from sira_cli.run.events import Failed, Finished, Skipped
from sira_cli.run.run import run_pictures
from sira_cli.run.task import Caption
from tests.support.checkpoints import ALWAYS_THINKING, write_qwen
from tests.support.helpers import under
from tests.support.scripted import script, written

QUESTION = "Is there a cat on the table?"
THOUGHT = "There is a cat on the table."
TEXT = "A cat on the table."
EMPTY = "<think>\n\n</think>\n\n"
BEGIN = "<|im_end|>\n<|im_start|>assistant\n"
GEMMA = "<turn|>\n<|turn>model\n"
EXAMPLE = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, checkpoint_of):
    """Qwen3.5, whose template has a switch; Qwen3-VL-Thinking, which always thinks; Qwen3-VL, which never does."""
    always = write_qwen(tmp_path_factory.mktemp("qwen") / "always", "3", thinking=ALWAYS_THINKING)
    families = {"switch": "Qwen3.5", "never": "Qwen3-VL", "gemma4": "Gemma 4 E"}
    return {"always": always, **{name: checkpoint_of(family) for name, family in families.items()}}


@pytest.fixture(scope="module")
def loaded(folders):
    """Each of them, asked to think or not."""
    return functools.cache(
        lambda name, think=False: load(folders[name], max_new_tokens=60, dtype="float32", think=think)
    )


@pytest.fixture(scope="module")
def image(photos):
    return open_picture(photos["chelsea"]).image


def plan(lvlm, text: str) -> list[int]:
    """A text as its tokens, with the end token."""
    return [*written(lvlm.processor.tokenizer, text), lvlm.ends.ids[0]]


@pytest.mark.parametrize(
    ("name", "think", "usual", "at_once"),
    [
        ("switch", False, BEGIN + EMPTY, BEGIN + EMPTY),
        ("switch", True, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("always", False, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("always", True, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("never", False, BEGIN, BEGIN),
        ("gemma4", False, GEMMA, GEMMA),
        ("gemma4", True, GEMMA, GEMMA),
    ],
)
def test_prompts_ask_for_a_thought_or_for_none(loaded, image, name, think, usual, at_once):
    lvlm = loaded(name, think)
    tokenizer, inputs = lvlm.processor.tokenizer, lvlm.prepare([image], [QUESTION])
    prompt = tokenizer.decode(inputs["input_ids"][0])
    assert prompt.rpartition(QUESTION)[2] == usual
    assert prompt.startswith("<bos><|turn>system\n<|think|><turn|>\n<|turn>user\n") == (name == "gemma4" and think)
    ids = lvlm.prepare([image] * 2, [QUESTION, f"{QUESTION} {QUESTION}"], at_once=True)["input_ids"][0].tolist()
    assert tokenizer.decode(ids).rpartition(QUESTION)[2] == at_once
    if name in ("switch", "always"):  # an empty thought has the tokens of the template that writes one itself
        template = loaded("switch").prepare([image], [QUESTION])["input_ids"][0].tolist()
        assert ids[-len(template) :] == template


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
def test_reasoning_is_apart_from_the_text(loaded, image, photos, monkeypatch, tmp_path, name, think, before, behind):
    lvlm, pieces = loaded(name, think), []
    tokens = plan(lvlm, f"{before}{THOUGHT}{behind}{TEXT}")
    script(monkeypatch, lambda length: tokens)
    result = lvlm.caption(photos["chelsea"], on_text=pieces.append)
    assert (result.text, result.reasoning, result.finish_reason) == (TEXT, THOUGHT, "stop")
    assert ("".join(pieces), result.output_tokens) == (TEXT, len(tokens))
    assert len(pieces) > 3
    assert result.to_record().get("think") == (True if think else None)
    (answer,) = lvlm.answer(lvlm.prepare([image], [QUESTION]), words=True)
    assert [word["word"] for word in answer.words] == TEXT.split()
    for word in answer.words:
        assert TEXT[word["start"] : word["end"]] == word["word"]
        assert lvlm.vocabulary.text(tokens[slice(*word["steps"])]).strip() == word["word"]
    paths, output = [photos["chelsea"], photos["coffee"]], tmp_path / "captions.jsonl"
    for kind in (Finished, Skipped):
        events = list(run_pictures(lvlm, paths, output=output, batch_size=2))
        assert [type(event) for event in events][-2:] == [kind] * 2
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(record["text"], record["reasoning"]) for record in records] == [(TEXT, THOUGHT)] * 2
    if think:
        with pytest.raises(SettingsError, match="think"):
            list(run_pictures(loaded(name), paths, output=output))


def test_a_thought_that_is_cut_off_is_an_error_of_that_picture(loaded, image, photos, monkeypatch, tmp_path):
    lvlm = loaded("always")
    whole, inner = plan(lvlm, f"{THOUGHT}</think>{TEXT}"), plan(lvlm, THOUGHT)[:-1]
    small, output = tmp_path / "small.png", tmp_path / "captions.jsonl"
    image.resize((96, 96)).save(small)  # fewer image tokens: the plan goes by the length of the prompt
    _, (length,) = lvlm.lengths(lvlm.prepare([image], [lvlm.preset.prompts.caption]))
    script(monkeypatch, lambda prompt: whole if prompt == length else inner * 20)
    expected = f"{small}: ended inside its reasoning after 60 tokens; raise max_new_tokens"
    with pytest.raises(UnfinishedReasoningError, match=re.escape(expected)):
        lvlm.caption(small)
    events = list(run_pictures(lvlm, [photos["chelsea"], small], output=output, batch_size=2))
    assert [type(event) for event in events][-2:] == [Finished, Failed]
    good, bad = map(json.loads, output.read_text().splitlines())
    assert (good["text"], good["reasoning"], good["error"]) == (TEXT, THOUGHT, "")
    assert (bad["status"], bad["text"], bad["error"], bad["finish_reason"]) == ("error", "", expected, "length")
    assert bad["reasoning"].startswith(THOUGHT)
    assert bad.keys() == good.keys()


def test_an_answer_that_is_cut_off_before_its_first_word_is_none(loaded, photos, monkeypatch):
    lvlm = loaded("switch", True)
    script(monkeypatch, lambda length: [*plan(lvlm, THOUGHT)[:-1], *written(lvlm.processor.tokenizer, "</think>\n\n")])
    short = under(lvlm, max_new_tokens=len(plan(lvlm, THOUGHT)))
    with pytest.raises(UnfinishedReasoningError, match=r"raise max_new_tokens or switch thinking off$"):
        short.caption(photos["chelsea"])


def test_who_cannot_be_asked_to_think_is_refused_before_its_weights_are_read(folders, photos, monkeypatch, sira):
    monkeypatch.setattr("sira_cli.models.load.load_model", lambda *args, **more: pytest.fail("were read"))
    with pytest.raises(SettingsError, match="has no switch for reasoning"):
        load(folders["never"], think=True)
    code, out, err = sira("caption", photos["chelsea"], "-m", folders["never"], "--think")
    assert (code, out) == (2, "")
    assert "--think: the model's chat template has no switch for reasoning" in err.strip().splitlines()[-1]


@pytest.mark.parametrize(("name", "think"), [("always", False), ("switch", True)])
def test_a_second_look_and_choices_ask_behind_an_empty_thought(loaded, image, photos, monkeypatch, name, think):
    """Next to the prompt of Qwen3, by hand."""
    lvlm = loaded(name, think).under("greedy")
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"<|vision_start|><|image_pad|><|vision_end|>{QUESTION}{BEGIN}{EMPTY}"
    )
    inputs = lvlm.processor(images=[[image]], text=[text], return_tensors="pt")
    look = SecondLook.__new__(SecondLook)  # the tiny tokenizer has no token for yes
    look._lvlm, look._worded = lvlm, {}
    with torch.no_grad():
        expected = lvlm.model(**inputs).logits[0, -1].float()
    passes = []
    monkeypatch.setattr(second_look, "ImagePrefix", lambda *args: passes.append(args) or ImagePrefix(*args))
    found = look.last_logits(image, [QUESTION, "Is there a dog?"])
    assert len(passes) == 1  # the picture is shown once
    torch.testing.assert_close(found[0], expected, atol=1e-4, rtol=1e-4)

    choices = ("a cat", "a dog")
    (answer,) = lvlm.choose(lvlm.prepare([image], [QUESTION], at_once=True), choices)
    for choice in answer.choices:
        ids = torch.tensor([written(lvlm.processor.tokenizer, choice["choice"])])
        grown = {**inputs, "input_ids": torch.cat([inputs["input_ids"], ids], dim=1)}
        grown["attention_mask"] = torch.ones_like(grown["input_ids"])
        grown["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, ids.shape[1]))
        with torch.no_grad():
            logprobs = lvlm.model(**grown).logits[0, -ids.shape[1] - 1 : -1].float().log_softmax(dim=-1)
        assert choice["logprob"]["full"] == pytest.approx(logprobs.gather(1, ids.T).sum().item(), abs=1e-3)
    events = run_pictures(lvlm, [photos["chelsea"]], task="ask", prompt=QUESTION, choices=choices)
    if think:
        with pytest.raises(SettingsError, match="leave out `think=`"):
            list(events)
        return
    (record,) = [event.record for event in events if hasattr(event, "record")]
    assert record.choices == answer.choices
    assert "reasoning" not in record.to_record()


def test_looks_and_traces_tell_the_text_from_the_thought(demo, monkeypatch):
    """The model opens the thought by itself."""
    thought, text = "There is a dog in the street, and a cup.", "There is a car on the left, and a boat behind it."
    demo, image = under(demo, max_new_tokens=120), Image.open(EXAMPLE).convert("RGB")
    inputs = demo.prepare([image], [demo.preset.prompts.caption])
    planned, length = plan(demo, f"<think>{thought}</think>\n\n{text}"), inputs["input_ids"].shape[1]
    script(monkeypatch, lambda prompt: planned if prompt == length else [])
    (answer,) = Caption.of(demo.preset, demo.decoder, verify="flag").decoded(demo, [image], inputs, seeds=[0])
    assert (answer.text, answer.reasoning) == (text, thought)
    assert [text[slice(*claim["spans"][0])] for claim in answer.objects] == ["car", "boat"]
    expected = {claim.thing: claim.support for claim in demo.check(EXAMPLE, text).objects}
    assert {claim["thing"]: claim["support"] for claim in answer.objects} == pytest.approx(expected, abs=1e-4)

    def traced(lvlm, forced=None):
        picture = located(str(EXAMPLE)).known(caption=forced)
        task = Trace(lvlm.preset, lvlm.decoder, forced=forced is not None)
        (event,) = run_traces(task, [picture], lvlm, TraceOutput([picture]))
        assert json.dumps(event.lines, allow_nan=False)
        return event.lines

    _, *tokens, end = traced(demo)
    assert [line["token_id"] for line in tokens] == planned
    assert (end["status"], end["text"], end["reasoning"]) == ("ok", text, thought)
    assert [word["word"] for word in end["words"]] == text.split()
    for word in end["words"]:
        part = tokens[slice(*word["steps"])]
        assert "".join(line["token"] for line in part).strip() == word["word"]
        assert word["delta"] == pytest.approx(sum(line["delta"] for line in part))
    end = traced(under(demo, max_new_tokens=12))[-1]
    assert (end["status"], end["text"], end["words"], end["finish_reason"]) == ("error", "", [], "length")
    assert end["error"].startswith(f"{EXAMPLE}: ended inside its reasoning after 12 tokens")
    end = traced(demo, text)[-1]
    assert (end["status"], end["text"]) == ("ok", text)
