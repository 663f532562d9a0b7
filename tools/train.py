"""Train the bundled model from scratch: `python -m tools.train`.

1. Render the training scenes, in worker processes.
2. Vision: the CLIP tower and the projector learn, for each patch, which objects and colours lie under it, and
   then also to keep the row and column of the patch: without it they forget.
3. Language: tower and projector are frozen; the decoder learns captions and answers, and, as large models
   do, some texts without a picture.
4. Balancing: the same, with more scenes of broken co-occurrence: the decoder trusts the picture more.

Trained end to end on captions alone, a model of this size learns the language and ignores the picture.

Every step's batch follows from the seed and the step's number, so an interrupted run that is started
again goes on from its last saved state and ends as if it had never stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sira_cli.analysis.bench.measure import device_name
from sira_cli.errors import SettingsError
from sira_cli.models import presets
from tools import checkpoint
from tools.checkpoint import IMAGE_TOKENS, WIDTH
from tools.pictures import GRID, LABELS, Pictures, Progress, open_array
from tools.texts import Recipe, Texts, attention_mask


class Stage:
    """Parameters under training, with an optimizer, a schedule and a file to resume from."""

    def __init__(self, name: str, folder: Path, module: torch.nn.Module, steps: int, rate: float) -> None:
        self.name, self.steps, self.rate, self.module = name, steps, rate, module
        self._path = folder / f"{name}.pt"
        decayed = {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": 0.05}
        rest = {"params": [p for p in module.parameters() if p.ndim <= 1], "weight_decay": 0.0}
        self._optimizer = torch.optim.AdamW([decayed, rest], lr=rate, betas=(0.9, 0.95), fused=True)
        self.done = 0
        self.seconds = 0.0
        self.loss = math.nan  # a running mean
        if self._path.exists():
            state = torch.load(self._path, weights_only=True, map_location=next(module.parameters()).device)
            module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.done, self.seconds, self.loss = state["done"], state["seconds"], state["loss"]

    def run(self, losses: Iterator[torch.Tensor], save_every: int = 200) -> None:
        """Take the remaining steps; `losses` yields the loss of each."""
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
    """Train tower and projector: the objects and colours under each patch; then also the position of the patch."""
    torch.manual_seed(recipe.seed)
    head = torch.nn.Linear(WIDTH, LABELS, device=model.device)
    place = torch.nn.Linear(WIDTH, 2 * GRID, device=model.device)
    torch.nn.init.constant_(head.bias, -3.0)  # few labels hold
    seeing = torch.nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector, head])
    placing = torch.nn.ModuleList([*seeing, place])
    patches = torch.arange(IMAGE_TOKENS, device=model.device)
    rows = patches // GRID
    columns = patches % GRID
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
                labels = labels.to(model.device)
                features = image_features(model, pixels.to(model.device))  # [B, IMAGE_TOKENS, WIDTH]
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
    """Return the projector's output for the decoder: `[B, IMAGE_TOKENS, WIDTH]` from pixels `[B, 3, H, W]`."""
    hidden = model.model.vision_tower(pixels).last_hidden_state  # [B, 1 + IMAGE_TOKENS, WIDTH]
    features: torch.Tensor = model.model.multi_modal_projector(hidden[:, 1:])
    return features


def encode_pictures(model: Any, pictures: Pictures, count: int, folder: Path) -> np.ndarray:
    """Return the first pictures' features by the trained tower, float16 `[count, IMAGE_TOKENS, WIDTH]`, on disk."""
    features = open_array(folder / f"{pictures.name}-features.npy", np.float16, (count, IMAGE_TOKENS, WIDTH))
    done = folder / f"{pictures.name}-{count}-encoded"
    if not done.exists():
        progress = Progress(f"encoding {pictures.name} scenes", 0, math.ceil(count / 100), every=100)
        with torch.inference_mode():
            for start in range(0, count, 100):
                pixels, _ = pictures.batch(np.arange(start, min(start + 100, count)))
                features[start : start + 100] = image_features(model, pixels.to(model.device)).half().cpu().numpy()
                progress.step()
        done.touch()
    return features


