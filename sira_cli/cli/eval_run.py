"""Let methods answer what a benchmark asks, one after the other, with one loaded model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from sira_cli.cli.console import note, say
from sira_cli.cli.eval_options import EvalOptions
from sira_cli.cli.options import (
    DecodingOptions,
    ModelOptions,
    choose_method,
    choose_preset,
    load_model,
    names_of,
    note_idle,
)
from sira_cli.cli.progress import Progress
from sira_cli.errors import SettingsError
from sira_cli.files import make_folder
from sira_cli.methods import find
from sira_cli.methods.base import FORK_SETTINGS

if TYPE_CHECKING:
    from sira_cli.eval.answers.answers import Answers
    from sira_cli.eval.base import Benchmark, Part
    from sira_cli.models.lvlm import Lvlm
    from sira_cli.models.presets import Preset
    from sira_cli.pictures.sources import Shard
    from sira_cli.runs.batch import Item
    from sira_cli.runs.ledger import Ledger

CONTROLS = ("greedy", "greedy+apc")  # without them a shift of the yes-rate or a cut-off passes for a gain


class Run:
    """All methods, one after the other, with one loaded model."""

    def __init__(
        self, benchmark: Benchmark, model: ModelOptions, decoding: DecodingOptions, options: EvalOptions
    ) -> None:
        """Check what can be known before the model is loaded.

        Raises:
            SettingsError: an option that cannot be followed.
            PictureError: none of the pictures is there.
        """
        from sira_cli.pictures.sources import Shard, check_images

        assert options.images is not None
        self._benchmark, self._model, self._options = benchmark, model, options
        self._images: Path = options.images
        self._shard: Shard | None = None if options.shard is None else Shard.parse(options.shard)
        controls = () if options.no_controls else CONTROLS
        names = list(dict.fromkeys([*controls, *names_of(decoding.method)]))
        self._decodings = _by_method(names, decoding)
        self._presets = {name: choose_preset(model, own) for name, own in self._decodings.items()}
        for name, preset in self._presets.items():
            if find(name).one_text and preset.generation.num_beams > 1:
                raise SettingsError(f"--method {name} follows one text a picture: leave out --num-beams")
        self._given = {} if decoding.max_new_tokens is None else {"max_new_tokens": decoding.max_new_tokens}
        self.preset: Preset = next(iter(self._presets.values()))
        note_idle(decoding, self.preset)
        generation = self.preset.generation
        plain = generation.temperature == 0 and generation.num_beams == 1
        self.not_run = {"greedy+apc": "greedy"} if plain and {*CONTROLS} <= {*names} else {}
        check_images(self._images, list(dict.fromkeys(ask.picture for part in benchmark.parts for ask in part.asks)))

    def answers(self) -> list[Answers] | None:
        """Every method's, in the order of the methods; None of a shard, which is scored with the others.

        Raises:
            typer.Exit: with 3 if pictures of a shard failed, 130 if interrupted.
            SiraError: about the model or the settings, or a file cannot be written.
        """
        try:
            with ExitStack() as files:
                return self._answers(files)
        except KeyboardInterrupt:
            if self._options.output is None:
                raise
            say("interrupted; what is finished is kept: run the same command again to go on")
            raise typer.Exit(130) from None

    def _answers(self, files: ExitStack) -> list[Answers] | None:
        from sira_cli.runs.ledger import Ledger

        folder = self._options.output
        if folder is None:
            folder = Path(files.enter_context(TemporaryDirectory(prefix="sira-eval-")))
        make_folder(folder)
        ledgers: dict[tuple[str, str], Ledger] = {}
        for name in self._decodings:
            for part in self._benchmark.parts if name not in self.not_run else ():
                path = folder / f"{name}-{part.name}{self._suffix}.jsonl"
                if self._options.details is not None and self._options.details.resolve() == path.resolve():
                    raise SettingsError(f"--details {path}: is where answers are kept: give another")
                ledgers[name, part.name] = Ledger(path, overwrite=self._options.overwrite, by="id")
                files.callback(ledgers[name, part.name].close)
        lvlms = self._load()
        self._check(lvlms, ledgers)
        found = {name: self._one(name, by_part, ledgers) for name, by_part in lvlms.items()}
        for name, other in self.not_run.items():
            found[name] = found[other].under(name)
        if self._shard is None:
            return [found[name] for name in self._decodings]
        failed = sum(len(one.failures) for one in found.values())
        note(f"shard {self._options.shard} is done: when all are, score them: --answers {folder}")
        if failed:
            raise typer.Exit(3)
        return None

    @property
    def _suffix(self) -> str:
        return "" if self._shard is None else f".{self._shard.index}-of-{self._shard.count}"

    def _load(self) -> dict[str, dict[str, Lvlm]]:
        """The model under every method, with the settings of each part; the weights are there once."""
        loaded: Lvlm | None = None
        lvlms: dict[str, dict[str, Lvlm]] = {}
        for name, decoding in self._decodings.items():
            if name in self.not_run:
                continue
            preset, method = self._presets[name], choose_method(decoding)
            if loaded is None:
                loaded = load_model(preset, self._model, method)
            lvlms[name] = {
                part.name: loaded.under(method, self._with_settings(preset, part)) for part in self._benchmark.parts
            }
        return lvlms

    def _check(self, lvlms: dict[str, dict[str, Lvlm]], ledgers: dict[tuple[str, str], Ledger]) -> None:
        """Of all methods and parts, before anything is decoded."""
        from sira_cli.eval.run import check_ledger, units
        from sira_cli.runs.batch import check_prompts

        for part in self._benchmark.parts:
            check_prompts(next(iter(lvlms.values()))[part.name], ((ask.prompt, ask.picture) for ask in part.asks))
            for name, by_part in lvlms.items():
                check_ledger(by_part[part.name], part, units(part, self._shard), ledgers[name, part.name])

    def _with_settings(self, preset: Preset, part: Part) -> Preset:
        """Of the preset with those of a part, but for what the command line says."""
        return preset.with_settings(**{**part.settings, **self._given})

    def _one(self, name: str, lvlms: dict[str, Lvlm], ledgers: dict[tuple[str, str], Ledger]) -> Answers:
        from sira_cli.eval.answers.answers import Answers
        from sira_cli.eval.run import answer_part, method_settings, units

        answers = Answers(name)
        for part in self._benchmark.parts:
            asks = units(part, self._shard)
            with Progress.shown(f"{name} {part.name}", len(asks)) as progress:
                said = answer_part(
                    lvlms[part.name],
                    part,
                    asks,
                    self._images,
                    ledgers[name, part.name],
                    batch_size=self._options.batch_size,
                    retry_errors=self._options.retry_errors,
                    on_done=_shower(progress),
                )
            answers.add(self._benchmark, part, said)
        answers.settings = {
            **method_settings(lvlms[self._benchmark.parts[0].name]),
            "max_new_tokens": {part: own.preset.generation.max_new_tokens for part, own in lvlms.items()},
            "prompt": {part.name: part.asks[0].prompt for part in self._benchmark.parts},
        }
        return answers


def _shower(progress: Progress) -> Callable[[Item], None]:
    """Advances, and says of each picture once that it failed."""
    said: set[str] = set()

    def show(item: Item) -> None:
        failed = item.result is not None and item.result.status == "error"
        if failed and item.result is not None and item.path not in said:
            said.add(item.path)
            say(item.result.error)
        progress.advance(error=failed, worked=item.result is not None)

    return show


def _by_method(names: Sequence[str], decoding: DecodingOptions) -> dict[str, DecodingOptions]:
    """The options as each method takes them: `--alpha` is not for greedy.

    Raises:
        SettingsError: there is no such method, or a setting that none of them has.
    """
    given = [name for name in FORK_SETTINGS if getattr(decoding, name, None) is not None]
    options = {}
    used: set[str] = set()
    for name in names:
        method = find(name)
        has = {*method.from_preset, *(field.name for field in dataclasses.fields(method))}
        used |= has if name != "greedy" else set()  # which only shows the CF stream, where one looks at both
        options[name] = dataclasses.replace(decoding, method=name, **{key: None for key in given if key not in has})
    for key in given:
        if key not in used:
            raise SettingsError(f"--{key}: none of the methods has it: {', '.join(names)}")
    return options
