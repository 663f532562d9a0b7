"""A second look: is each object that a text names in the picture? The model is asked about every one.

    the picture and the prompt's rows before it    computed once (`core.prefix`)
    "Is there a dog in the image?"                 a few rows each, all questions of a picture together
    support = P(yes) / (P(yes) + P(no))            over all spellings of yes and no, of the first token

The unchanged model answers (the full stream at temperature 0), whatever method wrote the text, after an empty thought
if it can think.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sira_cli.core.prefix import BIDIRECTIONAL, ImagePrefix
from sira_cli.errors import UnsupportedModelError
from sira_cli.language import things
from sira_cli.language.things import Thing, Words
from sira_cli.models.decoding import DecodingModel
from sira_cli.models.look.claims import NO, YES, Check, Claim, question_about
from sira_cli.models.look.verify import ROUNDS as ROUNDS  # both are also public here
from sira_cli.models.look.verify import Verify as Verify
from sira_cli.models.starts import Trail

BATCH = 8  # whole prompts decoded together, if the prefix cannot be shared
_PROBE = 64  # side in pixels of the picture in the prompts of questions


class SecondLook:
    """Asks a loaded model about the objects that texts name."""

    def __init__(self, lvlm: DecodingModel, words: Words | None = None) -> None:
        """Prepare to ask.

        Args:
            lvlm: the model; its preset has the question (`prompts.verify`).
            words: the objects to recognise; None: the bundled list.

        Raises:
            UnsupportedModelError: the tokenizer has no token for yes or no.
        """
        self._lvlm = lvlm
        self.words = words or things.shipped()
        self._yes, self._no = self._spellings(YES), self._spellings(NO)
        self._worded: dict[str, tuple[list[int], list[int]]] = {}  # tokens before and after the picture

    def check(self, image: Image.Image, text: str) -> Check:
        """Ask about each object that a text names.

        Args:
            image: the picture, RGB.
            text: the text about it.
        """
        return PictureLook(self, image).check(text)

    def at(self, images: Sequence[Image.Image], inputs: Any, trail: Trail) -> list[PictureLook]:
        """Return looks at pictures that were just decoded, which reuse the computations of decoding.

        Args:
            images: B pictures, RGB.
            inputs: the decoded inputs, on the model's device.
            trail: the trail of decoding them.
        """
        if trail.cache is None:
            return [PictureLook(self, image) for image in images]
        found = self._lvlm.find_image(inputs["input_ids"])
        return [
            PictureLook(self, image, ImagePrefix.of(self._lvlm.model, inputs, found, row, trail.cache, row))
            for row, image in enumerate(images)
        ]

    def questions(self, named: Sequence[Thing]) -> list[str]:
        """Return the question about each object."""
        wording = self._lvlm.preset.prompts.verify
        return [question_about(wording, thing) for thing in named]

    @torch.no_grad()
    def last_logits(self, image: Image.Image, questions: Sequence[str], prefix: ImagePrefix | None = None) -> Tensor:
        """Return the model's logits of the first token of each answer: `[Q, V]` float32.

        Args:
            image: the picture, RGB.
            questions: Q questions in their final wording.
            prefix: first rows of another prompt about the picture, used if they equal those of the questions.
        """
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
        yes, no = (logprobs[:, ids].logsumexp(dim=1) for ids in (self._yes, self._no))  # [Q]
        support, neither = (yes - no).sigmoid(), (1 - yes.exp() - no.exp()).clamp(min=0)
        return [
            Claim(thing.name, thing.spans, *numbers)
            for thing, *numbers in zip(named, support.tolist(), neither.tolist(), strict=True)
        ]

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
        """Ask each question as a prompt of its own."""
        lvlm = self._lvlm
        parts = []
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            with lvlm.vocabulary.lock:
                inputs = lvlm.to_device(lvlm.chat_inputs([image] * len(batch), batch, at_once=True))
            # generate makes the masks and positions of the prompts, as in `sira ask`
            output = lvlm.model.generate(
                **inputs, max_new_tokens=1, do_sample=False, return_dict_in_generate=True, output_logits=True
            )
            parts.append(output.logits[0].float())
        return torch.cat(parts)

    def _prefix_length(self, ids: Tensor) -> int:
        """Return the number of rows of a prompt `[S]` up to the last image row."""
        return int(self._lvlm.find_image(ids[None])[0].nonzero().max()) + 1

    def _spellings(self, words: Sequence[str]) -> list[int]:
        """Return the tokens that begin an answer and are a whole word of these.

        Raises:
            UnsupportedModelError: no such token exists.
        """
        vocabulary = self._lvlm.vocabulary
        found = {ids[0] for word in words for text in (word, f" {word}") if len(ids := vocabulary.encode(text)) == 1}
        if not found:
            raise UnsupportedModelError(f"the tokenizer has no token for {words[0]!r}: objects cannot be asked about")
        return sorted(found)


class PictureLook:
    """A second look at one picture: an object that several texts name is asked about once."""

    def __init__(self, look: SecondLook, image: Image.Image, prefix: ImagePrefix | None = None) -> None:
        self._look, self._image, self._prefix = look, image, prefix
        self._known: dict[str, Claim] = {}

    @property
    def words(self) -> Words:
        """The objects to recognise."""
        return self._look.words

    def check(self, text: str, named: Sequence[Thing] | None = None) -> Check:
        """Ask about each object that a text names, unless an earlier text named it; None: find them in the text."""
        named = self.words.things(text) if named is None else named
        new = [thing for thing in named if thing.name not in self._known]
        self._known |= {claim.thing: claim for claim in self._look.claims(self._image, new, self._prefix)}
        claims = (replace(self._known[thing.name], spans=thing.spans) for thing in named)
        return Check(text, tuple(claims), self.words.name)

    def supported(self, line: float) -> frozenset[str]:
        """Return the objects asked about so far whose support is not below a line."""
        return frozenset(name for name, claim in self._known.items() if claim.support >= line)
