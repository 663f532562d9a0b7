"""A run on many machines: Ray Data deals the pictures out to workers, each with the model loaded (extra `ray`).

    this process                 workers (an actor pool)
    pictures, names, keys  ->    read, hash, decode the picture, decode the text (`Local`)
    records                <-

Workers open the pictures themselves, so an unreadable one is a record and not the end of the job. Finished
pictures are known from the keys in the file of records, as in runs on one machine.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import platform
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sira_cli.errors import SettingsError, SiraError, install
from sira_cli.pictures.picture import Picture
from sira_cli.run.engines import Engine, Local
from sira_cli.run.events import Halved, PictureEvent
from sira_cli.run.items import Item, Task
from sira_cli.run.records import Result
from sira_cli.run.runner import AUTO, WINDOW, BatchSize
from sira_cli.run.task import PictureTask

LARGE = 64  # pictures, a batch size that blocks allow for where each worker finds its own
ROWS = 32  # pictures in a block, at least; a block's texts come back together
RETRIES = 3  # for a block whose worker was killed


class Row(NamedTuple):
    """A picture for a worker, with the key of its earlier record."""

    number: int
    picture: Picture
    name: str
    prompt: str
    key: str


class OnRay(Engine):
    """Workers with the model, on the machines of a Ray cluster."""

    def __init__(
        self, loading: dict[str, Any], batch_size: BatchSize | None, *, workers: int | None, quiet: bool = True
    ) -> None:
        """Choose the workers; `loading` are arguments of `load`, without preset and method."""
        self._loading, self._batch_size, self._workers, self._quiet = loading, batch_size, workers, quiet
        self._ray: Any = None
        self._facts: dict[str, Any] = {}

    def begin(self, task: Task[Result], done: Callable[[str], str]) -> None:
        """Connect to the cluster of `RAY_ADDRESS` or of this machine, or start one; the workers load the model."""
        assert isinstance(task, PictureTask)
        self._task, self._done = task, done
        self._ray = _connect(self._workers, self._quiet)
        self._needs = self._resources()

    def end(self) -> None:
        """Leave the cluster, or end the one that was started."""
        if self._ray is not None:
            self._ray.shutdown()

    def facts(self) -> dict[str, Any]:
        """Return facts as `Local.facts` does: the smallest batch size and the largest peaks of all workers."""
        return {"workers": self._workers, **self._facts}

    def results(self, todo: Iterable[Item[Result]]) -> Generator[PictureEvent, None, None]:
        """Yield the event of every item, in the order in which they become ready."""
        from ray.data import ActorPoolStrategy, from_items

        left = {}
        for number, item in enumerate(todo):
            left[number] = Row(number, item.picture, item.name, item.prompt, self._done(item.id))
        workers, num_cpus, num_gpus = self._needs
        most = self._batch_size or (LARGE if num_gpus else 1)
        together = max(ROWS, WINDOW * (LARGE if most == AUTO else most))
        count = math.ceil(len(left) / min(together, math.ceil(len(left) / (4 * workers))))
        blocks = from_items([{"row": pickle.dumps(row)} for row in left.values()], override_num_blocks=count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray 2.64 has no max_task_retries
            dataset = blocks.map_batches(
                Captioner,
                batch_size=None,
                fn_constructor_args=(self._task, self._loading, self._batch_size, str(Path.cwd())),
                compute=ActorPoolStrategy(size=min(workers, count)),
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                max_task_retries=RETRIES,
            )
        try:
            for answer in dataset.iter_rows():
                number, event, facts = pickle.loads(answer["row"])
                if isinstance(event, SiraError):
                    raise event
                if left.pop(number, None) is not None:  # else from a worker that was killed after it had answered
                    self._note(facts)
                    yield event
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise SiraError(f"Ray gave up: {reason}: run the same command again to go on") from error

    def _note(self, facts: dict[str, Any]) -> None:
        """Keep the smallest batch size and the largest peaks of all workers."""
        before = self._facts or facts
        most = {}
        for kind, peak in facts["peak_memory_bytes"].items():
            most[kind] = max(peak, before["peak_memory_bytes"].get(kind, 0))
        size = min(before["batch_size"], facts["batch_size"])
        self._facts = facts | {"batch_size": size, "peak_memory_bytes": most}

    def _resources(self) -> tuple[int, int, int]:
        """Return the number of workers, and of CPUs and GPUs for each in Ray: a GPU, or an equal part of the CPUs."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpus, cpus = ([int(node.get(kind, 0)) for node in nodes] for kind in ("GPU", "CPU"))
        device = self._loading["device"]
        on_gpu = device.startswith("cuda") or (device == "auto" and sum(gpus) > 0)
        workers = self._workers = self._workers or (max(1, sum(gpus)) if on_gpu else 1)
        kind, has = ("GPU", gpus) if on_gpu else ("CPU", cpus)
        if workers > sum(has):
            raise SettingsError(f"{workers} Ray workers: the cluster has {sum(has)} {kind}s: give fewer")
        share = next(share for share in range(max(has), 0, -1) if sum(node // share for node in has) >= workers)
        return (workers, 1, 1) if on_gpu else (workers, share, 0)


class Captioner:
    """A worker: a loaded model and its blocks of pictures."""

    def __init__(self, task: PictureTask, loading: dict[str, Any], batch_size: BatchSize | None, folder: str) -> None:
        with contextlib.suppress(OSError):  # `_events` raises if it matters
            os.chdir(folder)
        self._folder, self._keys = folder, dict[str, str]()
        self._failure: SiraError | None = None
        from sira_cli.run.lvlm import load

        try:
            lvlm = load(task.preset, method=task.method, **loading)
            self._engine = Local[Result](lvlm, batch_size)
            self._engine.begin(replace(task, preset=lvlm.preset, method=lvlm.decoder), lambda name: self._keys[name])
        except SiraError as error:  # if it were raised here, Ray would start workers again and again
            self._failure = error

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[bytes]]:
        """Return the number, the event and the facts of each picture of a block; or an error in place of the event."""
        given = [pickle.loads(row) for row in rows["row"]]
        try:
            events = self._events(given)
        except SiraError as error:
            return {"row": [pickle.dumps((0, error, None))]}
        facts, numbers = self._engine.facts(), {row.picture.identity: row.number for row in given}
        return {"row": [pickle.dumps((numbers[event.picture.identity], event, facts)) for event in events]}

    def _events(self, rows: list[Row]) -> list[PictureEvent]:
        if self._failure is not None:
            raise self._failure
        names = [(row.picture.address, row.picture.name_in(None)) for row in rows]
        if not Path(self._folder).is_dir() and any(address not in ("", name) for address, name in names):
            raise SettingsError(f"{self._folder} does not exist on {platform.node()}: all machines need the same files")
        self._keys = {row.picture.id or row.name: row.key for row in rows}
        todo = (Item[Result](row.picture, row.name, row.prompt, row.picture.id) for row in rows)
        events = self._engine.results(todo)
        return [event for event in events if not isinstance(event, Halved)]


def _connect(workers: int | None, quiet: bool) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send nothing to anyone
    if quiet:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise SettingsError(f"the engine ray needs Ray: {install('ray')}") from error
    logs: dict[str, Any] = {"log_to_driver": not quiet, "logging_level": "ERROR" if quiet else "INFO"}
    with _muted_stderr() if quiet else contextlib.nullcontext():
        try:
            if os.environ.get("RAY_ADDRESS") == "local":
                raise ConnectionError
            ray.init("auto", **logs)
        except ConnectionError:
            if os.environ.get("RAY_ADDRESS", "local") != "local":
                raise SettingsError(f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}: no Ray cluster answers there") from None
            ray.init("local", num_cpus=max(os.cpu_count() or 1, workers or 1), include_dashboard=False, **logs)
    context = ray.data.DataContext.get_current()
    if quiet:
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context.enable_progress_bars = False
    return ray


@contextlib.contextmanager
def _muted_stderr() -> Iterator[None]:
    """Mute stderr: Ray's C++ part announces even that it is silent."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
