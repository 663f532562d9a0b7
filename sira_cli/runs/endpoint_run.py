"""The engine of checks on a server: pictures and questions are sent there, and no model is loaded here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

from sira_cli._version import __version__
from sira_cli.errors import PictureError, SiraError
from sira_cli.language import things
from sira_cli.language.things import Thing
from sira_cli.methods import find
from sira_cli.models.keys import Keys
from sira_cli.models.look.claims import Check, Claim, best_of, question_about
from sira_cli.models.preset import Preset
from sira_cli.models.records import Answer, Result
from sira_cli.pictures.captioned import CaptionedPicture
from sira_cli.pictures.data_url import data_url
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.room import ROOM
from sira_cli.runs.ahead import ahead
from sira_cli.runs.check_request import CheckRequest, checked
from sira_cli.runs.endpoint import Endpoint, NoAnswerError
from sira_cli.runs.events import Failed, Finished, PictureEvent, Skipped

REVISION = "endpoint"  # in records: the files of the model are not known here
CONCURRENCY = 4


class EndpointRun:
    """A second look at many captions by a model on a server."""

    def __init__(
        self,
        endpoint: Endpoint,
        preset: Preset,
        request: CheckRequest,
        *,
        concurrency: int = CONCURRENCY,
        done: Callable[[str], str] = lambda name: "",
    ) -> None:
        """Prepare a run.

        Args:
            endpoint: the server.
            preset, request: of `CheckRequest.under`; `preset.model` is the model's name on the server.
            concurrency: number of questions on their way at once, each about another picture.
            done: as for `PictureTask`.
        """
        self._endpoint, self._preset, self._request, self._done = endpoint, preset, request, done
        self._concurrency = concurrency
        self._keys = Keys.of(preset, find("greedy"), REVISION, None)
        self._how = request.how.settings(preset)
        self._words = request.how.words or things.shipped()

    def blank(self) -> Result:
        """Return a result without a picture, after a first question to the server.

        Raises:
            SiraError: the server is away, refuses, or does not know the model.
        """
        if "source" not in self._how:
            some = self._words.things("a dog") or [things.Thing("dog", (), "dog")]
            try:
                self._how["source"] = self._endpoint.begin(question_about(self._how["question"], some[0]))
            except BaseException:
                self._endpoint.end()
                raise
        return self._result("", "", "", self._request.prompt, Answer(objects=[], verify=self._how))

    def facts(self) -> dict[str, Any]:
        """Return where the model runs, for the run's report."""
        return {"model": {"revision": REVISION}, "device": self._endpoint.shown, "batch_size": self._concurrency}

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[PictureEvent, None, None]:
        """Yield the event of every picture, in order.

        Args:
            pictures: each with its name in the record.

        Raises:
            SiraError: the server is gone, or refuses every question.
        """
        pool = ThreadPoolExecutor(self._concurrency, "sira-endpoint")
        try:
            yield from ahead(pool, self._work, _ready(pictures), lambda: 2 * self._concurrency)
        finally:
            self._endpoint.end()
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, one: tuple[Picture, str]) -> PictureEvent:
        picture, name = one
        text, began = cast(CaptionedPicture, picture).text, time.perf_counter()
        asked, key = picture.asked(self._request.prompt), picture.id or name
        sha256, data, error = "", b"", ""
        try:
            with ROOM.taken(picture.file_size()):
                data = picture.read()
            sha256 = picture.digest(data)
        except Exception as failure:
            error = _message(picture, failure)
        if self._done(key) == self._keys.key(self._request.task, name, sha256, asked, self._how):
            return Skipped(picture, name, key)
        answer = Answer(objects=[], verify=self._how, error=error)
        warnings: tuple[str, ...] = ()
        if not error:
            try:
                urls, suspicions = zip(*(data_url(*file) for file in picture.files(data)), strict=True)
                warnings = tuple(warning for each in suspicions for warning in each)
                answer = self._look(urls, text)
            except Exception as failure:
                if isinstance(failure, SiraError) and not isinstance(failure, PictureError):
                    raise
                answer = Answer(objects=[], verify=self._how, error=_message(picture, failure))
        result = self._result(name, sha256, text, asked, answer, warnings, time.perf_counter() - began)
        result = replace(result, images=picture.images(name))
        return (Failed if answer.error else Finished)(picture, name, key, result)

    def _look(self, urls: Sequence[str], text: str) -> Answer:
        """Ask about each object that a caption names; each picture by itself."""
        named = self._words.things(text)
        claims = best_of([[self._claim(url, thing) for thing in named] for url in urls])
        return Check(text, tuple(claims), self._words.name).added_to(Answer(text, "stop"), self._how)

    def _claim(self, url: str, thing: Thing) -> Claim:
        return Claim(thing.name, thing.spans, *self._endpoint.ask(url, question_about(self._how["question"], thing)))

    def _result(
        self,
        name: str,
        sha256: str,
        text: str,
        asked: str,
        answer: Answer,
        warnings: tuple[str, ...] = (),
        seconds: float = 0.0,
    ) -> Result:
        preset, task = self._preset, self._request.task
        result = Result(
            schema=f"sira.{task}/1",
            key=self._keys.key(task, name, sha256, asked, answer.verify),
            file_name=name,
            status="error" if answer.error else "ok",
            text=text,
            error=answer.error,
            prompt=asked,
            preset=preset.name,
            model=preset.model,
            revision=REVISION,
            method=self._keys.method.name,
            k=0,
            layers=0,
            alpha=0.0,
            max_new_tokens=preset.generation.max_new_tokens,
            temperature=preset.generation.temperature,
            seed=preset.generation.seed,
            finish_reason=answer.finish_reason,
            image_tokens=0,
            prompt_tokens=0,
            output_tokens=0,
            duration_ms=round(1000 * seconds, 1),
            image_sha256=sha256,
            sira_version=__version__,
            warnings=[*warnings] or None,
            objects=answer.objects,
            verify=answer.verify,
            **preset.later(),
        )
        return checked(result, text, self._how)


def _ready(pictures: Iterable[tuple[Picture, str]]) -> Iterator[tuple[Picture, str]]:
    """Make each picture ready for `read`; this runs in the main thread."""
    for picture, name in pictures:
        picture.make_ready()
        yield picture, name


def _message(picture: Picture, error: Exception) -> str:
    """Return why a picture failed, in one line that names it."""
    if isinstance(error, PictureError) and not isinstance(error, NoAnswerError):
        return str(error)
    kind = "" if isinstance(error, NoAnswerError) else f"{type(error).__name__}: "
    return f"{picture.shown}: {kind}{next(iter(str(error).strip().splitlines()), '')}"
