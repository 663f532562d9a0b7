"""`--engine vllm`: vLLM decodes, and everything else is as in process.

    a thread per picture    reads it, makes its prompt, waits for the text, asks about its objects
    one thread              hands all prompts to vLLM, and the finished texts back
    this thread             yields the records in order

The model here has its structure and no weights: K, the chat format, tokens that end a text and the keys of records come
from it as ever.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

import psutil
import torch
from transformers import AutoModelForImageTextToText, GenerationConfig

from sira_cli import interrupts
from sira_cli.core.streams import VIEWS
from sira_cli.errors import PictureSettingsError, SettingsError, SiraError
from sira_cli.look.best import BestCaptions
from sira_cli.look.claims import LIST_TOKENS, Verify
from sira_cli.look.second_look import SecondLook
from sira_cli.methods.base import Method
from sira_cli.methods.logits_only import LogitsOnly
from sira_cli.methods.prompts import Prompt, pictures_of
from sira_cli.models import combinations
from sira_cli.models.hub import find_checkpoint
from sira_cli.models.load import check_structure, read_config
from sira_cli.models.preset import Preset
from sira_cli.models.processor import load_processor
from sira_cli.models.progress import Trail, WordScores
from sira_cli.models.several import at_heat, seeds_of
from sira_cli.models.texts import Answer
from sira_cli.run.items import Task
from sira_cli.run.lvlm import Lvlm, R
from sira_cli.run.runner import ConcurrentRunner, settled
from sira_cli.vllm import processes
from sira_cli.vllm.plugin import DRAW, KEY, SCORED

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown
    from sira_cli.models.schema import Schema

MOST_AT_ONCE = 64  # requests, without --batch-size
AHEAD = 16  # pictures that are read while as many requests as fit are running
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_NO_USAGE_STATS": "1"}
QUIET |= {"PYTHONWARNINGS": "ignore", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}  # so each process loads the plug-in


def load(preset: Preset, method: Method, *, together: int = 1, at_once: Any = None, offline: bool = False) -> VllmLvlm:
    """Start vLLM with the model of a preset.

    Args:
        preset, method: as for `Lvlm`.
        together: pictures per prompt, at most.
        at_once: requests that are decoded together, if it is a number.
        offline: never contact the hub.

    Raises:
        SettingsError: vLLM is not installed, or cannot do what is asked for.
        UnsupportedModelError: SIRA cannot follow the model exactly, here or in vLLM.
        SiraError: vLLM did not start.
    """
    combinations.check(preset, method, engine="vllm")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    processes.own()
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        interrupts.check()  # it may be one
        raise SettingsError("--engine vllm needs vLLM: see docs/vllm.md for what to install") from error
    checkpoint = find_checkpoint(preset, offline=offline, judge=lambda folder: check_structure(folder, preset))
    folder, code = checkpoint.folder, preset.load.trust_remote_code
    processor = load_processor(folder, image=preset.image, trust_remote_code=code)
    config = read_config(folder, trust_remote_code=code)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, trust_remote_code=code)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    lvlm = VllmLvlm(model.eval(), processor, preset, method, checkpoint.revision)
    sira = {KEY: {"k": lvlm.sira.layers_after_fork(lvlm.layers), "alpha": lvlm.sira.alpha, "beta": lvlm.sira.beta}}
    free, reserved = psutil.virtual_memory(), dict[str, float]()
    if current_platform.is_cpu():  # where vLLM would want more than other programs leave
        reserved["gpu_memory_utilization"] = 0.8 * free.available / free.total
    try:
        start = functools.partial(
            vllm.LLM,
            model=str(folder),
            dtype=preset.load.dtype,
            trust_remote_code=code,
            max_num_seqs=at_once if isinstance(at_once, int) else MOST_AT_ONCE,
            max_model_len=-1,  # as long as fits into memory
            limit_mm_per_prompt={"image": together},
            mm_processor_kwargs=_limits(preset, processor),
            use_tqdm_on_load=False,
            generation_config="vllm",  # no settings of sampling from the checkpoint's files
            logprobs_mode="raw_logprobs",
            structured_outputs_config={"backend": "guidance"},
            additional_config=sira,
            **reserved,
        )
        engine = processes.started(start).llm_engine
    except RuntimeError as error:
        raise SiraError(f"--engine vllm: vLLM did not start; its messages above tell why ({error})") from error
    lvlm.texts = Texts(engine)
    return lvlm


def _limits(preset: Preset, processor: Any) -> dict[str, Any] | None:
    """Return a preset's limits of pictures, as they were set on the processor here."""
    given, images = preset.image, processor.image_processor
    limits: dict[str, Any] = {}
    if (given.max_pixels, given.min_pixels, given.longest_edge) != (None, None, None):
        limits["size"] = dict(images.size)
    if given.max_tiles is not None:
        limits["max_patches"] = given.max_tiles
    if given.pan_and_scan is not None:
        limits["do_pan_and_scan"] = given.pan_and_scan
    return limits or None


