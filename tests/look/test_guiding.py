"""Captions that are looked at first: what they may name, what they have to name, in the tokens of real tokenizers."""

from __future__ import annotations

import pytest
import torch

from sira_cli.core.rules import cut_offs_kept, plausible
from sira_cli.demo.questions import held_out, mentions
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look import guiding, redecoding
from sira_cli.look.guide import Guide, GuideRules
from sira_cli.look.mask import GuideMask
from sira_cli.look.name_tokens import NameTokens, Place
from sira_cli.look.sentences import begins_sentence, sentence_spans, whole_sentences
from sira_cli.look.words import WordList, shipped
from sira_cli.models import model
from sira_cli.models.progress import Trail
from sira_cli.models.reasoning import ReasoningParser
from sira_cli.models.several import Several, several
from sira_cli.run.task import Caption
from tests.support.helpers import learned_vocabulary, under
from tools.grammar import is_broken

SCENES = VALIDATION_SEEDS[:4]
CORPUS = [
    "There is a dog on the left and two dogs, an umbrella and a giraffe.",
    "A cat sits in a hot dog stand; the Dog barks at baseball fans and cattle.",
    "An orange traffic light above a coffee table with umbrellas, men and women.",
] * 40


@pytest.fixture(scope="module")
def rules(demo):
    return GuideRules(demo.parser, shipped(), demo.ends.ids, 64)


def picture_of(seed):
    return render(held_out(seed))[0]


def tokens_of(demo, text):
    return demo.processor.tokenizer(text, add_special_tokens=False).input_ids


def encoded(rules, text):
    return rules.parser.vocabulary.encode(text)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_words_that_are_one_token_are_known_in_every_kind_of_tokenizer(kind):
    vocabulary, words = learned_vocabulary(kind, CORPUS), shipped()
    tokens = NameTokens(vocabulary, words)
    may, may_not = tokens.options(frozenset({"dog"}), frozenset(), Place.at_the_end("There is"))
    named = {vocabulary.data(int(token)).decode().strip().lower() for token in may}
    assert "dog" in named <= {"dog", "dogs", "hot", "traffic", "coffee"}
    ruled_out = {vocabulary.data(int(token)).decode().strip().lower() for token in may_not}
    # Independently: every token whose text is a whole word that the text-level finder takes for another object.
    for token in range(len(vocabulary.pieces())):
        data = vocabulary.data(token).decode("utf-8", "replace")
        if data[:1] != " " or not data[1:].isalpha():
            continue
        taken = [thing.group for thing in words.things(f"There is a{data} on the left.")]
        if taken and taken == [thing.group for thing in words.things(f"Seen:{data}.")]:
            assert (data.strip().lower() in ruled_out) == (taken != ["dog"]), data


@pytest.mark.parametrize(
    ("text", "word", "ruled_out"),
    [
        ("There is a", " tree", True),
        ("There is a palm", " tree", False),
        ("There is a palm tree", " trunk", False),
        ("There is a tree", " trunk", True),
    ],
)
def test_a_compound_may_go_on_after_each_of_its_words(text, word, ruled_out):
    vocabulary = learned_vocabulary("bytes", ["There is a palm tree trunk on the left."] * 40)
    words = WordList.of(["palm", "tree", "trunk", "palm tree trunk"], "trees")
    tokens = NameTokens(vocabulary, words)
    (token,) = vocabulary.encode(word)
    options = tokens.options(frozenset({"palm tree trunk"}), frozenset(), Place.at_the_end(text))
    assert (token in options.ruled_out) == ruled_out


