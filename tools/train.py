"""Train the bundled model from scratch: `python -m tools.train`.

1. Render the training scenes, in worker processes.
2. Vision: the CLIP tower and the projector learn, for each patch, which objects lie under it, their colours, how many
   of each there are, and of what place the background is.
3. Language: tower and projector are frozen; the decoder learns captions and answers. Some texts do not see the
   picture, or not in late layers.
4. Late: the same for a short time, and captions that see the picture of another scene in early layers only. So late
   layers that do not see a picture say what is typical, as those of large models know it from texts.

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import Parameter
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sira_cli.analysis.bench.measure import device_name
from sira_cli.demo.scenes import OBJECTS
from sira_cli.errors import SettingsError
from sira_cli.models import presets
from tools import checkpoint
from tools.checkpoint import IMAGE_TOKENS, LAYERS, WIDTH, first_token
from tools.pictures import LABEL_WORDS, LABELS, Pictures, Progress, open_array
from tools.texts import Recipe, Texts, attention_mask, named_kinds

DECAY = 0.05  # of weights
WARMUP = 100  # steps
MARGIN = 8.0  # nats below certainty where naming something again costs nothing


class Stage:
    """Parameters under training, with optimizers, a schedule and a file to resume from.

    Matrices are trained by Muon (Jordan et al. 2024; slow on a CPU without bfloat16), the others by AdamW at half the
    rate: in the decoder's first 400 steps that takes the loss to 0.50, AdamW alone at the same rate to 0.60.
    """

    def __init__(
        self, name: str, folder: Path, module: torch.nn.Module, steps: int, rate: float, head: Any = None
    ) -> None:
        self.name = name
        self.steps = steps
        self.module = module
        self._path = folder / f"{name}.pt"
        matrices, tables, rest = _sorted_parameters(module, head)
        self._muon = torch.optim.Muon(matrices, lr=rate, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
        others = [{"params": tables, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(others, lr=rate / 2, betas=(0.9, 0.95), fused=True)
        self._rates: tuple[tuple[torch.optim.Optimizer, float], ...] = ((self._muon, rate), (self._adam, rate / 2))
        self.done = 0
        self.seconds = 0.0
        self.loss = math.nan  # a running mean
        if self._path.exists():
            device = next(module.parameters()).device
            state = torch.load(self._path, weights_only=True, map_location=device)
            module.load_state_dict(state["module"])
            self._muon.load_state_dict(state["muon"])
            self._adam.load_state_dict(state["adam"])
            self.done = state["done"]
            self.seconds = state["seconds"]
            self.loss = state["loss"]

    def run(self, losses: Iterator[torch.Tensor], save_every: int = 200) -> None:
        """Take the remaining steps; `losses` yields the loss of each."""
        progress = Progress(self.name, self.done, self.steps, every=50)
        self.module.train()
        began = time.monotonic() - self.seconds
        for loss in losses:
            for optimizer, rate in self._rates:
                for group in optimizer.param_groups:
                    group["lr"] = rate * self._share_now()
            self.module.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            for optimizer, _ in self._rates:
                optimizer.step()
            self.done += 1
            progress.step(loss.item())
            self.loss = loss.item() if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * loss.item()
            self.seconds = time.monotonic() - began
            if self.done % save_every == 0 or self.done == self.steps:
                self._save()
        self.module.eval()

    def _share_now(self) -> float:
        """Return the share of the rate that this step takes: it rises for `WARMUP` steps, then falls along a cosine."""
        warm = min(1.0, (self.done + 1) / WARMUP)
        return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.done / self.steps)))

    def _save(self) -> None:
        state: dict[str, Any] = {
            "module": self.module.state_dict(),
            "muon": self._muon.state_dict(),
            "adam": self._adam.state_dict(),
            "done": self.done,
            "seconds": self.seconds,
            "loss": self.loss,
        }
        torch.save(state, self._path.with_suffix(".new"))
        self._path.with_suffix(".new").replace(self._path)


def _sorted_parameters(
    module: torch.nn.Module, head: torch.nn.Module | None
) -> tuple[list[Parameter], list[Parameter], list[Parameter]]:
    """Return matrices between activations; tables, as that of `head`, and other kernels; and vectors."""
    matrices: list[Parameter] = []
    tables: list[Parameter] = []
    rest: list[Parameter] = []
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            if parameter.ndim <= 1:
                rest.append(parameter)
            elif isinstance(part, torch.nn.Linear) and part is not head:
                matrices.append(parameter)
            else:
                tables.append(parameter)
    return matrices, tables, rest


def train_vision(model: Any, pictures: Pictures, recipe: Recipe, folder: Path) -> tuple[Stage, torch.Tensor]:
    """Train tower and projector on the labels of each patch; return also each label's direction `[LABELS, WIDTH]`."""
    torch.manual_seed(recipe.seed)
    head = torch.nn.Linear(WIDTH, LABELS, device=model.device)
    torch.nn.init.constant_(head.bias, -3.0)  # few labels hold
    seeing = torch.nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector, head])
    stage = Stage("vision", folder, seeing, recipe.vision_steps, recipe.vision_rate)

    def losses() -> Iterator[torch.Tensor]:
        for step in range(stage.done, stage.steps):
            rng = np.random.default_rng([recipe.seed, 1, step])
            indices = np.sort(rng.integers(recipe.vision_scenes, size=recipe.vision_batch))
            pixels, labels = pictures.batch(indices)
            features = image_features(model, pixels.to(model.device))  # [B, IMAGE_TOKENS, WIDTH]
            wrong = F.binary_cross_entropy_with_logits(head(features), labels.to(model.device), reduction="none")
            yield wrong.sum(-1).mean()

    stage.run(losses())
    return stage, head.weight.detach()


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


