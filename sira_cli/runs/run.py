"""A resumable run over many pictures, without a terminal: it yields events and never prints.

for event in run_pictures(load("llava-1.5-7b"), "photos/", output="photos/captions.jsonl", batch_size=8):
    print(event)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sira_cli.errors import SettingsError, SiraError
from sira_cli.methods import check_beams, check_compile, require
from sira_cli.methods.base import Ability, Method
from sira_cli.models.look.verify import Verify
from sira_cli.models.preset_parts import check_text
from sira_cli.models.records import Result
from sira_cli.pictures.find import Shard, find_pictures
from sira_cli.pictures.picture import Picture
from sira_cli.runs.batch_size import BatchSize
from sira_cli.runs.events import Event, Failed, Halved, PictureEvent, Skipped, Started
from sira_cli.runs.prompts import needs_columns
from sira_cli.runs.questions import question_pictures
from sira_cli.runs.run_record import Counts, run_record
from sira_cli.runs.shard_targets import targets_for
from sira_cli.runs.targets import Targets, settings_of

if TYPE_CHECKING:
    from sira_cli.models.lvlm import Lvlm


class Engine(Protocol):
    """A decoder of the pictures: `BatchRun` on this machine, `RayRun` on many."""

    def blank(self) -> Result | None:
        """Return a result without a picture; None if nothing is known before the first one."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the model as loaded, where it runs, and the memory that it took, for the run's report."""
        ...

    def events(self, pictures: Iterable[tuple[Picture, str]]) -> Generator[PictureEvent | Halved, None, None]:
        """Yield the event of every picture, with its name in the record."""
        ...


class PictureRun:
    """One prompt about many pictures; results of an earlier run in the targets are kept.

    Attributes:
        counts: the run's progress.
        stopped: whether `fail_fast` ended it.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        engine: Engine,
        targets: Targets,
        settings: dict[str, Any] | None = None,
        *,
        fail_fast: bool = False,
    ) -> None:
        """Prepare a run.

        Args:
            pictures: all of it, in order.
            engine: decodes them.
            targets: where results go.
            settings: everything that decides the texts (`settings_of`), for the report next to the records.
            fail_fast: stop at the first picture that fails.
        """
        self._pictures, self._engine, self._targets = list(pictures), engine, targets
        self._settings, self._fail_fast = settings or {}, fail_fast
        self.counts = Counts(len(self._pictures))
        self.stopped = False
        self._began = time.time()
        self._begun = False

    @property
    def seconds(self) -> float:
        """Seconds since the run was made."""
        return time.time() - self._began

    def events(self) -> Generator[Event, None, None]:
        """Run, and yield events. Closing the generator interrupts the run; finished pictures are kept.

        Raises:
            SiraError: about the model, the settings or the files: the run cannot go on.
        """
        try:
            if (blank := self._engine.blank()) is not None:
                self._begin(blank)
            yield Started(len(self._pictures))
            yield from self._all()
            self._begin(None)
            if not self.stopped:
                self._targets.finish(self._pictures)
        except (KeyboardInterrupt, GeneratorExit):
            self._report("interrupted")
            raise
        except SiraError:
            with suppress(SiraError):  # the disk may be full
                self._report("failed")
            raise
        self._report("stopped" if self.stopped else "finished")

    def _all(self) -> Generator[Event, None, None]:
        kept = [picture for picture in self._pictures if self._targets.keeps(picture)]
        for picture in kept:
            name = self._targets.name(picture)
            yield self._counted(Skipped(picture, name, picture.id or name))
        done = {picture.identity for picture in kept}
        todo = (picture for picture in self._pictures if picture.identity not in done)
        events = self._engine.events((picture, self._targets.name(picture)) for picture in todo)
        try:
            for event in events:
                if isinstance(event, Halved):
                    yield event
                    continue
                event = self._kept(event)
                yield self._counted(event)
                if self._fail_fast and isinstance(event, Failed):
                    self.stopped = True
                    return
        finally:
            events.close()

    def _kept(self, event: PictureEvent) -> PictureEvent:
        """Write a picture's result."""
        if isinstance(event, Skipped):
            self._begin(None)
            failed = self._targets.failed_before(event.id)
            self._targets.complete(event.picture, event.id)
            return Skipped(event.picture, event.name, event.id, failed)
        self._begin(event.record)
        self._targets.write(event.picture, event.record)
        return event

    def _counted(self, event: PictureEvent) -> PictureEvent:
        self.counts.add(event)
        return event

    def _begin(self, like: Result | None) -> None:
        """Before anything is written: check that results like this one belong in the files."""
        if not self._begun:
            self._targets.begin(like)
            self._begun = True
            self._report("running")

    def _report(self, state: str) -> None:
        if self._begun:
            self._targets.write_report(
                run_record(state, self._settings, self._engine.facts(), self.counts, self._began)
            )


