"""Train the bundled model from scratch: `python -m sira_cli.demo.train`.

1. Render the training scenes, in worker processes.
2. Vision: the CLIP tower and the projector learn, for each patch, which objects and colours lie under it, and
   then, beside that, to keep in which row and column the patch is: without it they forget.
3. Language: tower and projector are frozen; the decoder learns captions and answers. All texts about a
   picture share one copy of it in a sequence, each seeing the picture and itself only.

Trained end to end on captions alone, a model of this size learns the language and ignores the picture.

Every step's batch follows from the seed and the step's number, so an interrupted run that is started
again goes on from its last saved state and ends as if it had never stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from sira_cli import presets
from sira_cli.demo import checkpoint
from sira_cli.demo.checkpoint import IMAGE_MEAN, IMAGE_SIDE, IMAGE_STD, IMAGE_TOKENS, WIDTH
from sira_cli.demo.language import CAPTION_PROMPTS, Turn, caption, questions
from sira_cli.demo.scenes import SIDE, TRAINING_SEEDS, Scene, render, scene
from sira_cli.demo.world import COLORS, OBJECTS
from sira_cli.errors import SettingsError

LABELS = len(OBJECTS) + len(COLORS) + 1  # per patch: each object, each colour, "the middle of something"
GRID = math.isqrt(IMAGE_TOKENS)  # patches in a row, and in a column
MIN_PATCH_SHARE = 0.05  # of a patch, for a thing to count as lying under it
PREFIX = "USER: "  # of a prompt, before the image tokens
ANSWER_WEIGHT = 6.0  # of a short answer's first token, in the loss; all others count 1


@dataclass(frozen=True)
class Recipe:
    """What decides the trained weights, beside the code."""

    seed: int = 0
    vision_scenes: int = 40_000
    vision_steps: int = 2_200
    vision_batch: int = 96
    vision_rate: float = 2e-3
    placing_steps: int = 300
    placing_rate: float = 6e-4
    language_scenes: int = 32_000
    odd_scenes: int = 8_000  # of the tower's, which the decoder sees too
    language_steps: int = 1_900
    language_batch: int = 16
    language_rate: float = 1.2e-3
    questions: int = 8  # yes/no questions about a picture; one or none of each other sort


class Pictures:
    """Rendered training scenes, on disk.

    The tower learns from scenes with broken co-occurrence, so that it sees what is there whatever the
    place, as one trained on all sorts of pictures does; what usually goes together is learned by the decoder.

    Attributes:
        pixels: uint8 `[N, IMAGE_SIDE, IMAGE_SIDE, 3]`, resized as the image processor does it.
        labels: uint8 `[N, IMAGE_TOKENS, ceil(LABELS / 8)]`, packed bits.
    """

    def __init__(self, folder: Path, count: int, broken: bool) -> None:
        self.name = "broken" if broken else "typical"
        self._broken = broken
        self.pixels = _open(folder / f"{self.name}-pixels.npy", np.uint8, (count, IMAGE_SIDE, IMAGE_SIDE, 3))
        packed = (count, IMAGE_TOKENS, math.ceil(LABELS / 8))
        self.labels = _open(folder / f"{self.name}-labels.npy", np.uint8, packed)
        self._done = folder / f"{self.name}-{count}-rendered"

    def render(self, workers: int) -> None:
        """Fill both arrays, unless they are filled already."""
        if self._done.exists():
            return
        count = len(self.pixels)
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            progress = Progress(f"rendering {self.name} scenes", 0, count, every=count // 10 or 1)
            rendered = pool.imap(functools.partial(_rendered, self._broken), TRAINING_SEEDS[:count], chunksize=50)
            for index, (pixels, labels) in enumerate(rendered):
                self.pixels[index], self.labels[index] = pixels, labels
                progress.step()
        self._done.touch()

    def batch(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised pixels float32 `[B, 3, IMAGE_SIDE, IMAGE_SIDE]`, labels float32 `[B, IMAGE_TOKENS, LABELS]`."""
        pixels = torch.from_numpy(self.pixels[indices]).permute(0, 3, 1, 2) / 255
        pixels = (pixels - torch.tensor(IMAGE_MEAN)[:, None, None]) / torch.tensor(IMAGE_STD)[:, None, None]
        labels = np.unpackbits(self.labels[indices], axis=-1, count=LABELS)
        return pixels, torch.from_numpy(labels).float()


