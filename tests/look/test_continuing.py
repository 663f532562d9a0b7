"""Texts that go on behind given tokens: every logit is that of a text decoded in one go, in every family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image
from skimage import data
from transformers import LogitsProcessor

from sira_cli import load
from sira_cli.core.passes import BIDIRECTIONAL, followed
from sira_cli.core.reference import counterfactual
from sira_cli.look.guiding import GivenTokens
from sira_cli.look.second_look import SecondLook
from sira_cli.look.verify import ObjectFinder, Verify
from sira_cli.models.progress import Start, Trail
from tests.support.checkpoints import REPRESENTATIVES

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
CHELSEA = Image.fromarray(data.chelsea())
PICTURES = [CHELSEA, CHELSEA.crop((0, 0, 300, 300)).resize((200, 120))]
PROMPTS = ["Describe this image.", "What is there to be seen in this image? Say all."]
QUESTIONS = ["Is there a cat on the table?", "Is there snow in the image?"]
GIVEN = [[40, 41, 42, 43, 44], [50, 51, 52]]


class Seen(LogitsProcessor):
    """Keeps the scores of every step."""

    def __init__(self):
        self.steps = []

    def __call__(self, input_ids, scores):
        self.steps.append(scores.clone())
        return scores


@pytest.fixture(params=REPRESENTATIVES, scope="module")
def folder(request, checkpoint_of):
    return checkpoint_of(request.param)


def whole(lvlm, picture, prompt, tokens):
    """The method's logits behind a prompt and tokens `[V]`: one pass over all of it, no cache."""
    inputs = lvlm.to_device(lvlm.prepare([picture], [prompt]))
    inputs.pop("labels", None)  # of PaliGemma, for training
    inputs = followed(lvlm.model, inputs, [tokens])
    with torch.no_grad():
        z = lvlm.model(**inputs, use_cache=False).logits[0, -1].float()
    if lvlm.method == "greedy":
        return z
    z_cf = counterfactual(lvlm.model, dict(inputs), lvlm.find_image(inputs["input_ids"]), lvlm.k)
    return (1 + lvlm.alpha) * z - lvlm.alpha * z_cf


def moves_on(lvlm) -> bool:
    """Whether some layers keep no columns of a prompt for long: windows move on, and states have none."""
    kinds = getattr(lvlm.model.config.get_text_config(), "layer_types", None) or ()
    return bool({"sliding_attention", "linear_attention"} & set(kinds))


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_given_tokens_and_what_follows_them(folder, method):
    lvlm = load(folder, method=method, dtype="float32", max_new_tokens=7)
    inputs = lvlm.to_device(lvlm.prepare(PICTURES, PROMPTS))
    first, trail = Seen(), Trail([0, 1])
    start = Start(GIVEN, processors=(first, GivenTokens(GIVEN, inputs["input_ids"].shape[1])))
    texts = lvlm.generate(inputs, start=start, trail=trail).tolist()
    trail.end(texts)
    for row, given in enumerate(GIVEN):
        assert texts[row][: len(given)] == given
        for step in (0, len(given), 5):
            expected = whole(lvlm, PICTURES[row], PROMPTS[row], texts[row][:step])
            torch.testing.assert_close(first.steps[step][row], expected, atol=1e-4, rtol=1e-4)

    lost = moves_on(lvlm)
    for rows, kept in (([0, 1], [5, 3]), ([1], [6]), ([1, 0], [0, 0])):
        tokens = [texts[row][:count] for row, count in zip(rows, kept, strict=True)]
        back = trail.back(inputs, rows, tokens)
        assert (back is None) == lost
        if back is None:
            continue
        shorter, start = back
        again = Seen()
        given = GivenTokens([text[start.in_inputs :] for text in tokens], shorter["input_ids"].shape[1])
        start = replace(start, processors=(again, given))
        other = lvlm.generate(shorter, start=start).tolist()
        for place, row in enumerate(rows):
            torch.testing.assert_close(again.steps[0][place], first.steps[start.in_inputs][row], atol=1e-4, rtol=1e-4)
            if kept[place]:
                assert other[place] == texts[row][start.in_inputs :]
                torch.testing.assert_close(again.steps[-1][place], first.steps[-1][row], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["greedy", "sira"])
def test_a_second_look_takes_the_pictures_rows_from_the_caption(folder, method):
    """Its answers are those of prompts of their own; the picture itself is not even opened again."""
    lvlm = load(folder, method=method, dtype="float32", max_new_tokens=3)
    inputs, trail = lvlm.to_device(lvlm.prepare(PICTURES, PROMPTS)), Trail([0, 1])
    trail.end(lvlm.generate(inputs, trail=trail).tolist())
    look = SecondLook.__new__(SecondLook)  # tiny tokenizers may have no token for yes
    look._lvlm, look._worded, look.finder = lvlm, {}, ObjectFinder(Verify(), lvlm.preset)
    recomputed = moves_on(lvlm) or lvlm.model.config.model_type in BIDIRECTIONAL
    for at, picture in zip(look.at(PICTURES, inputs, trail), PICTURES, strict=True):
        assert (at._prefix is None) == recomputed
        seen = picture if recomputed else Image.new("RGB", picture.size)
        found = look.last_logits(seen, QUESTIONS, at._prefix)
        torch.testing.assert_close(found, look.last_logits(picture, QUESTIONS), atol=1e-4, rtol=1e-4)