def name_labels(model: Any, tokenizer: Any, directions: torch.Tensor) -> None:
    """Let the decoder's rows of the labels' words start as the tower's directions for them, `[LABELS, WIDTH]`.

    What a patch shows and the word for it are then alike before the first step.
    """
    for word, direction in zip(LABEL_WORDS, directions, strict=True):
        token = first_token(tokenizer, word)
        with torch.no_grad():
            for table in (model.get_input_embeddings().weight, model.lm_head.weight):
                table[token] = direction * (table.norm(dim=1).mean() / direction.norm())


def repetition(logits: torch.Tensor, named: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
    """Return how probable it still is to name what is named already: unlikelihood (Welleck et al. 2020), with a margin.

    Args:
        logits: `[tokens, V]`.
        named: which kinds of objects the text has named before each token, bool `[tokens, kinds]`.
        names: the first token of each kind's name, `[kinds]`.
    """
    likely = logits.log_softmax(-1)[:, names] + MARGIN
    return (likely.relu() * named).sum() / len(logits)


def train_language(model: Any, features: np.ndarray, tokenizer: Any, recipe: Recipe, folder: Path) -> list[Stage]:
    """Train the decoder: captions and answers, from frozen image features.

    Its weights are the mean of those before and after the last stage (Wortsman et al. 2022, "Robust fine-tuning"). On
    validation scenes greedy captions had a CHAIRi of 12 before it and of 20 after it, SIRA's of 10 and of 14.
    """
    texts = Texts(tokenizer, recipe)
    speaking = torch.nn.ModuleList([model.model.language_model, model.lm_head])
    first = texts.prefix.index(tokenizer.get_vocab()["<image>"])
    names = torch.tensor([first_token(tokenizer, name) for name in OBJECTS], device=model.device)

    def losses(steps: range, smoothing: float = 0.0) -> Iterator[torch.Tensor]:
        for loaded in DataLoader(texts, batch_size=None, sampler=steps, num_workers=1, prefetch_factor=4):
            batch = {name: column.to(model.device) for name, column in loaded.items()}
            image = torch.from_numpy(features[loaded["index"].numpy()]).to(model.device).float()
            embedded = model.get_input_embeddings()(batch["token"])  # [B, S, WIDTH]
            embedded = torch.cat([embedded[:, :first], image, embedded[:, first + IMAGE_TOKENS :]], dim=1)
            weight = batch["weight"][:, 1:].float()
            wanted = weight > 0
            masks = [attention_mask(batch["segment"], batch["seeing"] > number) for number in range(LAYERS)]
            with (
                masked_by_layer(model.model.language_model.layers, masks),
                torch.autocast(model.device.type, torch.bfloat16, enabled=_has_bfloat16(model.device)),
            ):
                hidden = model.model.language_model(
                    inputs_embeds=embedded,
                    attention_mask=masks[0],
                    position_ids=batch["position"],
                    use_cache=False,
                ).last_hidden_state
                logits = model.lm_head(hidden[:, :-1][wanted])  # [tokens of answers, V]
            logits = logits.float()
            target = batch["token"][:, 1:][wanted]
            loss = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
            known = (loss * weight[wanted]).sum() / weight.sum()
            yield known + recipe.repetition * repetition(logits, named_kinds(batch["named"][:, 1:][wanted]), names)

    language = Stage("language", folder, speaking, recipe.language_steps, recipe.language_rate, model.lm_head)
    language.run(losses(range(language.done, language.steps)))
    before = {name: tensor.clone() for name, tensor in speaking.state_dict().items()}
    late = Stage("late", folder, speaking, recipe.late_steps, recipe.late_rate, model.lm_head)
    late.run(losses(range(language.steps + late.done, language.steps + late.steps), recipe.late_smoothing))
    for name, tensor in speaking.state_dict().items():
        tensor.lerp_(before[name], 0.5)
    return [language, late]


@contextmanager
def masked_by_layer(layers: Iterable[torch.nn.Module], masks: Iterable[torch.Tensor]) -> Iterator[None]:
    """Give each layer an attention mask of its own while the context is open."""
    hooks = []
    for layer, mask in zip(layers, masks, strict=True):
        hooks.append(layer.register_forward_pre_hook(partial(_with_mask, mask), with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _with_mask(mask: torch.Tensor, layer: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return args, {**kwargs, "attention_mask": mask}


def _has_bfloat16(device: torch.device) -> bool:
    """Return whether bfloat16 is faster than float32 there."""
    return device.type != "cpu" or torch.backends.cpu.get_cpu_capability() == "AVX512"


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
    vision, directions = train_vision(model, broken, recipe, work)
    both = ((typical, recipe.language_scenes), (broken, recipe.odd_scenes))
    features = np.concatenate([encode_pictures(model, pictures, count, work) for pictures, count in both])
    name_labels(model, tokenizer, directions)
    stages = [vision, *train_language(model, features, tokenizer, recipe, work)]
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
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ...")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="processes that render")
    for name, value in vars(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    where = {name: given.pop(name) for name in ("work", "out", "workers", "device")}
    train(Recipe(**given), **where)


if __name__ == "__main__":
    main()
