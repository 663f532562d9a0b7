"""A vLLM engine in a process of its own: `python -m tests.vllm.engine JOB.json OUT.json`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sira_cli.vllm.plugin import SCORED
from tests.vllm import recurrent
from tests.vllm.graphs import capture, prepare, report

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

ENGINE = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 16, "enforce_eager": True}
ENGINE |= {"limit_mm_per_prompt": {"image": 2}, "generation_config": "vllm"}


def _mask(self: Any, logits: Any, batch: Any, names: list[str], bitmask: Any) -> None:
    """Stand for a kernel of vLLM's that Triton's interpreter cannot run: rule tokens out by a grammar."""
    import numpy as np
    import torch

    for name, row in zip(names, bitmask, strict=True):
        allowed = np.unpackbits(row.view(np.uint8), bitorder="little")[: logits.shape[1]].astype(bool)
        logits[batch.req_ids.index(name)].masked_fill_(torch.from_numpy(~allowed), -torch.inf)


def decode(
    model: str,
    options: dict[str, Any],
    batches: list[dict[str, Any]],
    padded: bool = False,
    graphs: list[int] | None = None,
    asynchronous: bool = False,
    triton: bool = False,
) -> dict[str, Any]:
    """Each batch on the same engine: the token ids of its requests, which are all there at once; and the
    tokens' log-probabilities, with `logprobs` in their `params` (with `top`, of all tokens that come), or both of
    their scores. And how many tokens of each prompt were `cached`. Of a prompt in a batch with `rows` a step has as
    many tokens at most.

    `padded`: with as many rows in every forward as if a CUDA graph of parts of it were replayed.
    `graphs`: numbers of requests for which decoding steps are replayed as `graphs.Graph`s.
    `triton`: with vLLM's Triton attention, which graphs have in any case.
    `asynchronous`: a step is scheduled while the one before it runs, which vLLM leaves out on CPUs.
    """
    from PIL import Image
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.core.sched.scheduler import Scheduler

    if padded:
        from sira_cli.vllm.streams import Streams

        Streams.replays = lambda self, context: True

    def named(name: str) -> str:  # vLLM adds a part to it
        return "-".join(name.split("-")[:2])

    preempt, preempted = Scheduler._preempt_request, []

    def counted(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(named(request.request_id))
        return preempt(self, request, *args, **kwargs)

    Scheduler._preempt_request = counted
    if graphs or triton:
        prepare()
    if asynchronous:
        platform = type(current_platform)
        theirs = platform.check_and_update_config

        def scheduled(vllm_config: Any) -> None:
            theirs(vllm_config)
            vllm_config.scheduler_config.async_scheduling = True

        platform.check_and_update_config = staticmethod(scheduled)
    if os.environ.get("TRITON_INTERPRET"):
        recurrent.prepare(options.get("dtype", "float32"))
    engine = LLM(model=model, **ENGINE | options).llm_engine
    captured = capture(engine, graphs) if graphs else None
    answers = []
    cached = []
    for number, batch in enumerate(batches):
        texts: dict[str, Any] = {}
        begun: dict[str, int] = {}
        scheduler = engine.engine_core.engine_core.scheduler.scheduler_config
        scheduler.long_prefill_token_threshold = batch.get("rows", scheduler.long_prefill_token_threshold)
        for index, request in enumerate(batch["requests"]):
            prompt: dict[str, Any] = {"prompt": request["prompt"]}
            if pictures := [Image.open(path).convert("RGB") for path in request["images"]]:
                prompt["multi_modal_data"] = {"image": pictures}
            given = request.get("sira")
            more = {"temperature": 0, "ignore_eos": True} | request.get("params", {})
            if "structured_outputs" in more:
                more["structured_outputs"] = StructuredOutputsParams(**more["structured_outputs"])
            extra = None if given is None else {"sira": given}
            params = SamplingParams(max_tokens=request["tokens"], extra_args=extra, **more)
            try:
                engine.add_request(f"{number}-{index}", prompt, params)
            except Exception as error:  # vLLM's own, of which the server makes a 400
                texts[f"{number}-{index}"] = f"{type(error).__name__}: {error}"
        steps = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    text = output.outputs[0]
                    found = [list(output.prompt_token_ids), list(text.token_ids)]
                    own = batch["requests"][int(named(output.request_id).split("-")[1])]
                    if "scores" in (own.get("sira") or {}):
                        found.append([[step[place].logprob for place in SCORED] for step in text.logprobs])
                    elif own.get("top"):
                        found.append([{token: each.logprob for token, each in step.items()} for step in text.logprobs])
                    elif text.logprobs:
                        found.append([step[token].logprob for step, token in zip(text.logprobs, found[1], strict=True)])
                    texts[named(output.request_id)] = found
                    begun[named(output.request_id)] = output.num_cached_tokens
            steps += 1
            for index in batch.get("abort", {}).get(str(steps), []):
                engine.abort_request([f"{number}-{index}"])
        names = [f"{number}-{index}" for index in range(len(batch["requests"]))]
        answers.append([texts.get(name) for name in names])
        cached.append([begun.get(name) for name in names])
    result = {
        "answers": answers,
        "cached": cached,
        "preempted": preempted,
        "queue": engine.vllm_config.max_concurrent_batches,
    }
    return result | (report(captured) if captured else {})


def refused(model: str, options: list[dict[str, Any]], broken: str = "", start: bool = False) -> list[str]:
    """Why each set of options is not taken, or an engine with it does not `start`; an empty text if it is, or does.

    `broken`: what is wrong with its streams.
    """
    import dataclasses

    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    from sira_cli.vllm import check, layers, step, streams

    contrast, plan, put = streams.contrast, step.plan, step.Requests.put

    def one_stream(self: Any, query: Any, key: Any, value: Any, output: Any) -> None:
        n, rows = self.streams.n, self.streams.rows
        output[:n] = self.full(query[:n], key[:n], value[:n])
        output[n : n + len(rows)] = output[rows]

    def off_by_one(*args: Any) -> Any:
        found = plan(*args)
        return dataclasses.replace(found, place=found.place + 1)

    def kept(self: Any, slot: int, image: Any, alpha: float, computed: int = 0) -> None:
        put(self, slot, self.images[slot] if len(self.images[slot]) else image, alpha, computed)

    mutants: dict[str, tuple[Any, str, Any]] = {
        "one stream": (layers.TwoStreams, "attend", one_stream),
        "slots off by one": (check, "plan", off_by_one),
        "counts not reset": (step.Requests, "put", kept),
        "the wrong stream first": (streams, "contrast", lambda z, other, a: contrast(other, z, a)),
    }
    if broken:
        setattr(*mutants[broken])
    engine = LLM if start else (lambda **given: EngineArgs(**given).create_engine_config())
    found = []
    for more in options:
        try:
            engine(model=model, **ENGINE | more)
            found.append("")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def records(
    model: str, pictures: list[str], runs: list[dict[str, Any]], settings: dict[str, Any]
) -> list[list[list[dict[str, Any]]]]:
    """Of each run, the records of `--engine vllm`, and those of the engine in process."""
    import functools

    import vllm

    from sira_cli.look.claims import Verify
    from sira_cli.models import presets
    from sira_cli.pictures.sources import located
    from sira_cli.run.check import Check
    from sira_cli.run.engines import Local
    from sira_cli.run.items import Item
    from sira_cli.run.lvlm import load
    from sira_cli.run.task import TASKS
    from sira_cli.vllm import engine

    vllm.LLM = functools.partial(vllm.LLM, enforce_eager=True)
    plain = presets.resolve(model).with_settings(dtype="float32", max_new_tokens=16, **settings)
    there = engine.load(plain, plain.method("sira"), together=2, at_once=8, offline=True)
    here, found = load(plain), []
    for run in runs:
        preset = plain.with_settings(**run.get("settings", {}))
        method = preset.method(run.get("method", "sira"))
        verify = Verify.of(run.get("verify"))
        more = {"choices": tuple(run.get("choices", ())), "verify": verify, "schema": run.get("schema")}
        more["words"] = run.get("words", False)
        kind = run.get("task", "caption")
        if kind == "check":
            task: Any = Check.under(preset)
            task.check("vllm")
        else:
            task = TASKS[kind].of(preset, method, run.get("prompt"), engine="vllm", **more)
        both = []
        for lvlm in (there, here):
            shown = [located(path).known(caption=run.get("caption")) for path in pictures]
            answering = Local(lvlm)
            answering.begin(task, lambda name: "")
            todo = [Item(each, each.name_in(None), task.first_prompt(each), each.id) for each in shown]
            events = answering.results(todo)
            both.append([asdict(event.record) for event in events])
        found.append(both)
    return found


if __name__ == "__main__":
    from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

    StructuredOutputsWorker.apply_grammar_bitmask = _mask
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    result: Any = {"decode": decode, "refused": refused, "records": records}[job.pop("do")](**job)
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")
