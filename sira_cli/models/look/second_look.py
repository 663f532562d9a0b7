"""A second look: is each object that a text names in the picture? The model is asked about every one.

    the picture and the prompt's rows before it    computed once (`core.prefix`)
    "Is there a dog in the image?"                 a few rows each, all questions of a picture together
    support = P(yes) / (P(yes) + P(no))            over all spellings of yes and no (`answer_words`)

The unchanged model answers (the full stream at temperature 0), whatever method wrote the text, after an empty thought
if it can think. Pictures that are shown together are asked about one by one, and the largest support counts: a text
about them may name what any of them shows, and so the question and its threshold are those of single pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from sira_cli.core.prefix import BIDIRECTIONAL, ImagePrefix
from sira_cli.errors import PictureSettingsError, SettingsError
from sira_cli.language.things import Thing
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.answering.decoding import DecodingModel
from sira_cli.models.answering.starts import Trail
from sira_cli.models.look.answer_words import answer_tokens
from sira_cli.models.look.claims import LIST_TOKENS, Check, Claim, best_of
from sira_cli.models.look.finding import ObjectFinder
from sira_cli.models.look.verify import Verify as Verify

if TYPE_CHECKING:
    from PIL import Image

    from sira_cli.methods.prompts import Shown

BATCH = 8  # whole prompts decoded together, if the prefix cannot be shared
_PROBE = 64  # side in pixels of the picture in the prompts of questions


class SecondLook:
    """Asks a loaded model about the objects that texts name.

    Attributes:
        finder: finds the objects of a text.
    """

    def __init__(self, lvlm: DecodingModel, verify: Verify | None = None) -> None:
        """Prepare to ask."""
        self._lvlm = lvlm
        self.finder = ObjectFinder(verify or Verify(), lvlm.preset)
        yes, no = lvlm.preset.verify.answers
        self._yes, self._no = answer_tokens(lvlm.vocabulary, yes, no)
        self._worded: dict[str, tuple[list[int], list[int]]] = {}  # tokens before and after the picture

    def check(self, image: Shown, text: str) -> Check:
        """Ask about each object that a text names."""
        return PictureLook(self, image).check(text)

    def at(self, images: Sequence[Shown], inputs: Any, trail: Trail) -> list[PictureLook]:
        """Return second looks that reuse the key/value cache of decoding."""
        if trail.cache is None:
            return [PictureLook(self, image) for image in images]
        found = self._lvlm.find_image(inputs["input_ids"])
        return [
            PictureLook(self, image, ImagePrefix.of(self._lvlm.model, inputs, found, row, trail.cache, row))
            if len(pictures_of(image)) == 1
            else PictureLook(self, image)
            for row, image in enumerate(images)
        ]

    def named(self, image: Image.Image, text: str) -> list[Thing]:
        """Return the objects of a text; the model is asked for them, if so set."""
        return self.finder.named(text, lambda prompt: self._answer(image, prompt))

    def questions(self, named: Sequence[Thing]) -> list[str]:
        """Return the question about each object."""
        return [self.finder.question(thing) for thing in named]

    @torch.no_grad()
    def last_logits(self, image: Image.Image, questions: Sequence[str], prefix: ImagePrefix | None = None) -> Tensor:
        """Return the model's logits of the first token of each answer: `[Q, V]` float32."""
        lvlm = self._lvlm
        if lvlm.model.config.model_type in BIDIRECTIONAL:
            return self._whole(image, questions)
        self._word([question for question in questions if question not in self._worded])
        befores, tails = zip(*(self._worded[question] for question in questions), strict=True)
        if any(before != befores[0] for before in befores):
            return self._whole(image, questions)
        if prefix is not None and self._before(prefix.ids) == befores[0]:
            return prefix.last_logits(tails)
        with lvlm.vocabulary.lock:
            inputs = lvlm.to_device(lvlm.chat_inputs([image], questions[:1], at_once=True))
        length = self._prefix_length(inputs["input_ids"][0])
        if inputs["input_ids"][0, length:].tolist() != tails[0]:
            return self._whole(image, questions)
        return ImagePrefix(lvlm.model, inputs, length).last_logits(tails)

    def claims(self, image: Image.Image, named: Sequence[Thing], prefix: ImagePrefix | None = None) -> list[Claim]:
        """Ask about objects; otherwise as `last_logits`."""
        if not named:
            return []
        logprobs = self.last_logits(image, self.questions(named), prefix).log_softmax(dim=-1)  # [Q, V]
        # In logarithms, because both may underflow a float.
        yes, no = (logprobs[:, tokens].logsumexp(dim=1) for tokens in (self._yes, self._no))  # [Q]
        support, neither = (yes - no).sigmoid().tolist(), (1 - yes.exp() - no.exp()).clamp(min=0).tolist()
        return [Claim(one.name, one.spans, *each) for one, *each in zip(named, support, neither, strict=True)]

    def _answer(self, image: Image.Image, prompt: str) -> str:
        """Return the model's answer to a prompt, decoded greedily."""
        lvlm = self._lvlm
        try:
            lvlm.check_prompt(prompt)
        except SettingsError as error:
            raise PictureSettingsError(str(error)) from None
        with lvlm.vocabulary.lock:
            inputs = lvlm.to_device(lvlm.chat_inputs([image], [prompt], at_once=True))
        output = lvlm.model.generate(**inputs, max_new_tokens=LIST_TOKENS, do_sample=False)
        return lvlm.vocabulary.text(output[0, inputs["input_ids"].shape[1] :].tolist())

    def _word(self, questions: Sequence[str]) -> None:
        """Find the tokens before and after the picture in the prompt of each question.

        The prompts are made with a small picture: the tokens around a picture do not depend on it.
        """
        if not questions:
            return
        lvlm = self._lvlm
        probe = Image.new("RGB", (_PROBE, _PROBE))
        with lvlm.vocabulary.lock:
            inputs = lvlm.chat_inputs([probe] * len(questions), questions, at_once=True)
        for question, row, seen in zip(questions, inputs["input_ids"], inputs["attention_mask"], strict=True):
            ids = row[seen.bool()]
            self._worded[question] = self._before(ids), ids[self._prefix_length(ids) :].tolist()

    def _before(self, ids: Tensor) -> list[int]:
        """Return the tokens before the picture in a prompt `[S]`."""
        tokens: list[int] = ids[: int(self._lvlm.find_image(ids[None])[0].nonzero().min())].tolist()
        return tokens

    def _whole(self, image: Image.Image, questions: Sequence[str]) -> Tensor:
        """Ask each question as a prompt of its own; otherwise as `last_logits`."""
        lvlm = self._lvlm
        parts = []
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            with lvlm.vocabulary.lock:
                inputs = lvlm.to_device(lvlm.chat_inputs([image] * len(batch), batch, at_once=True))
            # generate makes the masks and positions of the prompts, as in `sira ask`
            output = lvlm.model.generate(
                **inputs,
                max_new_tokens=1,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
            parts.append(output.logits[0].float())
        return torch.cat(parts)

    def _prefix_length(self, ids: Tensor) -> int:
        """Return the number of rows of a prompt `[S]` up to the last image row."""
        return int(self._lvlm.find_image(ids[None])[0].nonzero().max()) + 1


class PictureLook:
    """A second look at one picture, or at a group: an object that several texts name is asked about once.

    Attributes:
        finder: as of the `SecondLook`.
    """

    def __init__(self, look: SecondLook, image: Shown, prefix: ImagePrefix | None = None) -> None:
        self._look, self._images, self._prefix = look, pictures_of(image), prefix
        self.finder = look.finder
        self._known: dict[str, Claim] = {}

    def check(self, text: str, named: Sequence[Thing] | None = None) -> Check:
        """Ask about each object of a text, unless an earlier one named it; `named`: its objects, if they are known."""

        def ask(new: Sequence[Thing]) -> list[Claim]:
            return best_of([self._look.claims(image, new, self._prefix) for image in self._images])

        named = self._look.named(self._images[0], text) if named is None else named
        return self.finder.check(text, named, self._known, ask)
