"""Texts and losses of requests from a loaded model, in batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sira_cli.core.forcing import score
from sira_cli.errors import SettingsError
from sira_cli.eval.lmms.requests import Request, Wanted
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.processor import refusing
from sira_cli.models.texts import Answer
from sira_cli.pictures.picture import digest_of
from sira_cli.run.final_answers import FinalAnswers
from sira_cli.run.lvlm import Lvlm

_log = logging.getLogger(__name__)


def answers(lvlm: Lvlm, requests: Sequence[Request], batch_size: int, task: str) -> Iterator[tuple[int, Answer]]:
    """Yield each request's number and answer; requests with equal settings are decoded together."""
    groups: dict[Wanted, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.wanted, []).append(number)
    for wanted, numbers in groups.items():
        under = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(**dict(wanted.settings)))
        for batch in _batches(numbers, batch_size if under.batches else 1):
            asked = [requests[number] for number in batch]
            inputs, hashes = prepared(under, asked)
            seeds = under.text_seeds(hashes, [request.prompt for request in asked])
            found = FinalAnswers(under).answer([], inputs, seeds=seeds, task=task)
            for number, request, answer in zip(batch, asked, found, strict=True):
                if answer.error:
                    _log.warning("%s: no answer: %s", request.name, answer.error)
                yield number, _until(answer, wanted.until)


def losses(lvlm: Lvlm, requests: Sequence[Request], texts: Sequence[str], batch_size: int) -> list[tuple[float, bool]]:
    """Return each request's loss for a given answer, and whether the method would decode this answer.

    The loss is the mean of `-log p` over the answer's tokens under the method's logits, with temperature 1. lmms-eval
    (api/task.py) picks the choice with the least loss, and its other models return the mean loss.
    """
    require(lvlm.decoder, Ability.TRACES, "the likelihood of a given answer")
    found: list[tuple[float, bool]] = []
    for batch in _batches(range(len(requests)), batch_size):
        asked = [requests[number] for number in batch]
        inputs = lvlm.to_device(prepared(lvlm, asked)[0])
        rows = inputs["input_ids"].tolist()
        tokens = [
            lvlm.vocabulary.encode_after(row, texts[number].strip()) for row, number in zip(rows, batch, strict=True)
        ]
        if empty := [number for number, ids in zip(batch, tokens, strict=True) if not ids]:
            raise SettingsError(f"{requests[empty[0]].name}: the choice {texts[empty[0]]!r} has no tokens")
        found += _scored(lvlm, inputs, tokens)
    return found


def prepared(lvlm: Lvlm, requests: Sequence[Request]) -> tuple[Any, list[str]]:
    """Return the model's inputs for some requests, on the CPU, and a hash of each one's pictures."""
    for request in requests:
        try:
            lvlm.check_prompt(request.prompt, len(request.pictures))
        except SettingsError as error:
            raise SettingsError(f"{request.name}: {error}") from None
    opened = [[picture.open() for picture in request.pictures] for request in requests]
    shown = [[each.image for each in pictures] for pictures in opened]
    prompts = [request.prompt for request in requests]
    hashes = [digest_of([each.sha256 for each in pictures]) for pictures in opened]
    with refusing(requests[0].name):
        return lvlm.prepare(shown, prompts, hashes), hashes


def _batches(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _until(answer: Answer, stops: Sequence[str]) -> Answer:
    """Cut an answer's text before the first of some strings."""
    places = [place for stop in stops if (place := answer.text.find(stop)) >= 0]
    return replace(answer, text=answer.text[: min(places)].strip(), finish_reason="stop") if places else answer


def _scored(lvlm: Lvlm, inputs: Any, texts: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
    """Return the mean of `-log p` over each text's tokens, and whether all of them are the likeliest."""
    sums, likeliest = [0.0] * len(texts), [True] * len(texts)
    left = max(map(len, texts))
    for step in score(lvlm.model, lvlm.both_streams, inputs, texts):
        logs = step.contrast.log_softmax(dim=-1)  # [B, V]
        for row, text in enumerate(texts):
            if left <= len(text):
                token = text[-left]
                sums[row] -= float(logs[row, token])
                likeliest[row] &= int(logs[row].argmax()) == token
        left -= 1
    return [(total / len(text), best) for total, text, best in zip(sums, texts, likeliest, strict=True)]
