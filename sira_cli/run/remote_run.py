"""The engine of a check on a server: pictures and questions are sent there, and no model is loaded here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from sira_cli.errors import PictureError, SiraError
from sira_cli.look.claims import Claim, best_of
from sira_cli.look.verify import LIST_TOKENS, ObjectFinder
from sira_cli.look.words import Thing
from sira_cli.methods import find
from sira_cli.models.texts import Answer
from sira_cli.pictures.opening import MEMORY, data_url
from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import ahead, message
from sira_cli.run.check_request import CheckRequest, checked
from sira_cli.run.endpoint import Endpoint
from sira_cli.run.events import Failed, Finished, PictureEvent, Skipped
from sira_cli.run.keys import Asked, Keys
from sira_cli.run.nothing_left import nothing_left
from sira_cli.run.records import Result
from sira_cli.run.run import Engine, Job

REVISION = "endpoint"  # in records: the files of the model are not known here
CONCURRENCY = 4  # questions at once, each about another picture


def remote_engine(endpoint: Endpoint, job: Job) -> Engine:
    """Return the engine of a check on a server; nobody is asked if nothing is left to do."""
    if (left := nothing_left(job, revision=REVISION, server=endpoint.shown)) is not None:
        endpoint.end()
        return left
    return RemoteRun(endpoint, job)


class RemoteRun:
    """Questions about the objects that captions name, to a model on a server."""

    def __init__(self, endpoint: Endpoint, job: Job) -> None:
        """Prepare a run."""
        request, preset = cast(CheckRequest, job.request), job.preset
        self._endpoint, self._request = endpoint, request
        self._done: Callable[[str], str] = job.targets.done
        self._finder, self._answers = ObjectFinder(request.how, preset), preset.verify.answers
        self._how = request.how.settings(preset)
        self._keys = Keys.of(preset, find("greedy"), REVISION, endpoint.shown)

    def blank(self) -> Result:
        """Return a result without a picture, after a first question to the server."""
        try:
            self._how["source"] = self._endpoint.begin(self._finder.question(Thing("dog", (), "dog")))
        except BaseException:
            self._endpoint.end()
            raise
        about = Asked(self._request.task, "", "", self._request.prompt)
        return checked(self._keys.result(about, self._no_answer("")), None, self._how)

    def facts(self) -> dict[str, Any]:
        """Return where the model runs, for the run's report."""
        return {"model": {"revision": REVISION}, "device": self._endpoint.shown, "batch_size": CONCURRENCY}

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[PictureEvent, None, None]:
        """Yield the event of every picture, in order."""
        pool = ThreadPoolExecutor(CONCURRENCY, "sira-endpoint")
        try:
            yield from ahead(pool, self._work, pictures, 2 * CONCURRENCY)
        finally:
            self._endpoint.end()
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, one: tuple[Picture, str]) -> PictureEvent:
        picture, name = one
        began = time.perf_counter()
        asked, key = picture.asked(self._request.prompt), picture.id or name
        sha256, data, failure = "", b"", None
        try:
            with MEMORY.taken(picture.file_size()):
                data = picture.read()
            sha256 = picture.digest(data)
            asked = self._request.asked(picture)
        except Exception as error:
            failure = error
        about = Asked(self._request.task, name, sha256, asked)
        if self._done(key) == self._keys.key(*about, self._how):
            return Skipped(picture, name, key)
        answer, warnings = self._answer(picture, data, failure)
        milliseconds = 1000 * (time.perf_counter() - began)
        result = self._keys.result(about, answer, milliseconds, warnings, images=picture.images(name))
        return (Failed if answer.error else Finished)(picture, name, key, checked(result, picture, self._how))

    def _answer(self, picture: Picture, data: bytes, failure: Exception | None) -> tuple[Answer, tuple[str, ...]]:
        """Return the answer about a picture, or its failure, and warnings about the picture."""
        warnings: tuple[str, ...] = ()
        try:
            if failure is not None:
                raise failure
            urls, suspicions = zip(*(data_url(*file) for file in picture.files(data)), strict=True)
            warnings = tuple(warning for each in suspicions for warning in each)
            return self._looked(urls, picture.caption or ""), warnings
        except Exception as error:
            if isinstance(error, SiraError) and not isinstance(error, PictureError):
                raise
            return self._no_answer(message(picture, error)), warnings

    def _looked(self, urls: Sequence[str], text: str) -> Answer:
        """Ask about each object of a caption, separately for each picture."""

        def ask(named: Sequence[Thing]) -> list[Claim]:
            return best_of([[self._claim(url, thing) for thing in named] for url in urls])

        named = self._finder.named(text, lambda prompt: self._endpoint.reply(urls[0], prompt, LIST_TOKENS).text)
        return self._finder.check(text, named, {}, ask).added_to(Answer(text, "stop"), self._how)

    def _claim(self, url: str, thing: Thing) -> Claim:
        question = self._finder.question(thing)
        return Claim(thing.name, thing.spans, *self._endpoint.support(url, question, self._answers))

    def _no_answer(self, error: str) -> Answer:
        return Answer(objects=[], verify=self._how, error=error)
