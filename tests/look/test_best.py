"""The best of several captions: the rule, the texts that it is about, and the records."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look.best import chosen
from sira_cli.look.claims import Verify
from sira_cli.models.sampling import derived_seed
from sira_cli.models.schema import Schema
from sira_cli.models.texts import Answer
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import Caption

SETTINGS = {"mode": "best", "min_support": 0.5}
HEAT = 0.7
COUNT = 4


def caption(text: str, **support: float) -> Answer:
    """A caption whose objects have these supports."""
    objects = [{"thing": thing, "spans": [], "support": value, "neither": 0.0} for thing, value in support.items()]
    return Answer(text, "stop", objects=objects, verify=SETTINGS)


OWN = caption("own", dog=0.9, cat=0.2)
BETTER = caption("better", dog=0.9)
RICHER = caption("richer", dog=0.9, cup=0.5)
BARE = caption("bare")
FAILED = dataclasses.replace(caption(""), error="ended inside its reasoning")


@pytest.mark.parametrize(
    ("captions", "best"),
    [
        ([OWN, BETTER], BETTER),  # fewer that are not supported
        ([OWN, BETTER, RICHER], RICHER),  # then more that are
        ([OWN, BARE, BETTER], BETTER),
        ([BETTER, caption("as good", cup=0.8)], BETTER),  # the first of equals
        ([OWN, FAILED, caption(" ")], OWN),  # a failed or an empty caption names nothing wrong, and is no caption
        ([FAILED, OWN], OWN),
    ],
)
def test_the_rule(captions, best):
    assert chosen(captions).text == best.text


def test_another_caption_tells_what_it_replaces():
    best = chosen([OWN, BETTER])
    assert best.draft == "own"
    assert best.removed == [{"thing": "cat", "support": 0.2}]
    assert best.objects == BETTER.objects


def test_the_own_caption_has_no_draft():
    assert chosen([BETTER, OWN]) == BETTER


def pictures(count: int):
    return [render(held_out(seed))[0] for seed in VALIDATION_SEEDS[:count]]


def at_heat(lvlm: Lvlm) -> Lvlm:
    return lvlm.under(lvlm.decoder, lvlm.preset.with_settings(temperature=HEAT))


def decoded_alone(lvlm: Lvlm, picture, seed: int) -> list[str]:
    """Each caption from a prompt of its own, without a shared cache."""
    texts = []
    for number in range(COUNT):
        model = at_heat(lvlm) if number else lvlm
        drawn = derived_seed(seed, f"caption {number}") if number else seed
        inputs = model.prepare([picture], [lvlm.preset.prompts.caption])
        texts.append(model.answer(inputs, seeds=[drawn])[0].text)
    return texts


def best_by_hand(lvlm: Lvlm, picture, texts: list[str]) -> str:
    """The text with the fewest unsupported objects, then the most supported ones, asked about one text at a time."""
    threshold = lvlm.preset.verify.min_support
    best, best_score = "", (999, 999)
    for text in texts:
        support = [claim.support for claim in lvlm.check(picture, text).objects]
        doubted = sum(value < threshold for value in support)
        score = (doubted, doubted - len(support))
        if score < best_score:
            best, best_score = text, score
    return best


@pytest.mark.parametrize("method", ["sira", "greedy", "m3id"])  # with a shared cache, and (m3id) without
def test_a_batch_has_the_best_of_captions_decoded_alone(demo, method):
    preset = demo.preset.with_settings(**{"best.captions": COUNT, "best.heat": HEAT, "max_new_tokens": 24})
    lvlm = demo.under(method, preset)
    task = Caption.of(lvlm.preset, lvlm.decoder, verify="best").at(lvlm.revision)
    shown = pictures(5)
    prompts = [preset.prompts.caption] * len(shown)
    seeds = list(range(5))
    answers = task.way(lvlm).answers(shown, lvlm.prepare(shown, prompts), seeds)
    changed = 0
    for picture, seed, answer in zip(shown, seeds, answers, strict=True):
        texts = decoded_alone(lvlm, picture, seed)
        assert answer.text == best_by_hand(lvlm, picture, texts)
        assert (answer.draft or answer.text) == texts[0]
        changed += answer.draft is not None
    assert changed  # else the choice was never felt


def test_tags_are_chosen_too(demo):
    task = Caption.of(demo.preset, demo.decoder, verify="best", schema=Schema.of("tags", tags=True)).at(demo.revision)
    (picture,) = pictures(1)
    (answer,) = task.way(demo).answers([picture], demo.prepare([picture], [task.prompt]), [0])
    assert answer.text == ", ".join(answer.data)
    assert [one["thing"] for one in answer.objects]


def test_a_key_holds_the_number_of_captions(demo):
    def key(**settings) -> str:
        preset = demo.preset.with_settings(**settings)
        return Caption.of(preset, demo.decoder, verify=Verify(mode="best")).key("p.jpg", "", "What?")

    assert key() == key(**{"best.captions": 5}) != key(**{"best.captions": 6})
    assert key() != key(**{"best.heat": 0.8})


def test_the_command_writes_the_choice_and_goes_on(sira, tmp_path):
    for number, picture in enumerate(pictures(3)):
        picture.save(tmp_path / f"{number}.png")
    output = tmp_path / "captions.jsonl"
    command = ("caption", tmp_path, "-p", "demo", "--method", "greedy", "--verify", "best", "-b", 3, "-o", output)
    assert sira(*command)[0] == 0
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert {record["verify"]["mode"] for record in records} == {"best"}
    assert {record["verify"]["captions"] for record in records} == {5}
    code, _, err = sira(*command)
    assert code == 0
    assert "3 of 3 pictures were done before" in err
