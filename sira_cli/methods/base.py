"""What a decoding method is: settings with defaults, and a context in which `generate` follows its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sira_cli.core.config import SiraConfig, check_range
from sira_cli.errors import SettingsError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sira_cli.models.lvlm import Lvlm
    from sira_cli.models.presets import Preset

FORK_SETTINGS = ("k", "k_fraction", "alpha", "beta")


@dataclass(frozen=True)
class Method:
    """A way to pick the next token. Its dataclass fields are its settings, and decide its texts.

    Attributes:
        name: as `--method` has it.
        from_preset: settings that it takes from the preset's `sira` part instead of having them itself.
        one_text: whether it follows one text a prompt, so that beams are refused.
        seeded: whether the seed matters at temperature 0.
    """

    name: ClassVar[str]
    from_preset: ClassVar[tuple[str, ...]] = ()
    one_text: ClassVar[bool] = False
    seeded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, value in self.settings().items():
            if name == "alpha":
                check_range(f"alpha of method {self.name}", value, 0.0)
            elif name in ("beta", "relative_top"):
                check_range(f"{name} of method {self.name}", value, 0.0, 1.0)
                if value == 0:
                    raise SettingsError(f"{name} of method {self.name} must be above 0")

    def settings(self) -> dict[str, Any]:
        """Its own settings, as JSON holds them."""
        return asdict(self)

    def owns(self, name: str) -> bool:
        """Whether a setting of that name is meant for the method, be it to refuse it, and not for the preset."""
        known = name in FORK_SETTINGS or any(field.name == name for field in fields(self))
        return known and name not in self.from_preset

    def decisive(self, preset: Preset) -> dict[str, Any]:
        """What of the preset and of the method decides a text, beside the prompt, as JSON holds it."""
        settings = preset.decisive()
        if not self.from_preset:
            del settings["sira"]
            settings[self.name] = self.settings()
        return settings

    def with_settings(self, **given: Any) -> Self:
        """The same method with values replaced; None leaves a value as it is, the preset's are passed over.

        Raises:
            SettingsError: it has no such setting, or not such a value.
        """
        own = {name: value for name, value in given.items() if value is not None and name not in self.from_preset}
        known = [field.name for field in fields(self)]
        for name in own:
            if name not in known:
                has = ", ".join([*self.from_preset, *known]) or "none"
                raise SettingsError(f"method {self.name!r} has no setting {name!r} (its settings: {has})")
        return replace(self, **own)

    def for_task(self, task: str) -> Self:
        """The same method with what it does differently for `caption` or `ask`."""
        return self

    def branch_inputs(
        self, lvlm: Lvlm, images: Sequence[Image.Image], prompts: Sequence[str], inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """What the contrast stream gets instead of `inputs`, for methods whose stream is a pass of its own.

        Args:
            lvlm: the model, its processor and its preset.
            images, prompts: B of each.
            inputs: what the processor made of them, left-padded, on the CPU.
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


@dataclass(frozen=True)
class TwoPasses(Method):
    """A method whose contrast stream is a second pass with inputs of its own; a subclass gives these and the rule."""

    one_text = True

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """The scores that processors and sampling get.

        Args:
            z, z_contrast: `[B, V]` float32, of the full and of the contrast stream.
            step: 1 for the first token.
        """
        raise NotImplementedError

    def attach(
        self, model: Any, config: SiraConfig, prompts: Tensor, branch: Mapping[str, Tensor]
    ) -> AbstractContextManager[Any]:
        """A hook behind the model (`sira_cli.methods.second_pass`)."""
        from sira_cli.methods.second_pass import second_pass

        return second_pass(model, prompts, branch, self.rule)
