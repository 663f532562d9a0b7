"""A second look: is each object that a text names in the picture? The model is asked about every one.

    the picture and the prompt's rows before it    computed once (`core.passes`)
    "Is there a dog in the image?"                 a few rows each, all questions of a picture together
    support = P(yes) / (P(yes) + P(no))            over all spellings of yes and no (`answer_tokens`)

The unchanged model answers (the full stream at temperature 0), after an empty thought if it can think. Pictures shown
together are asked about one by one, and the largest support counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from sira_cli.models.texts import Answer, TextSettings
from sira_cli.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BATCH = 8  # whole prompts decoded together, if the prefix cannot be shared
TAG = 3  # words of a string of a JSON text that is no sentence
_PROBE = 64  # side in pixels of the picture in the prompts of questions
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"( ?:)?')  # the second group: it is a key


class SecondLook:
    """Asks a loaded model about the objects that texts name; `finder` finds these."""

    def __init__(self, lvlm: LoadedModel, verify: Verify | None = None) -> None:
        self._lvlm = lvlm
        self.finder = ObjectFinder(verify or Verify(), lvlm.preset)
        self._yes, self._no = answer_tokens(lvlm.vocabulary, *lvlm.preset.verify.answers)
        self._worded: dict[str, tuple[list[int], list[int]]] = {}  # tokens before and after the picture

    def check(self, image: Shown, text: str) -> Check:
        """Ask about each object that a text names."""
        return PictureLook(self, image).check(text)

    def at(self, images: Sequence[Shown], inputs: Any, trail: Trail) -> list[PictureLook]:
        """Return second looks that reuse the key/value cache of decoding."""
        if trail.cache is None:
            return [PictureLook(self, image) for image in images]
        places = self._lvlm.find_image(inputs["input_ids"])
        return [
            PictureLook(self, image, ImagePrefix.of(self._lvlm.model, inputs, places, row, trail.cache, row))
            if len(pictures_of(image)) == 1
            else PictureLook(self, image)
            for row, image in enumerate(images)
        ]

    @torch.no_grad()
    def last_logits(self, image: Image.Image, questions: Sequence[str], prefix: ImagePrefix | None = None) -> Tensor:
        """Return the model's logits of the first token of each answer: `[Q, V]` float32."""
        model = self._lvlm.model
        if model.config.model_type in BIDIRECTIONAL:
            return self._whole(image, questions)
        if new := [question for question in questions if question not in self._worded]:
            # The tokens around a picture do not depend on it.
            inputs = self._inputs(Image.new("RGB", (_PROBE, _PROBE)), new)
            for question, row, seen in zip(new, inputs["input_ids"], inputs["attention_mask"], strict=True):
                self._worded[question] = self._around(row[seen.bool()])
        befores, tails = zip(*(self._worded[question] for question in questions), strict=True)
        if any(before != befores[0] for before in befores):
            return self._whole(image, questions)
        if prefix is not None and self._around(prefix.ids)[0] == befores[0]:
            return prefix.last_logits(tails)
        inputs = self._inputs(image, questions[:1])
        ids = inputs["input_ids"][0]
        tail = self._around(ids)[1]
        if tail != tails[0]:
            return self._whole(image, questions)
        return ImagePrefix(model, inputs, len(ids) - len(tail)).last_logits(tails)

    def claims(self, image: Image.Image, named: Sequence[Thing], prefix: ImagePrefix | None = None) -> list[Claim]:
        """Ask about objects; otherwise as `last_logits`."""
        if not named:
            return []
        questions = [self.finder.question(thing) for thing in named]
        logprobs = self.last_logits(image, questions, prefix).log_softmax(dim=-1)  # [Q, V]
        # In logarithms, because both may underflow a float.
        yes, no = (logprobs[:, tokens].logsumexp(dim=1) for tokens in (self._yes, self._no))  # [Q]
        support, neither = (yes - no).sigmoid().tolist(), (1 - yes.exp() - no.exp()).clamp(min=0).tolist()
        return [Claim(one.name, one.spans, *each) for one, *each in zip(named, support, neither, strict=True)]

    def answer(self, image: Image.Image, prompt: str) -> str:
        """Return the model's answer to a prompt, decoded greedily."""
        lvlm = self._lvlm
        try:
            lvlm.check_prompt(prompt)
        except SettingsError as error:
            raise PictureSettingsError(str(error)) from None
        return lvlm.vocabulary.text(self._decoded(image, prompt))

    def _decoded(self, image: Image.Image, prompt: str) -> list[int]:
        inputs = self._inputs(image, [prompt])
        output = self._lvlm.model.generate(**inputs, max_new_tokens=LIST_TOKENS, do_sample=False)
        tokens: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    def _inputs(self, image: Image.Image, prompts: Sequence[str]) -> Any:
        with self._lvlm.vocabulary.lock:
            return self._lvlm.to_device(self._lvlm.chat_inputs([image] * len(prompts), prompts, skip_thought=True))

    def _around(self, ids: Tensor) -> tuple[list[int], list[int]]:
        """Return the tokens before and after the picture in a prompt `[S]`."""
        places = self._lvlm.find_image(ids[None])[0].nonzero()
        return ids[: int(places.min())].tolist(), ids[int(places.max()) + 1 :].tolist()

    def _whole(self, image: Image.Image, questions: Sequence[str]) -> Tensor:
        """Ask each question as a prompt of its own, whose masks and positions `generate` makes, as in `sira ask`."""
        parts = []
        for start in range(0, len(questions), BATCH):
            inputs = self._inputs(image, questions[start : start + BATCH])
            more = {"return_dict_in_generate": True, "output_logits": True}
            output = self._lvlm.model.generate(**inputs, max_new_tokens=1, do_sample=False, **more)
            parts.append(output.logits[0].float())
        return torch.cat(parts)