def test_captions_share_the_rows_of_the_picture(demo):
    pictures, prompts = [picture_of(seed) for seed in SCENES[:2]], [demo.preset.prompts.caption] * 2
    inputs, seeds = demo.to_device(demo.prepare(pictures, prompts)), demo.text_seeds(["a", "b"], prompts)
    how = {"count": 5, "heat": 0.7, "task": "caption", "with_first": True}
    drawn = several(demo, inputs, seeds, trail=Trail(range(2)), **how).tokens
    found = [[demo.answer_of(tokens).text for tokens in rows] for rows in drawn]
    plain = demo.answer(inputs, seeds=seeds)
    assert [texts[0] for texts in found] == [answer.text for answer in plain]
    assert [rows[0] for rows in drawn] == [[*answer.tokens] for answer in plain]
    for texts in found:
        lengths = [len(demo.vocabulary.encode(text)) for text in texts]
        assert len(texts) == 5
        assert len({*texts}) > 1
        assert max(lengths) <= lengths[0] + 1


@pytest.mark.parametrize("name", ["traffic light", "lamp"])
def test_an_object_is_not_introduced_twice_whatever_tokens_its_name_has(rules, name):
    guide, text = Guide(rules, frozenset({name})), f"There is a {name}. The {name} is red. There is a"
    assert guide.first_forbidden(encoded(rules, f"{text} {name}."), ended=True) == len(text) + 1
    assert guide.first_forbidden(encoded(rules, f"{text} ball."), ended=True) == len(text) + 1
    assert guide.first_forbidden(encoded(rules, text), ended=False) is None


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ("There is a palm", None),
        ("There is a palm tree", None),
        ("There is a palm tree tr", None),  # perhaps a palm tree trunk
        ("There is a palm tree tr.", 11),
        ("There is a palm tree trunk.", None),
        ("There is a palm tree top ", 11),
        ("There is a palm on", None),
        ("There is a palm on ", 11),
        ("There is a palm,", 11),
    ],
)
def test_a_name_counts_once_it_cannot_go_on_as_a_compound(demo, text, forbidden):
    words = WordList.of(["palm", "palm tree trunk"], "trees")
    rules = GuideRules(demo.parser, words, demo.ends.ids, 64)
    guide = Guide(rules, frozenset({"palm tree trunk"}))
    assert guide.first_forbidden(encoded(rules, text), ended=False) == forbidden


@pytest.mark.parametrize(
    ("scene", "method", "settings"),
    [
        (0, "sira", {}),
        (2, "sira", {}),
        (1, "greedy", {}),
        (0, "vcd", {"guide.captions": 2}),  # its cache cannot be divided
        (1, "sira", {"beta": 0.5}),  # none of the tokens near the best one may be one that is ruled out
        (2, "greedy", {"temperature": 1.0, "seed": 3}),
        (3, "sira", {"temperature": 1.0, "seed": 3}),
    ],
)
def test_a_guided_caption_names_each_supported_object_once(demo, scene, method, settings):
    result = under(demo, method, **settings).caption(picture_of(SCENES[scene]), verify="guide")
    threshold = demo.preset.guide.threshold
    drafted = {name for _, _, name in mentions(result.draft or result.text)}
    supported = sorted(one["thing"] for one in result.candidates if one["support"] >= threshold)
    assert sorted(name for _, _, name in mentions(result.text)) == supported, result.text
    assert result.forbidden == sorted({claim["thing"] for claim in result.candidates} - {*supported})
    assert "temperature" in settings or not is_broken(result.text), result.text
    assert (result.finish_reason, result.added) == ("stop", sorted({*supported} - drafted))
    assert {claim["thing"] for claim in result.removed or ()} <= drafted & {*result.forbidden}
    assert result.objects
    assert (result.verify["mode"], result.verify["min_support"]) == ("guide", threshold)


