"""The plug-in that vLLM loads: with `additional_config={"sira": {...}}` it decodes with SIRA, else nothing changes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from sira_cli._version import __version__
from sira_cli.core.config import SiraConfig
from sira_cli.core.image_tokens import ImageTokens
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.models import presets
from sira_cli.vllm import processes

KEY = "sira"  # in `additional_config`, and in `extra_args` of a request
DRAW = ("temperature", "top_p", "top_k", "min_p")  # what a request of `engine` draws tokens with
SCORED = (0, 1)  # the tokens in whose places the two scores of a sampled token come
SETTINGS = ("k", "k_fraction", "alpha", "beta")
ADDED = ("version", "load_format")  # by `prepare` and `adapt`
OPERATORS = ("vllm::sira_fork", "vllm::sira_two_streams", "vllm::sira_recurrent")
CACHES = ("auto", "bfloat16", "float16", "float32")  # without scales of their own
REQUESTS = "sira_cli.vllm.requests"
SCHEDULER = "sira_cli.vllm.scheduler.Scheduler"
ASYNC_SCHEDULER = "sira_cli.vllm.scheduler.AsyncScheduler"
CPU = "vllm.v1.worker.cpu_worker.CPUWorker"
BOTH_WAYS = (
    "gemma3",
)  # types of models whose image tokens see all of their picture, and whose text sees no later token
WORKERS = {CPU: "sira_cli.vllm.cpu.CPUWorker", "vllm.v1.worker.gpu_worker.Worker": "sira_cli.vllm.loader.Worker"}


def register() -> None:
    """Let `EngineArgs` know the settings; vLLM calls this in each of its processes, maybe more than once."""
    from vllm.engine.arg_utils import EngineArgs

    create = EngineArgs.create_engine_config
    if hasattr(create, KEY):
        return
    processes.watch_owner()

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        if KEY not in (self.additional_config or {}):
            return create(self, *args, **kwargs)
        prepare(self)
        config = create(self, *args, **kwargs)
        adapt(config)
        return config

    setattr(create_engine_config, KEY, True)
    EngineArgs.create_engine_config = create_engine_config


def config_of(settings: Any) -> SiraConfig:
    """Return the settings of the fork: those of a preset, if one is named, with single ones replaced.

    Raises:
        SettingsError: a name is unknown, a value is out of range, or the preset cannot be followed here.
    """
    if not isinstance(settings, Mapping):
        raise SettingsError(f'additional_config: "{KEY}" must be a mapping such as {{"alpha": 0.5}}; got {settings!r}')
    if unknown := set(settings) - {*SETTINGS, "preset", *ADDED}:
        known = ", ".join(("preset", *SETTINGS))
        raise SettingsError(f'additional_config: "{KEY}" has no {", ".join(sorted(unknown))}; it takes {known}')
    given = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    if name := settings.get("preset"):
        preset = presets.find(str(name)).sira_config
        if preset.image_tokens != ImageTokens():
            raise SettingsError(f"preset {name}: `image_tokens` is vLLM's own here; give k, alpha and beta instead")
        if "k" in given or "k_fraction" in given:
            values = {"alpha": preset.alpha, "beta": preset.beta}
        else:
            values = {key: getattr(preset, key) for key in SETTINGS}
        given = values | given
    return SiraConfig(**given)


def prepare(args: Any) -> None:
    """Check the settings, and put into `EngineArgs` what must be known before vLLM makes its config of it."""
    config = config_of(args.additional_config[KEY])
    # The version is part of the key of vLLM's cache of compiled graphs, as all of this is.
    resolved = {name: getattr(config, name) for name in SETTINGS} | {"version": __version__}
    args.additional_config = {**args.additional_config, KEY: resolved}
    if args.enable_prefix_caching is None:  # vLLM's default is on
        args.enable_prefix_caching = _has_v2() and not args.create_model_config().is_hybrid
    if args.compilation_config.cudagraph_mode is None:  # in a decoding step both streams have the same rows
        from vllm.config import CUDAGraphMode

        args.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY


def _has_v2() -> bool:
    """Return whether vLLM takes its model runner V2, as far as the settings of the engine leave the choice to it."""
    from vllm import envs
    from vllm.triton_utils import HAS_TRITON

    return bool(HAS_TRITON if envs.VLLM_USE_V2_MODEL_RUNNER is None else envs.VLLM_USE_V2_MODEL_RUNNER)


def adapt(config: Any) -> None:
    """Refuse what cannot be exact, and let our load format load the model.

    Raises:
        UnsupportedModelError: the engine is asked for something that two streams cannot follow.
    """
    if refused := "; ".join(f"{what}: {advice}" for what, advice in refusals(config)):
        raise UnsupportedModelError(f"SIRA cannot decode exactly with {refused}")
    processor = "RequestRows" if config.use_v2_model_runner else "RequestRowsV1"
    config.parallel_config.worker_cls = WORKERS[config.parallel_config.worker_cls]
    config.additional_config[KEY]["load_format"] = config.load_config.load_format
    config.load_config.load_format = KEY
    config.model_config.logits_processors = [*(config.model_config.logits_processors or ()), f"{REQUESTS}:{processor}"]
    # Each scheduled row may be followed by a row of the contrast stream: both fit the buffers of the model.
    scheduler = config.scheduler_config
    scheduler.max_num_scheduled_tokens = max(1, scheduler.max_num_batched_tokens // 2)
    scheduler.disable_chunked_mm_input = config.model_config.is_mm_prefix_lm  # tokens of a picture see all of it
    if config.cache_config.enable_prefix_caching:
        scheduler.scheduler_cls = ASYNC_SCHEDULER if scheduler.async_scheduling else SCHEDULER
    compilation = config.compilation_config
    if compilation.splitting_ops:  # what tells the streams apart runs between the graphs
        compilation.splitting_ops = [*compilation.splitting_ops, *OPERATORS]


def refusals(config: Any) -> Iterator[tuple[str, str]]:
    """Yield features that two streams cannot follow exactly, each with the change that helps."""
    model, parallel, scheduler = config.model_config, config.parallel_config, config.scheduler_config
    cache, compilation = config.cache_config, config.compilation_config
    if model.runner_type != "generate" or not model.is_multimodal_model or model.is_encoder_decoder:
        yield f"{model.model}", "SIRA needs a decoder that sees pictures and generates texts"
    both_ways = "attention in both directions between image tokens"
    if model.is_mm_prefix_lm and model.hf_config.model_type not in BOTH_WAYS:
        yield both_ways, "take another model, or `sira` without vLLM"
    elif model.is_mm_prefix_lm and scheduler.max_num_batched_tokens < 2 * model.max_model_len:
        half = scheduler.max_num_batched_tokens // 2
        advice = f"give --max-model-len {half} at most, or a larger --max-num-batched-tokens"
        yield f"{both_ways}, in pictures that are cut", advice
    if cache.enable_prefix_caching:
        yield from _refusals_of_sharing(config)
    if config.speculative_config is not None:
        yield "speculative decoding", "leave out --speculative-config"
    if parallel.pipeline_parallel_size > 1:
        yield "pipeline parallelism", "use --tensor-parallel-size instead of --pipeline-parallel-size"
    if parallel.data_parallel_size > 1:
        yield "data parallelism inside one server", "start one server for each instead of --data-parallel-size"
    if max(parallel.decode_context_parallel_size, getattr(parallel, "prefill_context_parallel_size", 1)) > 1:
        yield "context parallelism", "leave out --decode-context-parallel-size and --prefill-context-parallel-size"
    if parallel.use_ubatching:
        yield "overlapped batches", "leave out --enable-dbo and --ubatch-size"
    if config.lora_config is not None:
        yield "LoRA", "merge the adapter into the weights, and leave out --enable-lora"
    if config.kv_transfer_config is not None:
        yield "caches that are moved to other places", "leave out --kv-transfer-config"
    if cache.cache_dtype not in CACHES:
        yield f"a cache in {cache.cache_dtype}", "leave out --kv-cache-dtype"
    if model.enable_prompt_embeds:
        yield "prompts given as embeddings", "leave out --enable-prompt-embeds"
    cut = not scheduler.disable_chunked_mm_input or model.is_mm_prefix_lm
    if not scheduler.enable_chunked_prefill or not cut:
        yield "whole prompts or pictures only", "leave out --no-enable-chunked-prefill and --disable-chunked-mm-input"
    if parallel.enable_batch_sharded_sampling:
        yield "sampling in shards of the batch", "leave out --enable-batch-sharded-sampling"
    if parallel.worker_cls not in WORKERS:
        yield f"the worker {parallel.worker_cls}", "use a CPU or an NVIDIA GPU, and leave out --worker-cls"
    elif not config.use_v2_model_runner and parallel.worker_cls != CPU:
        yield "model runner V1 on a GPU", "leave out VLLM_USE_V2_MODEL_RUNNER=0"
    mode = compilation.cudagraph_mode.name
    rows = max(compilation.cudagraph_capture_sizes or (), default=0)  # of the largest graph
    if mode == "FULL_DECODE_ONLY":
        rows = min(rows, scheduler.max_num_seqs)
    if mode not in ("NONE", "PIECEWISE", "FULL_DECODE_ONLY"):
        yield f"CUDA graphs of {mode}", 'set "cudagraph_mode" to "FULL_DECODE_ONLY", "PIECEWISE" or "NONE"'
    elif mode != "NONE" and 2 * rows > scheduler.max_num_batched_tokens:
        yield f"CUDA graphs of {rows} rows", "double --max-num-batched-tokens: it counts both streams' rows"


def _refusals_of_sharing(config: Any) -> Iterator[tuple[str, str]]:
    """Yield features that exclude prefix caching, each with the change that helps."""
    what = "prefix caching"
    advice = "leave out --enable-prefix-caching"
    if config.model_config.is_hybrid:
        yield f"{what} of layers with a state per request", advice
    if not config.use_v2_model_runner:
        yield f"{what} in model runner V1", advice
    if config.scheduler_config.scheduler_cls is not None:
        yield f"{what} by another scheduler", "leave out --scheduler-cls, or give --no-enable-prefix-caching"
