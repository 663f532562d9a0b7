"""Keys of records, and records: equal keys mean equal work. They are known before the model is loaded."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sira_cli._version import __version__
from sira_cli.methods.base import Method
from sira_cli.models.preset import Preset
from sira_cli.models.presets import calibrated
from sira_cli.models.texts import Answer
from sira_cli.run.records import Result, hash_of

# Fields of an answer that its record has by the same names; of warnings, there are more about the picture.
SHARED = {each.name for each in fields(Answer)} & {each.name for each in fields(Result)} - {"warnings"}


class Asked(NamedTuple):
    """Fields of a record that say what was asked, and about which picture."""

    task: str
    file_name: str
    image_sha256: str
    prompt: str


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
    def of(cls, preset: Preset, method: Method, revision: str, server: str = "") -> Keys:
        """Return the keys under a preset and a method."""
        method = calibrated(method, preset.model, revision)
        settings = {"method": method.name, "revision": revision, "quantization": preset.load.quantization}
        if server:
            settings["endpoint"] = server.rstrip("/")
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
        """Return a hash of everything that decides a picture's text."""
        more: dict[str, Any] = {"draws": "per picture and prompt"} if self.draws else {}
        if verify is not None and verify["mode"] != "flag":
            more["verify"] = dict(verify)
        if json_schema is not None:
            more["json_schema"] = json_schema
        work = {"task": task, "file_name": file_name, "image_sha256": image_sha256, "prompt": prompt}
        return hash_of(**work, **self.settings, preset=self._decisive[task], **more)

    def result(
        self, asked: Asked, answer: Answer, milliseconds: float = 0.0, warnings: Sequence[str] = (), **more: Any
    ) -> Result:
        """Return the record of a picture."""
        preset = self.preset
        return Result(
            schema=f"sira.{asked.task}/1",
            key=self.key(*asked, answer.verify, answer.json_schema),
            file_name=asked.file_name,
            status="error" if answer.error else "ok",
            prompt=asked.prompt,
            preset=preset.name,
            model=preset.model,
            revision=self.settings["revision"],
            method=self.method.name,
            max_new_tokens=preset.generation.max_new_tokens,
            temperature=preset.generation.temperature,
            seed=preset.generation.seed,
            duration_ms=round(milliseconds, 1),
            image_sha256=asked.image_sha256,
            sira_version=__version__,
            text_settings=preset.text.given() or None,
            warnings=[*warnings, *answer.warnings] or None,
            **{name: getattr(answer, name) for name in SHARED},
            **{"k": 0, "layers": 0, "alpha": 0.0} | more,
            **preset.later(),
        )

    @functools.cached_property
    def _decisive(self) -> dict[str, dict[str, Any]]:
        """Deciding settings by task."""
        return {task: self.method.decisive(self.preset.decisive(), task) for task in ("caption", "ask", "check")}
