"""Keys of records, and records: equal keys mean equal work. They are known before the model is loaded."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sira_cli._version import __version__
from sira_cli.data.records.record import Answer, Result, hash_of
from sira_cli.methods.base import Method
from sira_cli.models.loading.calibrations import calibrated
from sira_cli.models.loading.preset import Preset


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
    def of(cls, preset: Preset, method: Method, revision: str, quantization: str | None, server: str = "") -> Keys:
        """Return the keys under a preset and a method.

        Args:
            preset, method: with the settings in force.
            revision: `Checkpoint.revision` of the model's files.
            quantization: `4bit`, `8bit` or None.
            server: address of the model's server, as two may have different models of one name; empty: it runs here.

        Raises:
            SettingsError: the method lacks its calibration of this model.
        """
        method = calibrated(method, preset.model, revision)
        settings = {"method": method.name, "revision": revision, "quantization": quantization}
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
        """Return a hash of everything that decides a picture's text.

        Args:
            task, file_name, image_sha256, prompt: fields of the record.
            verify: settings of the second look (`Verify.settings`); part of the key if it decides texts.
            json_schema: field of the record.
        """
        more: dict[str, Any] = {"draws": "per picture and prompt"} if self.draws else {}
        if verify is not None and verify["mode"] != "flag":
            more["verify"] = {name: value for name, value in verify.items() if name != "source"}  # not known before
        if json_schema is not None:
            more["json_schema"] = json_schema
        work = {"task": task, "file_name": file_name, "image_sha256": image_sha256, "prompt": prompt}
        return hash_of(**work, **self.settings, preset=self._decisive[task], **more)

    def result(
        self,
        task: str,
        file_name: str,
        image_sha256: str,
        prompt: str,
        answer: Answer,
        milliseconds: float = 0.0,
        warnings: Sequence[str] = (),
    ) -> Result:
        """Return the record of a picture, without facts of a loaded model: K, L, alpha, other settings.

        Args:
            task, file_name, image_sha256, prompt: fields of the record.
            answer: about the picture.
            milliseconds: duration in milliseconds.
            warnings: about the picture.
        """
        preset = self.preset
        return Result(
            schema=f"sira.{task}/1",
            key=self.key(task, file_name, image_sha256, prompt, answer.verify, answer.json_schema),
            file_name=file_name,
            status="error" if answer.error else "ok",
            text=answer.text,
            error=answer.error,
            prompt=prompt,
            preset=preset.name,
            model=preset.model,
            revision=self.settings["revision"],
            method=self.method.name,
            k=0,
            layers=0,
            alpha=0.0,
            max_new_tokens=preset.generation.max_new_tokens,
            temperature=preset.generation.temperature,
            seed=preset.generation.seed,
            finish_reason=answer.finish_reason,
            image_tokens=answer.image_tokens,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            duration_ms=round(milliseconds, 1),
            image_sha256=image_sha256,
            sira_version=__version__,
            text_settings=preset.text.given() or None,
            warnings=[*warnings, *answer.warnings] or None,
            reasoning=answer.reasoning,
            words=answer.words,
            choices=answer.choices,
            support=answer.support,
            objects=answer.objects,
            claims=answer.claims,
            verify=answer.verify,
            draft=answer.draft,
            removed=answer.removed,
            candidates=answer.candidates,
            added=answer.added,
            forbidden=answer.forbidden,
            json_schema=answer.json_schema,
            data=answer.data,
            **preset.later(),
        )

    @functools.cached_property
    def _decisive(self) -> dict[str, dict[str, Any]]:
        """Deciding settings by task."""
        return {task: self.method.decisive(self.preset.decisive(), task) for task in ("caption", "ask", "check")}
