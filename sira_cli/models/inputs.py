"""Pictures and prompts in memory as the inputs of a model under a method: checked, padded, seeded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sira_cli.errors import LongPromptError, SettingsError
from sira_cli.methods.base import Method, PromptBatch
from sira_cli.methods.prompts import Conversation, Prompt, pictures_of, turns_of
from sira_cli.models.chat import chat_inputs, check_chat
from sira_cli.models.preset import Preset, check_text
from sira_cli.models.resizing import pad_to_square
from sira_cli.models.sampling import derived_seed
from sira_cli.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BRANCH = "contrast_"  # prefix of input names of a separate contrast stream


class PromptInputs:
    """The part of a `LoadedModel` that prepares inputs.

    Attributes:
        model, processor: the Hugging Face objects.
        preset: every setting in force.
        decoder: the method with its settings.
        image_tokens, find_image: the rule for P_img, and the rule as a function: ids `[B, S]` -> bool `[B, S]`.
        vocabulary: the tokenizer, token by token.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        preset: Preset,
        decoder: Method,
        vocabulary: Vocabulary | None,
    ) -> None:
        self.model = model
        self.processor = processor
        self.preset = preset
        self.decoder = decoder
        rule = preset.image_tokens.with_ids(processor.tokenizer)
        self.image_tokens = rule.completed(model.config, getattr(processor, "image_token_id", None))
        self.find_image: Callable[[Tensor], Tensor] = self.image_tokens.resolve(model.config).find
        self.vocabulary = vocabulary or Vocabulary(processor.tokenizer)

    @property
    def context(self) -> int | None:
        """Tokens that the model was made for; None: its config does not say."""
        config = self.model.config.get_text_config()
        stated: int | None = getattr(config, "max_position_embeddings", None)
        rope = getattr(config, "rope_parameters", None) or {}
        if stated is None or not rope.get("factor"):
            return stated
        # Some configs state the length before the positions are stretched.
        return max(stated, int(rope["factor"] * rope.get("original_max_position_embeddings", stated)))

    def check_prompt(self, prompt: Prompt, pictures: int = 1) -> None:
        """Refuse a prompt with the model's placeholder, or with turns or pictures that its chat format lacks."""
        for turn in turns_of(prompt):
            check_text("the prompt", turn.text)
            for kind in ("image_token", "video_token"):
                placeholder = getattr(self.processor, kind, None)
                if placeholder and placeholder in turn.text:
                    raise SettingsError(f"the prompt holds {placeholder}, this model's placeholder; leave it out")
        if isinstance(prompt, Conversation) or pictures > 1:
            with self.vocabulary.lock:
                check_chat(self.processor, prompt, self.preset.prompts.system, pictures)

    def check_prompts(self, prompts: Iterable[tuple[str, str]]) -> None:
        """Check many prompts, each with its picture's name, before any picture is read."""
        for prompt, picture in prompts:
            try:
                self.check_prompt(prompt)
            except SettingsError as error:
                raise SettingsError(f"{prompt!r} about {picture}: {error}") from None

    def chat_inputs(
        self,
        images: Sequence[Shown],
        prompts: Sequence[Prompt],
        *,
        system: str | None = None,
        skip_thought: bool = False,
        as_text: bool = False,
    ) -> Any:
        """Return B pictures and prompts in the checkpoint's chat format, as `processor.chat_inputs` does.

        Args:
            images, prompts: B of each; a prompt may have several pictures.
            system: the system message; None: the preset's.
            skip_thought: whether a thought that the prompt opens is closed, so that the answer comes next.
            as_text: whether to return texts instead of tensors.
        """
        return chat_inputs(
            self.processor,
            self.model.config.model_type,
            self._padded(images),
            prompts,
            system=self.preset.prompts.system if system is None else system,
            think=self.preset.generation.think,
            skip_thought=skip_thought,
            as_text=as_text,
        )

    def _padded(self, images: Sequence[Shown]) -> Sequence[Shown]:
        """Return pictures as the model sees them: padded to squares, if the preset says so."""
        if not self.preset.image.pad_to_square:
            return images
        mean = self.processor.image_processor.image_mean
        return [pad_to_square(shown, mean) for shown in images]

    def prepare(
        self,
        images: Sequence[Shown],
        prompts: Sequence[Prompt],
        image_hashes: Sequence[str] | None = None,
        *,
        skip_thought: bool = False,
    ) -> Any:
        """Turn B pictures and prompts into the model's inputs, left-padded, on the CPU; safe in another thread.

        Inputs of a separate contrast stream have names that begin with `BRANCH`. `image_hashes` seed drawn noise. With
        `skip_thought`, a prompt that opens a thought also closes it: the next token is the answer's.
        """
        if image_hashes is None:
            image_hashes = [hash_of(shown) if self.decoder.uses_seed else "" for shown in images]
        seed = self.preset.generation.seed
        seeds = [derived_seed(seed, image_hash) for image_hash in image_hashes]
        with self.vocabulary.lock:
            inputs = self.chat_inputs(images, prompts, skip_thought=skip_thought)
            self._check_context(images, inputs)
            batch = PromptBatch(self, inputs, seeds, images, prompts)
            for name, value in self.decoder.branch_inputs(batch).items():
                inputs[BRANCH + name] = value
        return inputs

    def _check_context(self, images: Sequence[Shown], inputs: Any) -> None:
        context = self.context
        if context is None:
            return
        for shown, tokens in zip(images, inputs["attention_mask"].sum(dim=1).tolist(), strict=True):
            if tokens > context:
                count = len(pictures_of(shown))
                pictures = "1 picture" if count == 1 else f"{count} pictures"
                raise LongPromptError(
                    f"a prompt with {pictures} has {tokens:,} tokens, and the model's context holds {context:,}: "
                    "shorten it, or give fewer or smaller pictures",
                    tokens=tokens,
                )

    def to_device(self, inputs: Any) -> Any:
        """Move prepared inputs to the model's device, and pixels to its precision."""
        return inputs.to(self.model.device, dtype=self.model.dtype)

    def lengths(self, inputs: Any) -> tuple[list[int], list[int]]:
        """Count image tokens and prompt tokens of each row."""
        image_tokens: list[int] = self.find_image(inputs["input_ids"]).sum(dim=1).tolist()
        return image_tokens, inputs["attention_mask"].sum(dim=1).tolist()


def hash_of(shown: Shown) -> str:
    """Return a hash of a prompt's pictures, by their pixels."""
    digest = hashlib.sha256()
    for image in pictures_of(shown):
        digest.update(image.tobytes())
    return digest.hexdigest()
