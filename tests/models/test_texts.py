"""Decoded texts: what is done to them, against and sampled: every text has random numbers of its own."""

from __future__ import annotations

import json
import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image
from scipy.stats import chisquare
from transformers import RepetitionPenaltyLogitsProcessor

from sira_cli.models.preset import Generation
from sira_cli.models.progress import Trail
from sira_cli.models.sampling import NoRepeatedNgrams, RowSampler, derived_seed, processors_of, sampler
from sira_cli.models.texts import Answer, TextSettings, repetition, sentence_ends
from sira_cli.pictures.sources import as_picture
from tests.support.helpers import mostly_slow, under
from tests.support.shards import EXAMPLES

PROMPT = "Please describe this image in detail."


@pytest.mark.parametrize(
    "sentences",
    [
        ["A dog.", " A cat!", ' "A fish..."', " And a"],
        ["It costs 3.50 dollars in St. Paul, e.g. at Dr. No's.", " Mr. Smith (left) waits."],
        ["It is 5 p.m. in the picture.", " People eat."],
        ["He says 'stop.'", " (A sign reads “Go!”)", " **Bold.**", " Next"],
        ["1. A dog sits.\n", "2. A cat sleeps.\n", "3. Nothing"],
        ["一只狗。", "「两只猫。」", "没有"],
        ["No.", " There is none."],
        ["Really?!", " Yes…", " See www.example.com there."],
        ["The no. 5 bus is red.", " A dog (approx. 3 kg) sits.", " Das ist z. B. ein Hund."],
    ],
)
def test_sentences(sentences):
    text = "".join(sentences)
    ends = sentence_ends(text)
    parts = [text[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]
    assert parts == [part.strip() for part in sentences if part.strip()[-1] in ".!?…。”\"')*」"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog. There There There", "there"),
        ("It is a dog, a dog, a dog, a dog.", "a dog"),
        ("我看到猫猫猫", "猫"),
        ("A very, very big dog and a dog and a cat. The plate says 0 0 0 0, room 1, room 2, room 3.", ""),
    ],
)
def test_a_text_that_repeats_itself_is_known(text, words):
    assert repetition(text) == words


TEXT = "A dog sits. It is red. There is a"


@pytest.mark.parametrize(
    ("settings", "reason", "expected"),
    [
        ({}, "length", TEXT),
        ({"prefix": "ohwx, ", "suffix": "!"}, "stop", f"ohwx, {TEXT}!"),
        ({"max_sentences": 1}, "stop", "A dog sits."),
        ({"max_sentences": 2}, "length", "A dog sits. It is red."),
        ({"max_sentences": 3}, "stop", TEXT),
        ({"complete_sentences": True}, "length", "A dog sits. It is red."),
        ({"complete_sentences": True}, "stop", TEXT),
        ({"complete_sentences": True, "max_sentences": 1, "prefix": "p ", "suffix": " s"}, "length", "p A dog sits. s"),
    ],
)
def test_texts_are_finished(settings, reason, expected):
    words = [{"word": word, "start": TEXT.index(word), "end": TEXT.index(word) + len(word)} for word in ("dog", "red.")]
    answer = TextSettings(**settings).finished(Answer(TEXT, reason, words=words))
    assert (answer.text, answer.finish_reason) == (expected, reason)
    assert [expected[word["start"] : word["end"]] for word in answer.words] == [
        word for word in ("dog", "red.") if word in expected
    ]
    assert TextSettings(**settings).finished(Answer(error="is damaged")).text == ""


