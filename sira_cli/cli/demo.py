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
from sira_cli.errors import SettingsError, SiraError

if TYPE_CHECKING:
    from rich.console import Console

    from sira_cli.demo.scenes import Scene

SHOWN, MEASURED, TESTED, EXPORTED = 4, 60, 1_000, 100  # scenes: shown, in the table, --evaluate, --export


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
    output_dir: Path | None = option(None, "Folder of the pictures (default: a cache folder).", metavar="DIR"),
    as_json: bool = option(False, "Print JSON: one line per scene, or the figures.", "--json"),
) -> None:
    """Show greedy and SIRA on drawn scenes with a bundled model: nothing to download."""
    if export is not None:
        if evaluate or as_json or output_dir is not None:
            raise SettingsError("--export only writes files: leave out --evaluate, --json, --output-dir")
        from sira_cli.demo.export import export as write
        from sira_cli.eval.cards import CARDS

        count = limit or EXPORTED
        with Progress.shown("scenes", count) as progress:
            write(_scenes(seed, count), export, progress.reach, overwrite=overwrite)
        note(f"{count} scenes are in {export}; evaluate on them with")
        print(f"sira eval {','.join(CARDS)} {shlex.quote(str(export))} -p demo")
        return
    with waiting("loading the bundled model"):
        from sira_cli.demo.measure import load_methods
        from sira_cli.models.placement import use_threads

        methods = load_methods()
        use_threads(methods["greedy"].model)
    if not evaluate:
        _show(methods, seed, limit or SHOWN, output_dir, as_json)
        return
    from sira_cli.demo.measure import measure
    from sira_cli.demo.questions import Questions

    count = limit or TESTED
    with Progress.shown("scenes", count) as progress:
        report = measure(methods, _scenes(seed, count), Questions(), progress.reach)
    print(json.dumps(dataclasses.asdict(report)) if as_json else report.table())


def _scenes(seed: int, count: int) -> list[Scene]:
    from sira_cli.demo.questions import held_out
    from sira_cli.demo.scenes import TEST_SEEDS

    return [held_out(number) for number in TEST_SEEDS[seed : seed + count]]


def _show(methods: dict[str, Any], seed: int, count: int, output_dir: Path | None, as_json: bool) -> None:
    """Save the pictures, and print each one's objects and captions, hallucinated words red and in brackets."""
    from rich.text import Text

    from sira_cli.cli.terminal.strip import marked
    from sira_cli.demo.questions import hallucinated
    from sira_cli.demo.scenes import render
    from sira_cli.models import presets

    folder, out = output_dir or presets.cache() / "demo", table_console()
    scenes = _scenes(seed, count)
    for number, scene in enumerate(scenes, start=1):
        path, objects = folder / f"scene-{scene.seed}.png", sorted(scene.objects)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            render(scene)[0].save(path)
        except OSError as error:
            raise SiraError(f"{path}: cannot be saved ({error.strerror}): give another --output-dir") from error
        texts = {name: lvlm.caption(path).text for name, lvlm in methods.items()}
        wrong = {name: hallucinated(scene, text) for name, text in texts.items()}
        if as_json:
            record = {"seed": scene.seed, "file": str(path), "place": scene.place, "broken": scene.broken}
            words = {name: [text[start:end] for start, end in wrong[name]] for name, text in texts.items()}
            record |= {"objects": objects, "captions": texts, "hallucinated": words}
            print(json.dumps(record), flush=True)
            continue
        out.print(f"scene {number} of {count}  {path}", style="bold", soft_wrap=True)
        rows = {"objects": Text(f"{scene.place}: {', '.join(objects)}")}
        rows |= {name: marked(text, ((*span, "bold red") for span in wrong[name])) for name, text in texts.items()}
        for name, row in rows.items():
            for place, line in enumerate(row.wrap(out, out.width - 10)):
                line.rstrip()
                out.print(Text(f"  {'' if place else name:<8}") + line, soft_wrap=True)
        out.print()
    if not as_json:
        _explain(out, methods, folder / f"scene-{scenes[0].seed}.png", seed, count)


def _explain(out: Console, methods: dict[str, Any], example: Path, seed: int, count: int) -> None:
    """Print the model card's figures, a few measured now, their meaning, and next commands."""
    from sira_cli.demo.measure import SceneReport, measure
    from sira_cli.models import presets

    out.print("[bold red]\\[word][/] is named, but not in the picture.\n", markup=True)
    shipped = SceneReport.shipped()
    out.print(f"The captions of {shipped.scenes:,} test scenes, measured when the model was made (its card):\n")
    print(shipped.captions_table())
    out.print(f"\n{shipped.outcomes_line()}\n", soft_wrap=True)
    with waiting(f"measuring on {MEASURED} scenes"):
        report = measure(methods, _scenes(seed, MEASURED))
    out.print(f"The captions of {MEASURED} scenes, measured just now (few, so uncertain):\n")
    print(report.captions_table())
    real = presets.find("llava-1.5-7b")
    out.print(
        f"""
CHAIRs: share of captions that name an absent object.
CHAIRi: share of named objects that are not in the scene.
coverage: share of the scene's objects that are named. ±: half a 95 % interval; all in percent.
In every second scene the objects are unusual for the place.

Next:
  sira ask {shlex.quote(str(example))} 'Is there a person in the image?' --preset demo
  sira demo --seed {seed + count}   # more scenes
  sira demo --evaluate   # {TESTED:,} scenes, with yes/no questions
  sira caption photo.jpg --preset {real.name}   # a real model, {real.download_gb:g} GB to download""",
        soft_wrap=True,
    )
