"""The contrast stream of `temporal`: SIRA's fork with rows of frames.

dropped                  the stream has the text's rows and those of every second frame
shuffled, homogenised    it has every row; at the fork, rows of frames get the states of the same place in another
                         frame, or their mean over all frames
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork, attached
from sira_cli.core.masks import take_rows, text_rows
from sira_cli.errors import UnsupportedModelError


@contextmanager
def attach_temporal(
    model: Any, config: SiraConfig, negative: str, frame: Tensor | None, other: Tensor | None
) -> Iterator[Fork]:
    """Decode `model` against the given negative inside this context; otherwise as `sira_cli.attach`.

    Args:
        model, config: as for `attach`.
        negative: of `temporal.NEGATIVES`.
        frame, other: from `Temporal.branch_inputs`; None: only the model is checked.

    Raises:
        UnsupportedModelError: as `attach`, or the late layers read keys of earlier ones, which keep their states.
    """
    with attached(_TemporalFork(model, config, negative, frame, other)) as fork:
        yield fork


class _TemporalFork(Fork):
    def __init__(
        self, model: Any, config: SiraConfig, negative: str, frame: Tensor | None, other: Tensor | None
    ) -> None:
        super().__init__(model, config)
        self._negative = negative
        self._frame, self._other = frame, other  # [B, S]
        if negative != "dropped" and any(mixer.keys_from < self.boundary for mixer in self._mixers):
            raise UnsupportedModelError(
                f"method temporal cannot change the states of frames in {type(model).__name__}: its late layers read "
                "keys of earlier ones. Use `negative=` dropped, or a larger `k=`"
            )

    def choose_cf_rows(self, image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Choose every row but padding; under `dropped`, without those of every second frame."""
        assert self._frame is not None
        assert self._other is not None
        beams = len(image) // len(self._frame)
        self._frame, self._other = (
            each.to(image.device).repeat_interleave(beams, dim=0) for each in (self._frame, self._other)
        )
        hidden = self._frame % 2 == 1 if self._negative == "dropped" else torch.zeros_like(image)
        return text_rows(hidden & image, valid)

    def fork_streams(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before layer b: append the contrast stream's rows, with changed states of frames."""
        now, hidden = self.running(), args[0] if args else None
        (packed, *more), kwargs = super().fork_streams(layer, args, kwargs)
        if now.cf_rows is not None and self._negative != "dropped":
            assert isinstance(hidden, Tensor)
            streams = [self._changed(each) for each in (hidden if hidden.ndim == 4 else hidden[None])]
            rows = torch.stack([take_rows(each, now.cf_rows) for each in streams])
            packed = torch.cat([packed[..., : now.q, :], rows if hidden.ndim == 4 else rows[0]], dim=-2)
        return (packed, *more), kwargs

    def _changed(self, hidden: Tensor) -> Tensor:
        """Change the states of frames: `[B, S, d]`."""
        assert self._frame is not None
        assert self._other is not None
        changed, other = hidden.clone(), self._other.to(hidden.device)
        for row, frame in enumerate(self._frame.to(hidden.device)):
            places = (frame >= 0).nonzero().flatten()
            number = int(frame.max()) + 1  # T
            states = hidden[row, places].view(number, -1, hidden.shape[-1])  # [T, N / T, d]
            if self._negative == "shuffled":
                states = states[other[row, places].view(number, -1)[:, 0]]
            else:
                states = states.mean(dim=0, keepdim=True).expand_as(states)
            changed[row, places] = states.flatten(0, 1)
        return changed

    def check_static(self, model: nn.Module) -> None:
        """Refuse static caches.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError("method temporal needs a cache that grows: leave out cache_implementation")
