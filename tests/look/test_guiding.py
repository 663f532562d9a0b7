"""Captions that are looked at first: what they may name, what they have to name, in the tokens of real tokenizers."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sira_cli import load
from sira_cli.core.rules import cut_offs_kept, plausible
from sira_cli.demo.questions import held_out, mentions
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look.guide import Guide, GuideMask, GuideRules, NameTokens, Place, sentence_spans, whole_sentences
from sira_cli.look.guiding import captions
from sira_cli.look.verify import Verify
from sira_cli.look.words import Introduction, WordList, shipped
from sira_cli.models.following import plain, uncut, without
from sira_cli.models.progress import Trail
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.run.task import Caption
from tests.support.helpers import mostly_slow
from tools.grammar import is_broken

SCENES = VALIDATION_SEEDS[:4]
CORPUS = [
    "There is a dog on the left and two dogs, an umbrella and a giraffe.",
    "A cat sits in a hot dog stand; the Dog barks at baseball fans and cattle.",
    "An orange traffic light above a coffee table with umbrellas, men and women.",
] * 40


@pytest.fixture(scope="module", params=mostly_slow(["greedy", "sira"], "sira"))
def lvlm(request):
    return load("demo", method=request.param)


@pytest.fixture(scope="module")
def greedy():
    return load("demo", method="greedy")


@pytest.fixture(scope="module")
def rules(greedy):
    return GuideRules(greedy.parser, shipped(), greedy.ends.ids, 64)


def tokens_of(lvlm, text):
    return lvlm.processor.tokenizer(text, add_special_tokens=False).input_ids


def byte_level():
    """BPE over bytes, as Qwen's and GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def metaspace(model, trainer):
    """Words with a sign for the space before them, as SentencePiece has them."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


TOKENIZERS = {
    "byte-level BPE": byte_level,
    "SentencePiece BPE": lambda: metaspace(
        models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"])
    ),
    "SentencePiece unigram": lambda: metaspace(
        models.Unigram(), trainers.UnigramTrainer(vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>")
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_that_are_one_token_are_known_in_every_kind_of_tokenizer(name):
    tokenizer = TOKENIZERS[name]()
    vocabulary, words = Vocabulary(tokenizer), shipped()
    tokens = NameTokens(vocabulary, words)
    may, may_not = tokens.split(frozenset({"dog"}), frozenset(), Place.at_the_end("There is"))
    told = {tokenizer.decode([int(token)]).strip().lower() for token in may}
    assert "dog" in told
    assert told <= {"dog", "dogs", "hot", "traffic", "coffee"}
    ruled_out = {vocabulary.data(int(token)).decode().strip().lower() for token in may_not}
    # Independently: every token whose text is a whole word that the text-level finder takes for another object.
    for token in range(len(tokenizer)):
        data = vocabulary.data(token).decode("utf-8", "replace")
        if data[:1] != " " or not data[1:].isalpha():
            continue
        named = [thing.group for thing in words.things(f"There is a{data} on the left.")]
        certain = [thing.group for thing in words.things(f"Seen:{data}.")]
        if certain and certain == named:
            assert (data.strip().lower() in ruled_out) == (named != ["dog"]), data


def test_articles_and_numbers_agree(lvlm):
    tokens, every = NameTokens(lvlm.vocabulary, shipped()), frozenset({"dog", "umbrella", "apple"})

    def names(text):
        may, _ = tokens.split(every, frozenset(), Place.at_the_end(text, Introduction.at_the_end(text)))
        return {lvlm.vocabulary.data(int(token)).decode().strip() for token in may}

    assert names("There is a") == {"dog", "puppy"} & names("Here:")
    assert names("There is an") == {"umbrella", "apple"}
    assert names("There are two") == {"dogs", "umbrellas", "apples"}


def test_captions_share_the_rows_of_the_picture_and_the_first_is_the_methods_own(lvlm):
    pictures = [render(held_out(seed))[0] for seed in SCENES[:2]]
    prompts = [lvlm.preset.prompts.caption] * 2
    inputs, seeds = lvlm.to_device(lvlm.prepare(pictures, prompts)), lvlm.text_seeds(["a", "b"], prompts)
    found = captions(lvlm, inputs, seeds, task="caption", trail=Trail(range(2)))
    plain = lvlm.answer(inputs, seeds=seeds)
    assert [texts[0] for texts in found.texts] == [answer.text for answer in plain]
    assert found.tokens == [[*answer.tokens] for answer in plain]
    assert [len(texts) for texts in found.texts] == [lvlm.preset.guide.captions] * 2
    assert all(len({*texts}) > 1 for texts in found.texts)
    longest = [len(lvlm.vocabulary.encode(texts[0])) for texts in found.texts]
    assert all(
        len(lvlm.vocabulary.encode(text)) <= most + 1
        for texts, most in zip(found.texts, longest, strict=True)
        for text in texts
    )
    for row, picture in enumerate(pictures):  # each as if alone
        own = lvlm.to_device(lvlm.prepare([picture], prompts[:1]))
        alone = captions(lvlm, own, seeds[row : row + 1], task="caption", trail=Trail([0]))
        assert alone.texts == [found.texts[row]]


def test_what_the_guide_accepts_of_the_draft_is_not_decoded_again(lvlm, monkeypatch):
    steps = []
    generate = type(lvlm).generate

    def counted(self, *args, **kwargs):
        tokens = generate(self, *args, **kwargs)
        steps.append(tokens.shape[1])
        return tokens

    monkeypatch.setattr(type(lvlm), "generate", counted)
    pictures = [render(held_out(seed))[0] for seed in SCENES[:2]]
    found = [lvlm.caption(picture, verify="guide").text for picture in pictures]
    few, steps[:] = sum(steps), []
    monkeypatch.setattr(Guide, "agrees", lambda self, tokens: 0)
    assert found == [lvlm.caption(picture, verify="guide").text for picture in pictures]
    assert few < sum(steps)


@pytest.mark.parametrize("name", ["traffic light", "lamp"])
def test_an_object_is_not_introduced_twice_whatever_tokens_its_name_has(rules, name):
    guide, text = Guide(rules, frozenset({name})), f"There is a {name}. The {name} is red. There is a"
    assert guide.first(f"{text} {name}.", ended=True) == (len(text) + 1, len(text) + 1 + len(name))
    assert guide.first(f"{text} ball.", ended=True)[0] == len(text) + 1
    assert guide.first(text, ended=False) is None


def test_own_words_are_the_only_ones(greedy):
    look = Verify(mode="guide", words=WordList.of(["book, volume"], "mine"), min_support=0.5)
    result = greedy.caption(render(held_out(SCENES[0]))[0], verify=look)
    assert [claim["thing"] for claim in result.candidates] == ["book"]
    assert result.text.count("book") == 1


def test_a_guided_caption_names_what_is_supported_each_once_and_nothing_else(lvlm):
    for seed in SCENES:
        result = lvlm.caption(render(held_out(seed))[0], verify="guide")
        threshold = lvlm.preset.guide.threshold
        drafted = {name for _, _, name in mentions(result.draft or result.text)}
        supported = sorted(one["thing"] for one in result.candidates if one["support"] >= threshold)
        assert sorted(name for _, _, name in mentions(result.text)) == supported, result.text
        assert result.forbidden == sorted({claim["thing"] for claim in result.candidates} - {*supported})
        assert not is_broken(result.text), result.text
        assert result.finish_reason == "stop"
        assert result.added == sorted({*supported} - drafted)
        assert {claim["thing"] for claim in result.removed or ()} <= drafted & {*result.forbidden}
        assert result.objects
        assert result.verify["mode"] == "guide"
        assert result.verify["min_support"] == threshold


@pytest.mark.parametrize(
    ("text", "supported", "limit", "held"),
    [
        ("There is a dog on the left.", {"dog"}, 64, False),
        ("There is a dog on the left.", {"dog", "cat"}, 64, True),
        ("There is a dog on the left. It is brown.", {"dog", "cat"}, 64, True),
        ("There is a dog on the left. It is brown. It is brown.", {"dog", "cat"}, 64, False),  # names nothing new
        ("There is a dog on the left.", {"dog", "cat"}, 8, False),  # has no room left
    ],
)
def test_a_text_may_not_end_before_everything_is_named_while_it_has_room(greedy, text, supported, limit, held):
    rules = GuideRules(greedy.parser, shipped(), greedy.ends.ids, limit)
    choice = Guide(rules, frozenset(supported)).next(tokens_of(greedy, text))
    assert {*greedy.ends.ids}.issubset(choice.ruled_out.tolist()) == held


@pytest.mark.parametrize(("logit", "ends"), [(12.0, False), (3.0, True)])
def test_a_text_that_would_end_goes_on_only_where_it_is_clear_how(greedy, rules, logit, ends):
    tokens, there = tokens_of(greedy, "There is a dog on the left."), tokens_of(greedy, " There")[-1]
    scores = torch.zeros(1, len(greedy.processor.tokenizer))
    scores[0, [*greedy.ends.ids]], scores[0, there] = 20.0, logit
    mask = GuideMask([Guide(rules, frozenset({"dog", "cat"}))], lambda ids: [tokens], [0])
    picked = int(mask(torch.empty(1, 0, dtype=torch.long), scores).argmax())
    assert picked in greedy.ends.ids if ends else picked == there


@pytest.mark.parametrize("banned", [False, True])
def test_a_contrast_does_not_draw_a_text_away_from_a_name_unless_it_is_banned(greedy, rules, banned):
    tokens = tokens_of(greedy, "There is a")
    cat, red = (tokens_of(greedy, word)[-1] for word in (" cat", " red"))
    z = torch.zeros(1, len(greedy.processor.tokenizer))
    z[0, cat], z[0, red] = 9.0, 8.0
    scores = z.clone()
    scores[0, red] = 10.0
    guide = Guide(rules, frozenset({"cat"}))
    if banned:
        assert [guide.ban([*tokens, cat]), guide.ban([*tokens, cat])] == [True, False]
    with cut_offs_kept():
        mask = GuideMask([guide], lambda ids: [tokens], [0])
        picked = int(mask(torch.empty(1, 0, dtype=torch.long), plausible(scores, z, 0.2)).argmax())
    assert (picked == cat) != banned


def test_texts_of_a_method_without_a_cut_off_are_guided_with_one():
    picture = render(held_out(VALIDATION_SEEDS[17]))[0]
    free, cut = (load("demo", method="sira", max_new_tokens=20, beta=beta) for beta in (None, 0.2))
    assert "and Green There" in free.caption(picture).text
    result = free.caption(picture, verify="guide")
    assert (result.draft, result.verify["cut_off"]) == (cut.caption(picture).text, 0.2)


def test_a_batch_is_as_its_single_pictures(lvlm):
    pictures = [render(held_out(seed))[0] for seed in SCENES[:3]]
    look = Caption.of(lvlm.preset, lvlm.decoder, verify="guide")
    prompts = [lvlm.preset.prompts.caption] * len(pictures)
    seeds = lvlm.text_seeds([*"abc"], prompts)
    together = look.decoded(lvlm, pictures, lvlm.prepare(pictures, prompts), seeds)
    for picture, seed, answer in zip(pictures, seeds, together, strict=True):
        (alone,) = look.decoded(lvlm, [picture], lvlm.prepare([picture], prompts[:1]), [seed])
        assert alone.text == answer.text


@pytest.mark.parametrize(
    ("scene", "options"),
    [
        (0, {"method": "vcd", "guide.captions": 2}),  # its cache cannot be divided
        (1, {"method": "sira", "beta": 0.5}),  # none of the tokens near the best one may be one that is ruled out
        (3, {"method": "greedy", "temperature": 1.0, "seed": 3}),
        (3, {"method": "sira", "temperature": 1.0, "seed": 3}),
    ],
)
def test_each_way_of_decoding_names_what_is_supported_once(scene, options):
    result = load("demo", **options).caption(render(held_out(SCENES[scene]))[0], verify="guide")
    named = [name for _, _, name in mentions(result.text)]
    assert sorted(named) == sorted({claim["thing"] for claim in result.candidates} - {*result.forbidden})
    assert "temperature" in options or not is_broken(result.text)


def test_what_is_ruled_out_leaves_the_methods_own_cut_off_as_it_is():
    """What is plausible is judged by all tokens, not by those that are left."""
    z = torch.tensor([[5.0, 4.9, 0.0, -9.0]])
    ruled_out = torch.tensor([[True, True, False, False]])
    with cut_offs_kept():
        scores = plausible(2 * z, z, 0.5)
        left = without(scores, ruled_out)
        assert left.tolist() == [[-torch.inf, -torch.inf, 0.0, -torch.inf]]
        assert torch.equal(plain(scores), z)
        assert torch.equal(uncut(scores), 2 * z)


def test_a_sentence_that_the_model_does_not_finish_is_left_out(greedy):
    """With a flower and an apple ruled out, greedy goes on with "There is a No" in this scene, and ends."""
    result = greedy.caption(render(held_out(7_700_009))[0], verify="guide")
    assert result.text.endswith("There is a bird on the right, which is yellow.")
    assert (result.finish_reason, is_broken(result.text)) == ("cut", False)
    assert {claim["thing"] for claim in result.objects} == {"lamp", "cow", "bird"}
    assert result.draft.startswith(result.text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("A dog runs. There is a No", "A dog runs."),
        ("A dog runs.\nThere is a", "A dog runs."),
        ("There is a No", ""),
        ("A dog runs. A cat sits.", None),
        ("A dog runs! (A cat sits.)", None),
        ("Seen:\n- a dog.\n- a cat", None),
        ("\u72d7\u5728\u8349\u5730\u4e0a\u3002", None),
        ("", None),
    ],
)
def test_whole_sentences(text, whole):
    assert whole_sentences(text) == (text if whole is None else whole)


def test_the_sentences_together_are_the_text():
    draws = random.Random(0)
    pieces = ["A dog", " runs", ".", "! ", " \n\n", "\n- ", "\n", "e.g. x", " ", "3.5", "?\u201d ", "1. "]
    for _ in range(2000):
        text = "".join(draws.choices(pieces, k=draws.randrange(12)))
        spans = sentence_spans(text)
        assert "".join(text[start:end] for start, end in spans).strip() == text.strip()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A dog runs. A cat sits.", ["A dog runs.", "A cat sits."]),
        ("Mr. Smith has a dog. It barks", ["Mr. Smith has a dog.", "It barks"]),
        ("It is 3.5 m. A dog!  A cat?", ["It is 3.5 m.", "A dog!", "A cat?"]),
        ("A dog\n\nA cat", ["A dog", "A cat"]),
        ("Seen:\n- a dog\n- a cat", ["Seen:", "- a dog", "- a cat"]),
        ("A dog that is\nquite long. A cat.", ["A dog that is\nquite long.", "A cat."]),
        ("", []),
    ],
)
def test_sentences(text, sentences):
    assert [text[start:end].strip() for start, end in sentence_spans(text)] == sentences
