"""A loaded model's inputs: from pictures and prompts in memory to tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from sira_cli.errors import LongPromptError, SettingsError
from sira_cli.methods.base import Method, PromptBatch
from sira_cli.methods.prompts import Conversation, Prompt, pictures_of, turns_of
from sira_cli.models.answering.sampling import derived_seed
from sira_cli.models.inputs.image_size import pad_to_square
from sira_cli.models.inputs.processors import chat_inputs, check_chat
from sira_cli.models.inputs.vocabulary import Vocabulary
from sira_cli.models.loading.preset import Preset
from sira_cli.models.loading.preset_parts import check_text

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BRANCH = "contrast_"  # prefix of input names of a separate contrast stream


class PreparingModel:
    """A loaded large vision-language model and its processor, which make inputs of pictures and prompts.

    Attributes:
        model, processor: the Hugging Face objects.
        preset: every setting in force.
        decoder: the method with its settings.
        find_image: `[B, S]` input ids -> bool, P_img.
        vocabulary: the tokenizer, token by token.
    """

    model: Any
    processor: Any
    preset: Preset
    decoder: Method
    find_image: Callable[[torch.Tensor], torch.Tensor]
    vocabulary: Vocabulary

    def picture_seeds(self, image_hashes: Sequence[str]) -> list[int]:
        """Return the seed of each picture's noise, for methods that change the picture."""
        return [derived_seed(self.preset.generation.seed, image) for image in image_hashes]

    def text_seeds(self, image_hashes: Sequence[str], prompts: Sequence[Prompt]) -> list[int]:
        """Return the seed of each text, for `generate`."""
        seed = self.preset.generation.seed
        return [derived_seed(seed, image, str(prompt)) for image, prompt in zip(image_hashes, prompts, strict=True)]

    def check_prompt(self, prompt: Prompt, pictures: int = 1) -> None:
        """Check that a prompt is valid.

        Args:
            prompt: of any kind.
            pictures: number of pictures that a text is about.

        Raises:
            SettingsError: the prompt contains the model's placeholder for a picture, is not text, or has turns or
                pictures that do not fit the checkpoint's chat format.
        """
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
        """Check that many prompts are valid, before any picture is read.

        Args:
            prompts: pairs of a prompt and its picture's name.

        Raises:
            SettingsError: a prompt contains the model's placeholder for a picture.
        """
        for prompt, picture in prompts:
            try:
                self.check_prompt(prompt)
            except SettingsError as error:
                raise SettingsError(f"{prompt!r} about {picture}: {error}") from None

    def chat_inputs(
        self, images: Sequence[Shown], prompts: Sequence[Prompt], *, system: str = "", at_once: bool = False
    ) -> Mapping[str, torch.Tensor]:
        """Return B pictures and prompts in the checkpoint's chat format; see `processors.chat_inputs`.

        Args:
            images, prompts: as for `prepare`.
            system: system message; empty: the preset's.
            at_once: ask for an answer after an empty thought, regardless of the preset's `think`.
        """
        if self.preset.image.pad_to_square:
            images = [pad_to_square(shown, self.processor.image_processor.image_mean) for shown in images]
        inputs: Mapping[str, torch.Tensor] = chat_inputs(
            self.processor,
            self.model.config.model_type,
            images,
            prompts,
            system=system or self.preset.prompts.system,
            think=self.preset.generation.think,
            at_once=at_once,
        )
        return inputs

    def prepare(
        self,
        images: Sequence[Shown],
        prompts: Sequence[Prompt],
        image_hashes: Sequence[str] | None = None,
        *,
        at_once: bool = False,
    ) -> Any:
        """Turn B pictures and prompts into the model's inputs, left-padded, on the CPU. Safe in another thread.

        They include the inputs of a separate contrast stream, under names that begin with `BRANCH`.

        Args:
            images, prompts: B of each; pictures in the order of a conversation's turns.
            image_hashes: identify each prompt's pictures, for methods that draw noise; None: computed from samples.
            at_once: as for `chat_inputs`.

        Raises:
            LongPromptError: a prompt, with its pictures, is longer than the model's context.
        """
        if image_hashes is None and self.decoder.uses_seed:
            samples = [b"".join(image.tobytes() for image in pictures_of(shown)) for shown in images]
            image_hashes = [hashlib.sha256(each).hexdigest() for each in samples]
        seeds = self.picture_seeds(image_hashes or [""] * len(images))
        with self.vocabulary.lock:
            inputs: Any = self.chat_inputs(images, prompts, at_once=at_once)
            self._check_context(images, inputs)
            batch = PromptBatch(self, inputs, seeds, images, prompts)
            for name, value in self.decoder.branch_inputs(batch).items():
                inputs[BRANCH + name] = value
        return inputs

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

    def _check_context(self, images: Sequence[Shown], inputs: Any) -> None:
        context = self.context
        for shown, tokens in zip(images, inputs["attention_mask"].sum(dim=1).tolist(), strict=True):
            if context is None or tokens <= context:
                continue
            pictures = len(pictures_of(shown))
            who, remedy = "a picture", "shorten it, or make the picture smaller"
            if pictures > 1:
                who, remedy = f"{pictures} pictures", "give fewer pictures, or make them smaller"
            raise LongPromptError(
                f"a prompt with {who} has {tokens:,} tokens, and the model's context holds {context:,}: {remedy}",
                tokens=tokens,
            )

    def to_device(self, inputs: Any) -> Any:
        """Move prepared inputs to the model's device, and pixels to its precision."""
        return inputs.to(self.model.device, dtype=self.model.dtype)

    def lengths(self, inputs: Any) -> tuple[list[int], list[int]]:
        """Count image tokens and prompt tokens of each row."""
        image_tokens: list[int] = self.find_image(inputs["input_ids"]).sum(dim=1).tolist()
        return image_tokens, inputs["attention_mask"].sum(dim=1).tolist()