class PictureLook:
    """A second look at one picture, or at a group: an object that several texts name is asked about once."""

    def __init__(self, look: SecondLook, image: Shown, prefix: ImagePrefix | None = None) -> None:
        self._look, self._images, self._prefix = look, pictures_of(image), prefix
        self._known: dict[str, Claim] = {}

    def check(self, text: str, named: Sequence[Thing] | None = None) -> Check:
        """Ask about each object of a text, unless an earlier one named it; `named`: its objects, if they are known."""
        look, images = self._look, self._images

        def claims(new: Sequence[Thing]) -> list[Claim]:
            return best_of([look.claims(image, new, self._prefix) for image in images])

        return look.finder.check(text, claims, lambda prompt: look.answer(images[0], prompt), self._known, named)

    def check_values(
        self, answer: Answer, schema: Schema, settings: dict[str, Any], text_settings: TextSettings
    ) -> Answer:
        """Return the final answer of a text that has followed a schema, with the objects that its strings name.

        ["dog", "oak tree"]                                     each tag is looked at
        [{"name": "dog", "attributes": ["red", "with a cat"]}]  the cat is in an attribute, the dog in an object
        """
        finished, places = text_settings.finished(answer), list[tuple[int, str]]()
        if schema.as_tags:
            place = len(text_settings.prefix)
            for tag in answer.data or []:
                places.append((place, tag))
                place += len(tag) + len(", ")
        else:
            matches = (match for match in _STRING.finditer(finished.text) if not match[2])
            places = [(match.start(1), re.sub(r"\\.", "  ", match[1])) for match in matches]
        named: dict[str, Thing] = {}
        for place, string in places:
            for thing in self._things(string, place):
                before = named.get(thing.name, replace(thing, spans=()))
                named[thing.name] = replace(before, spans=before.spans + thing.spans)
        return self.check(finished.text, list(named.values())).added_to(finished, settings)

    def _things(self, string: str, place: int) -> list[Thing]:
        """Return the objects of a string at a place of a text; a short one is a noun, as if it had an article."""
        finder, short = self._look.finder, len(string.split()) <= TAG
        if finder.asks and not short:
            return []
        article = "a " if short and not finder.asks else ""
        moved = place - len(article)
        return [
            replace(thing, spans=tuple((start + moved, end + moved) for start, end in thing.spans))
            for thing in finder.things(article + string, lambda prompt: string)
        ]


def answer_tokens(vocabulary: Vocabulary, yes: Sequence[str], no: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the first tokens of answers that say yes, and of those that say no."""
    for_yes, for_no = _first_tokens(vocabulary, yes), _first_tokens(vocabulary, no)
    if for_yes & for_no:
        raise UnsupportedModelError(
            f"the tokenizer begins {yes[0]!r} and {no[0]!r} with the same token: their answers cannot be told apart"
        )
    return sorted(for_yes), sorted(for_no)


def _first_tokens(vocabulary: Vocabulary, words: Sequence[str]) -> set[int]:
    """Return the first token of every spelling of an answer, at the start of a text and after a space."""
    alone = [ids for word in words if (ids := vocabulary.encode_known(word))]
    spaced = [ids for word in words if (ids := vocabulary.encode_known(f" {word}"))]
    if any(len(ids) == 1 for ids in alone + spaced):
        return {ids[0] for ids in alone + spaced if len(ids) == 1}
    spelled = [*alone, *(ids for ids in spaced if vocabulary.data(ids[0]).strip())]
    # A tokenizer may put a token for the space before a text, which some templates write themselves.
    spelled += [ids[1:] for ids in alone if len(ids) > 1 and not vocabulary.data(ids[0]).strip()]
    if not spelled:
        raise UnsupportedModelError(f"the tokenizer has no token for {words[0]!r}: it cannot be an answer")
    return {ids[0] for ids in spelled}
