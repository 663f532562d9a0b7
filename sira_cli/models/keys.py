"""Keys of records: equal keys mean equal work. They are known before the model is loaded."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sira_cli.methods.base import Method
from sira_cli.models.calibrations import calibrated
from sira_cli.models.preset import Preset
from sira_cli.models.records import hash_of


@dataclass(frozen=True)
class Keys:
    """Everything that decides the texts of a run, besides the pictures and the prompts.

    Attributes:
        method, preset: with the settings in force.
        settings: other deciding settings, as JSON values.
        draws: whether random numbers are used.
    """

    method: Method
    preset: Preset
    settings: dict[str, Any]
    draws: bool = False

    @classmethod
    def of(cls, preset: Preset, method: Method, revision: str, quantization: str | None) -> Keys:
        """Return the keys under a preset and a method.

        Args:
            preset, method: with the settings in force.
            revision: `Checkpoint.revision` of the model's files.
            quantization: `4bit`, `8bit` or None.

        Raises:
            SettingsError: the method lacks its calibration of this model.
        """
        method = calibrated(method, preset.model, revision)
        settings = {"method": method.name, "revision": revision, "quantization": quantization}
        return cls(method, preset, settings, preset.generation.temperature > 0 or method.uses_seed)

    def key(
        self,
        task: str,
        file_name: str,
        image_sha256: str,
        prompt: str,
        verify: Mapping[str, Any] | None = None,
        json_schema: str | None = None,
    ) -> str:
        """Return a hash of everything that decides a picture's text.

        Args:
            task, file_name, image_sha256, prompt: fields of the record.
            verify: settings of the second look (`Verify.settings`); part of the key if it rewrites texts.
            json_schema: field of the record.
        """
        more: dict[str, Any] = {"draws": "per picture and prompt"} if self.draws else {}
        if verify is not None and verify["mode"] == "rewrite":
            more["verify"] = dict(verify)
        if json_schema is not None:
            more["json_schema"] = json_schema
        work = {"task": task, "file_name": file_name, "image_sha256": image_sha256, "prompt": prompt}
        return hash_of(**work, **self.settings, preset=self._decisive[task], **more)

    @functools.cached_property
    def _decisive(self) -> dict[str, dict[str, Any]]:
        """The deciding settings by task."""
        return {task: self.method.decisive(self.preset.decisive(), task) for task in ("caption", "ask", "check")}
