"""What a decoding method is: settings with defaults, what it can do, and a way to generate by its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.methods.settings import FORK_SETTINGS, Setting, setting_of

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.core.forward_pass import OnStep
    from sira_cli.methods.prompts import Prompt, Shown


class Ability(StrEnum):
    """What a method may be able to do beside picking the next token of one text."""

    BATCHES = "batches"  # several pictures at once, each text as if it were alone
    SAMPLING = "sampling"
    BEAMS = "beams"
    TRACES = "traces"  # both streams of SIRA's fork can be looked at
    COMPILED_STEPS = "compiled steps"
    REFILLED_SLOTS = "refilled slots"  # in a batch, the next picture takes the place of a text that has ended


class PromptMaker(Protocol):
    """What a method may ask of a loaded model to make the inputs of a contrast stream. `Lvlm` is one."""

    model: Any

    def find_image(self, input_ids: Tensor) -> Tensor:
        """Find P_img: `[B, S]` ids -> bool `[B, S]`."""
        ...

    def chat_inputs(
        self, images: Sequence[Shown], prompts: Sequence[Prompt], *, system: str = ""
    ) -> Mapping[str, Tensor]:
        """Return B pictures and prompts in the checkpoint's chat format, left-padded, on the CPU."""
        ...


@dataclass(frozen=True)
class Method:
    """A way to pick the next token. Its dataclass fields are its settings, and decide its texts.

    Attributes:
        name: as `--method` has it.
        abilities: what it can do; whatever is missing is refused.
        from_preset: settings that it takes from the preset's `sira` part instead of having them itself.
        deciding: those of `from_preset` that change a text.
        uses_seed: whether the seed changes a text at temperature 0.
        own_search: whether it has a search of its own (`generate`): what it has picked, it may take back.
        rewinds: whether its cache, cut back to some token, is all that it needs to go on from there; the full stream's
            part of it is then the model's own.
    """

    name: ClassVar[str]
    abilities: ClassVar[frozenset[Ability]] = frozenset({Ability.BATCHES, Ability.SAMPLING, Ability.BEAMS})
    from_preset: ClassVar[tuple[str, ...]] = ()
    deciding: ClassVar[tuple[str, ...]] = ()
    uses_seed: ClassVar[bool] = False
    own_search: ClassVar[bool] = False
    rewinds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, declared in self.own_settings().items():
            value = getattr(self, name)
            declared.check(f"{name} of method {self.name}", value)
            if declared.kind is float and value is not None:  # 2 and 2.0 are equal, and so must be the keys of records
                object.__setattr__(self, name, float(value))

    @classmethod
    def own_settings(cls) -> dict[str, Setting]:
        """Return the declarations of its own settings, by name."""
        return {declared.name: setting_of(declared) for declared in fields(cls)}

    @classmethod
    def all_settings(cls) -> dict[str, Setting]:
        """Return the declarations of everything that can be set for it, by name; the preset's come first."""
        return {name: FORK_SETTINGS[name] for name in cls.from_preset} | cls.own_settings()

    def settings(self) -> dict[str, Any]:
        """Return the values of its own settings, as JSON holds them."""
        return asdict(self)

    def owns(self, name: str) -> bool:
        """Return whether a setting of that name is for the method, be it to refuse it, and not for the preset."""
        return (name in FORK_SETTINGS or name in self.own_settings()) and name not in self.from_preset

    def decisive(self, preset: Mapping[str, Any], task: str = "caption") -> dict[str, Any]:
        """Return what decides a text beside the prompt, as JSON holds it.

        Args:
            preset: what of the preset decides a text (`Preset.decisive`).
            task: `caption` or `ask`.
        """
        if self.from_preset:
            return dict(preset)
        return {name: value for name, value in preset.items() if name != "sira"} | {self.name: self.keyed(task)}

    def keyed(self, task: str) -> dict[str, Any]:
        """Return its settings as keys of records of a task hold them."""
        return self.settings()

    def contrast_strength(self, config: SiraConfig) -> float:
        """Return the contrast strength alpha; 0 for a method without one."""
        return float(getattr(self, "alpha", 0.0))

    def with_settings(self, /, **given: Any) -> Self:
        """Return the same method with values replaced. None leaves a value as it is; the preset's are passed over.

        Raises:
            SettingsError: it has no such setting, or a value is out of range.
        """
        own = {name: value for name, value in given.items() if value is not None and name not in self.from_preset}
        return self.with_values(**own)

    def with_values(self, /, **own: Any) -> Self:
        """Return the same method with values of its own settings replaced; None is a value like any other.

        Raises:
            SettingsError: it has no such setting, or a value is out of range.
        """
        for name in own:
            self._check_known(name, self.own_settings())
        return replace(self, **own)

    def parse_settings(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Turn what `--set NAME=VALUE` gave for the method into values of the right types.

        Raises:
            SettingsError: it has no such setting, or a value has another type.
        """
        for name in given:
            self._check_known(name, self.all_settings())
        return {name: self.all_settings()[name].parse(name, text) for name, text in given.items()}

    def _check_known(self, name: str, known: Mapping[str, Any]) -> None:
        if name not in known:
            has = ", ".join(self.all_settings()) or "none"
            raise SettingsError(f"method {self.name!r} has no setting {name!r} (its settings: {has})")

    def for_task(self, task: str) -> Method:
        """Return the same method with what it does differently for `caption` or `ask`."""
        return self

    def for_picture(self, image_tokens: int) -> Method:
        """Return the same method, after `for_task`, with what it does differently for a picture of so many tokens.

        Raises:
            PictureSettingsError: its settings do not fit such a picture.
        """
        return self

    def branch_inputs(
        self,
        maker: PromptMaker,
        images: Sequence[Shown],
        prompts: Sequence[Prompt],
        inputs: Mapping[str, Tensor],
        seeds: Sequence[int],
    ) -> dict[str, Tensor]:
        """Return what the contrast stream gets instead of `inputs`, if its stream is a pass of its own.

        Args:
            maker: the loaded model.
            images, prompts: B of each.
            inputs: what the processor made of them, left-padded, on the CPU.
            seeds: for noise, one per picture.
        """
        return {}

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """Decode `model` with this method inside the context; hooks only, removed at the end.

        Args:
            model: a Hugging Face LVLM.
            config: the preset's K and alpha of SIRA, and its image tokens.
            prompts: `[B, S]` ids of the prompts that `generate` will get.
            branch: from `branch_inputs`, on the model's device.
        """
        raise NotImplementedError

    def fork_config(self, config: SiraConfig) -> SiraConfig:
        """Return the settings under which both streams are looked at, for methods with `Ability.TRACES`."""
        raise NotImplementedError

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check that the method can follow a model, before the first picture.

        Raises:
            SiraError: it cannot; the message says why.
        """
        import torch

        with self.attach(model, config, torch.empty(0), {}):
            pass

    def generate(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        config: SiraConfig,
        branch: Mapping[str, Tensor],
        *,
        on_step: OnStep | None = None,
        on_attach: Callable[[Any], None] = lambda decoding: None,
        **arguments: Any,
    ) -> Tensor:
        """Decode B prompts. By default the model's own `generate`, attached; a method with its own search overrides it.

        Args:
            model, config, branch: as for `attach`.
            inputs: of the prompts, on the model's device.
            on_step: called with both streams' logits at every step; for methods with `Ability.TRACES`.
            on_attach: called with what the context of `attach` yields, before decoding begins.
            **arguments: of `generate`: limits, sampling, streamer, cache.

        Returns:
            `[B, S + N]` ids, prompts included, as `generate` returns them.
        """
        if on_step is None:
            context = self.attach(model, config, inputs["input_ids"], branch)
        else:
            from sira_cli.core.fork import attach

            context = attach(model, self.fork_config(config), on_step=on_step)
        with context as decoding:
            on_attach(decoding)
            output: Tensor = model.generate(**inputs, **arguments)
        return output


@dataclass(frozen=True)
class TwoPasses(Method):
    """A method whose contrast stream is a second pass with inputs of its own; a subclass gives these and the rule."""

    abilities = frozenset({Ability.BATCHES, Ability.SAMPLING})

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """Return the scores that processors and sampling get.

        Args:
            z, z_contrast: `[B, V]` float32, of the full and of the contrast stream.
            step: 1 for the first token.
        """
        raise NotImplementedError

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """Put a hook behind the model (`sira_cli.methods.second_pass`)."""
        from sira_cli.methods.second_pass import second_pass

        return second_pass(model, prompts, branch, self.rule)

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check the model's structure; without prompts there is no second pass."""
        from sira_cli.core.families import find_backbone

        find_backbone(model)
