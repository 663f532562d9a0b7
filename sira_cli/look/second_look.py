"""A second look: is each object that a text names in the picture? The model is asked about every one.

    the picture and the prompt's rows before it    computed once (`core.passes`)
    "Is there a dog in the image?"                 a few rows each, all questions of a picture together
    support = P(yes) / (P(yes) + P(no))            over all spellings of yes and no (`answer_tokens`)

The unchanged model answers (the full stream at temperature 0), after an empty thought if it can think. Pictures shown
together are asked about one by one, and the largest support counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from sira_cli.core.passes import BIDIRECTIONAL, ImagePrefix
from sira_cli.errors import PictureSettingsError, SettingsError, UnsupportedModelError
from sira_cli.look.claims import LIST_TOKENS, Check, Claim, ObjectFinder, Verify, best_of
from sira_cli.look.words import Thing
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Trail
from sira_cli.models.schema import Schema
from sira_cli.models.texts import Answer
from sira_cli.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BATCH = 8  # whole prompts of one batch, if the prefix cannot be shared
TAG = 3  # words of a string of a JSON text that is no sentence
_PROBE = 64  # side in pixels of the picture in the prompts of questions
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"( ?:)?')  # the second group: it is a key


Tokens = list[int]


class _Around(NamedTuple):
    """The tokens of a prompt before and after its picture."""

    before: Tokens
    after: Tokens


class SecondLook:
    """Asks a loaded model about the objects that texts name.

    Attributes:
        finder: finds these objects.
        settings: of the look, as in records.
        text_settings: changes to the texts, as of the model's preset.
    """

    def __init__(self, lvlm: LoadedModel, verify: Verify | None = None) -> None:
        self._lvlm = lvlm
        verify = verify or Verify()
        self.finder = ObjectFinder(verify, lvlm.preset)
        self.settings = verify.settings(lvlm.preset)
        self.text_settings = lvlm.preset.text
        self._yes, self._no = answer_tokens(lvlm.vocabulary, *lvlm.preset.verify.answers)
        self._worded: dict[str, _Around] = {}  # of the prompts of questions

    def check(self, image: Shown, text: str) -> Check:
        """Ask about each object that a text names."""
        return PictureLook(self, image).check(text)

    def at(self, images: Sequence[Shown], inputs: Any, trail: Trail) -> list[PictureLook]:
        """Return second looks that reuse the key/value cache of decoding."""
        if trail.cache is None:
            return [PictureLook(self, image) for image in images]
        places = self._lvlm.find_image(inputs["input_ids"])
        looks = []
        for row, image in enumerate(images):
            prefix = None
            if len(pictures_of(image)) == 1:
                prefix = ImagePrefix.of(self._lvlm.model, inputs, places, row, trail.cache, row)
            looks.append(PictureLook(self, image, prefix))
        return looks

    @torch.no_grad()
    def last_logits(self, image: Image.Image, questions: Sequence[str], prefix: ImagePrefix | None = None) -> Tensor:
        """Return the model's logits of the first token of each answer: `[Q, V]` float32."""
        if self._lvlm.model.config.model_type in BIDIRECTIONAL:
            return self._whole(image, questions)
        self._learn(questions)
        prompts = [self._worded[question] for question in questions]
        before, after = prompts[0]
        if any(prompt.before != before for prompt in prompts):
            return self._whole(image, questions)
        tails = [prompt.after for prompt in prompts]
        if prefix is not None and self._around(prefix.ids).before == before:
            return prefix.last_logits(tails)
        inputs = self._inputs(image, questions[:1])
        ids = inputs["input_ids"][0]
        if self._around(ids).after != after:
            return self._whole(image, questions)
        own_prefix = ImagePrefix(self._lvlm.model, inputs, len(ids) - len(after))
        return own_prefix.last_logits(tails)

    def _learn(self, questions: Sequence[str]) -> None:
        """Note the tokens around the picture in the prompts of questions, which do not depend on the picture."""
        new = [question for question in questions if question not in self._worded]
        if not new:
            return
        probe = Image.new("RGB", (_PROBE, _PROBE))
        inputs = self._inputs(probe, new)
        for question, ids, is_text in zip(new, inputs["input_ids"], inputs["attention_mask"], strict=True):
            self._worded[question] = self._around(ids[is_text.bool()])

    def claims(self, image: Image.Image, named: Sequence[Thing], prefix: ImagePrefix | None = None) -> list[Claim]:
        """Ask about objects; otherwise as `last_logits`."""
        if not named:
            return []
        questions = [self.finder.question(thing) for thing in named]
        logprobs = self.last_logits(image, questions, prefix).log_softmax(dim=-1)  # [Q, V]
        # In logarithms, because both may underflow a float.
        yes = logprobs[:, self._yes].logsumexp(dim=1)  # [Q]
        no = logprobs[:, self._no].logsumexp(dim=1)  # [Q]
        supports = (yes - no).sigmoid().tolist()
        others = (1 - yes.exp() - no.exp()).clamp(min=0).tolist()
        rows = zip(named, supports, others, strict=True)
        claims = []
        for thing, support, neither in rows:
            claims.append(Claim(thing.name, thing.spans, support, neither))
        return claims

    def answer(self, image: Image.Image, prompt: str) -> str:
        """Return the model's answer to a prompt, decoded greedily."""
        lvlm = self._lvlm
        try:
            lvlm.check_prompt(prompt)
        except SettingsError as error:
            raise PictureSettingsError(str(error)) from None
        return lvlm.vocabulary.text(self._decoded(image, prompt))

    def _decoded(self, image: Image.Image, prompt: str) -> Tokens:
        inputs = self._inputs(image, [prompt])
        length = inputs["input_ids"].shape[1]
        output = self._lvlm.model.generate(**inputs, max_new_tokens=LIST_TOKENS, do_sample=False)
        tokens: Tokens = output[0, length:].tolist()
        return tokens

    def _inputs(self, image: Image.Image, prompts: Sequence[str]) -> Any:
        lvlm = self._lvlm
        images = [image] * len(prompts)
        with lvlm.vocabulary.lock:
            return lvlm.to_device(lvlm.chat_inputs(images, prompts, skip_thought=True))

    def _around(self, ids: Tensor) -> _Around:
        """Return the tokens around the picture in a prompt `[S]`."""
        places = self._lvlm.find_image(ids[None])[0].nonzero()
        first = int(places.min())
        last = int(places.max())
        return _Around(ids[:first].tolist(), ids[last + 1 :].tolist())

    def _whole(self, image: Image.Image, questions: Sequence[str]) -> Tensor:
        """Ask each question as a prompt of its own, whose masks and positions `generate` makes, as in `sira ask`."""
        parts = []
        for start in range(0, len(questions), BATCH):
            output = self._lvlm.model.generate(
                **self._inputs(image, questions[start : start + BATCH]),
                max_new_tokens=1,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
            parts.append(output.logits[0].float())
        return torch.cat(parts)


class PictureLook:
    """A second look at one picture, or at a group: an object that several texts name is asked about once."""

    def __init__(self, look: SecondLook, image: Shown, prefix: ImagePrefix | None = None) -> None:
        self._look = look
        self._images = pictures_of(image)
        self._prefix = prefix
        self._earlier: dict[str, Claim] = {}  # by the object

    def check(self, text: str, named: Sequence[Thing] | None = None) -> Check:
        """Ask about each object of a text, unless an earlier one named it; `named`: its objects, if they are known."""
        look = self._look

        def claims(new: Sequence[Thing]) -> list[Claim]:
            return best_of([look.claims(image, new, self._prefix) for image in self._images])

        def answer(prompt: str) -> str:
            return look.answer(self._images[0], prompt)

        return look.finder.check(text, claims, answer, self._earlier, named)

    def checked(self, answer: Answer, schema: Schema | None = None) -> Answer:
        """Return a decoded answer in its final form, with the support of the objects that it names.

        Of a text that has followed a schema, the strings name them:
        ["dog", "oak tree"]                                     each tag is looked at
        [{"name": "dog", "attributes": ["red", "with a cat"]}]  the cat is in an attribute, the dog in an object
        [{"name": "dog", "confidence": 0.95}]                   the dog's support becomes its confidence
        """
        text_settings = self._look.text_settings
        finished = text_settings.finished(answer)
        if schema is None:
            check = self.check(finished.text)
        elif schema.as_tags:
            tags = _placed_tags(answer.data or [], len(text_settings.prefix))
            check = self._check_strings(finished.text, tags)
        else:
            check = self._check_strings(finished.text, _placed_strings(finished.text))
            data = self._supported(finished.data, {claim.thing: claim.support for claim in check.objects})
            if data != finished.data:
                finished = replace(finished, data=data, text=json.dumps(data, ensure_ascii=False))
                # Other places, no new questions.
                check = self._check_strings(finished.text, _placed_strings(finished.text))
        return check.added_to(finished, self._look.settings)

    def _check_strings(self, text: str, strings: Iterable[tuple[int, str]]) -> Check:
        """Check a text whose strings, each with its place, name the objects."""
        named: dict[str, Thing] = {}
        for place, string in strings:
            for thing in self._things(string, place):
                if thing.name in named:
                    thing = replace(thing, spans=named[thing.name].spans + thing.spans)
                named[thing.name] = thing
        return self.check(text, list(named.values()))

    def _supported(self, value: Any, supports: Mapping[str, float]) -> Any:
        """Return a value whose `confidence`, from 0 to 1 and next to a `name`, is the support of what that names."""
        if isinstance(value, list):
            return [self._supported(one, supports) for one in value]
        if not isinstance(value, dict):
            return value
        found = {key: self._supported(one, supports) for key, one in value.items()}
        name = found.get("name")
        confidence = found.get("confidence")
        if isinstance(name, str) and isinstance(confidence, int | float) and 0 <= confidence <= 1:
            known = [supports[thing.name] for thing in self._things(name, 0) if thing.name in supports]
            if known:
                found["confidence"] = round(min(known), 2)
        return found

    def _things(self, string: str, place: int) -> list[Thing]:
        """Return the objects of a string at a place of a text; a short one is a noun, as if it had an article."""
        finder = self._look.finder
        is_noun = len(string.split()) <= TAG
        if finder.asks and not is_noun:
            return []
        article = "a " if is_noun and not finder.asks else ""
        offset = place - len(article)
        things = []
        for thing in finder.things(article + string, lambda prompt: string):
            spans = tuple((start + offset, end + offset) for start, end in thing.spans)
            things.append(replace(thing, spans=spans))
        return things


def _placed_tags(tags: Sequence[str], start: int) -> Iterator[tuple[int, str]]:
    """Yield the tags of a text, each with its place; the first is at `start`."""
    place = start
    for tag in tags:
        yield place, tag
        place += len(tag) + len(", ")


def _placed_strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a JSON text that are no keys, each with its place; escapes become blanks."""
    for match in _STRING.finditer(text):
        is_key = match[2] is not None
        if not is_key:
            yield match.start(1), re.sub(r"\\.", "  ", match[1])


def answer_tokens(vocabulary: Vocabulary, yes: Sequence[str], no: Sequence[str]) -> tuple[Tokens, Tokens]:
    """Return the first tokens of answers that say yes, and of those that say no."""
    for_yes, for_no = _first_tokens(vocabulary, yes), _first_tokens(vocabulary, no)
    if for_yes & for_no:
        raise UnsupportedModelError(
            f"the tokenizer begins {yes[0]!r} and {no[0]!r} with the same token: their answers cannot be told apart"
        )
    return sorted(for_yes), sorted(for_no)


def _first_tokens(vocabulary: Vocabulary, words: Sequence[str]) -> set[int]:
    """Return the first token of every spelling of an answer, at the start of a text and after a space."""
    alone = [vocabulary.encode_known(word) for word in words]
    spaced = [vocabulary.encode_known(f" {word}") for word in words]
    single = {ids[0] for ids in alone + spaced if len(ids) == 1}
    if single:
        return single
    first = set()
    for ids in filter(None, alone):
        first.add(ids[0])
        # A tokenizer may put a token for the space before a text, which some templates write themselves.
        if len(ids) > 1 and _is_blank(vocabulary, ids[0]):
            first.add(ids[1])
    for ids in filter(None, spaced):
        if not _is_blank(vocabulary, ids[0]):
            first.add(ids[0])
    if not first:
        raise UnsupportedModelError(f"the tokenizer has no token for {words[0]!r}: it cannot be an answer")
    return first


def _is_blank(vocabulary: Vocabulary, token: int) -> bool:
    return not vocabulary.data(token).strip()