def train_language(model: Any, features: np.ndarray, tokenizer: Any, recipe: Recipe, folder: Path) -> list[Stage]:
    """Train the decoder: captions and answers, from frozen image features; then with more odd scenes."""
    texts = Texts(tokenizer, recipe)
    speaking = torch.nn.ModuleList([model.model.language_model, model.lm_head])
    first = texts.prefix.index(tokenizer.get_vocab()["<image>"])

    def losses(steps: range) -> Iterator[torch.Tensor]:
        for loaded in DataLoader(texts, batch_size=None, sampler=steps, num_workers=1, prefetch_factor=4):
            batch = {name: column.to(model.device) for name, column in loaded.items()}
            image = torch.from_numpy(features[loaded["index"].numpy()]).to(model.device).float()
            embedded = model.get_input_embeddings()(batch["token"])  # [B, S, WIDTH]
            embedded = torch.cat([embedded[:, :first], image, embedded[:, first + IMAGE_TOKENS :]], dim=1)
            weight = batch["weight"][:, 1:].float()
            wanted = weight > 0
            with torch.autocast(model.device.type, torch.bfloat16):
                hidden = model.model.language_model(
                    inputs_embeds=embedded,
                    attention_mask=attention_mask(batch["segment"], batch["seeing"]),
                    position_ids=batch["position"],
                    use_cache=False,
                ).last_hidden_state
                logits = model.lm_head(hidden[:, :-1][wanted])  # [tokens of answers, V]
            loss = F.cross_entropy(logits.float(), batch["token"][:, 1:][wanted], reduction="none")
            yield (loss * weight[wanted]).sum() / weight.sum()

    language = Stage("language", folder, speaking, recipe.language_steps, recipe.language_rate)
    language.run(losses(range(language.done, language.steps)))
    balancing = Stage("balancing", folder, speaking, recipe.balancing_steps, recipe.balancing_rate)
    balancing.run(losses(range(language.steps + balancing.done, language.steps + balancing.steps)))
    return [language, balancing]


def train(recipe: Recipe, work: Path, out: Path, workers: int, device: str = "cpu") -> None:
    """Train all parts; `work` keeps the state to go on, `out` receives the checkpoint."""
    work.mkdir(parents=True, exist_ok=True)
    begun = work / "recipe.json"
    if begun.exists() and json.loads(begun.read_text(encoding="utf-8")) != asdict(recipe):
        raise SettingsError(f"{work} holds a training begun with another recipe: give another --work, or remove it")
    begun.write_text(json.dumps(asdict(recipe)), encoding="utf-8")
    tokenizer = checkpoint.make_tokenizer()
    model = checkpoint.make_model(tokenizer, recipe.seed).to(device)
    broken = Pictures(work, recipe.vision_scenes, broken=True)
    broken.render(workers)
    typical = Pictures(work, recipe.language_scenes, broken=False)
    typical.render(workers)
    stages = train_vision(model, broken, recipe, work)
    both = ((typical, recipe.language_scenes), (broken, recipe.odd_scenes))
    features = np.concatenate([encode_pictures(model, pictures, count, work) for pictures, count in both])
    stages += train_language(model, features, tokenizer, recipe, work)
    checkpoint.save(model.to("cpu"), tokenizer, out)
    facts = {
        "recipe": asdict(recipe),
        "stages": {stage.name: {"seconds": stage.seconds, "loss": stage.loss} for stage in stages},
        "torch": torch.__version__,
        "machine": device_name(torch.device(device)),
    }
    (out / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.train", description="Train the bundled model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--work", type=Path, default=presets.cache() / "demo-training", help="to resume from")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ... (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="processes that render")
    for name, value in vars(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    where = {name: given.pop(name) for name in ("work", "out", "workers", "device")}
    train(Recipe(**given), **where)


if __name__ == "__main__":
    main()
