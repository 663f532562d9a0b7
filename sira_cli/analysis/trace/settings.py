"""The settings of a trace, known before the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.look.claims import Verify
from sira_cli.methods.base import Method
from sira_cli.models import combinations
from sira_cli.models.preset import Preset

if TYPE_CHECKING:
    from sira_cli.models.model import LoadedModel

Line = dict[str, Any]


@dataclass(frozen=True)
class TraceSettings:
    """What is recorded about each picture.

    Attributes:
        preset, method: with the settings in force.
        question: about pictures without their own prompt; None: the preset's caption prompt.
        forced: score each picture's caption, instead of decoding a text.
        top_k: number of candidates of each view.
        track: words whose first token is looked up at every step.
        full_logits: a safetensors file for all logits of one trace.
        verify: how to ask about each object that a text names; None: do not ask.
    """

    preset: Preset
    method: Method
    question: str | None = None
    forced: bool = False
    top_k: int = 10
    track: tuple[str, ...] = ()
    full_logits: Path | None = None
    verify: Verify | None = None

    def __post_init__(self) -> None:
        mode = None if self.verify is None else self.verify.mode
        combinations.check(self.preset, self.method, verify=mode, streams="sira trace")

    def later(self) -> Line:
        """Return the settings that traces contain only if they are set; their `top_k` is of candidates."""
        later = self.preset.later()
        return {"sampling_top_k" if name == "top_k" else name: value for name, value in later.items()}

    def sampling(self) -> Line:
        """Return how texts are decoded."""
        generation = self.preset.generation
        return {name: getattr(generation, name) for name in ("max_new_tokens", "temperature", "top_p", "seed")}

    def settings(self) -> Line:
        """Return the settings that all traces of a file share, as far as known, by their names in run lines."""
        sira = SiraConfig(**self.preset.sira.model_dump())
        return {
            **self.later(),
            **({} if sira.k is None else {"k": sira.k}),
            "model": self.preset.model,
            "method": self.method.name,
            "alpha": self.method.contrast_strength(sira),
            "beta": sira.beta,
            **self.sampling(),
            "top_k": self.top_k,
            "track": list(self.track),
            "verify": self.verify is not None,
        }

    def tracked(self, lvlm: LoadedModel) -> dict[str, list[int]]:
        """Return the tokens of each tracked word."""
        tracked = {word: lvlm.vocabulary.encode_inside(word) for word in self.track}
        if without := next((word for word, ids in tracked.items() if not ids), None):
            raise SettingsError(f"`track=`: {without!r} has no tokens")
        return tracked
