"""A loaded model under a decoding method: from prepared inputs to tokens."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork
from sira_cli.core.forward_pass import Step
from sira_cli.core.rules import cut_offs_kept
from sira_cli.methods.base import Ability, Method
from sira_cli.models import combinations
from sira_cli.models.answering.end_tokens import EndTokens
from sira_cli.models.answering.preparing import BRANCH, PreparingModel
from sira_cli.models.answering.repetition import processors_of
from sira_cli.models.answering.sampling import sampler
from sira_cli.models.answering.starts import Start, Trail
from sira_cli.models.answering.streamers import NewTokens, TextPieces
from sira_cli.models.inputs.chats import parser_of
from sira_cli.models.inputs.vocabulary import Vocabulary
from sira_cli.models.loading.calibrations import calibrated
from sira_cli.models.loading.placement import devices_of
from sira_cli.models.loading.preset import Preset

if TYPE_CHECKING:
    from sira_cli.models.schemas.following import FollowingText, SchemaTokens
    from sira_cli.models.schemas.schema import Schema


class DecodingModel(PreparingModel):
    """A loaded large vision-language model under one decoding method.

    Attributes:
        method: the method's name; `decoder` is the method with its settings.
        k, layers: K and L; K is 0 for a method without a fork.
        alpha: the method's contrast strength; 0 for one without.
        sira: the settings of the fork, with the model's image tokens.
        parser: separates reasoning from answers.
        ends: the tokens that end a text.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        preset: Preset,
        method: Method,
        revision: str,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        combinations.check(preset, method)
        self.model = model
        self.processor = processor
        self.preset = preset
        self.decoder = method = calibrated(method, preset.model, revision)
        self.method = method.name
        self.revision = revision
        image_tokens = preset.image_tokens.with_ids(processor.tokenizer)
        self.find_image = image_tokens.resolve(model.config).find
        self.sira = dataclasses.replace(preset.sira_config, image_tokens=image_tokens)
        fork = Fork(model, self.sira)  # refuses an unsupported model now, not at the first picture
        self.k, self.layers = fork.k if "k" in method.from_preset else 0, fork.layers
        self.alpha = method.contrast_strength(self.sira)
        method.check_model(model, self.sira)
        self.check_prompt(preset.prompts.system)
        self.vocabulary = vocabulary or Vocabulary(processor.tokenizer)
        self.parser = parser_of(processor, self.vocabulary, system=preset.prompts.system, think=preset.generation.think)
        self.ends = EndTokens.of(model, processor.tokenizer)
        # Algorithm 1 picks from z_cd alone, so other settings of a checkpoint's generation_config.json are ignored
        # (Qwen2.5-VL has a repetition penalty).
        model.generation_config = GenerationConfig(
            eos_token_id=list(self.ends.ids) or None, pad_token_id=self.ends.padding
        )

    @property
    def quantization(self) -> str | None:
        """Bits of the decoder layers' weights: `8bit`, `4bit` or None."""
        return self.preset.load.quantization

    @property
    def dtype(self) -> str:
        """Precision of the weights: `bfloat16`, ..."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Device of the weights: `cpu`, `cuda:0`, or several."""
        return ", ".join(map(str, devices_of(self.model)))

    @property
    def batches(self) -> bool:
        """Whether several pictures can be decoded together, each text as if decoded alone."""
        able = Ability.BATCHES in self.decoder.abilities
        return able and (self.preset.generation.temperature == 0 or self.samples_rows)

    @property
    def samples_rows(self) -> bool:
        """Whether each row of a batch is sampled separately; not with beams or a method's own search."""
        return self.preset.generation.num_beams == 1 and Ability.BATCHES in self.decoder.abilities

    @property
    def leaves_trail(self) -> bool:
        """Whether the cache of `generate` suffices to continue a text, or to run another prompt about the picture."""
        return self.decoder.rewinds and self.preset.generation.num_beams == 1

    @functools.cached_property
    def schema_tokens(self) -> SchemaTokens:
        """The tokens by which texts follow schemas.

        Raises:
            SettingsError: the extra `json` is missing, or the end of the model's thoughts is not a token.
            UnsupportedModelError: the model has no token that ends a text.
        """
        from sira_cli.models.schemas.following import SchemaTokens

        return SchemaTokens(self.parser, self.ends)

    @property
    def both_streams(self) -> SiraConfig:
        """The settings for observing both streams; for methods with `Ability.TRACES`."""
        return self.decoder.fork_config(self.sira)

    def generate(
        self,
        inputs: Any,
        on_text: Callable[[str], None] | None = None,
        *,
        on_tokens: Callable[[list[int], Step], None] | None = None,
        on_new: Callable[[list[int]], None] | None = None,
        seeds: Sequence[int] | None = None,
        task: str = "caption",
        start: Start | None = None,
        trail: Trail | None = None,
        schemas: Sequence[Schema | None] | None = None,
    ) -> torch.Tensor:
        """Decode prepared inputs with the method and the settings in force; the global random state is unchanged.

        Args:
            inputs: output of `prepare` for B pictures and prompts, on the model's device.
            on_text: called with pieces of text as they are decoded (B = 1, not with beams or a method's own search).
            on_tokens: called with the B new tokens of a step and the logits that they were picked from, instead of
                `on_text`. With `greedy` the CF stream is also computed, but has no part in the choice.
            on_new: called with the B new tokens of a step, instead of `on_text` (not with beams or a method's own
                search).
            seeds: seeds of the rows, from `text_seeds`; None: seeds for rows without pictures and prompts.
            task: `caption` or `ask`, which some methods treat differently.
            start: the beginning of the texts; None: empty.
            trail: receives the method's reusable computations for the prompts and texts.
            schemas: the schema that each text follows (None: none), after empty starts; None: none does.

        Raises:
            SettingsError: `on_tokens` with beams (a step does not belong to a single text), or with a method without
                a CF stream.

        Returns:
            Ids of the new tokens `[B, N]`, with the end token, shorter answers padded.
        """
        settings = self.preset.generation
        rows = len(inputs["input_ids"])
        seeds = self.text_seeds([""] * rows, [str(row) for row in range(rows)]) if seeds is None else seeds
        start = start or Start.at_nothing(rows)
        streamer: BaseStreamer | None = None
        steps: list[Step] = []
        if on_tokens is not None:
            self._check_watching()
            streamer = NewTokens(lambda tokens: on_tokens(tokens, steps.pop(0)))  # on mps tokens come a step late
        elif on_new is not None:
            streamer = NewTokens(on_new)
        elif on_text is not None and settings.num_beams == 1 and not self.decoder.own_search:
            streamer = TextPieces(self.parser.begin(), on_text)
        cuda = [self.model.device] if self.model.device.type == "cuda" else []
        picking = self._picking(seeds, inputs["attention_mask"], start, schemas)
        cache = start.cache
        if trail is not None and self.leaves_trail:
            cache = trail.begin(self.model, cache)
        if cache is not None:
            picking[CACHE] = cache
        ruling_out = schemas is not None or bool(start.processors)
        with torch.random.fork_rng(cuda), cut_offs_kept() if ruling_out else nullcontext():
            torch.manual_seed(seeds[0])  # for sampling that is not row by row
            output = self.decode(
                inputs,
                (start.new_tokens or settings.max_new_tokens) - start.in_inputs,
                task,
                on_step=None if on_tokens is None else steps.append,
                num_beams=settings.num_beams,
                streamer=streamer,
                **picking,
            )
        new: torch.Tensor = output[:, inputs["input_ids"].shape[1] :]
        return new

    def decode(self, inputs: Any, new_tokens: int, task: str = "caption", **arguments: Any) -> torch.Tensor:
        """Let the method decode prepared inputs.

        Args:
            inputs: as for `generate`.
            new_tokens: maximum number of new tokens.
            task: as in `generate`.
            **arguments: arguments of `Method.generate`.

        Returns:
            Ids `[B, S + N]`, prompts included.
        """
        own = {name: value for name, value in inputs.items() if not name.startswith(BRANCH)}
        branch = {name.removeprefix(BRANCH): inputs[name] for name in inputs if name not in own}
        decoder = self.decoder.for_task(task)
        return decoder.generate(self.model, own, self.sira, branch, max_new_tokens=new_tokens, **arguments)

    def _picking(
        self,
        seeds: Sequence[int],
        attention_mask: torch.Tensor,
        start: Start,
        schemas: Sequence[Schema | None] | None,
    ) -> dict[str, Any]:
        """Return the arguments of `generate` that decide how tokens are picked from the method's logits."""
        settings = self.preset.generation
        processors = self.processors(seeds, attention_mask, start, schemas)
        how: dict[str, Any] = {"do_sample": False}
        if settings.temperature > 0 and not self.samples_rows:
            how = {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p}
            how |= {"top_k": settings.top_k, "min_p": settings.min_p or None}
        if start.stopping:
            how["stopping_criteria"] = StoppingCriteriaList(start.stopping)
        return how | ({"logits_processor": processors} if processors else {})

    def processors(
        self,
        seeds: Sequence[int],
        attention_mask: torch.Tensor,
        start: Start | None = None,
        schemas: Sequence[Schema | None] | None = None,
    ) -> LogitsProcessorList:
        """Return the processors of a method's logits for the settings in force; often an empty list.

        Args:
            seeds: seeds of the rows.
            attention_mask: `[B, S]` of the prompts, left-padded.
            start: the beginning of the texts; None: empty.
            schemas: as for `generate`.
        """
        settings, start = self.preset.generation, start or Start.at_nothing(len(seeds))
        processors = LogitsProcessorList()
        if schemas is not None:  # first, as the others leave all tokens that are left rather than none
            from sira_cli.models.schemas.following import SchemaMask

            processors.append(SchemaMask([self.following(each) for each in schemas], attention_mask.shape[1]))
        processors += processors_of(settings, attention_mask)
        processors += start.processors
        if settings.temperature > 0 and self.samples_rows:
            cut_offs: Any = {"top_k": settings.top_k, "min_p": settings.min_p}
            processors += sampler(seeds, settings.temperature, settings.top_p, start.in_inputs, **cut_offs)
        return processors

    def following(self, schema: Schema | None) -> FollowingText | None:
        """Return an empty text that follows a schema; None without one. Errors as for `schema_tokens`."""
        return None if schema is None else self.schema_tokens.begin(schema)

    def _check_watching(self) -> None:
        """Check that both streams can be observed step by step."""
        combinations.check(self.preset, self.decoder, streams="looking at both streams")
