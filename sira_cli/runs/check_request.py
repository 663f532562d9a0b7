"""A second look at existing captions: the request, and the record of a caption. Known without a loaded model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sira_cli.data.captions.captioned import CaptionedPicture
from sira_cli.data.records.record import Result
from sira_cli.language.detect import other_language
from sira_cli.language.wordings import ENGLISH
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.models.loading.preset import Preset
from sira_cli.models.look.claims import unsupported
from sira_cli.models.look.mending import without_unsupported
from sira_cli.models.look.verify import Verify
from sira_cli.models.many.request import Request
from sira_cli.pictures.picture import Picture

TASK = "check"
EMPTY = "the caption is empty"
NOT_RECOGNISED = "names nothing that the list of words has"
NOT_PROSE = "JSON or tags are not cut by sentences: captioning again with a second look that rewrites drops entries"
FOREIGN = "not in the language asked for"
NOTHING_LEFT = "every sentence names something that is not supported: nothing is left of it"


@dataclass(frozen=True)
class CheckRequest(Request):
    """A second look at a caption of each picture. `CheckRequest.under` makes it."""

    @classmethod
    def under(cls, preset: Preset, method: Method, verify: Verify | None) -> tuple[Self, Preset, Method]:
        """Return the request, and the preset and the method that take part.

        Args:
            preset, method: the usual ones. Without rewriting, the method is greedy.
            verify: how to look; None: as in the preset.
        """
        verify = verify or Verify()
        # Nothing is sampled, reasoned or changed.
        preset = preset.with_settings(temperature=0.0, num_beams=1, think=False).without_text()
        # For keys: all that decides the answers besides picture and caption.
        how = verify.settings(preset) | ({"prompt": preset.prompts.caption} if verify.rewrites else {})
        request = cls(TASK, json.dumps(how, sort_keys=True), verify=verify)
        return request, preset, method if verify.rewrites else find("greedy")

    def about(self, pictures: Sequence[Picture]) -> Self:
        """Return the request for these pictures; where nothing is decoded again, each is asked about by itself."""
        request = super().about(pictures)
        return request if self.how.rewrites else replace(request, together=1)

    def check(self, preset: Preset, method: Method, *, compiled: bool = False) -> None:
        """Check that a method can continue a part of a caption, if it has to.

        Raises:
            SettingsError: the method cannot.
        """
        self.how.check_task(TASK, schema=False)
        self.how.check(method, 1, words=False, choices=False, compiled=compiled)

    def settings(self, preset: Preset, method: Method, quantization: str | None) -> dict[str, Any]:
        """Return all settings that decide the records of a run, as in its report."""
        how = self.how.settings(preset)
        return self._deciding(how["question"], preset, method, quantization) | {"verify": how}

    @property
    def how(self) -> Verify:
        """How to look."""
        return self.verify or Verify()


def checked(result: Result, caption: CaptionedPicture | None, how: dict[str, Any]) -> Result:
    """Return the record of a check, with the caption and the caption without unsupported objects.

    Args:
        result: result with the objects and, if the request rewrites, the new text.
        caption: the picture with its caption; None: the record of no picture.
        how: `Verify.settings`.
    """
    ok, rewrites = result.status == "ok", how["mode"] == "rewrite"
    text, is_prose = ("", True) if caption is None else (caption.text, caption.is_prose)
    claims = [*(result.objects or []), *(result.claims or [])]
    low = [span for claim in unsupported(claims, how) for span in claim["spans"]]
    fixed: str
    dropped: list[str] | None
    if rewrites:
        fixed, dropped = result.text if ok else text, None
    else:
        fixed, dropped = without_unsupported(text, unsupported(claims, how), how) if is_prose else (text, [])
    support = min((claim["support"] for claim in claims if claim["spans"]), default=1.0)
    remarks = [*(result.warnings or []), *(_remarks(text, claims, fixed, how.get("language", ENGLISH)) if ok else [])]
    if low and not is_prose:
        remarks.append(NOT_PROSE)
    return replace(
        result,
        text=text,
        prompt=how["question"],
        source=(caption.source or None) if caption else None,
        warnings=remarks or None,
        support=support if ok else 0.0,
        fixed=fixed,
        dropped=dropped,
        removed=(result.removed or []) if rewrites else None,
    )


def _remarks(text: str, claims: Sequence[dict[str, Any]], fixed: str, language: str) -> list[str]:
    """Return the reasons to look at a caption again."""
    if not text.strip():
        return [EMPTY]
    remarks = [NOT_RECOGNISED] if not claims else [] if fixed else [NOTHING_LEFT]
    found = None if text.lstrip().startswith(("{", "[")) else other_language(text, language)  # JSON's keys are English
    if found is not None:
        remarks.append(f"{FOREIGN}, {language}{f': it looks like {found}' if found else ''}")
    return remarks
