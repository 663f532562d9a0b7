"""A run on many machines: Ray Data deals the pictures out to workers, each with the model loaded (extra `ray`).

    this process                 workers (an actor pool)
    pictures, names, keys  ->    read, hash, decode the picture, decode the text (`Local`)
    records                <-

Workers open the pictures themselves, so an unreadable one is a record and not the end of the job. Finished
pictures are known from the keys in the file of records, as in runs on one machine.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import pickle
import platform
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sira_cli.errors import SettingsError, SiraError, install
from sira_cli.pictures.picture import Picture
from sira_cli.run.batch import AUTO, WINDOW, BatchSize
from sira_cli.run.events import Failed, Finished, Halved, PictureEvent, Skipped
from sira_cli.run.records import Result
from sira_cli.run.run import Engine, Local
from sira_cli.run.task import PictureTask

LARGE = 64  # pictures, a batch size that blocks allow for where each worker finds its own
ROWS = 32  # pictures in a block, at least; a block's texts come back together
RETRIES = 3  # for a block whose worker was killed
LOST = 3  # blocks that may lose all their workers in one run; if there are more, the pictures are not to blame


@dataclass(frozen=True)
class Work:
    """The job of a worker; it is sent to each.

    Attributes:
        task, batch_size: of `Local`.
        loading: further arguments of `load`.
        folder: the current folder, which relative paths start from.
    """

    task: PictureTask
    loading: dict[str, Any]
    batch_size: BatchSize | None
    folder: str


class OnRay(Engine):
    """Workers with the model, on the machines of a Ray cluster."""

    def __init__(
        self,
        loading: dict[str, Any],
        batch_size: BatchSize | None = None,
        *,
        workers: int | None = None,
        quiet: bool = True,
    ) -> None:
        """Choose the workers; `loading` are arguments of `load`, without preset and method."""
        self._loading, self._batch_size, self._workers, self._quiet = loading, batch_size, workers, quiet
        self._facts: dict[str, Any] = {}

    def begin(self, task: PictureTask, done: Callable[[str], str] = lambda name: "") -> None:
        """Connect to the cluster of `RAY_ADDRESS` or of this machine; without one, start one on this machine.

        The workers load the model, so nothing is known before the first result.
        """
        self._work = Work(task, self._loading, self._batch_size, str(Path.cwd()))
        self._done = done
        self._ray = _connect(self._workers, self._quiet)
        self._needs = self._resources(self._workers)

    def facts(self) -> dict[str, Any]:
        """Return facts as `Local.facts` does: the smallest batch size and the largest peaks of all workers."""
        return {"workers": self._needs["workers"], **self._facts}

    def results(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[PictureEvent, None, None]:
        """Yield the event of every picture, in the order in which they become ready."""
        self._pictures = list(pictures)
        rows = {
            number: {
                "number": number,
                "picture": pickle.dumps(picture),
                "name": name,
                "id": picture.id or name,
                "done": self._done(picture.id or name),
                "error": "",
            }
            for number, (picture, name) in enumerate(self._pictures)
        }
        block = math.ceil(len(rows) / (4 * self._needs["workers"]))
        block = min(max(ROWS, WINDOW * self._most_together), block)
        try:
            yield from self._all(rows, block)
            if block > 1:
                yield from self._all(rows, 1)  # to find the picture in a lost block that its worker did not survive
            for row in rows.values():
                row["error"] = f"the worker that had it was killed {RETRIES + 1} times"
            yield from self._all(rows, ROWS)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise SiraError(f"Ray gave up: {reason}: run the same command again to go on") from error
        finally:
            self._ray.shutdown()

    def _all(self, rows: dict[int, dict[str, Any]], block: int) -> Iterator[PictureEvent]:
        """Yield the events of the rows' pictures; finished rows are taken out of `rows`."""
        if not rows:
            return
        from ray.data import ActorPoolStrategy, from_items

        count = math.ceil(len(rows) / block)
        blocks = from_items(list(rows.values()), override_num_blocks=count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray 2.64 has no max_task_retries
            dataset = blocks.map_batches(
                Captioner,
                batch_size=None,
                fn_constructor_args=(self._work,),
                compute=ActorPoolStrategy(size=min(self._needs["workers"], count)),
                num_cpus=self._needs["num_cpus"],
                num_gpus=self._needs["num_gpus"],
                max_task_retries=RETRIES,
            )
        for row in dataset.iter_rows():
            if row["failure"]:
                raise pickle.loads(row["failure"])
            number = int(row["number"])
            if rows.pop(number, None) is None:
                continue  # from a worker that was killed after it had answered
            self._note(json.loads(row["facts"]))
            picture, name = self._pictures[number]
            if not row["record"]:
                yield Skipped(picture, name, picture.id or name)
                continue
            record = Result(**json.loads(row["record"]))
            yield (Finished if record.status == "ok" else Failed)(picture, name, picture.id or name, record)

    @property
    def _most_together(self) -> int:
        """Number of pictures that a worker may request at once."""
        size = self._batch_size
        if size is None:
            return LARGE if self._needs["num_gpus"] else 1
        return size if isinstance(size, int) else LARGE

    def _note(self, facts: dict[str, Any]) -> None:
        before = self._facts or facts
        facts["batch_size"] = min(before["batch_size"], facts["batch_size"])
        peaks = (before["peak_memory_bytes"], facts["peak_memory_bytes"])
        facts["peak_memory_bytes"] = {kind: max(peak.get(kind, 0) for peak in peaks) for kind in peaks[1]}
        self._facts = facts

    def _resources(self, workers: int | None) -> dict[str, Any]:
        """Return the resources of each worker in Ray: a GPU, or an equal part of the CPUs."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpus = [int(node.get("GPU", 0)) for node in nodes]
        cpus = [int(node.get("CPU", 0)) for node in nodes]
        device = self._loading["device"]
        on_gpu = device.startswith("cuda") or (device == "auto" and sum(gpus) > 0)
        if workers is None:
            workers = max(1, sum(gpus)) if on_gpu else 1
        kind, has = ("GPU", gpus) if on_gpu else ("CPU", cpus)
        if workers > sum(has):
            self._ray.shutdown()
            raise SettingsError(f"{workers} Ray workers: the cluster has {sum(has)} {kind}s: give fewer")
        if self._batch_size == AUTO and not on_gpu and workers > 1:
            self._ray.shutdown()
            raise SettingsError(
                f"`batch_size=` auto: {workers} workers without GPUs may share a machine's memory, so the free memory "
                "of each is unknown: give a number"
            )
        share = next(share for share in range(max(has), 0, -1) if sum(node // share for node in has) >= workers)
        return {"workers": workers, "num_cpus": 1 if on_gpu else share, "num_gpus": 1 if on_gpu else 0}


class Captioner:
    """A worker: a loaded model and its blocks of pictures."""

    def __init__(self, work: Work) -> None:
        with contextlib.suppress(OSError):  # `__call__` raises if it matters
            os.chdir(work.folder)
        self._folder = work.folder
        self._keys: dict[str, str] = {}
        self._failure = b""
        from sira_cli.run.lvlm import load

        try:
            lvlm = load(work.task.preset, method=work.task.method, **work.loading)
            self._engine = Local(lvlm, work.batch_size)
            self._engine.begin(
                replace(work.task, preset=lvlm.preset, method=lvlm.decoder), lambda name: self._keys[name]
            )
        except SiraError as error:  # if it were raised here, Ray would start workers again and again
            self._failure = pickle.dumps(error)

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        """Return the records of a block of pictures."""
        if self._failure:
            return _columns([{"failure": self._failure}])
        self._keys = dict(zip(rows["id"], rows["done"], strict=True))
        given = [pickle.loads(picture) for picture in rows["picture"]]
        pictures = list(zip(given, rows["name"], strict=True))
        try:
            if not Path(self._folder).is_dir() and any(picture.depends_on_folder for picture in given):
                raise SettingsError(
                    f"{self._folder} does not exist on {platform.node()}: all machines need the same files"
                )
            if rows["error"][0]:
                lost = zip(pictures, rows["error"], strict=True)
                events = [self._engine.give_up(picture, name, error) for (picture, name), error in lost]
            else:
                events = [event for event in self._engine.results(pictures) if not isinstance(event, Halved)]
        except SiraError as error:
            return _columns([{"failure": pickle.dumps(error)}])
        facts = json.dumps(self._engine.facts())
        numbers = dict(zip((picture.identity for picture in given), rows["number"], strict=True))
        return _columns(
            [
                {
                    "number": numbers[event.picture.identity],
                    "record": "" if isinstance(event, Skipped) else event.record.to_json(),
                    "facts": facts,
                }
                for event in events
            ]
        )


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    empty = {"number": 0, "record": "", "facts": "", "failure": b""}
    return {name: [row.get(name, default) for row in rows] for name, default in empty.items()}


def _connect(workers: int | None, quiet: bool) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send nothing to anyone
    if quiet:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise SettingsError(f"the engine ray needs Ray: {install('ray')}") from error
    said: dict[str, Any] = {"log_to_driver": not quiet, "logging_level": "ERROR" if quiet else "INFO"}
    with _muted_stderr() if quiet else contextlib.nullcontext():
        try:
            if os.environ.get("RAY_ADDRESS") == "local":
                raise ConnectionError
            ray.init("auto", **said)
        except ConnectionError:
            if os.environ.get("RAY_ADDRESS", "local") != "local":
                raise SettingsError(f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}: no Ray cluster answers there") from None
            ray.init("local", num_cpus=max(os.cpu_count() or 1, workers or 1), include_dashboard=False, **said)
    context = ray.data.DataContext.get_current()
    context.max_errored_blocks = LOST
    if quiet:
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context.enable_progress_bars = False
    return ray


@contextlib.contextmanager
def _muted_stderr() -> Iterator[None]:
    """Mute stderr: Ray's C++ part announces even that it is silent."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
