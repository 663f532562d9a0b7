"""A resumable run over many pictures, without a terminal: it yields events and never prints.

for event in run_pictures(load("llava-1.5-7b"), "photos/", output="photos/captions.jsonl", batch_size=8):
    print(event)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from sira_cli.errors import SettingsError, SiraError
from sira_cli.look.claims import Verify
from sira_cli.models.schema import SchemaSource
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.selection import Selection
from sira_cli.run.events import Event, Failed, Finished, Halved, PictureEvent, Skipped, Started
from sira_cli.run.items import Item, Task
from sira_cli.run.output import Files, Output
from sira_cli.run.records import Result
from sira_cli.run.runner import BatchSize, Runner, ahead
from sira_cli.run.sink import Sink
from sira_cli.run.task import TASKS, Ask, Caption

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm

R = TypeVar("R", default=Result)


class Engine(ABC, Generic[R]):
    """What the results of a run come from: a model on this machine (`Local`), Ray's workers, a server.

    `run` calls `begin` once, then `results` once, then `facts` for the report, and `end` in any case. If nothing is
    left to do, only `end`. A subclass whose `begin` sets `_runner` inherits `results`.
    """

    revision: str | None = None  # of the model, if it is known before the model is; None: that of the files here
    server: str = ""  # the address of the model; empty: on this machine
    _runner: Runner[R]  # made by `begin`

    @abstractmethod
    def begin(self, task: Task[R], done: Callable[[str], str]) -> R | None:
        """Get the model ready, and return a result without a picture; None if nothing is known before the first one.

        `done` returns the key of an earlier result by a picture's id, or its name.
        """

    def results(self, todo: Iterable[Item[R]]) -> Generator[PictureEvent[R] | Halved, None, None]:
        """Yield `Finished`, `Failed` or `Skipped` for every item, in order, and `Halved` where a batch shrinks.

        Args:
            todo: to be read lazily.

        Raises:
            SiraError: no further picture could succeed.
        """
        with closing(self._runner.run(todo)) as items:
            for item in items:
                yield item if isinstance(item, Halved) else event_of(item)

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took, for the run's report."""

    def end(self) -> None:
        """Release what was taken: the run is over, or nothing is left to do."""


def event_of(item: Item[R]) -> PictureEvent[R]:
    """Return the event of an item that is settled."""
    if item.skipped:
        return Skipped(item.picture, item.name, item.id)
    result: Any = item.result  # None where a task has no results for failures
    if item.error:
        return Failed(item.picture, item.name, item.id, result, item.error)
    return Finished(item.picture, item.name, item.id, result)


