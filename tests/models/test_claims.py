"""Claims about colours, and other languages: what is asked, how it is read, and what follows from it."""

from __future__ import annotations

import dataclasses

import pytest

from sira_cli import load
from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.errors import SettingsError
from sira_cli.language.listed import PlainWords
from sira_cli.language.noun_phrases import find_words
from sira_cli.models.loading import presets
from sira_cli.models.look.rewriting import Rewriter
from sira_cli.models.look.second_look import SecondLook, Verify

SEED = VALIDATION_SEEDS[500_000]  # a blue bicycle, a brown table, a white bowl, a black clock
BOTH = Verify(claims="objects,colors")
# Another language, made of words that the bundled model knows.
OTHER = {
    "yes_words": "Yes, yes, YES",
    "no_words": "No, no, NO, Not, not",
    "kinds": {
        "objects": {"question": "Can you see a {thing}?"},
        "colors": {
            "question": "Which color does the {thing} have?",
            "answers": {"red": "Red ruda", "blue": "Blue blua"},
            "before": "",
        },
    },
}


@pytest.fixture(scope="module")
def demo():
    return load("demo", method="greedy")


@pytest.fixture(scope="module")
def image():
    return render(held_out(SEED))[0]


def with_verify(lvlm, **settings):
    return lvlm.under(
        lvlm.decoder, lvlm.preset.model_copy(update={"verify": lvlm.preset.verify.model_copy(update=settings)})
    )


def test_a_colour_is_read_as_its_share_of_all_colours(demo, image):
    """Against the probabilities of all first tokens, when the model itself is asked."""
    seen = []
    handle = demo.model.register_forward_hook(lambda model, args, output: seen.append(output.logits[0, -1].float()))
    demo.under(demo.decoder, demo.preset.with_settings(max_new_tokens=1)).ask(image, "What color is the bicycle?")
    handle.remove()
    shares = dict.fromkeys(BOTH.wording(demo.preset).answers("colors"), 0.0)
    tokens = demo.processor.tokenizer.convert_ids_to_tokens(range(len(seen[0])))
    for word, probability in zip(tokens, seen[0].softmax(0).tolist(), strict=False):
        plain = str(word).replace("\u0120", "").lower()
        named = {"grey": "gray", "violet": "purple"}.get(plain, plain)
        if named in shares:
            shares[named] += probability
    total = sum(shares.values())
    assert total > 0.9
    for color in ("blue", "red"):
        (claim,) = SecondLook(demo, BOTH).check(image, f"A {color} bicycle.").claims
        assert (claim.kind, claim.thing, claim.value, claim.spans) == (
            "colors",
            "bicycle",
            color,
            ((2, 2 + len(color)),),
        )
        assert claim.support == pytest.approx(shares[color] / total, abs=2e-3)
        assert claim.neither == pytest.approx(1 - total, abs=2e-3)


@pytest.mark.slow
def test_wrong_colours_have_less_support(demo):
    true, wrong = [], []
    for seed in VALIDATION_SEEDS[500_000:500_004]:
        scene = held_out(seed)
        image, look = render(scene)[0], SecondLook(demo, Verify(claims="colors"))
        for part, swapped in ((true, False), (wrong, True)):
            colors = {name: "purple" if swapped else things[0].color for name, things in scene.objects.items()}
            check = look.check(image, " ".join(f"I see a {color} {name}." for name, color in colors.items()))
            assert check.objects == ()
            part += [claim.support for claim in check.claims if scene.objects[claim.thing][0].color != "purple"]
    pairs = [one > other for one in true for other in wrong]
    assert len(pairs) > 100
    assert sum(pairs) > 0.95 * len(pairs)


def test_objects_are_those_without_other_claims(demo, image):
    text = "A red bicycle and a brown table, a dog."
    alone, both = SecondLook(demo).check(image, text), SecondLook(demo, BOTH).check(image, text)
    assert both.objects == tuple(
        dataclasses.replace(
            one, support=pytest.approx(one.support, abs=1e-5), neither=pytest.approx(one.neither, abs=1e-5)
        )
        for one in alone.objects
    )
    assert (alone.claims, "claims" in alone.fields()) == (None, False)
    assert [claim["value"] for claim in both.fields()["claims"]] == ["red", "brown"]


def test_answers_of_several_tokens_are_told_apart(demo, image, monkeypatch):
    """Without the whole words in its vocabulary, letters tell the colours apart, and whole prompts agree."""
    text = "A red bicycle and a brown table."
    usual = SecondLook(demo, BOTH).check(image, text).claims
    encode = demo.vocabulary.encode
    letters = lambda word: [token for letter in word for token in encode(letter)]  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(demo.vocabulary, "encode_known", letters)
        look = SecondLook(demo, BOTH)
    assert look._answers["colors"]._deeper
    spelled = look.check(image, text).claims
    monkeypatch.setattr("sira_cli.models.look.second_look.BIDIRECTIONAL", (demo.model.config.model_type,))
    whole = look.check(image, text).claims
    for one, other in zip(spelled, whole, strict=True):
        assert one.support == pytest.approx(other.support, abs=1e-4)
    assert [claim.key for claim in spelled] == [claim.key for claim in usual]


