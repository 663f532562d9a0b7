"""Decoding methods: settings with defaults, abilities, and generation by a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import contrast, plausible
from sira_cli.errors import SettingsError
from sira_cli.methods.settings import FORK_SETTINGS, Setting, setting

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.core.streams import OnStep
    from sira_cli.methods.prompts import Prompt, Shown

Inputs = Mapping[str, "Tensor"]  # of a model, by name
Decoding = AbstractContextManager[Any]


class Ability(StrEnum):
    """An ability of a method besides picking the next token of one text."""

    BATCHES = "batches"  # several pictures at once, each text as if decoded alone
    SAMPLING = "sampling"
    BEAMS = "beams"
    TRACES = "traces"  # both streams of SIRA's fork can be observed


class PromptMaker(Protocol):
    """The interface of a loaded model for making the inputs of a contrast stream. `Lvlm` has it."""

    model: Any

    def find_image(self, input_ids: Tensor) -> Tensor:
        """Find P_img: `[B, S]` ids -> bool `[B, S]`."""
        ...

    def chat_inputs(
        self, images: Sequence[Shown], prompts: Sequence[Prompt], *, system: str | None = None
    ) -> Mapping[str, Tensor]:
        """Return B pictures and prompts in the checkpoint's chat format, left-padded, on the CPU.

        Args:
            images, prompts: B of each.
            system: the system message; None: the preset's.
        """
        ...


@dataclass(frozen=True)
class PromptBatch:
    """B prompts, of which a method makes the inputs of its contrast stream.

    Attributes:
        maker: the loaded model.
        inputs: the processor's output for them, left-padded, on the CPU.
        seeds: for noise, one per picture.
        images, prompts: B of each, of which `inputs` were made; none under `sira_cli.attach`.
    """

    maker: PromptMaker
    inputs: Mapping[str, Tensor]
    seeds: Sequence[int]
    images: Sequence[Shown] = ()
    prompts: Sequence[Prompt] = ()

    @property
    def image_tokens(self) -> Tensor:
        """P_img, bool `[B, S]`."""
        return self.maker.find_image(self.inputs["input_ids"])


@dataclass(frozen=True)
class Method:
    """A way to pick the next token. Its dataclass fields are its settings, which decide its texts.

    A new method is a frozen dataclass with a `name`, and `setting`s as fields. It overrides one function: a `TwoPasses`
    or `LogitsOnly` its `rule`, any other `attach`. A method of a paper names the paper in its module's docstring, and
    the equation or the authors' script in that of the class. Calls come in this order:

        check_model      once, when a model is loaded
        branch_inputs    for each batch of prompts, on the CPU, while the batch before it is decoded
        for_task         for each batch; the next two are called on its result
        generate         for each batch; it calls `attach`, then the model's `generate` inside that context
        rule             for each new token, in a hook after the model

    Attributes:
        name: its value for `--method`.
        abilities: its abilities; all others are refused.
        from_preset: settings taken from the preset's `sira` part instead of its own fields.
        observes: whether `from_preset` changes only what is shown of a text, and not the text.
        uses_seed: whether the seed changes a text at temperature 0.
        own_search: whether it has its own search (`generate`), which may take back picked tokens.
        rewinds: whether it can go on from any token with only its cache, cut back to that token; the full stream's
            part of the cache is then the model's own.
    """

    name: ClassVar[str]
    abilities: ClassVar[frozenset[Ability]] = frozenset({Ability.BATCHES, Ability.SAMPLING, Ability.BEAMS})
    from_preset: ClassVar[tuple[str, ...]] = ()
    observes: ClassVar[bool] = False
    uses_seed: ClassVar[bool] = False
    own_search: ClassVar[bool] = False
    rewinds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, declared in self.own_settings().items():
            value = getattr(self, name)
            declared.check(f"{name} of method {self.name}", value)
            if declared.kind is float and value is not None:  # 2 and 2.0 are equal, so keys of records must be equal
                object.__setattr__(self, name, float(value))

    @classmethod
    def own_settings(cls) -> dict[str, Setting]:
        """Return the declarations of its own settings, by name."""
        return {field.name: field.metadata["setting"] for field in fields(cls)}

    @classmethod
    def all_settings(cls) -> dict[str, Setting]:
        """Return the declarations of all its settings by name; those of the preset come first."""
        return {name: FORK_SETTINGS[name] for name in cls.from_preset} | cls.own_settings()

    @property
    def deciding(self) -> tuple[str, ...]:
        """The settings from the preset that change a text."""
        return () if self.observes else self.from_preset

    def settings(self) -> dict[str, Any]:
        """Return the values of its own settings, as JSON values."""
        return asdict(self)

    def owns(self, name: str) -> bool:
        """Return whether a setting of this name belongs to the method (even if refused), not to the preset."""
        return (name in FORK_SETTINGS or name in self.own_settings()) and name not in self.from_preset

    def decisive(self, preset: Mapping[str, Any], task: str = "caption") -> dict[str, Any]:
        """Return everything that decides a text besides the prompt, as JSON values.

        Args:
            preset: the preset's part of it (`Preset.decisive`).
            task: `caption` or `ask`.
        """
        decisive = dict(preset)
        if not self.from_preset:
            del decisive["sira"]  # keys of methods that take one setting of it hold it whole, also what they ignore
        if self.own_settings() or not self.from_preset:
            decisive[self.name] = self.keyed(task)
        return decisive

    def keyed(self, task: str) -> dict[str, Any]:
        """Return its settings in the form of record keys for a task."""
        return self.for_task(task).settings()

    def contrast_strength(self, config: SiraConfig) -> float:
        """Return the contrast strength alpha; 0 for a method without one."""
        return float(getattr(self, "alpha", 0.0))

    def with_settings(self, /, **values: Any) -> Self:
        """Return the same method with values replaced. None keeps a value; the preset's settings are ignored."""
        of_method = {}
        for name, value in values.items():
            if value is not None and name not in self.from_preset:
                of_method[name] = value
        return self.with_values(**of_method)

    def with_values(self, /, **values: Any) -> Self:
        """Return the same method with values of its own settings replaced; None is a value like any other."""
        for name in values:
            if name not in self.own_settings():
                has = ", ".join(self.all_settings()) or "none"
                raise SettingsError(f"method {self.name!r} has no setting {name!r} (its settings: {has})")
        return replace(self, **values)

    def for_task(self, task: str) -> Method:
        """Return the same method with its settings for `caption` or `ask`."""
        return self

    def for_picture(self, image_tokens: int) -> Method:
        """Return the same method, after `for_task`, with its settings for a picture with this number of tokens.

        Raises:
            PictureSettingsError: the settings do not fit such a picture.
        """
        return self

    def branch_inputs(self, batch: PromptBatch) -> dict[str, Tensor]:
        """Return the contrast stream's inputs, if this stream is a pass of its own."""
        return {}

    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Decoding:
        """Decode `model` with this method inside the context; hooks only, removed at the end.

        Args:
            model: a Hugging Face LVLM.
            config: the preset's K and alpha of SIRA, and its image tokens.
            prompts: `[B, S]` ids of the prompts that `generate` will get.
            branch: from `branch_inputs`, on the model's device.
        """
        raise NotImplementedError

    def fork_config(self, config: SiraConfig) -> SiraConfig:
        """Return the settings for observing both streams, for methods with `Ability.TRACES`."""
        raise NotImplementedError

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check that the method can follow a model, before the first picture.

        Raises:
            SiraError: the method cannot; the message gives the reason.
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
        """Decode B prompts with the model's `generate`, attached; methods with their own search override it.

        Args:
            model, config, branch: as for `attach`.
            inputs: model inputs of the prompts, on the model's device.
            on_step: called with both streams' logits at every step; for methods with `Ability.TRACES`.
            on_attach: called before decoding with the object that `attach` yields.
            **arguments: arguments of `generate`: limits, sampling, streamer, cache.

        Returns:
            `[B, S + N]` ids, prompts included, as from `generate`.
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
    """A method whose contrast stream is a second pass with its own inputs.

    Subclasses define these inputs, `branch_inputs`, and the `rule` for the logits of both passes. The second pass has
    a cache of its own, and gets each token that was picked.
    """

    abilities = frozenset({Ability.BATCHES, Ability.SAMPLING})

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """Return the scores from which the next token of each text is picked, after processors and sampling.

        Args:
            z: `[B, V]` logits of the prompts and texts, float32.
            z_contrast: `[B, V]` of the contrast stream for the same tokens, on the same device.
            step: t, number of the new token: 1 at the first one.

        Returns:
            `[B, V]` float32; -inf at tokens that must not be picked. `sira_cli.core.rules` has the contrast and the
            cut-off (`plausible`), which remembers its arguments for schemas and the guide.
        """
        raise NotImplementedError

    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Decoding:
        """Put a hook after the model (`sira_cli.methods.second_pass`)."""
        from sira_cli.methods.second_pass import second_pass

        return second_pass(model, prompts, branch, self.rule)

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check the model's structure; without prompts there is no second pass."""
        from sira_cli.core.families import find_backbone

        find_backbone(model)


@dataclass(frozen=True)
class CutContrast(TwoPasses):
    """(1 + alpha) z - alpha z' with APC, VCD's rule (Leng et al. 2024, arXiv:2311.16922).

    Subclasses define the inputs of z', `branch_inputs`. Tokens with a probability in softmax(z) below `beta` times the
    largest one are excluded.
    """

    alpha: float = setting(1.0, "contrast strength", low=0)
    beta: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    def rule(self, z: Tensor, z_contrast: Tensor, step: int) -> Tensor:
        """Contrast, then cut off; `[B, V]` each, the same at every step."""
        return plausible(contrast(z, z_contrast, self.alpha), z, self.beta)


def like_layers(window: tuple[int, int], layers: int) -> range:
    """Return the layers that are the same share of all as a window is of LLaVA-1.5-7B's 32; one at least."""
    first, end = (number * layers // 32 for number in window)
    return range(first, max(end, first + 1))