@pytest.mark.parametrize(
    ("text", "supported", "limit", "held"),
    [
        ("There is a dog on the left.", {"dog"}, 64, False),
        ("There is a dog on the left.", {"dog", "cat"}, 64, True),
        ("There is a dog on the left. It is brown.", {"dog", "cat"}, 64, True),
        ("There is a dog on the left. It is brown. It is brown.", {"dog", "cat"}, 64, False),  # names nothing new
        ("There is a dog. The dog is brown.", {"dog", "cat"}, 64, True),
        ("There is a dog. The dog is brown. The dog is big.", {"dog", "cat"}, 64, False),
        ("There is a dog. The dog is brown. There is a cup.", {"dog", "cup", "cat"}, 64, True),
        ("It is green.", {"dog"}, 64, True),
        ("It is green. It is green.", {"dog"}, 64, False),
        ("There is a dog on the left.", {"dog", "cat"}, 8, False),  # has no room left
    ],
)
def test_a_text_may_not_end_before_everything_is_named_while_it_has_room(demo, text, supported, limit, held):
    rules = GuideRules(demo.parser, shipped(), demo.ends.ids, limit)
    choice = Guide(rules, frozenset(supported)).choice_after(tokens_of(demo, text))
    assert {*demo.ends.ids}.issubset(choice.ruled_out) == held


def picked(demo, rules, tokens, supported, scores, z=None, banned=()):
    """The text of the token that a guide lets a method take next, which goes by `z` at beta = 0.2, if given."""

    def rows(logits):
        made = torch.zeros(1, len(demo.processor.tokenizer))
        for token, logit in logits.items():
            made[0, [*demo.ends.ids] if token == "</s>" else tokens_of(demo, token)[-1]] = logit
        return made

    guide, ids = Guide(rules, frozenset(supported)), tokens_of(demo, tokens)
    for token in banned:
        ban = [*ids, tokens_of(demo, token)[-1]]
        assert [guide.ban(ban), guide.ban(ban)] == [True, False]
    with cut_offs_kept():
        scores = rows(scores) if z is None else plausible(rows(scores), rows(z), 0.2)
        token = int(GuideMask([guide], lambda _: [ids], [0])(torch.empty(1, 0, dtype=torch.long), scores).argmax())
    return "</s>" if token in demo.ends.ids else demo.vocabulary.data(token).decode()


def test_what_a_guide_lets_a_method_take_next(demo, rules):
    text, z = "There is a dog on the left.", {" cat": 9.0, " red": 8.0}
    for logit, token in ((12.0, " There"), (3.0, "</s>")):  # it goes on only where it is clear how
        assert picked(demo, rules, text, {"dog", "cat"}, {"</s>": 20.0, " There": logit}) == token
    for banned, token in (((), " cat"), ((" cat",), " red")):  # a contrast does not draw it away from a name
        assert picked(demo, rules, "There is a", {"cat"}, {" cat": 9.0, " red": 10.0}, z, banned) == token
    assert picked(demo, rules, "There is a cat. The", {"cat"}, {" cat": 9.0, " red": 10.0}, z) == " red"
    scores = {" cat": 20.0, " dog": 1.0, " red": 2.0}  # a banned name is not taken where only names may follow
    assert picked(demo, rules, "There is a", {"cat", "dog"}, scores, banned=(" cat",)) == " dog"


def test_the_mask_of_a_text_does_not_depend_on_its_batch(demo, rules):
    size = len(demo.processor.tokenizer)
    cases = []
    for text, likely in (
        ("There is a dog on the left.", [*demo.ends.ids]),
        ("There is a", tokens_of(demo, " cat")),
        ("There is a", tokens_of(demo, " red")),
        ("There is a", tokens_of(demo, " dog")),
    ):
        logits = torch.randn(1, size, generator=torch.Generator().manual_seed(len(cases)))
        logits[0, likely[-1]] = 9.0
        cases.append((tokens_of(demo, text), logits))

    def masked(batch):
        guides = [Guide(rules, frozenset({"dog", "cat"})) for _ in batch]
        texts = [ids for ids, _ in batch]
        scores = torch.cat([logits for _, logits in batch])
        mask = GuideMask(guides, lambda _: texts, [0] * len(batch))
        return mask(torch.empty(len(batch), 0, dtype=torch.long), scores)

    torch.testing.assert_close(masked(cases), torch.cat([masked([case]) for case in cases]), rtol=0, atol=1e-6)


