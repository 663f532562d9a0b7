"""`sira demo`."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sira_cli.cli.options.groups import Overwrite, option, with_options
from sira_cli.cli.terminal.console import Progress, note, waiting
from sira_cli.cli.terminal.output import table_console
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from sira_cli.demo.scenes import Scene

SHOWN = 8  # scenes
TESTED = 1_000  # scenes of --evaluate
EXPORTED = 100  # scenes of --export


@with_options(
    """
sira demo
sira demo --export scenes --limit 100
"""
)
def demo(
    seed: int = option(0, "Number of the first scene.", min=0, max=990_000),
    limit: int | None = option(
        *(None, f"Take only the first N scenes (default: {SHOWN}; --evaluate: {TESTED}; --export: {EXPORTED})."),
        metavar="N",
        min=1,
        max=10_000,
    ),
    evaluate: bool = option(False, "Measure both decoders on all test scenes; takes minutes.", "--evaluate"),
    export: Path | None = option(None, "Write the scenes as files for sira eval instead.", metavar="DIR"),
    overwrite: Overwrite = False,
    as_json: bool = option(False, "With --evaluate: print the figures as JSON.", "--json"),
) -> None:
    """Show greedy and SIRA on drawn scenes with a bundled model: nothing to download."""
    if as_json and not evaluate:
        raise SettingsError("--json is for figures: also give --evaluate")
    if export is not None:
        if evaluate:
            raise SettingsError("--export only writes files: leave out --evaluate")
        from sira_cli.demo.export import export as write
        from sira_cli.eval.cards import CARDS

        count = limit or EXPORTED
        with Progress.on_terminal("scenes", count) as progress:
            write(_scenes(seed, count), export, progress.reach, overwrite=overwrite)
        note(f"{count} scenes are in {export}; evaluate on them with")
        print(f"sira eval {','.join(CARDS)} {shlex.quote(str(export))} -p demo")
        return
    with waiting("loading the bundled model"):
        from sira_cli.demo.measure import load_methods
        from sira_cli.models.cpu import use_threads

        methods = load_methods()
        use_threads(methods["greedy"].model)
    if not evaluate:
        _show(methods, seed, limit or SHOWN)
        return
    from sira_cli.demo.measure import measure
    from sira_cli.demo.questions import Questions

    count = limit or TESTED
    with Progress.on_terminal("scenes", count) as progress:
        report = measure(methods, _scenes(seed, count), Questions(), progress.reach)
    print(json.dumps(dataclasses.asdict(report)) if as_json else report.table())


def _scenes(seed: int, count: int) -> list[Scene]:
    from sira_cli.demo.questions import held_out
    from sira_cli.demo.scenes import TEST_SEEDS

    return [held_out(number) for number in TEST_SEEDS[seed : seed + count]]


def _show(methods: dict[str, Any], seed: int, count: int) -> None:
    """Save the pictures, print each one's objects and captions, hallucinated words red and in brackets, and figures."""
    from rich.text import Text

    from sira_cli.cli.terminal.strip import marked
    from sira_cli.demo.measure import SceneReport
    from sira_cli.demo.questions import contents, hallucinated
    from sira_cli.demo.scenes import render
    from sira_cli.files import make_folder, writing
    from sira_cli.models import presets

    folder = presets.cache() / "demo"
    out = table_console()
    scenes = _scenes(seed, count)
    make_folder(folder)
    for number, scene in enumerate(scenes, start=1):
        path = folder / f"scene-{scene.seed}.png"
        with writing(path):
            render(scene)[0].save(path)
        out.print(f"scene {number} of {count}  {path}", style="bold", soft_wrap=True)
        rows = {"objects": Text(f"{scene.place}: {contents(scene)}")}
        for name, lvlm in methods.items():
            text = lvlm.caption(path).text
            rows[name] = marked(text, ((*span, "bold red") for span in hallucinated(scene, text)))
        for name, row in rows.items():
            for place, line in enumerate(row.wrap(out, out.width - 10)):
                line.rstrip()
                out.print(Text(f"  {'' if place else name:<8}") + line, soft_wrap=True)
        out.print()
    out.print("[bold red]\\[word][/] is named, but not in the picture.\n", markup=True)
    shipped = SceneReport.shipped()
    out.print(f"The captions of {shipped.scenes:,} test scenes, measured when the model was made (its card):\n")
    print(shipped.captions_table())
    out.print(f"\n{shipped.outcomes_line()}\n", soft_wrap=True)
    real = presets.find("llava-1.5-7b")
    example = shlex.quote(str(folder / f"scene-{scenes[0].seed}.png"))
    out.print(
        f"""CHAIRs: share of captions that name an absent object.
CHAIRi: share of named objects that are not in the scene.
coverage: share of the scene's objects that are named. ±: half a 95 % interval; all but words in percent.
instances: share of the named instances of the scene's objects that do not exist, such as a second bus.
broken: share of captions with a fault of grammar.
right: share of captions that are right but for absent objects: numbers, colours, grammar, nothing named twice.
In every second scene the objects are unusual for the place.

Next:
  sira ask {example} 'Is there a person in the image?' --preset demo
  sira demo --seed {seed + count}   # more scenes
  sira demo --evaluate   # {TESTED:,} scenes, with yes/no questions
  sira caption photo.jpg --preset {real.name}   # a real model, {real.download_gb:g} GB to download""",
        soft_wrap=True,
    )
