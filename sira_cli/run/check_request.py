"""A second look at existing captions: the request, and the record of a caption. Known without a loaded model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sira_cli.look.verify import Verify
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.models import combinations
from sira_cli.models.preset import Preset
from sira_cli.pictures.picture import Picture
from sira_cli.run.records import Result
from sira_cli.run.request import Request

TASK = "check"
EMPTY = "the caption is empty"
NOT_RECOGNISED = "names nothing that the list of words has"


@dataclass(frozen=True)
class CheckRequest(Request):
    """A second look at a caption of each picture. `CheckRequest.under` makes it."""

    @classmethod
    def under(cls, preset: Preset, verify: Verify | None) -> tuple[Self, Preset, Method]:
        """Return the request, and the preset and the method that take part: greedy decoding of the unchanged model."""
        verify = verify or Verify()
        # Nothing is sampled, reasoned or changed.
        preset = preset.with_settings(temperature=0.0, num_beams=1, think=False).without_text()
        combinations.check(preset, greedy := find("greedy"), task=TASK, verify=verify.mode)
        # For keys: all that decides the answers besides picture and caption.
        request = cls(TASK, json.dumps(verify.settings(preset), sort_keys=True), verify=verify)
        return request, preset, greedy

    def about(self, pictures: Sequence[Picture]) -> Self:
        """Return the request for these pictures; each is asked about by itself."""
        return replace(super().about(pictures), together=1)

    def check(self, preset: Preset, method: Method, engine: str = "") -> None:
        """Check nothing: whatever the method and the settings, the unchanged model is asked."""

    def settings(self, preset: Preset, method: Method) -> dict[str, Any]:
        """Return all settings that decide the records of a run, as in its report."""
        how = self.how.settings(preset)
        return self._deciding(how["question"], preset, method) | {"verify": how}

    @property
    def how(self) -> Verify:
        """How to look."""
        return self.verify or Verify()


def checked(result: Result, picture: Picture | None, how: dict[str, Any]) -> Result:
    """Return the record of a check, with the caption."""
    ok, text = result.status == "ok", "" if picture is None else picture.caption or ""
    objects = result.objects or []
    support = min((one["support"] for one in objects if one["spans"]), default=1.0)
    remarks = [*(result.warnings or [])]
    if ok and not objects:
        remarks.append(NOT_RECOGNISED if text.strip() else EMPTY)
    return replace(
        result,
        text=text,
        prompt=how["question"],
        warnings=remarks or None,
        support=support if ok else 0.0,
    )