BEGINNINGS = ("A", " There", "2", "- a", "\n", "(", "\u00abUn", "\u201d", "\u00bfHay", "\u2022 a", "\u72d7")
OTHERS = (",", "., a", " which", ")", "\uff0c", "\u3002", "\u060c", "\u0964", "\u044f", ":")


@pytest.mark.parametrize("text", [*BEGINNINGS, *OTHERS])
def test_what_may_begin_a_sentence_in_any_script(text):
    begins = text in BEGINNINGS
    assert begins_sentence(text, lower=False) == begins
    assert begins_sentence(text, lower=True) == (begins or text.lstrip()[0].isalpha())


@pytest.mark.parametrize(
    ("text", "scores", "token"),
    [
        ("There is a dog.", {"</s>": 20.0, ",": 12.0, " which": 11.0, " There": 11.0}, " There"),
        ("There is a dog.", {"</s>": 20.0, ",": 12.0, " which": 11.0, " There": 9.0}, "</s>"),  # not clear how
        ("There is a dog.", {"</s>": 10.0, ",": 12.0, " There": 11.0}, ","),  # the sentence is not over
        ("there is a dog.", {"</s>": 20.0, ",": 12.0, " which": 11.0, " There": 10.0}, " which"),
        ("There is a dog", {"</s>": 20.0, ",": 12.0, " There": 11.0}, ","),
    ],
)
def test_where_the_end_is_ruled_out_a_sentence_begins(demo, rules, text, scores, token):
    assert picked(demo, rules, text, {"dog", "cat"}, scores) == token


def test_the_place_where_a_text_only_repeats_itself(rules):
    text, guide = "There is a dog. It is brown.", Guide(rules, frozenset({"dog", "cat"}))
    repeated = encoded(rules, f"{text} It is brown.")
    assert guide.repeats(repeated) is None  # as the model has it
    guide.note_end(encoded(rules, text))
    assert guide.repeats(repeated) == len(text)
    for other in (text, f"{text} It is brown", f"{text} It is red."):
        assert guide.repeats(encoded(rules, other)) is None
    later = Guide(rules, frozenset({"dog", "cat"}))
    later.note_end(repeated)
    assert later.repeats(repeated) is None  # it would have ended only there


@pytest.mark.parametrize(
    ("kept", "counts"), [("There is a dog.", True), ("There is a", False)], ids=["held end", "before it"]
)
def test_an_end_counts_until_the_text_is_cut_back_before_it(rules, kept, counts):
    guide = Guide(rules, frozenset({"dog", "cat"}))
    guide.note_end(encoded(rules, "There is a dog."))
    guide.begin_again(encoded(rules, kept))
    end = guide.repeats(encoded(rules, "There is a dog. It is brown. It is brown."))
    assert end == (len("There is a dog. It is brown.") if counts else None)


def test_a_text_that_only_repeats_itself_ends_before_that(demo, monkeypatch):
    """The model would end its text; where that is ruled out, it says the last sentence again."""
    picture, real = picture_of(SCENES[0]), model.processors_of
    named = [one["thing"] for one in demo.caption(picture, verify="guide").candidates if one["support"] > 0.9]
    first, other = (f"There is a {name} on the left. It is brown." for name in named[:2])
    draft, again, (end, *_) = tokens_of(demo, f" {first}"), tokens_of(demo, " It is brown."), demo.ends.ids
    drawn = [[[*draft, end], [*tokens_of(demo, f" {other}"), end]]]

    def processors(generation, attention_mask):
        def raised(input_ids, scores):
            step = input_ids.shape[1] - attention_mask.shape[1] - len(draft)
            scores[:, again[step % len(again)]] += 900
            scores[:, end] += 1000 * (step % len(again) == 0)
            return scores

        return [raised, *real(generation, attention_mask)]

    monkeypatch.setattr(guiding, "several", lambda *args, trail, **more: Several(drawn, trail))
    monkeypatch.setattr(model, "processors_of", processors)
    result = under(demo, "greedy").caption(picture, verify="guide")
    assert result.text == first
    assert result.finish_reason == "stop"
    assert result.output_tokens == len(draft) + 1