class Texts:
    """vLLM's engine, which many threads ask for texts."""

    def __init__(self, engine: Any) -> None:
        """Take an engine that decodes with SIRA."""
        self.engine = engine
        atexit.register(engine.engine_core.shutdown)
        self.at_once: int = engine.vllm_config.scheduler_config.max_num_seqs
        self._asked: SimpleQueue[tuple[Any, Any, Future[Any]]] = SimpleQueue()
        Thread(target=self._run, name="sira-vllm-engine", daemon=True).start()

    def ask(self, prompt: Any, params: Any) -> Future[Any]:
        """Return the output of a request, when it comes."""
        future: Future[Any] = Future()
        self._asked.put((prompt, params, future))
        return future

    def _run(self) -> None:
        running: dict[str, Future[Any]] = {}
        names = map(str, itertools.count())
        while True:
            try:
                self._begin(running, names)
                for output in self.engine.step():
                    if output.finished:
                        running.pop(output.request_id).set_result(output)
            except Exception as error:  # the engine itself
                for future in running.values():
                    future.set_exception(SiraError(f"vLLM's engine has ended: {str(error) or type(error).__name__}"))
                running.clear()

    def _begin(self, running: dict[str, Future[Any]], names: Iterator[str]) -> None:
        """Hand new requests to the engine; wait for one if it has none."""
        while True:
            try:
                prompt, params, future = self._asked.get(block=not running)
            except Empty:
                return
            try:
                name = next(names)
                self.engine.add_request(name, prompt, params)
                running[name] = future
            except Exception as error:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                future.set_exception(PictureSettingsError(f"vLLM refused it: {reason}"))


class VllmLook(SecondLook):
    """A second look whose questions vLLM answers."""

    _lvlm: VllmLvlm

    def last_logits(self, image: Any, questions: Sequence[str], prefix: Any = None) -> torch.Tensor:
        """Return the logarithms of probabilities of the first token of each answer, where it says yes or no."""
        tokens = [*self._yes, *self._no]
        prompts = self._inputs(image, questions)["prompts"]
        outputs = self._lvlm.outputs(prompts, "full", max_tokens=1, logprob_token_ids=tokens)
        found = torch.full((len(questions), len(self._lvlm.processor.tokenizer)), -math.inf)
        for row, output in zip(found, outputs, strict=True):
            scores = output.outputs[0].logprobs[0]
            row[tokens] = torch.tensor([scores[token].logprob for token in tokens])
            rest = next(token for token in itertools.count() if token not in tokens)  # all others together
            row[rest] = math.log1p(-min(1 - 1e-9, float(row[tokens].exp().sum())))
        return found

    def _decoded(self, image: Any, prompt: str) -> list[int]:
        prompts = self._inputs(image, [prompt])["prompts"]
        (output,) = self._lvlm.outputs(prompts, "full", max_tokens=LIST_TOKENS)
        return list(output.outputs[0].token_ids)


