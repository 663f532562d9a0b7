"""The engine of a run on a server: pictures and questions are sent there, and no model is loaded here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from sira_cli.data.captions.captioned import CaptionedPicture
from sira_cli.data.records.record import Answer, Result
from sira_cli.errors import PictureError, SiraError
from sira_cli.methods import find
from sira_cli.models.keys import Asked, Keys
from sira_cli.models.loading.preset import Preset
from sira_cli.models.many.ahead import ahead
from sira_cli.models.many.item import message
from sira_cli.models.many.request import Request
from sira_cli.pictures.data_url import data_url
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.room import ROOM
from sira_cli.remote.client import SECONDS
from sira_cli.remote.endpoint import Endpoint
from sira_cli.remote.questions import ClaimQuestions, OwnQuestions, Questions
from sira_cli.runs.check_request import CheckRequest, checked
from sira_cli.runs.events import Failed, Finished, PictureEvent, Skipped
from sira_cli.runs.nothing_left import nothing_left
from sira_cli.runs.run import Engine, Job

REVISION = "endpoint"  # in records: the files of the model are not known here
CONCURRENCY = 4


@dataclass(frozen=True)
class Server:
    """A server that speaks OpenAI's chat protocol, and how it is asked.

    Attributes:
        url, key, seconds: as for `Endpoint`.
        concurrency: as for `RemoteRun`.
    """

    url: str
    key: str = ""
    seconds: float = SECONDS
    concurrency: int = CONCURRENCY

    def engine(self, job: Job) -> Engine:
        """Return the engine of a job; nobody is asked if nothing is left to do.

        Raises:
            SettingsError: the address or the key is not one.
        """
        preset = job.preset
        endpoint = Endpoint(self.url, preset.model, system=preset.prompts.system, seconds=self.seconds, key=self.key)
        if (left := nothing_left(job, revision=REVISION, server=endpoint.shown)) is not None:
            endpoint.end()
            return left
        return RemoteRun(endpoint, preset, job.request, concurrency=self.concurrency, done=job.targets.done)


class RemoteRun:
    """A request about many pictures, to a model on a server."""

    def __init__(
        self,
        endpoint: Endpoint,
        preset: Preset,
        request: Request,
        *,
        concurrency: int = CONCURRENCY,
        done: Callable[[str], str] = lambda name: "",
    ) -> None:
        """Prepare a run.

        Args:
            endpoint: the server.
            preset: `preset.model` is the model's name on the server.
            request: about each picture: of `CheckRequest.under`, or with the task `ask`.
            concurrency: number of simultaneous questions, each about another picture.
            done: as for `PictureTask`.
        """
        self._endpoint, self._request, self._done = endpoint, request, done
        self._concurrency = concurrency
        self._task = _questions(endpoint, request, preset)
        self._keys = Keys.of(preset, find("greedy"), REVISION, None, endpoint.shown)

    def blank(self) -> Result:
        """Return a result without a picture, after a first question to the server.

        Raises:
            SiraError: the server is away, refuses, or does not know the model.
        """
        try:
            self._task.begin()
        except BaseException:
            self._endpoint.end()
            raise
        prompt = self._request.prompt
        blank = self._keys.result(Asked(self._request.task, "", "", prompt), self._task.no_answer(""))
        return self._finished(blank, None)

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
            yield from ahead(pool, self._work, _ready(pictures), 2 * self._concurrency)
        finally:
            self._endpoint.end()
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, one: tuple[Picture, str]) -> PictureEvent:
        picture, name = one
        began = time.perf_counter()
        asked, key = picture.asked(self._request.prompt), picture.id or name
        sha256, data, failure = "", b"", None
        try:
            with ROOM.taken(picture.file_size()):
                data = picture.read()
            sha256 = picture.digest(data)
            asked = self._request.asked(picture)
        except Exception as error:
            failure = error
        about = Asked(self._request.task, name, sha256, asked)
        if self._done(key) == self._keys.key(*about, self._task.looked):
            return Skipped(picture, name, key)
        answer, warnings = self._answer(picture, data, asked, failure)
        milliseconds = 1000 * (time.perf_counter() - began)
        result = self._keys.result(about, answer, milliseconds, warnings, images=picture.images(name))
        kind = Failed if answer.error else Finished
        return kind(picture, name, key, self._finished(result, picture))

    def _finished(self, result: Result, picture: Picture | None) -> Result:
        """Return a result with the fields that its task adds; without a picture, the blank one."""
        if self._task.looked is None:
            return result
        return checked(result, cast(CaptionedPicture | None, picture), self._task.looked)

    def _answer(
        self, picture: Picture, data: bytes, asked: str, failure: Exception | None
    ) -> tuple[Answer, tuple[str, ...]]:
        """Return the answer about a picture, or its failure, and warnings about the picture."""
        warnings: tuple[str, ...] = ()
        try:
            if failure is not None:
                raise failure
            urls, suspicions = zip(*(data_url(*file) for file in picture.files(data)), strict=True)
            warnings = tuple(warning for each in suspicions for warning in each)
            return self._task.answer(urls, asked, picture), warnings
        except Exception as error:
            if isinstance(error, SiraError) and not isinstance(error, PictureError):
                raise
            return self._task.no_answer(message(picture, error)), warnings


def _questions(endpoint: Endpoint, request: Request, preset: Preset) -> Questions:
    """Return the questions to a server for a request."""
    if isinstance(request, CheckRequest):
        return ClaimQuestions(endpoint, preset, request.how)
    return OwnQuestions(endpoint, preset, request.prompt, request.choices)


def _ready(pictures: Iterable[tuple[Picture, str]]) -> Iterator[tuple[Picture, str]]:
    """Make each picture ready for `read`; this runs in the main thread."""
    for picture, name in pictures:
        picture.make_ready()
        yield picture, name
