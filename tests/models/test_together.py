"""Several pictures in one prompt, from checkpoints in the files of the hub: against Algorithm 1 and one at a time."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from sira_cli import load
from sira_cli.errors import LongPromptError, SettingsError
from sira_cli.methods import METHODS
from tests.support.checkpoints import ALL
from tests.support.helpers import by_the_letter, under

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.png"))
QUESTION = "Is there a cat on the table?"
ONE_ONLY = ["JoyCaption (LLaVA)"]  # its template places the image token itself
# PaliGemma's processor hands torch tensors to numpy's array().
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    """Two, of different sizes."""
    first, second = (Image.open(path).convert("RGB") for path in EXAMPLES[:2])
    return [first, second.crop((0, 0, second.width // 2, second.height))]


@pytest.mark.parametrize("family", [name for name in ALL if name not in ONE_ONLY])
def test_a_prompt_with_two_pictures_is_that_of_the_paper(family, checkpoint_of, pictures):
    lvlm = load(checkpoint_of(family), max_new_tokens=3, dtype="float32")
    alone = [int(lvlm.find_image(lvlm.prepare([each], [QUESTION])["input_ids"]).sum()) for each in pictures]
    inputs = lvlm.prepare([pictures], [QUESTION])
    found = lvlm.find_image(inputs["input_ids"])
    assert int(found.sum()) == sum(alone)
    if len({*inputs["input_ids"][found].tolist()}) == 1:
        by_the_letter(lvlm, inputs, 2)

    asked, prompts = [pictures[0], pictures, pictures[::-1]], [QUESTION, "What is there?", "What do you see in them?"]
    together = lvlm.answer(lvlm.prepare(asked, prompts))
    each = [lvlm.answer(lvlm.prepare([one], [prompt]))[0] for one, prompt in zip(asked, prompts, strict=True)]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in each]


@pytest.mark.parametrize("family", ONE_ONLY)
def test_a_template_for_one_picture_is_refused_by_name(family, checkpoint_of, pictures):
    lvlm = load(checkpoint_of(family))
    for ask in (
        lambda: lvlm.check_prompt(QUESTION, 2),
        lambda: lvlm.prepare([pictures], [QUESTION]),
        lambda: lvlm.ask(EXAMPLES[:2], QUESTION),
    ):
        with pytest.raises(SettingsError, match="this Llava model does not take the turns user with 2 pictures"):
            ask()
    lvlm.prepare(pictures, [QUESTION] * 2)  # one each


def test_answers_depend_on_every_picture_and_their_order(demo):
    lvlm, (a, b, c) = under(demo, max_new_tokens=24), EXAMPLES[:3]
    lvlm.ask([a, b], "USER")  # a question may be words of the template
    said = {group: lvlm.caption([*group]) for group in ((a,), (a, b), (b, a), (a, c), (a, b, c))}
    assert len({record.text for record in said.values()}) == len(said)
    alone, record = lvlm.caption(a), said[a, b]
    assert alone.text == said[(a,)].text
    assert (record.images, record.file_name) == ([str(a), str(b)], f"{a} | {b}")
    assert record.image_tokens == 2 * alone.image_tokens


def test_an_object_has_the_support_of_the_picture_that_shows_it_best(demo):
    """Each picture is asked about by itself: the largest support counts, and says which picture it is."""
    text = "There is a dog on a chair, and an umbrella with a cow."
    alone = [demo.check(path, text).objects for path in EXAMPLES[:3]]
    group = demo.check(EXAMPLES[:3], text).objects
    assert len(group) == 4
    for number, claim in enumerate(group):
        supports = [claims[number].support for claims in alone]
        assert claim.support == pytest.approx(max(supports), abs=1e-5)
        assert claim.image == 1 + supports.index(max(supports))
    assert len({claim.image for claim in group}) > 1
    assert all("image" not in claim.to_json() for claim in alone[0])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_several_pictures(demo, method):
    """What it says about two pictures in a batch with one is what it says about them alone."""
    lvlm, groups = under(demo, method, max_new_tokens=8), [EXAMPLES[:1], EXAMPLES[:2]]
    texts = [result.text for result in lvlm.caption_many(groups, batch_size=2)]
    assert texts == [lvlm.caption(group).text for group in groups]
    assert texts[0] != texts[1]


def test_a_group_that_is_longer_than_the_context_is_refused(demo):
    """The bundled model has 1,024 positions."""
    image = Image.open(EXAMPLES[0]).convert("RGB")
    one, two = (demo.prepare([[image] * count], [QUESTION])["input_ids"].shape[1] for count in (1, 2))
    most = 1 + (1024 - one) // (two - one)
    demo.prepare([[image] * most], [QUESTION])
    length = one + (two - one) * most
    message = f"a prompt with {most + 1} pictures has {length:,} tokens, .* holds 1,024: shorten it, or give fewer"
    with pytest.raises(LongPromptError, match=message) as refused:
        demo.prepare([image, [image] * (most + 1)], [QUESTION] * 2)
    assert refused.value.tokens == length


def test_the_context_of_a_config_that_stretches_its_positions_or_states_none(demo):
    lvlm = copy.copy(demo)
    for rope, context in (({"factor": 4.0}, 4096), ({"full_attention": {"factor": 4.0}}, 1024), (None, 1024)):
        config = SimpleNamespace(max_position_embeddings=1024, rope_parameters=rope)
        lvlm.model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda config=config: config))
        assert lvlm.context == context
    del config.max_position_embeddings
    assert lvlm.context is None
    assert lvlm.answer_of([5] * 10, 64, 10**6).warnings == demo.answer_of([5] * 10, 64, 1014).warnings == ()
    assert demo.answer_of([5] * 10, 64, 1015).warnings == (
        "prompt and text have 1,025 tokens, past the model's context of 1,024",
    )
