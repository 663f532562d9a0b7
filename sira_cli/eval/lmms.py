"""A model of lmms-eval, which finds it by the entry point `manifest`: requests in sira's terms, texts and losses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import override

from sira_cli.core.passes import score
from sira_cli.errors import SettingsError
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.methods.prompts import Conversation, Prompt, Turn
from sira_cli.models.model import LoadedModel
from sira_cli.models.texts import Answer
from sira_cli.pictures.picture import Picture, group_of
from sira_cli.pictures.sources import as_picture
from sira_cli.run.events import Halved
from sira_cli.run.items import Batch, Item, Task
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.task import TASKS
from sira_cli.run.ways import Way

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

_log = logging.getLogger(__name__)

R = TypeVar("R")

# Settings of generation that change texts and that are not ours; others in tasks are about other programs.
REFUSED = ("frequency_penalty", "presence_penalty", "length_penalty", "diversity_penalty", "num_beam_groups")


class Request(NamedTuple):
    """One request: the model's input, and the settings of its text; those with equal settings are decoded together."""

    name: str  # the task and the document, for messages
    pictures: tuple[Picture, ...]  # in the order of the turns that have them
    prompt: Prompt  # a text about the pictures, or a conversation
    settings: tuple[tuple[str, Any], ...] = ()  # of the preset, as sorted pairs; a system message is one of them
    until: tuple[str, ...] = ()  # the text ends before the first of these


def manifest() -> Any:
    """Return lmms-eval's `ModelManifest` of the model `sira`: messages by default, with `--force_simple` plain text."""
    from lmms_eval.models.registry_v2 import ModelManifest

    home = "sira_cli.eval.lmms_model"
    return ModelManifest(
        model_id="sira", chat_class_path=f"{home}.SiraModel", simple_class_path=f"{home}.SimpleSiraModel"
    )


def request_of(
    name: str, messages: Sequence[Mapping[str, Any]], generation: Mapping[str, Any] | None = None
) -> Request:
    """Return the request of a task's messages; a message's pictures come before its text, whatever their order."""
    generation = generation or {}
    system: list[str] = []
    turns: list[Turn] = []
    pictures: list[Picture] = []
    for message in messages:
        turn, seen = _turn(name, message)
        if message["role"] == "system":
            system.append(turn.text)
        else:
            turns.append(turn)
            pictures += seen
    if not pictures:
        raise SettingsError(f"{name}: has no picture, and SIRA is about what a picture supports: leave this task out")
    if turns[-1].role != "user":
        raise SettingsError(f"{name}: the last message is not the user's, so there is nothing to answer")
    prompt = turns[0].text if len(turns) == 1 else Conversation(tuple(turns))
    until = generation.get("until") or ()
    if isinstance(until, str):
        until = (until,)
    settings = settings_of(name, generation, "\n".join(system))
    return Request(name, tuple(pictures), prompt, settings, tuple(filter(None, until)))


def plain_request(name: str, text: str, images: Sequence[Any], generation: Mapping[str, Any] | None = None) -> Request:
    """Return the request of a text about pictures, as models of lmms-eval without messages get it."""
    parts = [{"type": "image", "url": image} for image in images]
    parts.append({"type": "text", "text": text})
    return request_of(name, [{"role": "user", "content": parts}], generation)


def settings_of(name: str, generation: Mapping[str, Any], system: str = "") -> tuple[tuple[str, Any], ...]:
    """Return the settings of a text from a task's `generation_kwargs`; those that are missing are the preset's."""
    given = {key: value for key, value in generation.items() if value is not None}
    for key in REFUSED:
        if given.get(key):
            raise SettingsError(f"{name}: sira has no {key}: leave it out of the task's generation_kwargs")
    settings: dict[str, Any] = {}
    for key in ("max_new_tokens", "num_beams", "repetition_penalty"):
        if key in given:
            settings[key] = given[key]
    usual = float(given.get("do_sample", False))  # without a temperature, one that only says so samples
    if given.get("do_sample", True) and given.get("temperature", usual) > 0:
        settings["temperature"] = float(given.get("temperature", 1.0))
        for key, kind in {"top_p": float, "top_k": int, "min_p": float}.items():
            if key in given:
                settings[key] = kind(given[key])
    else:
        settings["temperature"] = 0.0
    if system:
        settings["system"] = system
    return tuple(sorted(settings.items()))


def _turn(name: str, message: Mapping[str, Any]) -> tuple[Turn, list[Picture]]:
    """Return the turn of a message, and its pictures."""
    role = message["role"]
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    texts: list[str] = []
    pictures: list[Picture] = []
    for part in content:
        if part["type"] == "text":
            texts.append(part["text"])
        elif part["type"] == "image" and role == "user":
            pictures.append(as_picture(part["url"]))
        else:
            raise SettingsError(f"{name}: has {part['type']} of the {role}, expected text, and pictures of the user")
    turn = Turn("assistant" if role == "assistant" else "user", "\n".join(filter(None, texts)), len(pictures))
    return turn, pictures


