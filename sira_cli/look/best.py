"""The best supported of several captions of a picture: no token is forced, and each is as it was decoded.

captions     the method's own, and samples of it
questions    each object that any of them names, asked about once
the text     that of the best caption, unchanged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sira_cli.look.claims import unsupported
from sira_cli.look.second_look import SecondLook
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import Trail
from sira_cli.models.several import several
from sira_cli.models.texts import Answer

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown
    from sira_cli.models.schema import Schema


@dataclass(frozen=True)
class BestCaptions:
    """Captions that are chosen among several, with a loaded model and its method.

    Attributes:
        lvlm: the model.
        look: its second look.
        kind: of the task, `caption` or `ask`.
        schema: a schema that all captions follow.
    """

    lvlm: LoadedModel
    look: SecondLook
    kind: str
    schema: Schema | None

    def answers(self, images: Sequence[Shown], inputs: Any, seeds: Sequence[int]) -> list[Answer]:
        """Return the best caption of each of B pictures.

        Args:
            images: the pictures.
            inputs: of their prompts, on the model's device.
            seeds: one per picture.

        Returns:
            B answers. Where the best is not the method's own, `draft` is that one, and `removed` its objects that the
            best does not name.
        """
        trail = Trail(range(len(images)))
        drawn = self.drawn(inputs, seeds, trail)
        looks = self.look.at(images, inputs, trail)
        answers = []
        for captions, look in zip(drawn, looks, strict=True):
            checked = [look.checked(caption, self.schema) for caption in captions]
            answers.append(chosen(checked))
        return answers

    def drawn(self, inputs: Any, seeds: Sequence[int], trail: Trail) -> list[list[Answer]]:
        """Return the captions of each picture, the method's own first."""
        lvlm = self.lvlm
        settings = lvlm.preset.best
        texts = several(
            lvlm,
            inputs,
            seeds,
            count=settings.captions,
            heat=settings.heat,
            task=self.kind,
            trail=trail,
            schema=self.schema,
        )
        counts = zip(texts.tokens, *lvlm.lengths(inputs), strict=True)
        return [
            [lvlm.answer_of(tokens, image_tokens, prompt_tokens, self.schema) for tokens in rows]
            for rows, image_tokens, prompt_tokens in counts
        ]


def chosen(captions: Sequence[Answer]) -> Answer:
    """Return the best of a picture's captions; the first of equals.

    The first of them is the method's own. Another one has it as its `draft`, with the objects that are `removed`.
    """
    own = captions[0]
    best = min(captions, key=lambda caption: rank(vars(caption)))
    if best is own:
        return own
    named = {claim["thing"] for claim in best.objects or ()}
    removed = []
    for claim in own.objects or ():
        if claim["thing"] not in named:
            removed.append({"thing": claim["thing"], "support": claim["support"]})
    return replace(best, draft=own.text, removed=removed)


def rank(record: Mapping[str, Any]) -> tuple[bool, int, int]:
    """Return the place of a caption among others of its picture: the smallest is the best.

    A caption that failed or is empty is the last. Of the others the fewest unsupported objects count, then the most
    supported ones.

    Args:
        record: of a caption with its second look, or the fields of an `Answer`.
    """
    doubted = len(unsupported(record))
    supported = len(record.get("objects") or ()) - doubted
    return bool(record["error"]) or not record["text"].strip(), doubted, -supported
