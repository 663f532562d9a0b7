"""The settings of a request: preset and method with its changes, prompt, and schema."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sira_cli.errors import SettingsError
from sira_cli.methods import find
from sira_cli.methods.base import Method
from sira_cli.methods.prompts import Conversation, Prompt
from sira_cli.models import combinations
from sira_cli.models.preset import Preset, Prompts
from sira_cli.models.schema import Schema
from sira_cli.serve.protocol import MOST_ECHOED, ChatRequest, RequestError, shortened


@contextmanager
def _about(param: str) -> Iterator[None]:
    """Name a request's key in errors about its value."""
    try:
        yield
    except SettingsError as error:
        raise RequestError(str(error), param=shortened(param, MOST_ECHOED)) from error


def settings_of(
    request: ChatRequest, preset: Preset, method: str, most_tokens: int, layers: int
) -> tuple[Preset, Method]:
    """Return preset and method with a request's changes."""
    with _about("sira.method"):
        chosen = preset.method(find(request.sira.method or method).name)
    given = request.sira.settings()
    for name, value in given.items():
        with _about(f"sira.{name}"):  # each alone: an error of all together has no single key
            own = chosen.owns(name) or name not in chosen.all_settings()  # the method says which settings there are
            tried: Method | Preset = (chosen if own else preset).with_values(**{name: value})
            if name in ("k", "k_fraction") and isinstance(tried, Preset):
                tried.sira_config.layers_after_fork(layers)
    tokens = request.max_completion_tokens or request.max_tokens
    changed = preset.with_settings(
        max_new_tokens=tokens and min(tokens, most_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k and max(request.top_k, 0),  # -1 is off like 0
        min_p=request.min_p,
        seed=request.seed,
        repetition_penalty=request.repetition_penalty,
        system=request.system() or None,
        think=request.thinks(),
    ).with_values(**{name: value for name, value in given.items() if not chosen.owns(name)})
    if request.seed is None and changed.generation.temperature:
        changed = changed.with_settings(seed=secrets.randbelow(2**31))  # clients that sample expect other texts
    return changed, chosen.with_values(**{name: value for name, value in given.items() if chosen.owns(name)})


def prompt_of(request: ChatRequest, prompts: Prompts) -> Prompt:
    """Return the model's prompt for a request, in the wording of `sira caption` and `sira ask`."""
    turns = [replace(turn, text=turn.text or prompts.caption * bool(turn.pictures)) for turn in request.turns()]
    if request.sira.task == "ask":
        text, (before, _, after) = prompts.asking(turns[-1].text), prompts.ask.partition("{question}")
        parts = tuple(part for part in (before, *turns[-1].parts, after) if part != "") if turns[-1].parts else ()
        turns[-1] = replace(turns[-1], text=text, parts=parts)
    return Conversation(tuple(turns)) if len(turns) > 1 or turns[0].parts else turns[0].text


def schema_of(request: ChatRequest, preset: Preset, method: Method, most: int) -> Schema | None:
    """Return the schema for the text of a request."""
    schema = request.response_format.schema_of_text(most)
    if schema is not None:
        combinations.check(preset, method, words=request.sira.words, verify=request.sira.verify, schema=schema)
    return schema