def test_an_article_that_leads_nowhere_is_replaced(demo, rules):
    guide = Guide(rules, frozenset({"umbrella"}))
    begun = tokens_of(demo, "There is a")
    guide.cut_back(begun, guide.choice_after(begun))
    choice = guide.choice_after(tokens_of(demo, "There is"))
    assert choice.only is True
    assert {demo.vocabulary.data(token) for token in choice.wanted} == {b" an"}


def test_an_article_that_is_no_token_of_its_own_does_not_come_next():
    vocabulary = learned_vocabulary("bytes", ["There is a dog. There is a"] * 20)
    rules = GuideRules(ReasoningParser(vocabulary), shipped(), [0], 64)
    guide = Guide(rules, frozenset({"umbrella"}))
    begun = vocabulary.encode("There is a")
    guide.cut_back(begun, guide.choice_after(begun))
    after = guide.choice_after(vocabulary.encode("There is"))
    assert guide.cut_at == len("There is ")
    assert after == Guide(rules, frozenset({"umbrella"})).choice_after(vocabulary.encode("There is"))


def test_texts_of_a_method_without_a_cut_off_are_guided_with_one(demo):
    picture = picture_of(VALIDATION_SEEDS[4])
    free, cut = (under(demo, max_new_tokens=20, alpha=6.0, beta=beta) for beta in (None, 0.2))
    assert 'abird "boat' in free.caption(picture).text
    result = free.caption(picture, verify="guide")
    assert (result.draft or result.text, result.verify["cut_off"]) == (cut.caption(picture).text, 0.2)


def test_a_batch_is_as_its_single_pictures(demo):
    pictures = [picture_of(seed) for seed in SCENES[:3]]
    way = Caption.of(demo.preset, demo.decoder, verify="guide").way(demo)
    prompts = [demo.preset.prompts.caption] * 3
    seeds = demo.text_seeds([*"abc"], prompts)
    together = way.answers(pictures, demo.prepare(pictures, prompts), seeds)
    for picture, seed, answer in zip(pictures, seeds, together, strict=True):
        (alone,) = way.answers([picture], demo.prepare([picture], prompts[:1]), [seed])
        assert alone.text == answer.text


def test_a_text_ends_before_a_sentence_that_it_may_not_write(demo, monkeypatch):
    monkeypatch.setattr(redecoding, "TRIES", 0)
    result = demo.caption(picture_of(SCENES[1]), verify="guide")
    assert {*result.forbidden}.isdisjoint({name for _, _, name in mentions(result.text)})
    assert result.finish_reason == "cut"
    assert is_broken(result.text) is False


@pytest.mark.parametrize(
    ("text", "sentences", "whole"),
    [
        ("A dog runs. There is a No", ["A dog runs.", "There is a No"], "A dog runs."),
        ("A dog runs!\nThere is a", ["A dog runs!", "There is a"], "A dog runs!"),
        ("There is a No", ["There is a No"], ""),
        ("A dog runs. (A cat sits.)", ["A dog runs.", "(A cat sits.)"], None),
        ("Seen:\n- a dog.\n- a cat", ["Seen:", "- a dog.", "- a cat"], None),
        ("\u72d7\u5728\u8349\u5730\u4e0a\u3002", ["\u72d7\u5728\u8349\u5730\u4e0a\u3002"], None),
        ("Mr. Smith has 3.5 kg.  It barks.", ["Mr. Smith has 3.5 kg.", "It barks."], None),
        ("A dog\n\nA cat", ["A dog", "A cat"], "A dog"),
        ("A dog that is\nquite long. A cat.", ["A dog that is\nquite long.", "A cat."], None),
        ("", [], None),
    ],
)
def test_sentences_and_what_is_left_of_a_text_that_ends_inside_one(text, sentences, whole):
    spans = sentence_spans(text)
    assert [text[start:end].strip() for start, end in spans] == sentences
    assert "".join(text[start:end] for start, end in spans) == text
    assert whole_sentences(text) == (text if whole is None else whole)
