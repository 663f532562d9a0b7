"""`sira calibrate maskcd`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from sira_cli.cli.calibrate.saving import Output, WritePreset, check_place, check_targets, save
from sira_cli.cli.loading import load_model
from sira_cli.cli.options.choosing import choose_preset
from sira_cli.cli.options.common import FewOptions, Images, Overwrite, Quiet, ResearchModelOptions, Verbose
from sira_cli.cli.options.groups import with_options
from sira_cli.cli.terminal.console import note, set_verbosity
from sira_cli.cli.terminal.output import new_table, table_console
from sira_cli.cli.terminal.stages import measured
from sira_cli.errors import PictureError, SettingsError

if TYPE_CHECKING:
    from sira_cli.methods.calibrated import Calibration
    from sira_cli.models.preset import Preset
    from sira_cli.pictures.picture import Picture

PICTURES = 32  # unless --limit is given
SCENE_BATCH = 16

EXAMPLES = """
sira calibrate maskcd photos/ -p llava-1.5-7b
sira calibrate maskcd photos/ -m ./my-checkpoint --limit 50 --write-preset mine.yaml
"""


@with_options()
def maskcd(
    *,
    paths: Images = None,
    scenes: Annotated[bool, typer.Option("--scenes", help="Draw scenes (default with the bundled model).")] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "-b", "--batch-size", metavar="N", min=1, help="Pictures measured together (default: 1; scenes 16)."
        ),
    ] = None,
    model: ResearchModelOptions,
    selection: FewOptions,
    output: Output = None,
    write_preset: WritePreset = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Find the heads that look at the image, for --method maskcd.

    The model captions a few dozen pictures (default: 32, see --limit), greedily and without SIRA. Each head's
    attention on image tokens is averaged; MaskCD silences the heads that stand out in their layer. No labels are
    needed; use pictures similar to yours.
    """
    set_verbosity(quiet, verbose)
    check_targets(output, write_preset, overwrite)
    preset = choose_preset(model)
    pictures, drawn = _some_pictures(paths, selection, scenes, preset)
    lvlm = load_model(preset, model, "greedy", pictures=() if drawn else pictures)
    check_place("maskcd", lvlm, output, overwrite)
    from sira_cli.analysis.calibration.maskcd import calibrate, measure_mass

    failures: list[str] = []
    what = measure_mass(lvlm, pictures, batch_size or (SCENE_BATCH if drawn else 1))
    found = list(measured(what, len(pictures), lambda picture, error: failures.append(error)))
    if not found:
        raise PictureError("no picture could be measured: no calibration is written")
    calibration = calibrate(lvlm, found)
    _print(calibration)
    save(calibration, preset, output, write_preset)
    where = f"-p {preset.name}" if preset.name else f"-m {preset.model}"
    if output is None:
        note(f"now: sira caption PATH {where} --method maskcd")
    if failures:
        raise typer.Exit(3)


def _print(calibration: Calibration) -> None:
    """Print the heads that stand out, layer by layer."""
    from sira_cli.methods.maskcd import MASS, usual_threshold, z_scores

    mass = calibration.tensors[MASS]  # [L, H]
    z, threshold = z_scores(mass), usual_threshold(mass.shape[1])
    table = new_table(figures=("layer", "mean mass", "largest z"))
    table.add_column("image heads")
    for layer in range(len(mass)):
        heads = (z[layer] > threshold).nonzero().flatten().tolist()
        named = ", ".join(f"{head} ({float(mass[layer, head]):.2f})" for head in heads)
        table.add_row(str(layer), f"{float(mass[layer].mean()):.2f}", f"{float(z[layer].max()):.2f}", named or "-")
    out, count = table_console(), int((z > threshold).sum())
    out.print(table)
    made_from = calibration.origin.made_from
    pictures = "picture" + "s" * (made_from["pictures"] != 1)
    out.print(
        f"{made_from['pictures']} {pictures}, {made_from['rows']:,} tokens; {count} of {mass.numel()} heads have a "
        f"z-score above {threshold:.4g} within their layer (in brackets: attention mass on the image)"
    )
    if not count:
        out.print(f"no head stands out: use --set threshold=N with N below {float(z.max()):.4g}")


def _some_pictures(
    paths: Sequence[str] | None, selection: FewOptions, scenes: bool, preset: Preset
) -> tuple[list[Picture], bool]:
    """Return the first few pictures, and whether they are drawn scenes."""
    from sira_cli.models.presets import BUNDLED

    if scenes and paths:
        raise SettingsError("give pictures, or --scenes, not both")
    if scenes or (not paths and preset.model == BUNDLED):
        return _drawn_scenes(selection), True
    found = selection.selected(paths).pictures()
    if selection.limit is None and len(found) > PICTURES:
        note(f"taking the first {PICTURES} of {len(found):,} pictures: --limit N takes N")
        return found[:PICTURES], False
    return found, False


def _drawn_scenes(selection: FewOptions) -> list[Picture]:
    """Return the first validation scenes, as many as --limit says or `PICTURES`."""
    from sira_cli.demo.questions import validation_pictures

    return list(islice(validation_pictures(), selection.limit or PICTURES))
