"""Trace requests: pictures with prompts, and texts to force on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import DataError
from sira_cli.look.verify import Verify
from sira_cli.methods.base import Method
from sira_cli.models.preset import Preset, Prompts
from sira_cli.pictures.picture import OpenedPicture, Picture
from sira_cli.pictures.rows import read_rows, text_of
from sira_cli.pictures.sources import recorded


@dataclass(frozen=True)
class TraceOptions:
    """Optional content of a trace, besides the chosen tokens.

    Attributes:
        top_k: number of candidates of each view.
        track: words whose first token is looked up at every step.
        full_logits: a safetensors file for all logits of one trace.
        verify: how to ask about each object that a text names; None: do not ask.
    """

    top_k: int = 10
    track: tuple[str, ...] = ()
    full_logits: Path | None = None
    verify: Verify | None = None


@dataclass(frozen=True)
class TraceRequest:
    """A picture to be traced.

    Attributes:
        picture: where it is.
        prompt: given to the model word by word; empty: the run's.
        text: to be forced; None: to be generated.
    """

    picture: Picture
    prompt: str = ""
    text: str | None = None

    def asked(self, prompts: Prompts) -> str:
        """Return its prompt; without one, the usual one of a preset's prompts."""
        return self.prompt or prompts.caption


@dataclass(frozen=True)
class OpenedRequest:
    """A picture ready to be traced.

    Attributes:
        task: `caption` or `ask`.
        picture: with its samples.
        name: in the run line.
        prompt: given to the model word by word.
        text: to be forced; None: to be generated.
        address: where the picture can be found from anywhere; empty if nowhere.
    """

    task: str
    picture: OpenedPicture
    name: str
    prompt: str
    text: str | None = None
    address: str = field(default="")


def later(preset: Preset) -> dict[str, Any]:
    """Return the settings that traces contain only if they are set; their `top_k` is of candidates."""
    return {"sampling_top_k" if name == "top_k" else name: value for name, value in preset.later().items()}


def settings_of(preset: Preset, method: Method, options: TraceOptions) -> dict[str, Any]:
    """Return the settings that all traces of a file share, by their names in run lines, as far as they are known."""
    generation, sira = preset.generation, SiraConfig(**preset.sira.model_dump())
    return {
        **later(preset),
        **({} if sira.k is None else {"k": sira.k}),
        "model": preset.model,
        "method": method.name,
        "alpha": method.contrast_strength(sira),
        "beta": sira.beta,
        "max_new_tokens": generation.max_new_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "seed": generation.seed,
        "top_k": options.top_k,
        "track": list(options.track),
        "verify": options.verify is not None,
    }


def read_texts(path: Path) -> list[TraceRequest]:
    """Read texts and pictures of a file of records; failed records are left out."""
    requests = []
    for where, record in read_rows(path):
        name, text = text_of(where, record, "file_name"), text_of(where, record, "text", "caption")
        prompt = text_of(where, {"prompt": "", **record}, "prompt")
        if record.get("status", "ok") == "ok":
            requests.append(TraceRequest(recorded(name, path.parent), prompt, text))
    if not requests:
        raise DataError(f"{path}: holds no texts")
    return requests
