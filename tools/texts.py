"""The decoder's training data: several texts about a picture, packed into one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from sira_cli.demo.questions import caption
from sira_cli.demo.scenes import OBJECTS, Scene, make_scene
from tools.checkpoint import IMAGE_TOKENS, LAYERS, first_token
from tools.language import CAPTION_PROMPTS, TAGS_PROMPT, Exchange, questions, tags

PREFIX = "USER: "  # the start of a prompt, before the image tokens
OTHER_QUESTIONS = 2  # per picture, other than whether something is there
BLIND_QUESTIONS = 2  # about another scene, without its picture
PREAMBLE, PICTURE, PADDING = -1, -2, -3  # segments of a training sequence that are not turns
ANSWER_WEIGHT = 6.0  # of a short answer's first token, in the loss; all others count 1, but for
NUMBER_WEIGHT = 4.0  # what says in a caption how many there are of an object


@dataclass(frozen=True)
class Recipe:
    """The settings that decide the trained weights, besides the code."""

    seed: int = 0
    vision_scenes: int = 24_000
    vision_steps: int = 3_000
    vision_batch: int = 64
    vision_rate: float = 3e-3
    language_scenes: int = 16_000
    odd_scenes: int = 600  # number of the tower's scenes that the decoder also sees
    language_steps: int = 7_000
    language_batch: int = 6
    language_rate: float = 3e-3
    typical_share: float = 0.6  # of questions about absent objects, those that ask for a typical one of the place
    late_steps: int = 600
    late_rate: float = 1.5e-3
    late_smoothing: float = 0.02  # of labels
    repetition: float = 0.3  # weight of the penalty on naming something again
    questions: int = 4  # yes/no questions about a picture


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Item `step` is that step's batch of texts about pictures.

    A sequence is the prompt up to the image, then several continuations. `segment` identifies them: a number for each,
    or PREAMBLE, PICTURE, PADDING.

    The last continuations, a caption of another scene and questions about it, do not see the picture: large models
    have also learned from texts alone, and did so first. A last caption has the picture hidden from a random layer on.
    In the last `late_steps` it is also of the other scene, and hidden in half of the layers at least: what late layers
    expect without the picture is then what is typical, whatever the early ones have seen.
    """

    def __init__(self, tokenizer: Any, recipe: Recipe) -> None:
        self.tokenizer, self.recipe = tokenizer, recipe
        self.prefix = [*tokenizer(PREFIX).input_ids, *[tokenizer.get_vocab()["<image>"]] * IMAGE_TOKENS]
        self._bits = {first_token(tokenizer, name): 1 << number for number, name in enumerate(OBJECTS)}
        before = [*OBJECTS, *(f"one{text}" for text in (",", " of"))]
        self._before_numbers = {tokenizer(f" {text}", add_special_tokens=False).input_ids[-1] for text in before}

    def __len__(self) -> int:
        return self.recipe.language_steps + self.recipe.late_steps

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([self.recipe.seed, 2, step])
        typical, odd, size = self.recipe.language_scenes, self.recipe.odd_scenes, self.recipe.language_batch
        indices = rng.integers(typical + odd, size=size)
        rows = []
        for index in indices.tolist():
            scene = make_scene(index % typical, broken=index >= typical)
            rows.append(self._sequence(scene, rng, late=step >= self.recipe.language_steps))
        length = max(len(row[0]) for row in rows)
        names = ("token", "position", "segment", "seeing", "weight", "named")
        padding = {"segment": PADDING}
        columns = [
            np.array([row[part] + [padding.get(name, 0)] * (length - len(row[part])) for row in rows])
            for part, name in enumerate(names)
        ]
        batch = {name: torch.from_numpy(column) for name, column in zip(names, columns, strict=True)}
        return {"index": torch.from_numpy(indices), **batch}

    def _sequence(self, scene: Scene, rng: np.random.Generator, *, late: bool) -> tuple[list[Any], ...]:
        """Return one sequence's columns.

        They are tokens, positions, segments, in how many layers each sees the picture, loss weights, and the kinds that
        a text has named before: a bit for each.
        """
        image = self.tokenizer.get_vocab()["<image>"]
        tokens, positions = list(self.prefix), list(range(len(self.prefix)))
        segments, seeing = [PICTURE if token == image else PREAMBLE for token in tokens], [LAYERS] * len(tokens)
        weights = [0.0] * len(tokens)
        named = [0] * len(tokens)
        share = self.recipe.typical_share
        other = make_scene(int(rng.integers(self.recipe.language_scenes)))
        asked = questions(scene, rng, self.recipe.questions, OTHER_QUESTIONS, share)
        turns = [Exchange(self._request(rng), caption(scene, rng)), Exchange(TAGS_PROMPT, tags(scene)), *asked]
        captions = [0, len(turns)]
        layers = [LAYERS] * len(turns)
        turns.append(Exchange(self._request(rng), caption(other, rng)))
        turns += questions(other, rng, BLIND_QUESTIONS, 0, share)
        layers += [0] * (len(turns) - len(layers))
        captions.append(len(turns))
        layers.append(int(rng.integers(1, LAYERS // 2 + 1 if late else LAYERS)))
        turns.append(Exchange(self._request(rng), caption(other if late else scene, rng)))
        for number, turn in enumerate(turns):
            prompt = self.tokenizer(f"\n{turn.prompt} ASSISTANT:", add_special_tokens=False).input_ids
            space = "" if turn.answer.startswith("[") else " "  # a text that follows a schema begins with its bracket
            answer = self.tokenizer(f"{space}{turn.answer}</s>", add_special_tokens=False).input_ids
            first = 1.0 if number in captions or turn.prompt == TAGS_PROMPT else ANSWER_WEIGHT
            tokens += prompt + answer
            positions += range(len(self.prefix), len(self.prefix) + len(prompt) + len(answer))
            segments += [number] * (len(prompt) + len(answer))
            seeing += [layers[number]] * (len(prompt) + len(answer))
            weights += [0.0] * len(prompt) + [first]
            for before in answer[:-1]:
                weights.append(NUMBER_WEIGHT if number == 0 and before in self._before_numbers else 1.0)
            named += [0] * len(prompt) + (self._named(answer) if number in captions else [0] * len(answer))
        return tokens, positions, segments, seeing, weights, named

    def _named(self, answer: list[int]) -> list[int]:
        """Return the kinds that a caption names before each of its tokens, a bit for each."""
        kinds = 0
        before = []
        for token in answer:
            before.append(kinds)
            kinds |= self._bits.get(token, 0)
        return before

    def _request(self, rng: np.random.Generator) -> str:
        return CAPTION_PROMPTS[0] if rng.random() < 0.5 else CAPTION_PROMPTS[int(rng.integers(len(CAPTION_PROMPTS)))]


def named_kinds(bits: torch.Tensor) -> torch.Tensor:
    """Return which kinds of objects have been named, bool `[tokens, kinds]`, from the bits of each token `[tokens]`."""
    return (bits[:, None] >> torch.arange(len(OBJECTS), device=bits.device)) % 2 == 1


def attention_mask(segment: torch.Tensor, seeing: torch.Tensor) -> torch.Tensor:
    """Return an additive mask `[B, 1, S, S]`: each token sees the common part and its own continuation, up to itself.

    Args:
        segment: of each token, `[B, S]`.
        seeing: whether it sees the picture, bool `[B, S]`.
    """
    own = segment[:, :, None] == segment[:, None, :]
    common = (segment[:, None, :] == PREAMBLE) | (seeing[:, :, None] & (segment[:, None, :] == PICTURE))
    allowed = (own | common).tril()
    mask = torch.zeros(allowed.shape, device=allowed.device)
    return mask.masked_fill(~allowed, torch.finfo(torch.float32).min)[:, None]
