"""A second look that a request asks for: texts, things and drafts are those of the library."""

from __future__ import annotations

import functools

import pytest

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import VALIDATION_SEEDS, render
from sira_cli.look.claims import Verify
from tests.serve.helpers import PROMPT, ask, data_of, said, streamed, text

# In the first, greedy names a cup that is not there; in the second, one thing after the other.
SCENES = [render(held_out(VALIDATION_SEEDS[number]))[0] for number in (500_000, 500_003)]
TOKENS = 60


@functools.cache
def expected(lvlm, scene, look, method="greedy"):
    preset = lvlm.preset.with_settings(max_new_tokens=TOKENS)
    return lvlm.under(preset.method(method), preset).caption(data_of(SCENES[scene]), PROMPT, verify=look)


@pytest.mark.parametrize(
    ("scene", "sira", "look"),
    [
        (0, {"method": "greedy", "verify": "guide"}, Verify(mode="guide")),
        (1, {"verify": "guide", "min_support": 0.9}, Verify(0.9, mode="guide")),
        (1, {"verify": "flag", "min_support": 0.4, "words": True}, Verify(0.4, mode="flag")),
    ],
)
def test_text_things_and_draft_are_those_of_caption(client, lvlm, scene, sira, look):
    result = expected(lvlm, scene, look, sira.get("method", "sira"))
    answer = ask(client, said(picture=SCENES[scene]), sira, max_tokens=TOKENS)
    assert (text(answer), answer.usage.completion_tokens) == (result.text, result.output_tokens)
    record = result.to_record()
    for name in ("verify", "draft"):
        assert answer.sira.get(name) == record.get(name)
    for name in ("objects", "removed"):
        for thing, known in zip(answer.sira.get(name, []), record.get(name, []), strict=True):
            scores = {each: pytest.approx(known[each], abs=1e-4) for each in ("support", "neither") if each in known}
            assert thing == known | scores
    if "words" in sira:
        assert [result.text[word["start"] : word["end"]] for word in answer.sira["words"]] == result.text.split()


def test_a_guided_text_comes_in_one_piece_and_the_others_as_they_grow(client, lvlm):
    for mode in ("guide", "flag"):
        sira = {"method": "greedy", "verify": mode}
        chunks = list(ask(client, said(picture=SCENES[0]), sira, max_tokens=TOKENS, stream=True))
        pieces, result = streamed(chunks), expected(lvlm, 0, mode)
        assert "".join(pieces) == result.text
        assert (len(pieces) == 1) == (mode == "guide")
        assert [thing["thing"] for thing in chunks[-1].sira["objects"]] == [thing["thing"] for thing in result.objects]
