"""A resumable run over many pictures, without a terminal: it yields events and never prints.

for event in run_pictures(load("llava-1.5-7b"), "photos/", output="photos/captions.jsonl", batch_size=8):
    print(event)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
from sira_cli.run.events import Event, Failed, Halved, PictureEvent, Skipped, Started
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

    `run_pictures` calls it, and so do commands, evaluations, traces, checks and experiments, each with its own task.

    Pictures that an earlier run has done are skipped: first those whose result stays whatever the settings
    (`Sink.keeps`), then, as they are read, those with an equal result (`Sink.done`). If nothing is left to do
    (`Sink.has_all`), no model is loaded; a caller who knows that gives no engine. Closing the generator interrupts the
    run; what is written stays.
    """
    kept = []
    left = []
    state: State = "finished"
    try:
        for picture in pictures:
            if output.keeps(picture):
                kept.append(picture)
            else:
                left.append(picture)
        if engine is not None and output.has_all(left, engine.revision, engine.server):
            engine.end()
            engine = None
        # The function, not its value: each report asks for what is known by then.
        output.facts = output.facts_before if engine is None else engine.facts
        if engine is not None:
            blank = engine.begin(task, output.done)
            if blank is not None:  # else the first result tells whether the file is of this configuration
                output.begin(blank)
        yield Started(len(pictures))
        for skipped in _skipped(kept, output):
            yield output.write(skipped)
        if engine is None:
            results: Generator[PictureEvent[R] | Halved, None, None] = _skipped(left, output)
        else:
            results = engine.results(_items(task, left, output))
        with closing(results) as events:
            for event in events:
                if isinstance(event, Halved):
                    yield event
                    continue
                yield output.write(event)
                if fail_fast and isinstance(event, Failed):
                    state = "stopped"
                    break
        if state == "finished":
            output.finish()
        output.report(state)
    except (KeyboardInterrupt, GeneratorExit):
        _report_after(output, "interrupted")
        raise
    except Exception:
        _report_after(output, "failed")
        raise
    finally:
        if engine is not None:
            engine.end()


def _items(task: Task[R], pictures: Iterable[Picture], output: Sink[R]) -> Iterator[Item[R]]:
    """Yield the work on each picture, as it is asked for."""
    for picture in pictures:
        yield Item[R](picture, output.name(picture), prompt=task.first_prompt(picture), id=picture.id)


def _report_after(output: Sink[R], state: State) -> None:
    """Write the report of a run that an error has ended; a full disk does not hide that error."""
    with suppress(SiraError):
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

    The first event is `Started`, when the model is ready. Then each picture has one: `Finished` or `Failed` with its
    `record` (`Result`), or `Skipped` if an earlier run has done it; `Halved` tells of a smaller batch. Pictures whose
    text files are kept come first, then the others in order. Closing the generator stops the run; what is finished is
    kept.

    Args:
        lvlm: the loaded model.
        paths: a file, folder, glob, URI or data set, or several.
        task: `caption` or `ask`.
        prompt: the question, or the prompt of captions; None: the schema's, or else the preset's. `{NAME}` stands for
            a column. Not with `questions`, whose rows have their own.
        words: score how well the picture supports each word, as `record.words`.
        choices: pick the likeliest of these answers, a list, instead of decoding.
        verify: a second look: `flag`, `guide`, `best`, or a `Verify`.
        schema: a JSON schema that each text follows: a name, a file or a dict.
        recursive: include subfolders.
        shard: only this part, such as `Shard(1, 8)`.
        limit: only the first so many pictures.
        together: show all pictures in one prompt.
        questions: a file of questions that names the pictures; `paths` is then their folder, and the task is `ask`.
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
    if isinstance(choices, str):
        raise SettingsError(f"`choices=` {choices!r}: expected a list of answers, such as ['Yes', 'No']")
    if questions is not None and prompt is not None:
        raise SettingsError("`questions=` has a prompt in each row: leave out `prompt=`")
    task_class = TASKS[task] if questions is None else Ask
    work: Caption | Ask = task_class.of(
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
    work = work.about(pictures)
    files = Files(
        output=output,
        sidecar=sidecar,
        caption_extension=caption_extension,
        output_dir=output_dir,
        overwrite=overwrite,
        retry_errors=retry_errors,
    )
    with Output(work, pictures, files) as sink:
        yield from run(work, pictures, Local(lvlm, batch_size, on_text), sink, fail_fast=fail_fast)
