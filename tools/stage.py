"""Training steps that can be interrupted, and lines of their progress."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class Progress:
    """A progress line at intervals: steps, the mean loss since the last line, time left."""

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