def check_request(
    method: Method,
    num_beams: int,
    *,
    words: bool = False,
    choices: Sequence[str] = (),
    compiled: bool = False,
    verify: Verify | None = None,
    think: bool = False,
) -> None:
    """Check that a method supports the options of a run, before the model is loaded.

    Args:
        method: the decoder.
        num_beams: beams of the search.
        words: score the words of each text.
        choices: pick one of these answers.
        compiled: whether decoding steps are compiled.
        verify: the second look.
        think: whether the model is asked to reason.

    Raises:
        SettingsError: it does not.
    """
    if words:
        require(method, Ability.TRACES, "`words=`")
    if choices:
        require(method, Ability.TRACES, "`choices=`")
        if len(choices) < 2 or not all(choices):
            raise SettingsError(f"`choices=` {','.join(choices)!r}: expected two or more answers, such as Yes,No")
        check_text("`choices=`", ",".join(choices))
        if think:
            raise SettingsError("`choices=` are scored without any reasoning before them: leave out `think=`")
    check_beams(method, num_beams)
    if words and num_beams > 1:
        raise SettingsError("`words=` follows one text: leave out `num_beams=`")
    if verify is not None:
        verify.check(method, num_beams, words=words, choices=bool(choices), compiled=compiled)
    if compiled:
        check_compile(method, num_beams, "`words=`" if words else "`choices=`" if choices else "")


def run_pictures(
    lvlm: Lvlm,
    paths: str | Path | Iterable[str | Path],
    *,
    task: str = "caption",
    prompt: str | None = None,
    recursive: bool = False,
    shard: Shard | None = None,
    limit: int | None = None,
    batch_size: BatchSize | None = None,
    words: bool = False,
    choices: Sequence[str] = (),
    verify: str | Verify | None = None,
    questions: str | Path | None = None,
    fail_fast: bool = False,
    on_text: Callable[[Picture, str], None] | None = None,
    output: str | Path | None = None,
    **targets: Any,
) -> Generator[Event, None, None]:
    """Caption many pictures, or ask about them, and yield events. The same call goes on where a run stopped.

    Args:
        lvlm: the loaded model.
        paths: a file, folder, glob or URI, or several.
        recursive, shard, limit: as for `find_pictures`.
        task: `caption` or `ask`; an `ask` needs a `prompt`, the question.
        prompt: instead of the preset's; see `needs_columns` for its `{names}`.
        batch_size, words, choices, verify, on_text: as for `BatchRun`.
        questions: a file of questions, as for `question_pictures`; `paths` is the folder of its pictures.
        fail_fast: stop at the first picture that fails.
        output: the file of records, or a folder, which gets one output per file of a data set; None: events only.
        **targets: of `Targets` and `ShardTargets`: sidecar, output_dir, overwrite, retry_errors, ...

    Raises:
        SettingsError: a setting is wrong, or the file holds records of another configuration.
        SiraError: the run cannot go on.
    """
    prompts = lvlm.preset.prompts
    look = Verify.of(verify)
    if questions is not None:
        task, text = "ask", prompts.ask
    elif prompt is not None:
        text = prompts.asking(prompt) if task == "ask" else prompt
    elif task == "ask":
        raise SettingsError("a task of kind ask needs a prompt: the question")
    else:
        text = prompts.caption
    check_request(
        lvlm.decoder,
        lvlm.preset.generation.num_beams,
        words=words,
        choices=choices,
        compiled=lvlm.compiled is not None,
        verify=look,
        think=lvlm.preset.generation.think,
    )
    places = [paths] if isinstance(paths, str | Path) else paths
    if questions is None:
        pictures = find_pictures([str(place) for place in places], recursive=recursive, shard=shard, limit=limit)
    else:
        (folder,) = places
        pictures = question_pictures(Path(questions), prompts.asking, images=str(folder), shard=shard, limit=limit)
    settings = settings_of(task, text, lvlm.preset, lvlm.decoder, lvlm.quantization)
    settings |= {"words": words, "choices": list(choices)}
    if look is not None:
        settings["verify"] = look.settings(lvlm.preset)
    fills = questions is None and needs_columns(text, pictures)
    place = None if output is None else Path(output)
    with targets_for(pictures, task=task, output=place, same_prompt=not fills, **targets) as kept:
        kept.check(settings)
        from sira_cli.runs.batch import BatchRun

        engine = BatchRun(
            lvlm,
            task,
            text,
            batch_size=batch_size,
            words=words,
            choices=choices,
            verify=look,
            fills=fills,
            done=kept.done,
            on_text=on_text,
        )
        yield from PictureRun(pictures, engine, kept, settings, fail_fast=fail_fast).events()
