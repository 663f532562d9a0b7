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
    name, traces = one_line(str(path)), list[TracedText]()
    begin, run, tokens = 0, None, list[Token]()

    def check(fits: bool, problem: str) -> None:
        if not fits:
            raise BadTraceError(f"{name}, line {number}: {problem}; {_HINT}")

    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise BadTraceError(f"{name}: cannot be read: {error.strerror}") from None
    for number, data in enumerate(lines, start=1):
        if not data.strip():
            continue
        try:
            line = _LINE.validate_json(data.removeprefix(b"\xef\xbb\xbf"))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if first["type"] == "json_invalid":
                check(run is not None and not data.endswith(b"\n"), f"is not JSON ({first['ctx']['error']})")
                break  # cut off
            kind, *field = first["loc"] or ("",)
            check(False, f"{'.'.join(map(str, field))} of the {kind} line: " * bool(field) + first["msg"])
        if isinstance(line, Run):
            traces += [] if run is None else [TracedText(path, begin, run, tokens, None)]
            begin, run, tokens = number, line, []
            continue
        known = run is not None or (isinstance(line, End) and line.status == "error")
        check(known, f"a{'n' * isinstance(line, End)} {line.type} line before any run line")
        if isinstance(line, Token):
            step = len(tokens)
            check(line.step == step, f"step {line.step}, expected step {step}: lines are missing or mixed")
            tokens.append(line)
        else:
            last = max([word.steps[1] for word in line.words] + [use.step + 1 for use in line.tracked], default=0)
            check(last <= len(tokens), f"words up to step {last - 1}, but there are {len(tokens)} tokens")
            traces.append(TracedText(path, begin if run else number, run, tokens, line))
            run, tokens = None, []
    traces += [] if run is None else [TracedText(path, begin, run, tokens, None)]
    if not traces:
        raise BadTraceError(f"{name}: is empty, expected a trace; `sira trace IMAGE -o {name}` makes one")
    return traces