@dataclass(frozen=True)
class _Asked(Task[R]):
    """Work on requests, whose numbers are the items' ids. One that fails ends the evaluation: it has no errors."""

    requests: Sequence[Request]

    def request(self, item: Item[R]) -> Request:
        """Return the request of an item."""
        return self.requests[int(item.id)]

    @override
    def complete(self, lvlm: LoadedModel, item: Item[R]) -> None:
        """Check the prompt."""
        request = self.request(item)
        try:
            lvlm.check_prompt(request.prompt, len(request.pictures))
        except SettingsError as error:
            raise SettingsError(f"{item.name}: {error}") from None

    @override
    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[R]], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for requests, which may be conversations."""
        prompts = [self.request(item).prompt for item in items]
        return lvlm.prepare(images, prompts, [item.sha256 for item in items], skip_thought=self.skips_thought())

    @override
    def fail(self, lvlm: LoadedModel, item: Item[R], error: Exception) -> None:
        """Raise the error."""
        raise error

    def results(self, lvlm: Lvlm, numbers: Iterable[int], batch_size: int) -> Iterator[tuple[int, R]]:
        """Yield the numbers of requests and their results, in order; `batch_size` are worked on together."""
        items = []
        for number in numbers:
            request = self.requests[number]
            items.append(Item[R](group_of(request.pictures), request.name, str(request.prompt), id=str(number)))
        with closing(lvlm.runner(self, batch_size).run(items)) as settled:
            for item in settled:
                if isinstance(item, Halved):
                    _log.warning("out of memory with %d requests at once, now %d", item.before, item.batch_size)
                else:
                    assert item.result is not None
                    yield int(item.id), item.result


@dataclass(frozen=True)
class Texts(_Asked[Answer]):
    """The texts of requests with equal settings."""

    way: Way

    def answers(self, lvlm: LoadedModel, batch: Batch[Answer], on_text: Any = None) -> Sequence[Answer]:
        """Return the text of each request."""
        return self.way.answers(batch.images, lvlm.to_device(batch.inputs), batch.seeds(lvlm))


@dataclass(frozen=True)
class Losses(_Asked[tuple[float, bool]]):
    """The loss of each request's given answer, and whether the method would decode this answer."""

    texts: Sequence[str]

    @override
    def skips_thought(self) -> bool:
        """Return True: the given text is the answer."""
        return True

    def answers(
        self, lvlm: LoadedModel, batch: Batch[tuple[float, bool]], on_text: Any = None
    ) -> list[tuple[float, bool]]:
        """Return the pair of each request."""
        inputs = lvlm.to_device(batch.inputs)
        choices = []
        for item, prompt in zip(batch.items, inputs["input_ids"].tolist(), strict=True):
            text = self.texts[int(item.id)]
            choice = lvlm.vocabulary.encode_after(prompt, text.strip())
            if not choice:
                raise SettingsError(f"{item.name}: the choice {text!r} has no tokens")
            choices.append(choice)
        return _scored(lvlm, inputs, choices)


def answers(lvlm: Lvlm, requests: Sequence[Request], batch_size: int, task: str) -> Iterator[tuple[int, Answer]]:
    """Yield each request's number and answer; requests with equal settings are decoded together."""
    groups: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.settings, []).append(number)
    for settings, numbers in groups.items():
        under = lvlm.under(lvlm.decoder, lvlm.preset.with_settings(**dict(settings)))
        texts = Texts(requests, TASKS[task](under.preset, under.decoder, "").way(under))
        for number, answer in texts.results(under, numbers, batch_size):
            if answer.error:
                _log.warning("%s: no answer: %s", requests[number].name, answer.error)
            yield number, _until(answer, requests[number].until)


def losses(lvlm: Lvlm, requests: Sequence[Request], texts: Sequence[str], batch_size: int) -> list[tuple[float, bool]]:
    """Return each request's loss for a given answer, and whether the method would decode this answer.

    The loss is the mean of `-log p` over the answer's tokens, with temperature 1, as of lmms-eval's other models.
    """
    require(lvlm.decoder, Ability.TRACES, "the likelihood of a given answer")
    results = Losses(requests, texts).results(lvlm, range(len(requests)), batch_size)
    return [pair for _, pair in results]


def _until(answer: Answer, stops: Sequence[str]) -> Answer:
    """Cut an answer's text before the first of some strings."""
    places = [answer.text.find(stop) for stop in stops if stop in answer.text]
    if not places:
        return answer
    return replace(answer, text=answer.text[: min(places)].strip(), finish_reason="stop")


def _scored(lvlm: LoadedModel, inputs: Any, texts: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
    """Return the mean of `-log p` over each text's tokens, and whether all of them are the likeliest."""
    sums = [0.0] * len(texts)
    likeliest = [True] * len(texts)
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
