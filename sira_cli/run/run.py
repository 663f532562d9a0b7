"""A resumable run over many pictures, without a terminal: it yields events and never prints.

for event in run_pictures(load("llava-1.5-7b"), "photos/", output="photos/captions.jsonl", batch_size=8):
    print(event)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sira_cli.errors import SettingsError, SiraError
from sira_cli.look.claims import Verify
from sira_cli.models.schema import SchemaSource
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.selection import Selection
from sira_cli.run.engines import Engine, Local
from sira_cli.run.events import Event, Failed, Halved, Skipped, Started
from sira_cli.run.items import Item, Task
from sira_cli.run.output import Files, Output
from sira_cli.run.runner import BatchSize
from sira_cli.run.sink import Sink, State
from sira_cli.run.task import TASKS, Ask, Caption

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm

R = TypeVar("R")


def run(
    task: Task[R], pictures: Sequence[Picture], engine: Engine[R] | None, output: Sink[R], *, fail_fast: bool = False
) -> Generator[Event[R], None, None]:
    """Do a task on pictures, write each result, and yield events; `Started` comes when the model is ready.

    Pictures that an earlier run has done are skipped: first those whose text files are kept (`Sink.keeps`), then, as
    they are read, those with an equal result (`Sink.done`). If that is all of them (`Sink.has_all`), or the engine is
    None, no model is loaded. Closing the generator interrupts the run; finished pictures are kept.
    """
    kept = []
    left = []
    for picture in pictures:
        if output.keeps(picture):
            kept.append(picture)
        else:
            left.append(picture)
    if engine is not None and output.has_all(left, engine.revision, engine.server):
        engine.end()
        engine = None
    output.facts = output.facts_before if engine is None else engine.facts  # asked for when a report is written
    state: State = "finished"
    try:
        if engine is not None:
            blank = engine.begin(task, output.done)
            if blank is not None:
                output.begin(blank)
        yield Started(len(pictures))
        for skipped in _skipped(kept, output):
            yield output.write(skipped)
        todo = (
            Item[R](picture, output.name(picture), prompt=task.first_prompt(picture), id=picture.id) for picture in left
        )
        with closing(_skipped(left, output) if engine is None else engine.results(todo)) as events:
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


def _skipped(pictures: Iterable[Picture], output: Sink[R]) -> Generator[Skipped, None, None]:
    """Yield the events of pictures that an earlier run has done."""
    for picture in pictures:
        name = output.name(picture)
        yield Skipped(picture, name, picture.id or name)  # as `Item.id`


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
        limit: only the first so many pictures.
        together: show all pictures in one prompt.
        questions: a file of questions that names the pictures; `paths` is then their folder.
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
    task_class = TASKS[task] if questions is None else Ask
    asking: Caption | Ask = task_class.of(
        lvlm.preset,
        lvlm.decoder,
        prompt,
        words=words,
        choices=choices,
        verify=verify,
        schema=schema,
        own_prompts=questions is not None,
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
    asking = asking.about(pictures)
    files = Files(
        output=output,
        sidecar=sidecar,
        caption_extension=caption_extension,
        output_dir=output_dir,
        overwrite=overwrite,
        retry_errors=retry_errors,
    )
    with Output(asking, pictures, files) as written:
        yield from run(asking, pictures, Local(lvlm, batch_size, on_text), written, fail_fast=fail_fast)
