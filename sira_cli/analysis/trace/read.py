"""Traces read from files: keys of `trace.schema.json` that readers use become checked, frozen models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sira_cli.errors import DataError
from sira_cli.pictures.names import one_line

SCHEMA = "sira.trace/1"
_HINT = f"expected a line of {SCHEMA} as `sira trace` writes it; make the trace again with this version of sira"

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Byte = Annotated[int, Field(ge=0, le=255)]


class BadTraceError(DataError):
    """A file is not a valid trace."""


class Strict(BaseModel):
    """A part of a line; other keys are left out."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class View(Strict):
    """One token in the logits of one view: logit, log softmax, 1 + number of tokens with a larger logit."""

    logit: float
    logprob: float
    rank: Positive


class Candidate(Strict):
    """A token in all three views. `token` is its text alone, `bytes` the exact bytes, `word` the tracked word."""

    token_id: Count
    token: str
    bytes: tuple[Byte, ...]
    full: View
    cf: View
    contrast: View
    word: str = ""


class Token(Candidate):
    """A token that was generated or forced; `special`: it has no text, like an end token.

    `delta` is z_full - z_cf, `kl` is KL(full || cf) over the vocabulary in nats, `top` the union of the views' best by
    contrast logit, `tracked` the first tokens of tracked words.
    """

    type: Literal["token"]
    step: Count
    special: bool
    delta: float
    kl: float
    top: tuple[Candidate, ...]
    tracked: tuple[Candidate, ...]


class Image(Strict):
    """The picture as it was at the time of the run. `path` is absolute, and empty for stdin."""

    path: str
    sha256: str
    width: Count
    height: Count


class Run(Strict):
    """The prompt of a trace, and the decoding settings."""

    type: Literal["run"]
    version: Literal["sira.trace/1"] = Field(alias="schema")
    task: Literal["caption", "ask"]
    file_name: str
    image: Image
    prompt: str
    preset: str
    model: str
    revision: str
    method: str
    k: Positive
    layers: Positive
    alpha: float
    beta: float | None
    max_new_tokens: Positive
    temperature: float
    top_p: float
    seed: int
    forced: bool
    vocab_size: Positive
    prompt_tokens: Count
    image_tokens: Count
    device: str
    dtype: str
    versions: dict[str, str]


class TracedWord(Strict):
    """A word of the text, from `start` to `end`; its tokens are `steps[0]` to `steps[1]` - 1."""

    word: str
    start: Count
    end: Count
    steps: tuple[Count, Count]
    delta: float
    grounding: float


class Use(Strict):
    """A place where the text continues with all tokens of a tracked word: their summed logprobs."""

    word: str
    step: Count
    full: float
    cf: float
    contrast: float


class TracedObject(Strict):
    """An object that the text names, its mentions, and its support by a second look."""

    thing: str
    spans: tuple[tuple[Count, Count], ...]
    support: float


class End(Strict):
    """The end of a trace; `objects` and `verify` are None without a second look."""

    type: Literal["end"]
    status: Literal["ok", "error"]
    error: str
    text: str
    finish_reason: Literal["stop", "length", "forced", "error"]
    output_tokens: Count
    duration_ms: float
    words: tuple[TracedWord, ...]
    tracked: tuple[Use, ...]
    objects: tuple[TracedObject, ...] | None = None
    verify: dict[str, Any] | None = None
    reasoning: str = ""


class TracedText(NamedTuple):
    """A text, generated or forced, with its tokens."""

    path: Path  # the file that holds it
    line: int  # number of its first line, from 1
    run: Run | None  # None if it failed before its first line
    tokens: list[Token]
    end: End | None  # None if it was interrupted

    @property
    def status(self) -> Literal["ok", "error", "interrupted"]:
        """Whether the trace is complete, failed or interrupted."""
        return "interrupted" if self.end is None else self.end.status


_LINE: TypeAdapter[Run | Token | End] = TypeAdapter(Annotated[Run | Token | End, Field(discriminator="type")])


def trace_files(path: Path) -> list[Path]:
    """Return the file, or for a folder all .jsonl files in it and below, by name."""
    if not os.path.isdir(path):  # noqa: PTH112 (a Path raises for a long name)
        return [path]
    files = sorted(file for file in path.rglob("*.jsonl") if file.is_file())
    if not files:
        name = one_line(str(path))
        raise BadTraceError(f"{name}: holds no .jsonl files; `sira trace IMAGE --output-dir {name}` writes traces")
    return files


def read_traces(path: Path) -> list[TracedText]:
    """Read all traces of a file, in its order.

    A last line that is cut off in the middle, because a run was killed, is left out.

    Raises:
        BadTraceError: the file cannot be read, is empty, or a line is not one of a trace: which, and why.
    """
    name = one_line(str(path))
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise BadTraceError(f"{name}: cannot be read: {error.strerror}") from None
    traces = _Traces(path)
    for number, data in enumerate(lines, start=1):
        if not data.strip():
            continue
        try:
            traces.add(number, _parsed(data))
        except _LineError as error:
            if isinstance(error, _NotJsonError) and traces.run is not None and not data.endswith(b"\n"):
                break  # cut off
            raise BadTraceError(f"{name}, line {number}: {error}; {_HINT}") from None
    traces.interrupt()
    if not traces.texts:
        raise BadTraceError(f"{name}: is empty, expected a trace; `sira trace IMAGE -o {name}` makes one")
    return traces.texts


class _LineError(Exception):
    """A line is not one of a trace, or not at its place."""


class _NotJsonError(_LineError):
    """A line is not JSON."""


def _parsed(data: bytes) -> Run | Token | End:
    """Return the model of a line."""
    try:
        return _LINE.validate_json(data.removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        raise _NotJsonError(f"is not JSON ({first['ctx']['error']})")
    kind, *field = first["loc"] or ("",)
    place = f"{'.'.join(map(str, field))} of the {kind} line: " if field else ""
    raise _LineError(place + first["msg"])


class _Traces:
    """The traces of a file, from its lines; `run` is that of the trace which has begun and not ended."""

    def __init__(self, path: Path) -> None:
        self.texts: list[TracedText] = []
        self.run: Run | None = None
        self._path = path
        self._begin = 0  # number of the run's line
        self._tokens: list[Token] = []

    def add(self, number: int, line: Run | Token | End) -> None:
        """Take the next line."""
        if isinstance(line, Run):
            self.interrupt()
            self._begin = number
            self.run = line
            return
        failed_at_once = isinstance(line, End) and line.status == "error"
        if self.run is None and not failed_at_once:
            article = "an" if isinstance(line, End) else "a"
            raise _LineError(f"{article} {line.type} line before any run line")
        if isinstance(line, Token):
            self._add_token(line)
        else:
            self._end(number, line)

    def interrupt(self) -> None:
        """End the trace that has begun without a line of its end."""
        if self.run is not None:
            self._finish(self._begin, None)

    def _add_token(self, token: Token) -> None:
        step = len(self._tokens)
        if token.step != step:
            raise _LineError(f"step {token.step}, expected step {step}: lines are missing or mixed")
        self._tokens.append(token)

    def _end(self, number: int, end: End) -> None:
        last = 0
        for word in end.words:
            last = max(last, word.steps[1])
        for use in end.tracked:
            last = max(last, use.step + 1)
        if last > len(self._tokens):
            raise _LineError(f"words up to step {last - 1}, but there are {len(self._tokens)} tokens")
        self._finish(self._begin if self.run else number, end)

    def _finish(self, line: int, end: End | None) -> None:
        self.texts.append(TracedText(self._path, line, self.run, self._tokens, end))
        self.run = None
        self._tokens = []
