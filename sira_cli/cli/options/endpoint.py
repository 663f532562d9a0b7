"""A model on a server, instead of one that is loaded here."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sira_cli.cli.options.choosing import choose
from sira_cli.cli.options.common import ModelOptions
from sira_cli.cli.options.decoding import DecodingOptions
from sira_cli.errors import SettingsError
from sira_cli.methods import find

if TYPE_CHECKING:
    from sira_cli.methods.base import Method
    from sira_cli.models.loading.preset import Preset
    from sira_cli.runs.remote_run import Server

FOLLOWED = ("model", "preset", "max_new_tokens", "system")  # options in groups for a model here that a server follows
KEYS = ("SIRA_API_KEY", "OPENAI_API_KEY")


@dataclass(frozen=True)
class EndpointOptions:
    """The server, and how it is asked."""

    title: ClassVar[str] = "Server"

    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask a server with OpenAI's protocol, such as http://localhost:11434/v1; --model is the name there, "
            "if it has several. Key: $SIRA_API_KEY or $OPENAI_API_KEY.",
        ),
    ] = None
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Questions to the server at once (default: 4).")
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.1, help="Seconds to wait for an answer of the server (default: 300)."),
    ] = None

    @property
    def given(self) -> bool:
        """Whether a server is asked."""
        return self.endpoint is not None

    def check(self, context: typer.Context, model: ModelOptions, *others: Any) -> None:
        """Check that the other options fit.

        Args:
            context: of the command, which knows the options that were typed.
            model: the model options.
            *others: further groups of options for a model that is loaded here.

        Raises:
            SettingsError: an option needs a model that is loaded here, or --endpoint, which is not given.
        """
        if not self.given:
            if self.concurrency is not None or self.timeout is not None:
                raise SettingsError("--concurrency and --timeout are for a server: also give --endpoint")
            return
        local = [option for each in (model, *others) for option in _typed(context, each)]
        if local:
            raise SettingsError(f"{local[0]} is for a model that is loaded here: leave it out with --endpoint")

    def preset(self, model: ModelOptions, **settings: Any) -> tuple[Preset, Method]:
        """Return the preset with the model's name on the server, and the method: greedy.

        Args:
            model: the model options.
            **settings: of the preset.

        Raises:
            SettingsError: the preset does not exist, a setting is wrong, or --model is not given and the server has
                several.
            SiraError: the server cannot be asked for its model.
        """
        name = model.model or self._only_model()
        own = name if model.preset is None else None
        wording = ModelOptions(preset=model.preset, model=own, settings=model.settings)
        preset, _ = choose(wording, DecodingOptions(), **settings)
        return preset.model_copy(update={"model": name}), find("greedy")

    def answering(
        self, model: ModelOptions, decoding: DecodingOptions, **settings: Any
    ) -> dict[str, tuple[Preset, Method]]:
        """Return the preset and the method for answers: greedy."""
        usual: dict[str, Any] = {"temperature": 0.0, "num_beams": 1, "think": False}
        own = {"max_new_tokens": decoding.max_new_tokens, "system": decoding.system}
        preset, method = self.preset(model, **settings)
        return {method.name: (preset.with_settings(**usual, **own), method)}

    @property
    def server(self) -> Server | None:
        """The server; None if none is asked."""
        if self.endpoint is None:
            return None
        from sira_cli.runs.remote_run import Server

        asked: dict[str, Any] = {"seconds": self.timeout, "concurrency": self.concurrency}
        return Server(self.endpoint, _key(), **{name: value for name, value in asked.items() if value is not None})

    def _only_model(self) -> str:
        from sira_cli.remote.client import SECONDS
        from sira_cli.remote.endpoint import only_model

        return only_model(self.endpoint or "", seconds=self.timeout or SECONDS, key=_key())


def _key() -> str:
    """Return the key for the server, empty without one."""
    return next((value.strip() for name in KEYS if (value := os.environ.get(name))), "")


def _typed(context: typer.Context, options: Any) -> list[str]:
    """Return the typed options of a group that servers cannot follow, also those with the default value."""
    names = [each.name for each in fields(options) if each.name not in FOLLOWED]
    sources = {name: context.get_parameter_source(name) for name in names}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if "settings" in typed and all(map(_is_followed, options.settings)):
        typed.remove("settings")
    return [_shown(name, options) for name in typed]


def _is_followed(setting: str) -> bool:
    """Return whether a --set changes the prompt or the finished text, which works with a server."""
    from sira_cli.models.loading.preset import full_key

    return full_key(setting.partition("=")[0]).startswith(("prompts.", "text.", "verify."))


def _shown(name: str, options: Any) -> str:
    if name == "settings":
        return f"--set {next(each for each in options.settings if not _is_followed(each))}"
    return "--" + name.replace("_", "-")