def patch_labels(of: Scene, seen: np.ndarray) -> np.ndarray:
    """bool `[IMAGE_TOKENS, LABELS]`: what lies under each patch of a rendered scene."""
    patch = SIDE // GRID
    under = seen.reshape(GRID, patch, GRID, patch).transpose(0, 2, 1, 3).reshape(IMAGE_TOKENS, -1)
    labels = np.zeros((IMAGE_TOKENS, LABELS), bool)
    names, colors = list(OBJECTS), list(COLORS)
    for index, thing in enumerate(of.things, start=1):
        there = (under == index).mean(axis=1) >= MIN_PATCH_SHARE
        labels[there, names.index(thing.name)] = True
        labels[there, len(names) + colors.index(thing.color)] = True
        x, y = (thing.box[0] + thing.box[2]) // 2, (thing.box[1] + thing.box[3]) // 2
        labels[(y // patch) * GRID + x // patch, -1] = True
    return labels


class Progress:
    """A line now and then: how far, the mean loss since the last line, time left."""

    def __init__(self, name: str, done: int, total: int, every: int) -> None:
        self.name, self.done, self.total, self.every = name, done, total, every
        self._losses: list[float] = []
        self._first, self._began = done, time.monotonic()

    def step(self, loss: float | None = None) -> None:
        """Count one more."""
        self.done += 1
        if loss is not None:
            self._losses.append(loss)
        if self.done % self.every and self.done != self.total:
            return
        pace = (time.monotonic() - self._began) / (self.done - self._first)
        mean = f"  loss {sum(self._losses) / len(self._losses):.4f}" if self._losses else ""
        left = pace * (self.total - self.done) / 60
        print(f"{self.name} {self.done}/{self.total}{mean}  {pace:.3f} s each  {left:.1f} min left", flush=True)
        self._losses.clear()


class Stage:
    """Parameters under training, with an optimizer, a schedule and a file to resume from."""

    def __init__(self, name: str, folder: Path, module: torch.nn.Module, steps: int, rate: float) -> None:
        self.name, self.steps, self.rate, self.module = name, steps, rate, module
        self._path = folder / f"{name}.pt"
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": 0.05},
                {"params": [p for p in module.parameters() if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=rate,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.done = 0
        self.seconds = 0.0
        self.loss = math.nan  # a running mean
        if self._path.exists():
            state = torch.load(self._path, weights_only=True)
            module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.done, self.seconds, self.loss = state["done"], state["seconds"], state["loss"]

    def run(self, losses: Iterator[torch.Tensor], save_every: int = 200) -> None:
        """Take the steps that are left; `losses` gives the loss of each in turn."""
        progress = Progress(self.name, self.done, self.steps, every=50)
        self.module.train()
        began = time.monotonic() - self.seconds
        for loss in losses:
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate_now()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            self._optimizer.step()
            self.done += 1
            progress.step(loss.item())
            self.loss = loss.item() if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * loss.item()
            self.seconds = time.monotonic() - began
            if self.done % save_every == 0 or self.done == self.steps:
                self._save()
        self.module.eval()

    def _rate_now(self) -> float:
        warm = min(1.0, (self.done + 1) / 100)
        return self.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.done / self.steps)))

    def _save(self) -> None:
        state: dict[str, Any] = {"module": self.module.state_dict(), "optimizer": self._optimizer.state_dict()}
        state |= {"done": self.done, "seconds": self.seconds, "loss": self.loss}
        torch.save(state, self._path.with_suffix(".new"))
        self._path.with_suffix(".new").replace(self._path)


def train_vision(model: Any, pictures: Pictures, recipe: Recipe, folder: Path) -> list[Stage]:
    """Tower and projector: which objects and colours lie under each patch; then also where the patch is."""
    torch.manual_seed(recipe.seed)
    head, place = torch.nn.Linear(WIDTH, LABELS), torch.nn.Linear(WIDTH, 2 * GRID)
    torch.nn.init.constant_(head.bias, -3.0)  # few labels hold
    seeing = torch.nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector, head])
    placing = torch.nn.ModuleList([*seeing, place])
    rows, columns = torch.arange(IMAGE_TOKENS) // GRID, torch.arange(IMAGE_TOKENS) % GRID
    stages = []
    for name, module, steps, rate in (
        ("vision", seeing, recipe.vision_steps, recipe.vision_rate),
        ("placing", placing, recipe.placing_steps, recipe.placing_rate),
    ):
        stage = Stage(name, folder, module, steps, rate)

        def losses(stage: Stage = stage, places: bool = name == "placing") -> Iterator[torch.Tensor]:
            for step in range(stage.done, stage.steps):
                rng = np.random.default_rng([recipe.seed, 3 if places else 1, step])
                pixels, labels = pictures.batch(np.sort(rng.integers(recipe.vision_scenes, size=recipe.vision_batch)))
                features = image_features(model, pixels)  # [B, IMAGE_TOKENS, WIDTH]
                loss = F.binary_cross_entropy_with_logits(head(features), labels, reduction="none").sum(-1).mean()
                if places:
                    row, column = place(features).transpose(1, 2).chunk(2, dim=1)  # [B, GRID, IMAGE_TOKENS] each
                    wanted = (rows.expand(len(labels), -1), columns.expand(len(labels), -1))
                    loss = loss + F.cross_entropy(row, wanted[0]) + F.cross_entropy(column, wanted[1])
                yield loss

        stage.run(losses())
        stages.append(stage)
    return stages