def test_padding_is_no_repetition():
    """Left padding must not be punished: in Qwen's checkpoints it is an end token."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    ids = torch.tensor([[0, 0, 5, 6, 5], [0, 1, 5, 6, 5]]).repeat_interleave(2, dim=0)  # of two beams
    scores, settings = torch.linspace(1, 2, 32).view(4, 8), {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2}
    found = processors_of(Generation(num_beams=2, **settings), mask)(ids, scores)
    for row, padding in enumerate((2, 2, 0, 0)):
        own = RepetitionPenaltyLogitsProcessor(1.8)(ids[row : row + 1, padding:], scores[row : row + 1])
        assert found[row, :6].tolist() == own[0, :6].tolist() != scores[row, :6].tolist()
    assert found[:, 6].tolist() == [-math.inf] * 4


def test_where_a_cut_off_leaves_one_token_it_is_taken_even_if_it_repeats():
    tokens, inf = torch.tensor([[5, 6, 5], [5, 6, 5]]), torch.inf
    scores = torch.full((2, 8), -inf)
    scores[0, 6] = 1.0  # all that a plausibility cut-off left
    scores[1, 5:7] = 1.0
    allowed = NoRepeatedNgrams(2)(tokens, scores)
    assert torch.equal(allowed[0], scores[0])
    assert allowed[1].tolist() == [-inf] * 5 + [1.0, -inf, -inf]


def test_tokens_follow_the_distribution_at_a_temperature():
    scores = torch.tensor([[2.0, 0.5, -1.0, 0.0, -torch.inf]])
    expected = (scores[0] / 0.7).softmax(dim=-1)[:4].double()
    counts = torch.zeros(5)
    for seed in range(4000):
        counts[sampler([seed], Generation(temperature=0.7))(None, scores).argmax()] += 1
    assert counts[4] == 0
    assert chisquare(counts[:4], 4000 * (expected / expected.sum()).numpy()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("cut", "left"), [({"top_p": 0.7}, {0, 1}), ({"top_k": 2}, {0, 1}), ({"min_p": 0.2}, {0, 1, 2})]
)
def test_cut_offs_are_those_of_transformers(cut, left):
    scores, settings = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), Generation(temperature=1.0, **cut)
    assert {int(sampler([seed], settings)(None, scores).argmax()) for seed in range(200)} == left


@pytest.mark.parametrize(("number", "picked"), [(0.0, 1), (1.0, 3)])
def test_a_token_that_is_ruled_out_is_never_picked(monkeypatch, number, picked):
    """A uniform number of exactly 1 is made up: it stands for a product that is rounded up to the whole sum."""
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size[0], number, dtype=torch.float64))
    left = RowSampler([0])(None, torch.tensor([[-torch.inf, 0.0, 1.0, 0.5, -torch.inf]]))
    assert left.isfinite().nonzero().tolist() == [[0, picked]]


def test_a_picture_has_the_same_text_alone_and_in_a_batch(demo, tmp_path):
    """Equal pictures have equal draws; the random numbers of others play no part, and stay as they are."""
    lvlm = under(demo, temperature=2.0, max_new_tokens=8, seed=4, top_k=50, min_p=0.01)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    alone = [lvlm.caption(path).text for path in EXAMPLES[:3]]
    assert torch.equal(torch.rand(1), expected)
    copied = shutil.copy(EXAMPLES[0], tmp_path / "copied.png")
    together = [each.text for each in lvlm.caption_many([*EXAMPLES[:3], copied])]
    assert together == [*alone, alone[0]]
    assert under(lvlm, seed=5).caption(EXAMPLES[0]).text != alone[0]


def test_sampled_beams_follow_the_seed_and_nothing_else(demo):
    texts = {}
    for before, seed in ((1, 3), (2, 3), (1, 6)):
        lvlm = under(demo, "greedy", temperature=2.0, num_beams=2, max_new_tokens=12, seed=seed)
        torch.manual_seed(before)  # random numbers that others use
        texts[before, seed] = lvlm.caption(EXAMPLES[0]).text
    assert texts[1, 3] == texts[2, 3] != texts[1, 6]


def test_a_sampled_text_continued_from_its_middle_draws_the_same(demo):
    lvlm, trail = under(demo, temperature=2.0, max_new_tokens=12), Trail([0])
    inputs = lvlm.to_device(lvlm.prepare([as_picture(EXAMPLES[0]).open().image], ["Describe this image."]))
    [text] = lvlm.generate(inputs, seeds=[4], trail=trail).tolist()
    trail.end([text])
    shorter, start = trail.back(inputs, [0], [text[:5]])
    assert start.in_inputs > 1
    assert lvlm.generate(shorter, seeds=[4], start=start).tolist() == [text[start.in_inputs :]]


# The cut-offs of others sometimes leave one token only: see above.
NGRAMS = [("sira", {"no_repeat_ngram_size": 3}), ("vcd", {})]


@pytest.mark.parametrize(("method", "more"), mostly_slow([*NGRAMS, ("greedy", NGRAMS[0][1]), ("sid", {})], *NGRAMS))
def test_settings_against_repetition_are_those_of_transformers(demo, method, more):
    plain, settings = under(demo, method, max_new_tokens=24), {"repetition_penalty": 1.5, **more}
    lvlm, inputs = under(plain, **settings), plain.prepare([Image.open(EXAMPLES[0])], [PROMPT])
    expected = plain.decode(inputs, 24, do_sample=False, **settings)
    assert torch.equal(lvlm.generate(inputs), expected[:, inputs["input_ids"].shape[1] :])
    assert not torch.equal(plain.generate(inputs), lvlm.generate(inputs))


def test_benchmarks_get_answers_as_the_model_gave_them(sira, tmp_path):
    preset = tmp_path / "mine.yaml"
    preset.write_text("model: bundled\nsira: {k: 7}\ntext: {prefix: 'ohwx, '}\n")
    sira("demo", "--export", tmp_path / "scenes", "--limit", 2)
    asked = (*(tmp_path / "scenes/pope").glob("*random*.json"), "--images", tmp_path / "scenes/images")
    assert sira("eval", "pope", *asked, "-p", preset, "--against", "sira", "-o", tmp_path / "out")[0] == 0
    (answers,) = (tmp_path / "out").glob("sira-*.jsonl")
    assert {json.loads(line)["text"].rstrip(".") for line in answers.read_text().splitlines()} <= {"Yes", "No"}


def test_seeds_differ_by_seed_picture_and_prompt_and_stay_the_same(demo):
    parts = [(0, "a", "b"), (1, "a", "b"), (0, "b", "a"), (0, "ab", ""), (0, "a", "c"), (0, "a")]
    assert len({derived_seed(*part) for part in parts}) == len(parts)
    assert derived_seed(0, "a", "b") == derived_seed(0, "a", "b") < 2**63
    assert demo.text_seeds(["a", "b"], ["c", "c"]) == [derived_seed(0, "a", "c"), derived_seed(0, "b", "c")]


# The tokenizer in threads.


def test_threads_use_the_tokenizer_one_at_a_time(demo, monkeypatch):
    """Padding a batch while another thread decodes is an error in it: a run prepares and decodes at once."""
    using: list[int] = []
    most: list[int] = []

    def alone(use):
        def used(*args, **how):
            using.append(1)
            most.append(len(using))
            time.sleep(0.02)
            using.pop()
            return use(*args, **how)

        return used

    tokenizer = demo.processor.tokenizer
    for name in ("encode", "decode"):
        monkeypatch.setattr(tokenizer, name, alone(getattr(tokenizer, name)))
    monkeypatch.setattr(type(demo), "chat_inputs", alone(type(demo).chat_inputs))
    ids = tokenizer("A dog.")["input_ids"]
    uses = [lambda: demo.vocabulary.text(ids), lambda: demo.vocabulary.encode("A dog."), lambda: demo.prepare(*asked)]
    asked = [as_picture(EXAMPLES[0]).open().image], ["Is there a dog?"]
    with ThreadPoolExecutor(6) as threads:
        waiting = [threads.submit(use) for use in uses * 4]
    for use in waiting:
        use.result()
    assert len(most) >= 12
    assert max(most) == 1
