"""What is traced: pictures with prompts, and texts to force on them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from sira_cli.errors import DataError
from sira_cli.pictures.picture import OpenedPicture, Picture, located


@dataclass(frozen=True)
class TraceOptions:
    """What is written beside the chosen tokens.

    Attributes:
        top_k: how many candidates of each view.
        track: words whose first token is looked up at every step.
        full_logits: a safetensors file for all logits of one trace.
    """

    top_k: int = 10
    track: tuple[str, ...] = ()
    full_logits: Path | None = None


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


def read_texts(path: Path) -> list[TraceRequest]:
    """Read texts and pictures of a file of records; failed records are left out.

    Args:
        path: JSON lines with `file_name` (relative to the file) and `text`, or `caption`.

    Raises:
        DataError: the file cannot be read, a line is no such record, or there is no text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--force-from {path}: cannot be read: {error}") from error
    requests = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            name, text = record["file_name"], record["text"] if "text" in record else record["caption"]
            if record.get("status", "ok") == "ok":
                picture = located(str(path.parent / name), name)
                requests.append(TraceRequest(picture, str(record.get("prompt", "")), str(text)))
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"--force-from {path}: line {number}: expected a JSON object with file_name and text (or caption)"
            ) from None
    if not requests:
        raise DataError(f"--force-from {path}: holds no texts")
    return requests