class Local(Engine[R]):
    """A model on this machine, or what loads one under the method of the first task that needs it."""

    def __init__(
        self,
        model: Lvlm | Callable[[Any], Lvlm],
        batch_size: BatchSize | None = None,
        on_text: Callable[[Picture, str], None] | None = None,
    ) -> None:
        self._model, self._batch_size, self.on_text = model, batch_size, on_text

    def begin(self, task: Task[R], done: Callable[[str], str] = lambda name: "") -> R | None:
        """Load the model, or switch the loaded one to the method of another task."""
        if callable(self._model):
            lvlm = self._model = self._model(task)
        else:
            lvlm = task.model(self._model)
        self._lvlm = lvlm
        task = task.at(lvlm.revision)
        task.check_model(lvlm)
        self._runner = lvlm.runner(task, self._batch_size, done=done, on_text=self.on_text)
        return task.blank(lvlm)

    @property
    def batch_size(self) -> int:
        """Number of pictures decoded together, as for `Runner`."""
        return self._runner.batch_size

    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took so far."""
        from sira_cli.models.memory import peak_of_process
        from sira_cli.models.processor import pixel_library

        lvlm = self._lvlm
        return {
            "model": {"revision": lvlm.revision, "k": lvlm.k, "layers": lvlm.layers},
            "device": lvlm.device,
            "dtype": lvlm.dtype,
            "pixels": pixel_library(lvlm.processor),
            "batch_size": self.batch_size,
            "peak_memory_bytes": peak_of_process(),
        }


class Together(Runner[R]):
    """Pictures side by side, a thread for each, whose answers come from elsewhere: from a server, or from vLLM."""

    def __init__(self, lvlm: Any, task: Task[R], at_once: int, ahead: int = 0, *, done: Callable[[str], str]) -> None:
        """Prepare a run; `ahead` more pictures are read while the answers about `at_once` are on their way."""
        super().__init__(lvlm, task, at_once, done=done)
        self._threads = self.batch_size + ahead

    def run(self, todo: Iterable[Item[R]]) -> Generator[Item[R] | Halved, None, None]:
        """Work on items, and yield each when it is settled, in order."""
        pool = ThreadPoolExecutor(self._threads, "sira-picture")
        try:
            yield from ahead(pool, self._work, todo, self._threads)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, item: Item[R]) -> Item[R]:
        if not self._read(item).settled:
            self.work([item])
        return item


def run(
    task: Task[R], pictures: Sequence[Picture], engine: Engine[R] | None, output: Sink[R], *, fail_fast: bool = False
) -> Generator[Event[R], None, None]:
    """Do a task on pictures, write each result, and yield events; `Started` comes when the model is ready.

    Pictures that an earlier run has done are skipped, without a model if none is left (or None is given). Closing the
    generator interrupts the run; finished pictures are kept.
    """
    kept = [picture for picture in pictures if output.keeps(picture)]
    left = [picture for picture in pictures if not output.keeps(picture)] if kept else pictures
    if engine is not None and output.has_all(left, engine.revision, engine.server):
        engine.end()
        engine = None
    output.facts = output.facts_before if engine is None else engine.facts
    state = "finished"

    def skipped(pictures: Sequence[Picture]) -> Generator[Skipped, None, None]:
        for picture in pictures:
            name = output.name(picture)
            yield Skipped(picture, name, picture.id or name)

    try:
        if engine is not None and (blank := engine.begin(task, output.done)) is not None:
            output.begin(blank)
        yield Started(len(pictures))
        yield from map(output.write, skipped(kept))
        todo = (Item[R](each, output.name(each), task.first_prompt(each), each.id) for each in left)
        with closing(skipped(left) if engine is None else engine.results(todo)) as events:
            for event in events:
                yield event if isinstance(event, Halved) else output.write(event)
                if fail_fast and isinstance(event, Failed):
                    state = "stopped"
                    break
            else:
                output.finish()
    except (KeyboardInterrupt, GeneratorExit):
        output.report("interrupted")
        raise
    except SiraError:
        with suppress(SiraError):  # the disk may be full
            output.report("failed")
        raise
    finally:
        if engine is not None:
            engine.end()
    output.report(state)


def run_pictures(
    lvlm: Lvlm,
    paths: str | Path | Iterable[str | Path],
    *,
    task: str = "caption",
    prompt: str | None = None,
    words: bool = False,
    choices: Sequence[str] = (),
    verify: str | Verify | None = None,
    schema: SchemaSource | None = None,
    recursive: bool = False,
    shard: Shard | None = None,
    limit: int | None = None,
    together: bool = False,
    questions: str | Path | None = None,
    output: str | Path | None = None,
    sidecar: bool = False,
    caption_extension: str = ".txt",
    output_dir: str | Path | None = None,
    overwrite: bool = False,
    retry_errors: bool = False,
    batch_size: BatchSize | None = None,
    fail_fast: bool = False,
    on_text: Callable[[Picture, str], None] | None = None,
) -> Generator[Event, None, None]:
    """Caption many pictures, or ask about them, and yield events. The same call goes on where a run stopped.

    The first event is `Started`, when the model is ready. Then each picture has one, in order: `Finished` or `Failed`
    with its `record` (`Result`), or `Skipped` if an earlier run has done it; `Halved` tells of a smaller batch. Closing
    the generator stops the run; what is finished is kept.

    Args:
        lvlm: the loaded model.
        paths: a file, folder, glob, URI or data set, or several.
        task: `caption` or `ask`.
        prompt: of captions (None: the schema's, or the preset's), or the question; `{NAME}` stands for a column.
        words: score how well the picture supports each word, as `record.words`.
        choices: pick the likeliest of these answers, instead of decoding.
        verify: a second look: `flag`, `guide`, `best`, or a `Verify`.
        schema: a JSON schema that each text follows: a name, a file or a dict.
        recursive: include subfolders.
        shard: only this part, such as `Shard(1, 8)`.
        limit: only the first pictures.
        together: show all pictures in one prompt.
        questions: a file of questions about the pictures, which `paths` has the folder of.
        output: the file of records, or a folder for it; None: nothing is written, and nothing resumed.
        sidecar: write each text next to its picture.
        caption_extension: of these files.
        output_dir: write the text files into this folder.
        overwrite: replace what an earlier run wrote.
        retry_errors: try pictures again that failed in an earlier run.
        batch_size: pictures decoded together, or `auto`; None: `auto` on a GPU, else 1. Halved where memory is short.
        fail_fast: stop at the first picture that fails.
        on_text: called with a picture and each piece of its text, for batches of 1.

    Raises:
        SettingsError: a setting is wrong, or the file holds records of another configuration.
        SiraError: the run cannot go on. An error about one picture is not raised: its record has it.
    """
    if task not in TASKS:
        raise SettingsError(f"`task=` {task!r}: expected {' or '.join(TASKS)}")
    kind = TASKS[task] if questions is None else Ask
    about: Caption | Ask = kind.of(
        lvlm.preset,
        lvlm.decoder,
        prompt,
        words=words,
        choices=choices,
        verify=verify,
        schema=schema,
        questions=questions is not None,
        needs_text=True,
    )
    places = [paths] if isinstance(paths, str | Path) else paths
    selection = Selection(
        [str(place) for place in places],
        None if questions is None else Path(questions),
        together=together,
        recursive=recursive,
        shard=shard,
        limit=limit,
    )
    pictures = selection.pictures(lvlm.preset.prompts.asking)
    about = about.about(pictures)
    files = Files(
        output=output,
        sidecar=sidecar,
        caption_extension=caption_extension,
        output_dir=output_dir,
        overwrite=overwrite,
        retry_errors=retry_errors,
    )
    with Output(about, pictures, files) as written:
        yield from run(about, pictures, Local(lvlm, batch_size, on_text), written, fail_fast=fail_fast)
