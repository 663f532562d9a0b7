"""A loaded model under a decoding method: from pictures and prompts in memory to tensors, tokens and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork
from sira_cli.core.passes import score
from sira_cli.core.rules import cut_offs_kept
from sira_cli.core.streams import VIEWS, OnStep, Step
from sira_cli.errors import SettingsError
from sira_cli.methods import require
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.prompts import Prompt
from sira_cli.models import combinations
from sira_cli.models.chat import parser_of
from sira_cli.models.inputs import BRANCH, PromptInputs
from sira_cli.models.placement import devices_of
from sira_cli.models.preset import Preset
from sira_cli.models.presets import calibrated
from sira_cli.models.progress import NewTokens, Start, TextPieces, Trail, WordScores
from sira_cli.models.sampling import SchemaMask, derived_seed, processors_of, sampler
from sira_cli.models.schema import FollowingText, Schema
from sira_cli.models.texts import Answer
from sira_cli.models.vocabulary import EndTokens, Vocabulary


class LoadedModel(PromptInputs):
    """A large vision-language model under one decoding method: prepare, decode, answer.

    Attributes:
        revision: the version of the checkpoint.
        method: the method's name.
        sira: the settings of the fork, with the model's image tokens.
        k, layers, alpha: K (0 without a fork), L, and the contrast strength (0 without a contrast).
        parser, ends: what separates reasoning; the tokens that end a text.
        memo: what tasks keep from one batch to the next.

    Args:
        model, processor: the Hugging Face objects.
        preset: every setting in force.
        method: the decoding method; one that needs a calibration gets the model's.
        revision: the version of the checkpoint.
        vocabulary: that of another `LoadedModel` with the same tokenizer, to share its lock.

    Raises:
        SettingsError: the settings and the method cannot be combined, or do not fit the model.
        UnsupportedModelError: the method cannot follow the model exactly.
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
        method = calibrated(method, preset.model, revision)
        super().__init__(model, processor, preset, method, vocabulary)
        self.revision = revision
        self.method = method.name
        self.sira = replace(preset.sira_config, image_tokens=self.image_tokens)
        fork = Fork(model, self.sira)  # refuses an unsupported model now, not at the first picture
        self.k = fork.k if "k" in method.from_preset else 0
        self.layers = fork.layers
        self.alpha = method.contrast_strength(self.sira)
        method.check_model(model, self.sira)
        self.check_prompt(preset.prompts.system)
        self.parser = parser_of(processor, self.vocabulary, system=preset.prompts.system, think=preset.generation.think)
        self.ends = EndTokens.of(model, processor.tokenizer)
        self.memo: dict[Any, Any] = {}
        # Algorithm 1 picks from z_cd alone, so other settings of a checkpoint's generation_config.json are ignored
        # (Qwen2.5-VL has a repetition penalty).
        ends = list(self.ends.ids) or None
        model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=self.ends.padding)

    # --- what it is

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
        generation = self.preset.generation
        if generation.temperature > 0 and generation.num_beams > 1:  # beams are not drawn row by row
            return False
        return Ability.BATCHES in self.decoder.abilities

    @property
    def leaves_trail(self) -> bool:
        """Whether the cache of `generate` suffices to continue a text, or to run another prompt about the picture."""
        return self.decoder.rewinds and self.preset.generation.num_beams == 1

    @property
    def both_streams(self) -> SiraConfig:
        """The settings for observing both streams; for methods with `Ability.TRACES`."""
        return self.decoder.fork_config(self.sira)

    # --- decode: tensors -> tokens

    def text_seeds(
        self, image_hashes: Sequence[str], prompts: Sequence[Prompt], settings: Sequence[int] | None = None
    ) -> list[int]:
        """Return the seed of each text, for `generate`; `settings`: the seed that each is derived from."""
        if settings is None:
            settings = [self.preset.generation.seed] * len(prompts)
        rows = zip(settings, image_hashes, prompts, strict=True)
        return [derived_seed(seed, image, str(prompt)) for seed, image, prompt in rows]

    def decode(
        self,
        inputs: Any,
        new_tokens: int,
        task: str = "caption",
        *,
        on_step: OnStep | None = None,
        on_attach: Callable[[Any], None] = lambda decoding: None,
        **arguments: Any,
    ) -> torch.Tensor:
        """Let the method decode prepared inputs, with those of its contrast stream.

        Args:
            inputs: from `prepare`, on the model's device.
            new_tokens: maximum of each text.
            task: `caption` or `ask`, for the method's settings.
            on_step, on_attach: as for `Method.generate`.
            **arguments: of transformers' `generate`: sampling, beams, processors, streamer, cache.

        Returns:
            ids `[B, S + N]`, prompts included.
        """
        full: dict[str, torch.Tensor] = {}
        branch: dict[str, torch.Tensor] = {}
        for name, value in inputs.items():
            if name.startswith(BRANCH):
                branch[name.removeprefix(BRANCH)] = value
            else:
                full[name] = value
        return self.decoder.for_task(task).generate(
            self.model,
            full,
            self.sira,
            branch,
            on_step=on_step,
            on_attach=on_attach,
            max_new_tokens=new_tokens,
            **arguments,
        )

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
        """Decode prepared inputs to new tokens; the global random state is unchanged.

        One of the three callbacks is called, `on_tokens` before `on_new` before `on_text`.

        Args:
            inputs: from `prepare`, of B prompts, on the model's device.
            on_text: gets pieces of text as they are decoded (B = 1; not with beams or a method's own search).
            on_tokens: gets the B new tokens of a step, and the logits that they were picked from. With `greedy` the CF
                stream is then also computed, but has no part in the choice.
            on_new: gets the B new tokens of a step.
            seeds: one per text, from `text_seeds`.
            task: `caption` or `ask`, for the method's settings.
            start: the beginnings of the texts; default: empty.
            trail: receives the method's reusable computations, if `leaves_trail`.
            schemas: of each text, the schema that it follows.

        Returns:
            `[B, N]`, with end tokens; shorter texts are padded.
        """
        settings = self.preset.generation
        rows, columns = inputs["attention_mask"].shape
        if seeds is None:
            seeds = self.text_seeds([""] * rows, [str(row) for row in range(rows)])
        start = start or Start([[]] * rows)
        arguments: dict[str, Any] = {"do_sample": False, "num_beams": settings.num_beams}
        if on_tokens is not None:
            combinations.check(self.preset, self.decoder, streams="looking at both streams")
            steps: list[Step] = []
            arguments["on_step"] = steps.append
            # The token of a step may come after its logits: on mps a step late.
            arguments["streamer"] = NewTokens(lambda new: on_tokens(new, steps.pop(0)))
        elif on_new is not None:
            arguments["streamer"] = NewTokens(on_new)
        elif on_text is not None and settings.num_beams == 1 and not self.decoder.own_search:
            arguments["streamer"] = TextPieces(self.parser.begin(), on_text)
        processors = self._processors(inputs["attention_mask"], seeds, start, schemas)
        if processors:
            arguments["logits_processor"] = processors
        if settings.temperature > 0 and not self._draws_rows:
            arguments |= {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p}
            arguments |= {"top_k": settings.top_k, "min_p": settings.min_p or None}
        cache = start.cache
        if trail is not None and self.leaves_trail:
            cache = trail.begin(self.model, cache)
        if cache is not None:
            arguments[CACHE] = cache
        if start.stopping:
            arguments["stopping_criteria"] = StoppingCriteriaList(start.stopping)
        new_tokens = (start.new_tokens or settings.max_new_tokens) - start.in_inputs
        cuda = [self.model.device] if self.model.device.type == "cuda" else []
        ruling_out = schemas is not None or bool(start.processors)
        with torch.random.fork_rng(cuda), cut_offs_kept() if ruling_out else nullcontext():
            torch.manual_seed(seeds[0])  # for sampling that is not row by row
            return self.decode(inputs, new_tokens, task, **arguments)[:, columns:]

    @property
    def _draws_rows(self) -> bool:
        """Whether sampling draws each row's tokens by its own seed: not beams, nor in a method's own search."""
        return self.preset.generation.num_beams == 1 and Ability.BATCHES in self.decoder.abilities

    def _processors(
        self,
        mask: torch.Tensor,
        seeds: Sequence[int],
        start: Start,
        schemas: Sequence[Schema | None] | None,
    ) -> LogitsProcessorList:
        """Return the processors of B texts, in order, for prompts with an attention mask `[B, S]`."""
        settings = self.preset.generation
        processors = LogitsProcessorList()
        if schemas is not None:  # first, as the others leave all tokens that are left rather than none
            texts = [self.following(schema) for schema in schemas]
            processors.append(SchemaMask(texts, mask.shape[1]))
        processors += processors_of(settings, mask)
        processors += start.processors
        if settings.temperature > 0 and self._draws_rows:
            processors += sampler(seeds, settings, start.in_inputs)
        return processors

    def following(self, schema: Schema | None) -> FollowingText | None:
        """Return an empty text that follows a schema; None without one."""
        return None if schema is None else FollowingText(self.parser, self.ends, schema)

    # --- answer: tokens -> text, and why it ended

    def answer(
        self,
        inputs: Any,
        on_text: Callable[[str], None] | None = None,
        *,
        words: bool = False,
        on_tokens: Callable[[list[int], Step], None] | None = None,
        on_new: Callable[[list[int]], None] | None = None,
        seeds: Sequence[int] | None = None,
        task: str = "caption",
        start: Start | None = None,
        trail: Trail | None = None,
        schemas: Sequence[Schema | None] | None = None,
    ) -> list[Answer]:
        """Decode each row of prepared inputs.

        Args:
            inputs: from `prepare`.
            words: whether words are scored.
            on_text, on_tokens, on_new, seeds, task, start, trail, schemas: as for `generate`.
        """
        inputs = self.to_device(inputs)
        scores = WordScores(self.parser, self.sira.alpha)

        def watch(new: list[int], step: Step) -> None:
            scores.add(new, step)
            if on_tokens is not None:
                on_tokens(new, step)

        tokens = self.generate(
            inputs,
            on_text,
            on_tokens=watch if words else on_tokens,
            on_new=on_new,
            seeds=seeds,
            task=task,
            start=start,
            trail=trail,
            schemas=schemas,
        ).tolist()
        if trail is not None:
            trail.end(tokens)
        counts = zip(*self.lengths(inputs), strict=True)
        answers = []
        for row, (image_tokens, prompt_tokens) in enumerate(counts):
            schema = None if schemas is None else schemas[row]
            answer = self.answer_of(tokens[row], image_tokens, prompt_tokens, schema)
            answers.append(scores.added_to(row, answer) if words else answer)
        return answers

    def answer_of(
        self, row: list[int], image_tokens: int = 0, prompt_tokens: int = 0, schema: Schema | None = None
    ) -> Answer:
        """Return the answer of a text's new tokens, which may be padded, with the counts of its prompt."""
        row = self.ends.until_end(row)
        parsed = self.parser.parse(row)
        stopped = bool(row) and row[-1] in self.ends.ids  # by the model itself
        answer = Answer(
            text=parsed.text,
            finish_reason="stop" if stopped else "length",
            image_tokens=image_tokens,
            prompt_tokens=prompt_tokens,
            output_tokens=len(row),
            reasoning=parsed.reasoning if parsed.reasoning or self.parser.expects else None,
            reasoning_tokens=parsed.reasoning_tokens,
            tokens=tuple(row),
        )
        if parsed.inside or (not stopped and parsed.reasoning and not parsed.text):
            error = f"ended inside its reasoning after {len(row)} tokens"
            ways = [] if stopped else ["raise max_new_tokens"]
            if self.preset.generation.think:
                ways.append("switch thinking off")
            if ways:
                error += f"; {' or '.join(ways)}"
            answer = replace(answer, text="", error=error)
        total = prompt_tokens + len(row)
        if self.context is not None and total > self.context:
            remark = f"prompt and text have {total:,} tokens, past the model's context of {self.context:,}"
            answer = replace(answer, warnings=(remark,))
        return answer if schema is None else schema.answer(answer)

    def _logprobs(self, inputs: Any, tokens: list[int]) -> torch.Tensor:
        """Force a text after each row of inputs, and return its log-probability in each view, `[3, B]`."""
        steps = score(self.model, self.both_streams, inputs, [tokens] * len(inputs["input_ids"]))
        logprobs = []  # [3, B] of each token
        for token, step in zip(tokens, steps, strict=True):
            views = [getattr(step, view).log_softmax(dim=-1)[:, token] for view in VIEWS]
            logprobs.append(torch.stack(views))
        return sum(logprobs, torch.zeros(()))

    def choose(self, inputs: Any, choices: Sequence[str]) -> list[Answer]:
        """Pick the likeliest given answer to each row of inputs, under the contrast (`greedy`: the full stream).

        Raises:
            SettingsError: the method has no second stream, or the answers are not several different ones.
        """
        require(self.decoder, Ability.TRACES, "choosing among given answers")
        inputs = self.to_device(inputs)
        tokens = [self.vocabulary.encode_after(inputs["input_ids"][0].tolist(), choice) for choice in choices]
        if len(choices) < 2 or not all(tokens) or len({*map(tuple, tokens)}) < len(tokens):
            raise SettingsError(f"choices {', '.join(choices)!r}: expected two or more different answers, as Yes,No")
        sums = torch.stack([self._logprobs(inputs, ids) for ids in tokens])  # [C, 3, B]
        shares = sums.softmax(dim=0)
        best = sums[:, VIEWS.index("contrast")].argmax(dim=0).tolist()  # B numbers of choices
        answers = []
        for row, (image_tokens, prompt_tokens) in enumerate(zip(*self.lengths(inputs), strict=True)):
            scored = []
            for number, choice in enumerate(choices):
                logprob = dict(zip(VIEWS, sums[number, :, row].tolist(), strict=True))
                probability = dict(zip(VIEWS, shares[number, :, row].tolist(), strict=True))
                scored.append({"choice": choice, "logprob": logprob, "probability": probability})
            answer = Answer(
                text=choices[best[row]],
                finish_reason="stop",
                image_tokens=image_tokens,
                prompt_tokens=prompt_tokens,
                output_tokens=len(tokens[best[row]]),
                choices=scored,
            )
            answers.append(answer)
        return answers
