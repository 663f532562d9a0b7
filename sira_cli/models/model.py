"""A loaded model under a decoding method: from pictures and prompts in memory to tensors, tokens and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from sira_cli.core.arguments import CACHE
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Fork
from sira_cli.core.passes import score
from sira_cli.core.rules import cut_offs_kept
from sira_cli.core.streams import VIEWS, Step
from sira_cli.errors import LongPromptError, SettingsError
from sira_cli.methods import require
from sira_cli.methods.base import Ability, Method, PromptBatch
from sira_cli.methods.prompts import Conversation, Prompt, pictures_of, turns_of
from sira_cli.models import combinations
from sira_cli.models.placement import devices_of
from sira_cli.models.preset import Preset, check_text
from sira_cli.models.presets import calibrated
from sira_cli.models.processor import chat_inputs, check_chat, pad_to_square, parser_of
from sira_cli.models.progress import NewTokens, Start, TextPieces, Trail, WordScores
from sira_cli.models.sampling import SchemaMask, derived_seed, processors_of, sampler
from sira_cli.models.schema import FollowingText, Schema
from sira_cli.models.texts import Answer
from sira_cli.models.vocabulary import EndTokens, Vocabulary

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

BRANCH = "contrast_"  # prefix of input names of a separate contrast stream


class LoadedModel:
    """A large vision-language model under one decoding method: prepare, decode, answer.

    Attributes:
        model, processor: the Hugging Face objects.
        preset, revision: every setting in force, and the version of the checkpoint.
        method, decoder: the method's name, and the method with its settings.
        find_image: `[B, S]` input ids -> bool, P_img.
        sira: the settings of the fork, with the model's image tokens.
        k, layers, alpha: K (0 without a fork), L, and the contrast strength (0 without a contrast).
        vocabulary, parser, ends: the tokenizer, token by token; what separates reasoning; the tokens that end a text.
        memo: what tasks keep from one batch to the next.
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
        self.model, self.processor, self.preset, self.revision = model, processor, preset, revision
        self.decoder = method = calibrated(method, preset.model, revision)
        self.method = method.name
        image_tokens = preset.image_tokens.with_ids(processor.tokenizer)
        self.find_image: Callable[[torch.Tensor], torch.Tensor] = image_tokens.resolve(model.config).find
        self.sira = replace(preset.sira_config, image_tokens=image_tokens)
        fork = Fork(model, self.sira)  # refuses an unsupported model now, not at the first picture
        self.k, self.layers = fork.k if "k" in method.from_preset else 0, fork.layers
        self.alpha = method.contrast_strength(self.sira)
        method.check_model(model, self.sira)
        self.check_prompt(preset.prompts.system)
        self.vocabulary = vocabulary or Vocabulary(processor.tokenizer)
        self.parser = parser_of(processor, self.vocabulary, system=preset.prompts.system, think=preset.generation.think)
        self.ends = EndTokens.of(model, processor.tokenizer)
        self.memo: dict[Any, Any] = {}
        # Algorithm 1 picks from z_cd alone, so other settings of a checkpoint's generation_config.json are ignored
        # (Qwen2.5-VL has a repetition penalty).
        ends, padding = list(self.ends.ids) or None, self.ends.padding
        model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=padding)

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
    def context(self) -> int | None:
        """Tokens that the model was made for; None: its config does not say."""
        config = self.model.config.get_text_config()
        stated: int | None = getattr(config, "max_position_embeddings", None)
        rope = getattr(config, "rope_parameters", None) or {}
        if stated is None or not rope.get("factor"):
            return stated
        # Some configs state the length before the positions are stretched.
        return max(stated, int(rope["factor"] * rope.get("original_max_position_embeddings", stated)))

    @property
    def batches(self) -> bool:
        """Whether several pictures can be decoded together, each text as if decoded alone."""
        able, generation = Ability.BATCHES in self.decoder.abilities, self.preset.generation
        return able and (generation.temperature == 0 or generation.num_beams == 1)

    @property
    def leaves_trail(self) -> bool:
        """Whether the cache of `generate` suffices to continue a text, or to run another prompt about the picture."""
        return self.decoder.rewinds and self.preset.generation.num_beams == 1

    @property
    def both_streams(self) -> SiraConfig:
        """The settings for observing both streams; for methods with `Ability.TRACES`."""
        return self.decoder.fork_config(self.sira)

    # --- prepare: pictures and prompts in memory -> tensors

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

    def chat_inputs(self, images: Sequence[Shown], prompts: Sequence[Prompt], **how: Any) -> Any:
        """Return B pictures and prompts in the checkpoint's chat format; `how` is as for `processor.chat_inputs`."""
        given: dict[str, Any] = {"system": self.preset.prompts.system, "think": self.preset.generation.think, **how}
        return chat_inputs(self.processor, self.model.config.model_type, self._padded(images), prompts, **given)

    def _padded(self, images: Sequence[Shown]) -> Sequence[Shown]:
        """Return pictures as the model sees them: padded to squares, if the preset says so."""
        mean = self.processor.image_processor.image_mean
        return [pad_to_square(shown, mean) for shown in images] if self.preset.image.pad_to_square else images

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
        if image_hashes is None and self.decoder.uses_seed:
            samples = [b"".join(image.tobytes() for image in pictures_of(shown)) for shown in images]
            image_hashes = [hashlib.sha256(each).hexdigest() for each in samples]
        seed = self.preset.generation.seed
        seeds = [derived_seed(seed, each) for each in image_hashes or [""] * len(images)]
        with self.vocabulary.lock:
            inputs = self.chat_inputs(images, prompts, skip_thought=skip_thought)
            self._check_context(images, inputs)
            batch = PromptBatch(self, inputs, seeds, images, prompts)
            for name, value in self.decoder.branch_inputs(batch).items():
                inputs[BRANCH + name] = value
        return inputs

    def _check_context(self, images: Sequence[Shown], inputs: Any) -> None:
        context = self.context
        for shown, tokens in zip(images, inputs["attention_mask"].sum(dim=1).tolist(), strict=True):
            if context is not None and tokens > context:
                pictures = len(pictures_of(shown))
                whole = f"a prompt with {pictures} picture{'s' * (pictures > 1)} has {tokens:,} tokens, and the model's"
                remedy = "shorten it, or give fewer or smaller pictures"
                raise LongPromptError(f"{whole} context holds {context:,}: {remedy}", tokens=tokens)

    def to_device(self, inputs: Any) -> Any:
        """Move prepared inputs to the model's device, and pixels to its precision."""
        return inputs.to(self.model.device, dtype=self.model.dtype)

    def lengths(self, inputs: Any) -> tuple[list[int], list[int]]:
        """Count image tokens and prompt tokens of each row."""
        image_tokens: list[int] = self.find_image(inputs["input_ids"]).sum(dim=1).tolist()
        return image_tokens, inputs["attention_mask"].sum(dim=1).tolist()

    # --- decode: tensors -> tokens

    def text_seeds(self, image_hashes: Sequence[str], prompts: Sequence[Prompt]) -> list[int]:
        """Return the seed of each text, for `generate`."""
        seed = self.preset.generation.seed
        return [derived_seed(seed, image, str(prompt)) for image, prompt in zip(image_hashes, prompts, strict=True)]

    def decode(self, inputs: Any, new_tokens: int, task: str = "caption", **arguments: Any) -> torch.Tensor:
        """Let the method decode prepared inputs to ids `[B, S + N]`; `arguments` are those of `Method.generate`."""
        own = {name: value for name, value in inputs.items() if not name.startswith(BRANCH)}
        branch = {name.removeprefix(BRANCH): inputs[name] for name in inputs if name not in own}
        decoder = self.decoder.for_task(task)
        return decoder.generate(self.model, own, self.sira, branch, max_new_tokens=new_tokens, **arguments)

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
        """Decode prepared inputs to new tokens `[B, N]`, with end tokens, padded; the global random state is unchanged.

        `on_text` gets pieces of text as they are decoded (B = 1, not with beams or a method's own search); instead of
        it, `on_new` the B new tokens of a step, and `on_tokens` these and the logits that they were picked from. With
        `greedy` the CF stream is then also computed, but has no part in the choice. `seeds` are from `text_seeds`,
        `start` is the beginning of the texts, `trail` receives the method's reusable computations.
        """
        settings, mask, steps = self.preset.generation, inputs["attention_mask"], list[Step]()
        rows, columns = mask.shape
        seeds = self.text_seeds([""] * rows, [str(row) for row in range(rows)]) if seeds is None else seeds
        start = start or Start([[]] * rows)
        one_text = settings.num_beams == 1 and Ability.BATCHES in self.decoder.abilities  # not a method's own search
        picking: dict[str, Any] = {"do_sample": False, "num_beams": settings.num_beams}
        if on_tokens is not None:
            combinations.check(self.preset, self.decoder, streams="looking at both streams")
            picking["on_step"] = steps.append
            picking["streamer"] = NewTokens(lambda new: on_tokens(new, steps.pop(0)))  # on mps tokens come a step late
        elif on_new is not None:
            picking["streamer"] = NewTokens(on_new)
        elif on_text is not None and settings.num_beams == 1 and not self.decoder.own_search:
            picking["streamer"] = TextPieces(self.parser.begin(), on_text)
        processors = LogitsProcessorList()
        if schemas is not None:  # first, as the others leave all tokens that are left rather than none
            processors.append(SchemaMask([self.following(each) for each in schemas], columns))
        processors += [*processors_of(settings, mask), *start.processors]
        if settings.temperature > 0 and one_text:
            processors += sampler(seeds, settings, start.in_inputs)
        elif settings.temperature > 0:
            picking |= {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p}
            picking |= {"top_k": settings.top_k, "min_p": settings.min_p or None}
        cache = trail.begin(self.model, start.cache) if trail is not None and self.leaves_trail else start.cache
        picking |= {"stopping_criteria": StoppingCriteriaList(start.stopping)} if start.stopping else {}
        picking |= {"logits_processor": processors} if processors else {}
        picking |= {CACHE: cache} if cache is not None else {}
        new_tokens = (start.new_tokens or settings.max_new_tokens) - start.in_inputs
        cuda = [self.model.device] if self.model.device.type == "cuda" else []
        ruling_out = schemas is not None or bool(start.processors)
        with torch.random.fork_rng(cuda), cut_offs_kept() if ruling_out else nullcontext():
            torch.manual_seed(seeds[0])  # for sampling that is not row by row
            return self.decode(inputs, new_tokens, task, **picking)[:, columns:]

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
        trail: Trail | None = None,
        schemas: Sequence[Schema | None] | None = None,
        **how: Any,
    ) -> list[Answer]:
        """Decode each row of prepared inputs; `words` scores the words, the other arguments are those of `generate`."""
        inputs, scores = self.to_device(inputs), WordScores(self.parser, self.sira.alpha)

        def watch(new: list[int], step: Step) -> None:
            scores.add(new, step)
            if on_tokens is not None:
                on_tokens(new, step)

        how |= {"trail": trail, "schemas": schemas, "on_tokens": watch if words else on_tokens}
        tokens = self.generate(inputs, on_text, **how).tolist()
        if trail is not None:
            trail.end(tokens)
        rows = zip(tokens, *self.lengths(inputs), schemas or [None] * len(tokens), strict=True)
        answers = [self.answer_of(*row) for row in rows]
        return [scores.added_to(*each) for each in enumerate(answers)] if words else answers

    def answer_of(
        self, row: list[int], image_tokens: int = 0, prompt_tokens: int = 0, schema: Schema | None = None
    ) -> Answer:
        """Return the answer of a text's new tokens, which may be padded, with the counts of its prompt."""
        row = self.ends.until_end(row)
        parsed, stopped = self.parser.parse(row), bool(row) and row[-1] in self.ends.ids  # by the model itself
        answer = Answer(
            *(parsed.text, "stop" if stopped else "length", image_tokens, prompt_tokens, len(row)),
            reasoning=parsed.reasoning if parsed.reasoning or self.parser.expects else None,
            reasoning_tokens=parsed.reasoning_tokens,
            tokens=tuple(row),
        )
        if parsed.inside or (not stopped and parsed.reasoning and not parsed.text):
            ways = ["raise max_new_tokens"] * (not stopped)
            ways += ["switch thinking off"] * self.preset.generation.think
            error = f"ended inside its reasoning after {len(row)} tokens" + f"; {' or '.join(ways)}" * bool(ways)
            answer = replace(answer, text="", error=error)
        if self.context is not None and (total := prompt_tokens + len(row)) > self.context:
            remark = f"prompt and text have {total:,} tokens, past the model's context of {self.context:,}"
            answer = replace(answer, warnings=(remark,))
        return answer if schema is None else schema.answer(answer)

    def _logprobs(self, inputs: Any, tokens: list[int]) -> torch.Tensor:
        """Force a text after each row of inputs, and return its log-probability in each view, `[3, B]`."""
        steps = score(self.model, self.both_streams, inputs, [tokens] * len(inputs["input_ids"]))
        found: torch.Tensor = sum(  # type: ignore[assignment]
            torch.stack([getattr(step, view).log_softmax(dim=-1)[:, token] for view in VIEWS])
            for token, step in zip(tokens, steps, strict=True)
        )
        return found

    def choose(self, inputs: Any, choices: Sequence[str]) -> list[Answer]:
        """Pick the likeliest given answer to each row of inputs, under the contrast (`greedy`: the full stream)."""
        require(self.decoder, Ability.TRACES, "choosing among given answers")
        inputs = self.to_device(inputs)
        tokens = [self.vocabulary.encode_after(inputs["input_ids"][0].tolist(), choice) for choice in choices]
        if len(choices) < 2 or not all(tokens) or len({*map(tuple, tokens)}) < len(tokens):
            raise SettingsError(f"choices {', '.join(choices)!r}: expected two or more different answers, as Yes,No")
        sums = torch.stack([self._logprobs(inputs, ids) for ids in tokens])  # [C, 3, B]
        shares, best, answers = sums.softmax(dim=0), sums[:, 2].argmax(dim=0).tolist(), []
        for row, (image_tokens, prompt_tokens) in enumerate(zip(*self.lengths(inputs), strict=True)):
            scored = []
            for number, choice in enumerate(choices):
                views = [dict(zip(VIEWS, each[number, :, row].tolist(), strict=True)) for each in (sums, shares)]
                scored.append({"choice": choice, "logprob": views[0], "probability": views[1]})
            picked, length = choices[best[row]], len(tokens[best[row]])
            answers.append(Answer(picked, "stop", image_tokens, prompt_tokens, length, choices=scored))
        return answers
