"""A loaded model that makes records of its answers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sira_cli.data.records.record import Answer, Result
from sira_cli.models.answering.answers import AnsweringModel
from sira_cli.models.keys import Asked, Keys


class RecordingModel(AnsweringModel):
    """An `AnsweringModel` whose answers have records."""

    @functools.cached_property
    def keys(self) -> Keys:
        """The keys of its records."""
        return Keys.of(self.preset, self.decoder, self.revision)

    def result(
        self, asked: Asked, answer: Answer, milliseconds: float = 0.0, warnings: Sequence[str] = (), **more: Any
    ) -> Result:
        """Return the record of a picture, as `Keys.result`; a failed picture's record has the same keys and types."""
        return self.keys.result(
            asked,
            answer,
            milliseconds,
            warnings,
            k=self.k,
            layers=self.layers,
            alpha=self.alpha,
            method_settings=self._other_settings(asked.task),
            picture_settings=self._picture_settings(asked.task, answer.image_tokens),
            **more,
        )

    def _other_settings(self, task: str) -> dict[str, Any] | None:
        """Return the method's settings without their own key in records."""
        settings = self.decoder.for_task(task).settings()
        if "beta" in self.decoder.deciding and self.sira.beta is not None:
            settings["beta"] = self.sira.beta
        return {name: value for name, value in settings.items() if name != "alpha"} or None

    def _picture_settings(self, task: str, image_tokens: int) -> dict[str, Any] | None:
        """Return the method's settings that differ for a picture with this number of tokens (0: it failed)."""
        usual = self.decoder.for_task(task)
        if not image_tokens or (own := usual.for_picture(image_tokens)) is usual:
            return None
        known = usual.settings()
        return {name: value for name, value in own.settings().items() if value != known[name]} or None