def test_a_wrong_colour_is_rewritten_and_not_named_again(demo, image):
    text = "There is a table in the middle. There is a bicycle on the left, which is red."
    rewriter = Rewriter(demo, Verify(mode="rewrite", claims="objects,colors"))
    done = rewriter.rewrite(image, text)
    assert done.text.startswith("There is a table in the middle. There is a bicycle on the left, which is ")
    assert ("bicycle", "red") in {(claim.thing, claim.value) for claim in done.removed}
    assert not done.check.below(BOTH.thresholds(demo.preset))
    assert ("bicycle", "blue") in {(claim.thing, claim.value) for claim in done.check.claims}
    assert Rewriter(demo, Verify(mode="rewrite")).rewrite(image, text).text == text


def test_the_preset_chooses_kinds_and_lines(demo, image):
    lvlm = with_verify(demo, claims="colors", thresholds={"colors": 0.25}, min_support=0.9)
    check = lvlm.check(image, "A red bicycle.")
    assert (check.objects, [claim.value for claim in check.claims]) == ((), ["red"])
    assert Verify().thresholds(lvlm.preset) == {"colors": 0.25}
    assert Verify(claims="objects, colors").thresholds(lvlm.preset) == {"objects": 0.9, "colors": 0.25}
    assert (
        Verify(0.1, claims="objects,colors").thresholds(demo.preset)["colors"]
        == demo.preset.verify.thresholds["colors"]
    )
    assert [claim.value for claim in lvlm.caption(image, verify="flag").objects] == []
    settings = Verify().settings(lvlm.preset)
    assert settings["claims"] == {"colors": {"question": "What color is the {thing}?", "min_support": 0.25}}
    assert "claims" not in Verify(claims="objects").settings(demo.preset)


def test_a_table_language_asks_its_own_questions(demo, image):
    """The words of a preset's language stand in for those of English: the same questions have the same answers."""
    lvlm = with_verify(demo, language="xx", languages={"xx": OTHER})
    words = PlainWords({"biciklo": "bicycle", "hundo": "dog"}, "listo", lvlm.preset.verify.wording("xx"))
    found = SecondLook(lvlm, Verify(words=words, claims="objects,colors")).check(image, "Ruda biciklo, hundo.")
    prompts = demo.preset.prompts.model_copy(update={"verify": "Can you see {thing}?"})
    english = demo.under(demo.decoder, demo.preset.model_copy(update={"prompts": prompts}))
    expected = english.check(image, "A bicycle, a dog.")
    assert [claim.thing for claim in found.objects] == ["bicycle", "dog"]
    for one, other in zip(found.objects, expected.objects, strict=True):
        assert one.support == pytest.approx(other.support, abs=1e-5)
    (claim,) = found.claims
    assert (claim.value, claim.spans) == ("Red", ((0, 4),))
    assert claim.support < 0.1
    settings = Verify(words=words).settings(lvlm.preset)
    assert (settings["language"], settings["question"], settings["words"]) == ("xx", "Can you see a {thing}?", "listo")


def test_the_model_lists_the_objects_itself(demo, image, monkeypatch):
    text = "A bicycle, a table and a kitsune."
    look = SecondLook(demo, Verify(words=find_words("ask", Verify().wording(demo.preset))))
    prompt = "What is in this picture?"
    whole = demo.under(demo.decoder, demo.preset.with_settings(max_new_tokens=256))
    assert look._answer(image, prompt).strip() == whole.ask(image, prompt).text
    asked = []
    monkeypatch.setattr(look, "_answer", lambda image, prompt: asked.append(prompt) or "- a kitsune\n- a dog\n- table")
    found = look.check(image, text)
    assert asked == [f"{Verify().wording(demo.preset).list}\n\n{text}"]
    assert [(claim.thing, claim.spans) for claim in found.objects] == [("table", ((13, 18),)), ("kitsune", ((25, 32),))]
    assert found.words == "ask"


@pytest.mark.parametrize(
    ("verify", "message"),
    [
        ({"claims": "numbers"}, "`claims=` 'numbers': expected some of objects, colors"),
        ({"language": "xx"}, "`language=` 'xx': expected de, en"),
        (
            {"languages": {"de": {"kinds": {"objects": {"question": "Was?"}}}}},
            r"`verify.languages.de.kinds.objects.question`: must contain \{thing\}",
        ),
        ({"languages": {"de": {"kinds": {"colors": {"after": "("}}}}}, "is not a regular expression"),
    ],
)
def test_presets_are_checked(verify, message):
    with pytest.raises(SettingsError, match=message):
        presets.validate({"model": "x", "verify": verify}, "test")


def test_what_cannot_be_asked_is_refused(demo):
    lvlm = with_verify(demo, languages={"xx": {**OTHER, "kinds": {"objects": OTHER["kinds"]["objects"]}}})
    with pytest.raises(SettingsError, match="`language=` xx has no question about colors"):
        SecondLook(lvlm, Verify(language="xx", claims="colors"))
    with pytest.raises(
        SettingsError,
        match=r"rewrite has to know the objects while it decodes, but .* asked for them .the default for language xx",
    ):
        Rewriter(lvlm, Verify(language="xx", mode="rewrite"))
    with pytest.raises(SettingsError, match="`claims=` 'x'"):
        Verify(claims="x")
