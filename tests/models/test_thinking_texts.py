"""What is done with texts behind a thought: second look, traces; by the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from sira_cli import load
from sira_cli.analysis.trace.task import Trace, TraceOutput, run_traces
from sira_cli.pictures.sources import located
from sira_cli.run.task import Caption
from tests.support.scripted import script, written

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))
THOUGHT = "There is a dog in the street, and a cup."
TEXT = "There is a car on the left, and a boat behind it."


@pytest.fixture(scope="module")
def demo():
    return load("demo", max_new_tokens=120)


@pytest.fixture(scope="module")
def image():
    return Image.open(EXAMPLES[0]).convert("RGB")


def prepared(lvlm, image):
    return lvlm.prepare([image], [lvlm.preset.prompts.caption])


@pytest.fixture
def planned(demo, image, monkeypatch):
    """The tokens that the model writes behind the caption prompt: a thought, which it opens by itself, and a text."""
    tokens = [*written(demo.processor.tokenizer, f"<think>{THOUGHT}</think>\n\n{TEXT}"), demo.ends.ids[0]]
    length = prepared(demo, image)["input_ids"].shape[1]
    script(monkeypatch, lambda prompt: tokens if prompt == length else [])
    return tokens


def test_the_second_look_is_at_the_text_alone(demo, image, planned):
    looked = Caption.of(demo.preset, demo.decoder, verify="flag")
    (answer,) = looked.decoded(demo, [image], prepared(demo, image), seeds=[0])
    assert (answer.text, answer.reasoning) == (TEXT, THOUGHT)
    assert [claim["thing"] for claim in answer.objects] == ["car", "boat"]
    assert [TEXT[slice(*claim["spans"][0])] for claim in answer.objects] == ["car", "boat"]
    expected = {claim.thing: claim.support for claim in demo.check(EXAMPLES[0], TEXT).objects}
    assert {claim["thing"]: claim["support"] for claim in answer.objects} == pytest.approx(expected, abs=1e-4)


def test_a_trace_has_the_tokens_of_the_thought_and_the_words_of_the_text(demo, planned):
    def traced(lvlm, text=None):
        picture = located(str(EXAMPLES[0])).known(caption=text)
        task = Trace(lvlm.preset, lvlm.decoder, forced=text is not None)
        (event,) = run_traces(task, [picture], lvlm, TraceOutput([picture]))
        assert json.dumps(event.lines, allow_nan=False)
        return event.lines

    _, *tokens, end = traced(demo)
    assert [line["token_id"] for line in tokens] == planned
    assert (end["status"], end["text"], end["reasoning"]) == ("ok", TEXT, THOUGHT)
    assert [word["word"] for word in end["words"]] == TEXT.split()
    for word in end["words"]:
        part = tokens[slice(*word["steps"])]
        assert "".join(line["token"] for line in part).strip() == word["word"]
        assert word["delta"] == pytest.approx(sum(line["delta"] for line in part))
    short = demo.under(demo.decoder, demo.preset.with_settings(max_new_tokens=12))
    end = traced(short)[-1]
    assert (end["status"], end["text"], end["words"], end["finish_reason"]) == ("error", "", [], "length")
    assert end["error"].startswith(f"{EXAMPLES[0]}: ended inside its reasoning after 12 tokens")
    end = traced(demo, TEXT)[-1]
    assert (end["status"], end["text"]) == ("ok", TEXT)