class VllmBest(BestCaptions):
    """Captions to choose among, all of which vLLM decodes at once."""

    lvlm: VllmLvlm

    def drawn(self, inputs: Any, seeds: Sequence[int], trail: Trail) -> list[list[Answer]]:
        """Return the captions of each picture, the method's own first; as in process, by the same seeds."""
        schemas = None if self.schema is None else [self.schema]
        own = self.lvlm.answer(inputs, seeds=seeds, schemas=schemas)
        others = self.lvlm.preset.best.captions - 1
        prompts = [prompt for prompt in inputs["prompts"] for _ in range(others)]
        drawn: list[int] = []
        for seed in seeds:
            drawn += seeds_of(seed, 1 + others)[1:]
        heated = at_heat(self.lvlm, self.lvlm.preset.best.heat)
        samples = iter(heated.answer({"prompts": prompts}, seeds=drawn, schemas=schemas))
        return [[first, *itertools.islice(samples, others)] for first in own]


class VllmLvlm(Lvlm):
    """A model without weights here, whose texts come from vLLM."""

    texts: Texts  # vLLM's engine

    def under(self, method: str | Method, preset: Preset | None = None, **settings: Any) -> Self:
        """Return the same model under another method that its engine can decode with."""
        other = super().under(method, preset, **settings)
        other.texts = self.texts
        fixed = [(each.sira.layers_after_fork(each.layers), each.sira.beta) for each in (self, other)]
        if fixed[0] != fixed[1]:
            raise SettingsError("--engine vllm has one K and one beta for a whole run: give all methods the same")
        return other

    @property
    def dtype(self) -> str:
        """Precision of the weights in vLLM."""
        return str(self.texts.engine.model_config.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Device of vLLM."""
        return f"vllm on {self.texts.engine.vllm_config.device_config.device_type}"

    def look(self, verify: Verify | None = None) -> SecondLook:
        """Return a second look whose questions vLLM answers."""
        return VllmLook(self, verify)

    def best(self, look: SecondLook, kind: str, schema: Schema | None) -> BestCaptions:
        """Return the choice among several captions that vLLM decodes, by its second look."""
        return VllmBest(self, look, kind, schema)

    def runner(
        self, task: Task[R], batch_size: Any = None, *, done: Any = lambda name: "", on_text: Any = None
    ) -> ConcurrentRunner[R]:
        """Return a runner that keeps vLLM busy."""
        return ConcurrentRunner(self, task, self.texts.at_once, AHEAD, done=done)

    def chat_inputs(
        self,
        images: Sequence[Shown],
        prompts: Sequence[Prompt],
        *,
        system: str | None = None,
        skip_thought: bool = False,
        as_text: bool = True,
    ) -> Any:
        """Return prompts for vLLM, which makes the tensors itself."""
        texts = super().chat_inputs(images, prompts, system=system, skip_thought=skip_thought, as_text=True)
        images = self._padded(images)
        bos = self.processor.tokenizer.bos_token  # as in transformers' own `apply_chat_template`
        ids = [
            self.processor.tokenizer.encode(text, add_special_tokens=bos is None or not text.startswith(bos))
            for text in texts
        ]
        made = [
            {"prompt_token_ids": row, "multi_modal_data": {"image": list(pictures_of(shown))}}
            for row, shown in zip(ids, images, strict=True)
        ]
        return {"input_ids": [torch.tensor(row) for row in ids], "prompts": made}

    def to_device(self, inputs: Any) -> Any:
        """Return the prompts: they go to vLLM."""
        return inputs

    def _check_context(self, images: Sequence[Shown], inputs: Any) -> None:
        """Leave prompts that are too long to vLLM, which refuses them."""

    def outputs(self, prompts: Sequence[Any], view: str = "", *, asked: Any = None, **params: Any) -> list[Any]:
        """Return vLLM's outputs for prompts, all of which are there at once.

        Args:
            prompts: from `chat_inputs`.
            view: one stream alone, without a cut-off; empty: the method.
            asked: of each prompt, more for `requests.Row`.
            **params: of `SamplingParams`.
        """
        from vllm import SamplingParams

        waiting = []
        for index, prompt in enumerate(prompts):
            own: dict[str, Any] = {"alpha": self.alpha}  # 0 under greedy
            if view:
                own["view"] = view
            if isinstance(self.decoder, LogitsOnly) and not view:
                own["rule"] = {"method": self.method, "settings": self.decoder.settings()}
            own |= asked[index] if asked else {}
            given = SamplingParams(
                temperature=0,
                detokenize=False,
                ignore_eos=True,
                stop_token_ids=list(self.ends.ids),
                extra_args={KEY: own},
                **params,
            )
            waiting.append(self.texts.ask(prompt, given))
        return [settled(each) for each in waiting]

    def answer(
        self,
        inputs: Any,
        on_text: Callable[[str], None] | None = None,
        *,
        words: bool = False,
        seeds: Sequence[int] | None = None,
        schemas: Sequence[Schema | None] | None = None,
        **unused: Any,
    ) -> list[Answer]:
        """Decode each prompt; what `unused` would ask for is refused before, by `models.combinations`."""
        from vllm.sampling_params import StructuredOutputsParams

        how, prompts = self.preset.generation, inputs["prompts"]
        schema = schemas[0] if schemas else None
        params: dict[str, Any] = {"max_tokens": how.max_new_tokens}
        if schema is not None:
            params["structured_outputs"] = StructuredOutputsParams(grammar=schema.grammar)
        asked: list[dict[str, Any]] = [{} for _ in prompts]
        if how.temperature > 0:
            draw = {name: getattr(how, name) for name in DRAW}
            for wishes, seed in zip(asked, seeds or [how.seed] * len(prompts), strict=True):
                wishes["draw"] = {"seed": seed, **draw}
        if words:
            params["logprob_token_ids"] = list(SCORED)
            for wishes in asked:
                wishes["scores"] = self.sira.alpha
        answers = []
        for output in self.outputs(prompts, asked=asked, **params):
            tokens = list(output.outputs[0].token_ids)
            answer = self.answer_of(tokens, *self._counts(output), schema)
            if words:
                answer = self._scored(output.outputs[0]).added_to(0, answer)
            answers.append(answer)
        return answers

    def _scored(self, text: Any) -> WordScores:
        """Return the scores of the words of a text of vLLM's, which come with its tokens."""
        scores = WordScores(self.parser, self.sira.alpha)
        for token, found in zip(text.token_ids, text.logprobs, strict=True):
            scores.add_scores([token], [[found[place].logprob for place in SCORED]])
        return scores

    def lengths(self, inputs: Any) -> tuple[list[int], list[int]]:
        """Count image tokens and prompt tokens, after vLLM has seen the prompts."""
        images, tokens = zip(*inputs["counts"], strict=True)
        return list(images), list(tokens)

    def _logprobs(self, inputs: Any, tokens: list[int]) -> torch.Tensor:
        """Force a text after each of B prompts, once on each stream and once on the contrast: `[3, B]`."""
        found = torch.zeros(len(VIEWS), len(inputs["prompts"]))
        for place, view in enumerate(VIEWS):
            stream = "full" if view == "contrast" and self.alpha == 0 else view
            asked = [{"forced": tokens}] * len(inputs["prompts"])
            outputs = self.outputs(inputs["prompts"], stream, asked=asked, max_tokens=len(tokens), logprobs=0)
            for row, output in enumerate(outputs):
                steps = zip(output.outputs[0].logprobs, tokens, strict=True)
                found[place, row] = sum(step[token].logprob for step, token in steps)
            inputs["counts"] = [self._counts(output) for output in outputs]
        return found

    def _counts(self, output: Any) -> tuple[int, int]:
        """Return the number of image tokens and of all tokens in a prompt."""
        ids = torch.tensor([output.prompt_token_ids])
        return int(self.find_image(ids).sum()), ids.shape[1]
