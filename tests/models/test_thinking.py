"""Models that think before they answer: what is asked, and reasoning apart from text, whole and token by token."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from sira_cli import Lvlm, load
from sira_cli.analysis.experiment import Units
from sira_cli.analysis.questions import Question, QuestionSet
from sira_cli.analysis.sweep import Grid, sweep
from sira_cli.analysis.trace.run import TraceOutput, run_traces
from sira_cli.analysis.trace.task import Trace
from sira_cli.errors import SettingsError, UnfinishedReasoningError
from sira_cli.eval.lmms import losses, plain_request
from sira_cli.look.guide import Guide, GuideRules
from sira_cli.look.second_look import SecondLook
from sira_cli.look.words import shipped
from sira_cli.models.progress import TextPieces
from sira_cli.models.reasoning import ReasoningParser
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.pictures.sources import as_picture
from sira_cli.run.events import Failed
from sira_cli.run.items import Item
from sira_cli.run.run import run_pictures
from sira_cli.run.task import Ask, Caption
from tests.support.checkpoints import ALWAYS_THINKING, THINKING, write_qwen
from tests.support.helpers import under
from tests.support.scripted import script, written
from tests.support.shards import EXAMPLES

QUESTION = "Is there a cat on the table?"
THOUGHT = "There is a cat on the table."
TEXT = "A cat on the table."
EMPTY = "<think>\n\n</think>\n\n"
BEGIN = "<|im_end|>\n<|im_start|>assistant\n"
GEMMA = "<turn|>\n<|turn>model\n"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, checkpoint_of):
    """Qwen3.5, whose template has a switch; Qwen3-VL-Thinking, which always thinks; Qwen3-VL, which never does."""
    always = write_qwen(tmp_path_factory.mktemp("qwen") / "always", "3", thinking=ALWAYS_THINKING)
    families = {"switch": "Qwen3.5", "never": "Qwen3-VL", "gemma4": "Gemma 4 E"}

    @functools.cache
    def load_one(name: str, think: bool = False) -> Lvlm:
        folder = always if name == "always" else checkpoint_of(families[name])
        return load(folder, max_new_tokens=60, dtype="float32", think=think)

    return load_one


@pytest.fixture(scope="module")
def image(photos):
    return as_picture(photos["chelsea"]).open().image


def plan(lvlm, text: str) -> list[int]:
    """A text as its tokens, with the end token."""
    return [*written(lvlm.processor.tokenizer, text), lvlm.ends.ids[0]]


@pytest.mark.parametrize(
    ("name", "think", "usual", "skip_thought"),
    [
        ("switch", False, BEGIN + EMPTY, BEGIN + EMPTY),
        ("switch", True, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("always", False, BEGIN + "<think>\n", BEGIN + EMPTY),
        ("never", False, BEGIN, BEGIN),
        ("gemma4", False, GEMMA, GEMMA),
        ("gemma4", True, GEMMA, GEMMA),
    ],
)
def test_prompts_ask_for_a_thought_or_for_none(loaded, image, name, think, usual, skip_thought):
    lvlm = loaded(name, think)
    tokenizer, inputs = lvlm.processor.tokenizer, lvlm.prepare([image], [QUESTION])
    prompt = tokenizer.decode(inputs["input_ids"][0])
    assert prompt.rpartition(QUESTION)[2] == usual
    assert prompt.startswith("<bos><|turn>system\n<|think|><turn|>\n<|turn>user\n") == (name == "gemma4" and think)
    ids = lvlm.prepare([image] * 2, [QUESTION, f"{QUESTION} {QUESTION}"], skip_thought=True)["input_ids"][0].tolist()
    assert tokenizer.decode(ids).rpartition(QUESTION)[2] == skip_thought
    if name in ("switch", "always"):  # an empty thought has the tokens of the template that writes one itself
        template = loaded("switch").prepare([image], [QUESTION])["input_ids"][0].tolist()
        assert ids[-len(template) :] == template


@pytest.mark.parametrize(
    ("name", "think", "before", "behind"),
    [
        ("switch", True, "", "\n</think>\n\n"),
        ("switch", False, "<think>\n", "\n</think>\n\n"),
        ("gemma4", False, "<|channel>thought\n", "<channel|>"),
    ],
)
def test_reasoning_is_apart_from_the_text(loaded, image, photos, monkeypatch, tmp_path, name, think, before, behind):
    lvlm, pieces = loaded(name, think), []
    tokens = plan(lvlm, f"{before}{THOUGHT}{behind}{TEXT}")
    script(monkeypatch, lambda length: tokens)
    result = lvlm.caption(photos["chelsea"], on_text=pieces.append)
    assert result.text == TEXT
    assert result.reasoning == THOUGHT
    assert result.finish_reason == "stop"
    assert "".join(pieces) == TEXT
    assert len(pieces) > 3
    assert result.output_tokens == len(tokens)
    assert result.to_record().get("think") == (True if think else None)
    (answer,) = lvlm.answer(lvlm.prepare([image], [QUESTION]), words=True)
    for word, expected in zip(answer.words, TEXT.split(), strict=True):
        assert word["word"] == TEXT[word["start"] : word["end"]] == expected
        assert lvlm.vocabulary.text(tokens[slice(*word["steps"])]).strip() == expected
    paths, output = [photos["chelsea"], photos["coffee"]], tmp_path / "captions.jsonl"
    list(run_pictures(lvlm, paths, output=output, batch_size=2))
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
    list(run_pictures(lvlm, [photos["chelsea"], small], output=output, batch_size=2))
    good, bad = map(json.loads, output.read_text().splitlines())
    assert good["text"] == TEXT
    assert good["reasoning"] == THOUGHT
    assert good["error"] == ""
    error = f"{small}: ended inside its reasoning after 60 tokens; raise max_new_tokens"
    assert [bad[name] for name in ("status", "text", "error", "finish_reason")] == ["error", "", error, "length"]
    assert bad["reasoning"].startswith(THOUGHT)
    assert bad.keys() == good.keys()
    short = under(lvlm, think=True, max_new_tokens=len(whole) - len(plan(lvlm, TEXT)))  # none are left for the text
    with pytest.raises(UnfinishedReasoningError, match=r"raise max_new_tokens or switch thinking off$"):
        short.caption(photos["chelsea"])


def test_a_trace_whose_thought_is_cut_off_is_a_failure(loaded, photos):
    lvlm = under(loaded("always"), max_new_tokens=3)
    task, pictures = Trace(lvlm.preset, lvlm.decoder), [as_picture(photos["chelsea"])]
    with TraceOutput(task, pictures) as output:
        _, event = run_traces(task, pictures, lvlm, output)
    assert isinstance(event, Failed)
    assert "ended inside its reasoning after 3 tokens" in event.error
    assert event.record[-1]["error"] == event.error
    assert [line["type"] for line in event.record] == ["run", "token", "token", "token", "end"]
    assert output.counts.error == 1


def test_a_model_that_cannot_think_is_refused_before_loading(checkpoint_of, photos, monkeypatch, sira):
    monkeypatch.setattr("sira_cli.models.load.load_model", lambda *args, **more: pytest.fail("were read"))
    code, out, err = sira("caption", photos["chelsea"], "-m", checkpoint_of("Qwen3-VL"), "--think")
    assert (code, out) == (2, "")
    assert "--think: the model's chat template has no switch for reasoning" in err.strip().splitlines()[-1]


@pytest.mark.parametrize(("name", "think"), [("always", False), ("switch", True)])
def test_a_second_look_and_choices_ask_behind_an_empty_thought(loaded, image, name, think):
    """Next to the prompt of Qwen3, by hand."""
    lvlm = loaded(name, think).under("greedy")
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"<|vision_start|><|image_pad|><|vision_end|>{QUESTION}{BEGIN}{EMPTY}"
    )
    choices = ["a cat", "a dog"]

    def logprobs(behind: str) -> torch.Tensor:
        inputs = lvlm.processor(images=[[image]], text=[text + behind], return_tensors="pt")
        with torch.no_grad():
            return lvlm.model(**inputs).logits[0].float().log_softmax(dim=-1)

    look = SecondLook.__new__(SecondLook)  # the tiny tokenizer has no token for yes
    look._lvlm, look._worded = lvlm, {}
    found = look.last_logits(image, [QUESTION, "Is there a dog?"]).log_softmax(dim=-1)
    torch.testing.assert_close(found[0], logprobs("")[-1], atol=1e-4, rtol=1e-4)
    (answer,) = lvlm.choose(lvlm.prepare([image], [QUESTION], skip_thought=True), choices)
    for choice in answer.choices:
        ids = torch.tensor([written(lvlm.processor.tokenizer, choice["choice"])])
        expected = logprobs(choice["choice"])[-ids.shape[1] - 1 : -1].gather(1, ids.T).sum().item()
        assert choice["logprob"]["full"] == pytest.approx(expected, abs=1e-3)


def test_looks_tell_the_text_from_the_thought(demo, monkeypatch):
    """The model opens the thought by itself."""
    thought, text = "There is a dog in the street, and a cup.", "There is a car on the left, and a boat behind it."
    demo, image = under(demo, max_new_tokens=120), Image.open(EXAMPLES[0]).convert("RGB")
    inputs = demo.prepare([image], [demo.preset.prompts.caption])
    planned, length = plan(demo, f"<think>{thought}</think>\n\n{text}"), inputs["input_ids"].shape[1]
    script(monkeypatch, lambda prompt: planned if prompt == length else [])
    (answer,) = Caption.of(demo.preset, demo.decoder, verify="flag").way(demo).answers([image], inputs, [0])
    assert (answer.text, answer.reasoning) == (text, thought)
    assert [text[slice(*claim["spans"][0])] for claim in answer.objects] == ["car", "boat"]
    expected = {claim.thing: claim.support for claim in demo.check(EXAMPLES[0], text).objects}
    assert {claim["thing"]: claim["support"] for claim in answer.objects} == pytest.approx(expected, abs=1e-4)


ENDS = {"qwen3": "<|im_end|>", "qwen2.5": "<|im_end|>", "gemma4": "<turn|>"}
KIMI = "<|im_assistant|>assistant<|im_middle|>"  # the end of Kimi-VL's template, which says nothing of thoughts


@pytest.fixture(scope="module")
def vocabularies(checkpoint_of):
    """Of Qwen3, where markers are tokens; of Qwen2.5, where they are text; of Gemma 4, where they are special."""
    families = {"qwen3": "Qwen3-VL", "qwen2.5": "Qwen2.5-VL", "gemma4": "Gemma 4 E"}
    return {name: Vocabulary(AutoTokenizer.from_pretrained(checkpoint_of(family))) for name, family in families.items()}


# What a model writes; what is its text, its reasoning, and whether it has come to the end of it.
BOTH = [
    ("A cup.<END>", "A cup.", "", False),
    ("<think>\nThe cup is red.\n</think>\n\nA red cup.<END>", "A red cup.", "The cup is red.", False),
    ("<think>\n\n</think>\n\nA cup.<END>", "A cup.", "", False),
    ("<think>a</think>A red<think>b</think> cup.<END>", "A red cup.", "a\n\nb", False),
    ("<think>The cup is", "", "The cup is", True),
    ("<think>The cup.</think>", "", "The cup.", False),
    ("<think>a</think>\n<|begin_of_box|>A cup.<|end_of_box|><END>", "A cup.", "a", False),
    ("<think>a <b> < / c</think>A cup < 3.<END>", "A cup < 3.", "a <b> < / c", False),
]
# The prompt has opened the thought, and a model may do so again.
OPENED = [
    (text, *found) for case, *found in BOTH if "<think>" in case for text in (case, case.replace("<think>", "", 1))
]
CLOSED = [*BOTH, ("The cup is red.</think>A red cup.<END>", "A red cup.", "The cup is red.", False)]
SHOWN = [  # by a picture, to a model without thoughts
    (text, text.removesuffix("<END>"), "", False)
    for text in ("It says <think>a</think> b.<END>", "It says </think> b.<END>", "It says <answer>b</answer>.<END>")
]


def marked(opening: str, closing: str) -> list[tuple[str, str, str, bool]]:
    """The texts of a model with other markers."""
    return [(text.replace("<think>", opening).replace("</think>", closing), *found) for text, *found in BOTH]


CASES = [
    *(("qwen3", THINKING, "<think>\n\n</think>\n\n", *case) for case in CLOSED),
    *(("qwen3", ALWAYS_THINKING, "<|im_start|>assistant\n<think>\n", *case) for case in OPENED),
    *(("qwen2.5", "", "", *case) for case in [*BOTH, *SHOWN]),
    *(("qwen2.5", THINKING, "<think>\n\n</think>\n\n", *case) for case in CLOSED),
    *(("qwen2.5", ALWAYS_THINKING, "<think>\n", *case) for case in OPENED),
    *(("qwen2.5", KIMI, KIMI, *case) for case in marked("◁think▷", "◁/think▷")),
    *(("gemma4", "", "<|turn>model\n", *case) for case in marked("<|channel>thought\n", "<channel|>")),
]


@pytest.mark.parametrize(("model", "template", "tail", "written", "text", "reasoning", "inside"), CASES)
def test_texts_and_thoughts_are_told_apart(vocabularies, model, template, tail, written, text, reasoning, inside):
    vocabulary = vocabularies[model]
    parser = ReasoningParser(vocabulary, template, tail)
    tokens = vocabulary.encode(written.replace("<END>", ENDS[model]))
    whole = parser.parse(tokens)
    assert whole.text == text
    assert whole.reasoning == reasoning
    assert whole.inside == inside
    assert (whole.reasoning_tokens > 0) >= (reasoning != "")
    assert whole.reasoning_tokens <= len(tokens) - len(vocabulary.encode(text.replace(" ", "")[:1]))

    growing = parser.begin()  # token by token: nothing is shown that is no part of what is said in the end
    shown = ["", ""]
    for token in tokens:
        growing.add(token)
        now = growing.parsed(final=False)
        if now.retracted:  # a closing marker alone, which cannot be foreseen
            shown = ["", ""]
        for before, part, final in zip(shown, (now.text, now.reasoning), (text, reasoning), strict=True):
            assert part.startswith(before)
            assert final.startswith(part) or now.retracted < whole.retracted
        shown = [now.text, now.reasoning]
    assert growing.parsed() == whole

    words = parser.words(tokens)
    assert [word.text for word in words] == text.split()
    for word in words:
        assert text[word.start : word.end] == word.text
        read = vocabulary.text(tokens[word.first : word.last])
        assert word.text in read or "<think>" in written  # a thought may stand inside of a word's tokens


def test_after_a_closing_marker_alone_the_streamed_text_begins_again(vocabularies):
    pieces, vocabulary = list[str](), vocabularies["qwen3"]
    stream = TextPieces(ReasoningParser(vocabulary, THINKING).begin(), pieces.append)
    for token in [0, *vocabulary.encode("The cup is red.</think>A red cup.")]:
        stream.put(torch.tensor([token]))
    stream.end()
    assert "".join(pieces) == "The cup is red.A red cup."


@pytest.mark.parametrize("thought", ["", "<think>It is sunny. It is nice. It is warm. It is green.</think>"])
def test_a_guide_does_not_count_the_sentences_of_a_thought(vocabularies, thought):
    """A text may end with an object missing after sentences of its own that name nothing new."""
    vocabulary = vocabularies["qwen3"]
    end = vocabulary.token("<|im_end|>")
    rules = GuideRules(ReasoningParser(vocabulary, THINKING, think=True), shipped(), [end], 512)
    choice = Guide(rules, frozenset({"dog"})).choice_after(vocabulary.encode(f"{thought}The picture is red."))
    assert end in choice.ruled_out


def guide_of(vocabularies, name, *, template="", tail="", think=False):
    parser = ReasoningParser(vocabularies[name], template, tail, think=think)
    rules = GuideRules(parser, shipped(), [parser.vocabulary.token("<|im_end|>")], 512)
    return Guide(rules, frozenset({"cat", "dog"})), parser.vocabulary.encode


SWITCHED = {"template": THINKING, "think": True}
OPENS = {"template": THINKING, "tail": "<think>\n"}


@pytest.mark.parametrize(
    ("name", "model", "thought"),
    [
        ("qwen3", {}, "<think>there is a cat.</think>"),  # not foreseen
        ("qwen3", SWITCHED, "<think>there is a cat.</think>\n\n"),
        ("qwen3", SWITCHED, "<think>a cat</think>"),  # without the end of a sentence
        ("qwen3", SWITCHED, "there is a cat.</think>"),  # a closing marker alone
        ("qwen3", OPENS, "there is a cat.\n</think>\n\n"),
        ("qwen2.5", {}, "<think>there is a cat.</think>"),
        ("qwen2.5", SWITCHED, "<think>there is a cat.</think>\n\n<answer>"),
        ("qwen2.5", OPENS, "there is a cat.\n</think>\n\n"),
    ],
)
def test_a_guide_reads_a_text_as_without_its_thought(vocabularies, name, model, thought):
    guide, encode = guide_of(vocabularies, name, **model)
    plain, encode_plain = guide_of(vocabularies, name)
    for text in (
        "There is",
        "There is a cat",
        "There is a",
        "A cat and a",
        "There is a cup.",
        "It is red. There is a dog. A",
    ):
        choice = guide.choice_after(encode(thought + text))
        expected = plain.choice_after(encode_plain(text))
        start = expected.restart.start + len(thought)
        assert choice == replace(expected, restart=expected.restart._replace(start=start))
        forbidden = plain.first_forbidden(encode_plain(text), ended=True)
        if forbidden is not None:
            forbidden += len(thought)
        assert guide.first_forbidden(encode(thought + text), ended=True) == forbidden


@pytest.mark.parametrize(
    ("name", "model"), [("qwen3", {}), ("qwen3", SWITCHED), ("qwen3", OPENS), ("qwen2.5", SWITCHED), ("qwen2.5", OPENS)]
)
def test_a_guide_lets_an_unfinished_thought_name_anything(vocabularies, name, model):
    guide, encode = guide_of(vocabularies, name, **model)
    thought = encode("<think>There is a cup. I see a cup")
    assert guide.choice_after(thought) is None
    assert guide.first_forbidden(thought, ended=True) is None
    assert guide.allowed_length(thought) == len(thought)


def test_a_sentence_of_a_thought_may_be_said_again(vocabularies):
    guide, encode = guide_of(vocabularies, "qwen3", **SWITCHED)
    text = "<think>It is red. It is nice.</think>There is a cup."
    guide.note_end(encode(text))
    assert guide.repeats(encode(f"{text} It is nice.")) is None
    assert guide.repeats(encode(f"{text} There is a cup.")) == len(text)


@pytest.mark.parametrize(("name", "think"), [("always", False), ("switch", True)])
def test_sweeps_read_the_token_after_the_prompt_of_choices(loaded, photos, name, think):
    """Decoded one by one, in every setting."""
    lvlm, grid, units = loaded(name, think).under("sira"), Grid((2, 4), (0.5, 4.0)), Units[list[str]]()
    picture = as_picture(photos["chelsea"])
    shown = picture.open().image
    texts = [QUESTION, "Is there a dog?", "A man?"]
    questions = tuple(Question("chelsea", text, True, ("own",)) for text in texts)
    list(sweep(lvlm, QuestionSet(("own",), questions, lambda name: picture), grid, units, batch_size=2))
    thoughts = 0
    for number, text in enumerate(texts):
        for place, cell in enumerate(grid.cells()):
            method = "sira" if cell.k else "greedy"
            decider = under(lvlm, method, k=cell.k or None, alpha=cell.alpha, max_new_tokens=1)
            chosen = Ask.of(under(decider, think=False).preset, decider.decoder, text, choices=["a cat", "a dog"])
            inputs = chosen.inputs(decider, [Item(picture, "chelsea", text)], [shown])
            (token,) = decider.generate(inputs)[0].tolist()
            assert units[f"question {number}"][place] == lvlm.vocabulary.text([token]).strip()
            thoughts += token != decider.generate(decider.prepare([shown], [text]))[0, 0]
    assert thoughts > 0  # else equal tokens would prove nothing


@pytest.mark.parametrize(("name", "think"), [("always", False), ("switch", True)])
def test_losses_for_lmms_eval_follow_an_empty_thought(loaded, image, name, think):
    lvlm, choices = loaded(name, think).under("sira"), ["a cat", "a dog"]
    found = losses(lvlm, [plain_request("t", QUESTION, [image])] * 2, choices, 2)
    inputs = lvlm.prepare([image], [QUESTION], skip_thought=True)
    (answer,) = lvlm.choose(inputs, choices)
    for (loss, _), choice in zip(found, answer.choices, strict=True):
        count = len(lvlm.vocabulary.encode_after(inputs["input_ids"][0].tolist(), choice["choice"]))
        assert loss == pytest.approx(-choice["logprob"]["contrast"] / count, abs=1e-4)
