"""From paths and settings to runs, for `sira caption`, `sira ask` and Python.

for event in run_pictures(load("llava-1.5-7b"), "photos/", output="photos/captions.jsonl", batch_size=8):
    print(event)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.look.verify import Verify
from sira_cli.methods.base import Method
from sira_cli.models.preset import Preset
from sira_cli.models.schema import SchemaSource
from sira_cli.pictures.find import Shard
from sira_cli.pictures.picture import Picture
from sira_cli.pictures.selection import Selection
from sira_cli.run.batch import BatchSize
from sira_cli.run.events import Event
from sira_cli.run.request import Request
from sira_cli.run.run import Job, PictureRun

if TYPE_CHECKING:
    from sira_cli.run.lvlm import Lvlm


@contextmanager
def opened_jobs(
    selection: Selection,
    chosen: Mapping[str, tuple[Preset, Method]],
    *,
    task: str = "caption",
    prompt: str | None = None,
    words: bool = False,
    choices: Sequence[str] = (),
    verify: Verify | None = None,
    schema: SchemaSource | None = None,
    engine: str = "",
    **targets: Any,
) -> Iterator[list[Job]]:
    """Find the pictures, and open a job for each method: everything is checked before a model is loaded."""
    asked: dict[str, Any] = {"words": words, "choices": tuple(choices), "verify": verify, "schema": schema}
    asked["needs_text"] = True
    requests = {}
    for name, (preset, method) in chosen.items():
        requests[name] = Request.of(preset, task, prompt, questions=selection.questions is not None, **asked)
        requests[name].check(preset, method, engine)  # before pictures are looked for
    first, _ = next(iter(chosen.values()))
    pictures = selection.pictures(first.prompts.asking)
    jobs = []
    with ExitStack() as files:
        for name, (preset, method) in chosen.items():
            job = Job.opened(
                pictures,
                requests[name],
                preset,
                method,
                of_method=name if len(chosen) > 1 else "",
                **targets,
            )
            jobs.append(files.enter_context(job))
        yield jobs


def run_pictures(
    lvlm: Lvlm,
    paths: str | Path | Iterable[str | Path],
    *,
    recursive: bool = False,
    shard: Shard | None = None,
    limit: int | None = None,
    together: bool = False,
    questions: str | Path | None = None,
    verify: str | Verify | None = None,
    batch_size: BatchSize | None = None,
    fail_fast: bool = False,
    on_text: Callable[[Picture, str], None] | None = None,
    **asked: Any,
) -> Generator[Event, None, None]:
    """Caption many pictures, or ask about them, and yield events. The same call goes on where a run stopped.

    Args:
        lvlm: the loaded model.
        paths: a file, folder, glob or URI, or several.
        recursive, shard, limit, together, questions: as for `Selection`.
        verify: a second look, or its mode.
        batch_size, on_text: as for `Runner`.
        fail_fast: stop at the first picture that fails.
        **asked: of `opened_jobs`: task, prompt, words, choices, schema, output, sidecar, overwrite, ...

    Raises:
        SettingsError: a setting is wrong, or the file holds records of another configuration.
        SiraError: the run cannot go on.
    """
    places = [str(place) for place in ([paths] if isinstance(paths, str | Path) else paths)]
    file = None if questions is None else Path(questions)
    selection = Selection(places, file, together=together, recursive=recursive, shard=shard, limit=limit)
    chosen = {lvlm.method: (lvlm.preset, lvlm.decoder)}
    with opened_jobs(selection, chosen, verify=Verify.of(verify), **asked) as (job,):
        from sira_cli.run.local_run import LocalRun

        engine = LocalRun(lvlm, job.request, batch_size=batch_size, done=job.targets.done, on_text=on_text)
        yield from PictureRun(job, engine, fail_fast=fail_fast).events()