def image_features(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What the projector hands the decoder: `[B, IMAGE_TOKENS, WIDTH]` from pixels `[B, 3, H, W]`."""
    hidden = model.model.vision_tower(pixels).last_hidden_state  # [B, 1 + IMAGE_TOKENS, WIDTH]
    features: torch.Tensor = model.model.multi_modal_projector(hidden[:, 1:])
    return features


def encode_pictures(model: Any, pictures: Pictures, count: int, folder: Path) -> np.ndarray:
    """The first pictures' features by the trained tower, float16 `[count, IMAGE_TOKENS, WIDTH]`, on disk."""
    features = _open(folder / f"{pictures.name}-features.npy", np.float16, (count, IMAGE_TOKENS, WIDTH))
    done = folder / f"{pictures.name}-{count}-encoded"
    if not done.exists():
        progress = Progress(f"encoding {pictures.name} scenes", 0, math.ceil(count / 100), every=100)
        with torch.inference_mode():
            for start in range(0, count, 100):
                pixels, _ = pictures.batch(np.arange(start, min(start + 100, count)))
                features[start : start + 100] = image_features(model, pixels).half().numpy()
                progress.step()
        done.touch()
    return features


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Item `step` is that step's batch of texts about pictures.

    A sequence is the prompt up to the image, then several continuations. They are told apart by
    `segment`: 0 the common part, 1, 2, ... a continuation each, -1 padding.
    """

    def __init__(self, tokenizer: Any, recipe: Recipe) -> None:
        self.tokenizer, self.recipe = tokenizer, recipe
        self.prefix = [*tokenizer(PREFIX).input_ids, *[tokenizer.get_vocab()["<image>"]] * IMAGE_TOKENS]

    def __len__(self) -> int:
        return self.recipe.language_steps

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([self.recipe.seed, 2, step])
        typical = self.recipe.language_scenes
        indices = rng.integers(typical + self.recipe.odd_scenes, size=self.recipe.language_batch)
        rows = [self._sequence(scene(int(index) % typical, broken=bool(index >= typical)), rng) for index in indices]
        length = max(len(row[0]) for row in rows)
        names = ("token", "position", "segment", "weight")
        columns = [
            np.array([row[part] + [-1 if name == "segment" else 0] * (length - len(row[part])) for row in rows])
            for part, name in enumerate(names)
        ]
        batch = {name: torch.from_numpy(column) for name, column in zip(names, columns, strict=True)}
        return {"index": torch.from_numpy(indices), **batch}

    def _sequence(self, of: Scene, rng: np.random.Generator) -> tuple[list[int], list[int], list[int], list[float]]:
        tokens, positions = list(self.prefix), list(range(len(self.prefix)))
        segments, weights = [0] * len(tokens), [0.0] * len(tokens)
        request = CAPTION_PROMPTS[0] if rng.random() < 0.5 else CAPTION_PROMPTS[int(rng.integers(len(CAPTION_PROMPTS)))]
        turns = [Turn(request, caption(of, rng)), *questions(of, rng, self.recipe.questions)]
        for number, turn in enumerate(turns, start=1):
            asked = self.tokenizer(f"\n{turn.prompt} ASSISTANT:", add_special_tokens=False).input_ids
            answer = self.tokenizer(f" {turn.answer}</s>", add_special_tokens=False).input_ids
            tokens += asked + answer
            positions += range(len(self.prefix), len(self.prefix) + len(asked) + len(answer))
            segments += [number] * (len(asked) + len(answer))
            weights += [0.0] * len(asked) + [1.0 if number == 1 else ANSWER_WEIGHT] + [1.0] * (len(answer) - 1)
        return tokens, positions, segments, weights


def attention_mask(segment: torch.Tensor) -> torch.Tensor:
    """Additive `[B, 1, S, S]`: each token sees the common part and its own continuation, up to itself."""
    own = segment[:, :, None] == segment[:, None, :]
    common = segment[:, None, :] == 0
    allowed = (own | common).tril()
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)[:, None]


def train_language(model: Any, features: np.ndarray, tokenizer: Any, recipe: Recipe, folder: Path) -> Stage:
    """The decoder: captions and answers, from frozen image features."""
    texts = Texts(tokenizer, recipe)
    speaking = torch.nn.ModuleList([model.model.language_model, model.lm_head])
    stage = Stage("language", folder, speaking, recipe.language_steps, recipe.language_rate)
    batches = DataLoader(
        texts, batch_size=None, sampler=range(stage.done, stage.steps), num_workers=1, prefetch_factor=4
    )
    first = texts.prefix.index(tokenizer.get_vocab()["<image>"])

    def losses() -> Iterator[torch.Tensor]:
        for batch in batches:
            image = torch.from_numpy(features[batch["index"].numpy()]).float()
            embedded = model.get_input_embeddings()(batch["token"])  # [B, S, WIDTH]
            embedded = torch.cat([embedded[:, :first], image, embedded[:, first + IMAGE_TOKENS :]], dim=1)
            hidden = model.model.language_model(
                inputs_embeds=embedded,
                attention_mask=attention_mask(batch["segment"]),
                position_ids=batch["position"],
                use_cache=False,
            ).last_hidden_state
            weight = batch["weight"][:, 1:].float()
            wanted = weight > 0
            logits = model.lm_head(hidden[:, :-1][wanted])  # [tokens of answers, V]
            loss = F.cross_entropy(logits, batch["token"][:, 1:][wanted], reduction="none")
            yield (loss * weight[wanted]).sum() / weight.sum()

    stage.run(losses())
    return stage


def train(recipe: Recipe, work: Path, out: Path, workers: int) -> None:
    """All three parts; `work` keeps what is needed to go on, `out` receives the checkpoint.

    Raises:
        SettingsError: `work` holds what was begun with another recipe.
    """
    work.mkdir(parents=True, exist_ok=True)
    begun = work / "recipe.json"
    if begun.exists() and json.loads(begun.read_text(encoding="utf-8")) != asdict(recipe):
        raise SettingsError(f"{work} holds a training begun with another recipe: give another --work, or remove it")
    begun.write_text(json.dumps(asdict(recipe)), encoding="utf-8")
    tokenizer = checkpoint.make_tokenizer()
    model = checkpoint.make_model(tokenizer, recipe.seed)
    broken = Pictures(work, recipe.vision_scenes, broken=True)
    broken.render(workers)
    typical = Pictures(work, recipe.language_scenes, broken=False)
    typical.render(workers)
    stages = train_vision(model, broken, recipe, work)
    features = np.concatenate(
        [
            encode_pictures(model, typical, recipe.language_scenes, work),
            encode_pictures(model, broken, recipe.odd_scenes, work),
        ]
    )
    stages.append(train_language(model, features, tokenizer, recipe, work))
    checkpoint.save(model, tokenizer, out)
    facts = {
        "recipe": asdict(recipe),
        "stages": {stage.name: {"seconds": stage.seconds, "loss": stage.loss} for stage in stages},
        "torch": torch.__version__,
        "machine": f"{torch.get_num_threads()} threads of {platform.machine()}",
    }
    (out / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _rendered(broken: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    of = scene(seed, broken)
    picture, seen = render(of)
    small = picture.resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BICUBIC)
    return np.asarray(small), np.packbits(patch_labels(of, seen), axis=-1)


def _open(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    if path.exists():
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r+")
        if array.shape == shape:
            return array
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sira_cli.demo.train", description="Train the bundled model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--work", type=Path, default=presets.cache() / "demo-training", help="to resume from")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="processes that render")
    for name, value in vars(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    train(work=given.pop("work"), out=given.pop("out"), workers=given.pop("workers"), recipe=Recipe(**given))


if __name__ == "__main__":
    main()
