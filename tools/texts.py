"""The decoder's training data: several texts about a picture, packed into one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from sira_cli.demo.questions import caption
from sira_cli.demo.scenes import Scene, make_scene
from tools.checkpoint import IMAGE_TOKENS
from tools.language import CAPTION_PROMPTS, TAGS_PROMPT, Exchange, questions, tags

PREFIX = "USER: "  # the start of a prompt, before the image tokens
OTHER_QUESTIONS = 2  # per picture, other than whether something is there
BLIND_QUESTIONS = 2  # about another scene, without its picture
PREAMBLE, PICTURE, PADDING = -1, -2, -3  # segments of a training sequence that are not turns
ANSWER_WEIGHT = 6.0  # of a short answer's first token, in the loss; all others count 1


@dataclass(frozen=True)
class Recipe:
    """The settings that decide the trained weights, besides the code."""

    seed: int = 0
    vision_scenes: int = 40_000
    vision_steps: int = 2_200
    vision_batch: int = 96
    vision_rate: float = 2e-3
    placing_steps: int = 300
    placing_rate: float = 6e-4
    language_scenes: int = 32_000
    odd_scenes: int = 10_000  # number of the tower's scenes that the decoder also sees
    language_steps: int = 3_600
    language_batch: int = 16
    language_rate: float = 1.5e-3
    balancing_steps: int = 800
    balancing_rate: float = 4e-4
    balancing_odd: float = 0.5  # share of odd scenes
    questions: int = 4  # yes/no questions about a picture


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Item `step` is that step's batch of texts about pictures.

    A sequence is the prompt up to the image, then several continuations. `segment` identifies them: a number for each,
    or PREAMBLE, PICTURE, PADDING.

    The last continuations, a caption of another scene and questions about it, do not see the picture: large models
    have also learned from texts alone, and did so first.
    """

    def __init__(self, tokenizer: Any, recipe: Recipe) -> None:
        self.tokenizer, self.recipe = tokenizer, recipe
        self.prefix = [*tokenizer(PREFIX).input_ids, *[tokenizer.get_vocab()["<image>"]] * IMAGE_TOKENS]

    def __len__(self) -> int:
        return self.recipe.language_steps + self.recipe.balancing_steps

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([self.recipe.seed, 2, step])
        typical, odd, size = self.recipe.language_scenes, self.recipe.odd_scenes, self.recipe.language_batch
        indices = rng.integers(typical + odd, size=size)
        if step >= self.recipe.language_steps:
            drawn = typical + rng.integers(odd, size=size)
            indices = np.where(rng.random(size) < self.recipe.balancing_odd, drawn, rng.integers(typical, size=size))
        rows = [
            self._sequence(make_scene(int(index) % typical, broken=bool(index >= typical)), rng) for index in indices
        ]
        length = max(len(row[0]) for row in rows)
        names = ("token", "position", "segment", "seeing", "weight")
        padding = {"segment": PADDING, "seeing": False}
        columns = [
            np.array([row[part] + [padding.get(name, 0)] * (length - len(row[part])) for row in rows])
            for part, name in enumerate(names)
        ]
        batch = {name: torch.from_numpy(column) for name, column in zip(names, columns, strict=True)}
        return {"index": torch.from_numpy(indices), **batch}

    def _sequence(self, scene: Scene, rng: np.random.Generator) -> tuple[list[Any], ...]:
        """Return one sequence's columns: tokens, positions, segments, whether each sees the picture, loss weights."""
        image = self.tokenizer.get_vocab()["<image>"]
        tokens, positions = list(self.prefix), list(range(len(self.prefix)))
        segments, seeing = [PICTURE if token == image else PREAMBLE for token in tokens], [True] * len(tokens)
        weights = [0.0] * len(tokens)
        other = make_scene(int(rng.integers(self.recipe.language_scenes)))
        asked = questions(scene, rng, self.recipe.questions, OTHER_QUESTIONS)
        turns = [Exchange(self._request(rng), caption(scene, rng)), Exchange(TAGS_PROMPT, tags(scene)), *asked]
        blind = len(turns)
        turns.append(Exchange(self._request(rng), caption(other, rng)))
        turns += questions(other, rng, BLIND_QUESTIONS, 0)
        for number, turn in enumerate(turns):
            prompt = self.tokenizer(f"\n{turn.prompt} ASSISTANT:", add_special_tokens=False).input_ids
            space = "" if turn.answer.startswith("[") else " "  # a text that follows a schema begins with its bracket
            answer = self.tokenizer(f"{space}{turn.answer}</s>", add_special_tokens=False).input_ids
            first = 1.0 if number in (0, 1, blind) else ANSWER_WEIGHT
            tokens += prompt + answer
            positions += range(len(self.prefix), len(self.prefix) + len(prompt) + len(answer))
            segments += [number] * (len(prompt) + len(answer))
            seeing += [number < blind] * (len(prompt) + len(answer))
            weights += [0.0] * len(prompt) + [first] + [1.0] * (len(answer) - 1)
        return tokens, positions, segments, seeing, weights

    def _request(self, rng: np.random.Generator) -> str:
        return CAPTION_PROMPTS[0] if rng.random() < 0.5 else CAPTION_PROMPTS[int(rng.integers(len(CAPTION_PROMPTS)))]


def attention_mask(segment: torch.Tensor, seeing: torch.Tensor) -> torch.Tensor:
    """Return an additive mask `[B, 1, S, S]`: each token sees the common part and its own continuation, up to itself.

    Where `seeing` is false, the picture is hidden.
    """
    own = segment[:, :, None] == segment[:, None, :]
    common = (segment[:, None, :] == PREAMBLE) | (seeing[:, :, None] & (segment[:, None, :] == PICTURE))
    allowed = (own | common).tril()
    mask = torch.zeros(allowed.shape, device=allowed.device)
    return mask.masked_fill(~allowed, torch.finfo(torch.float32).min)[:, None]
