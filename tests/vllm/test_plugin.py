"""SIRA inside vLLM, against `attach`: the same tokens in every situation that vLLM puts requests in."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sira_cli import SiraConfig
from sira_cli.vllm.plugin import SCORED
from tests.vllm.graphs import Watch
from tests.vllm.models import (
    BY_TRITON,
    FAMILIES,
    RECURRENT,
    by_attach,
    by_attach_among,
    loaded,
    log_probabilities,
    request,
    scores_by_attach,
)

SIRA = {"additional_config": {"sira": {"alpha": 0.5}}}
COMPILED = {"enforce_eager": False}
LENGTHS = (3, 31, 8, 24, 1, 16, 12, 40, 5, 9, 22, 2, 14, 28, 6, 18)


def check(folder: Path, batches: list[dict[str, Any]], answers: list[list[Any]]) -> None:
    """Answers have the prompt and the tokens that `attach` gives with their alpha; not those drawn, or by a rule."""
    for batch, found in zip(batches, answers, strict=True):
        gone = {index for several in batch.get("abort", {}).values() for index in several}
        for index, (asked, answer) in enumerate(zip(batch["requests"], found, strict=True)):
            given = asked.get("sira") or {}
            if isinstance(given, str):
                given = json.loads(given)
            if index not in gone and not given.keys() & {"draw", "rule"}:
                assert answer == by_attach(folder, asked, given.get("alpha", 0.5)), asked


def mixed(family: str, pictures: list[str]) -> list[dict[str, Any]]:
    """One picture alone; then sixteen requests at once: two pictures, none, and alpha of their own among them."""
    many = [request(family, [picture], f"part {i}", LENGTHS[i]) for i, picture in enumerate(pictures)]
    many[3] = request(family, pictures[:2], tokens=24)
    many[5] = request(family, [], "a red house " * 12, tokens=16)
    for index in (2, 3, 9, 13):
        many[index]["sira"] = {"alpha": 0}
    many[7]["sira"] = '{"alpha": 1.5}'  # as it comes over HTTP
    return [{"requests": [request(family, pictures[:1])]}, {"requests": many}]


# The budget of rows is that of both streams. Of CUDA graphs: split where attention is, inputs in buffers, and as many
# rows in both streams; no CPU captures a graph.
SITUATIONS: dict[str, dict[str, Any]] = {
    "eager": {},
    "pieces of several prompts, images only in some": {
        "max_num_batched_tokens": 256,
        "long_prefill_token_threshold": 8,
    },
    "compiled, in chunks of 16 that cut pictures": COMPILED | {"max_num_batched_tokens": 32},
    "compiled, in chunks of 32 that cut pictures": COMPILED | {"max_num_batched_tokens": 64},
    "two processes": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    "graphs": COMPILED | {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
}
CASES = [(family, "eager") for family in FAMILIES if family not in (*RECURRENT, *BY_TRITON)]
CASES += [(family, name) for family in ("llava", "qwen2.5-vl", "qwen3-vl") for name in SITUATIONS if "chunks" in name]
CASES += [("llava", "pieces of several prompts, images only in some")]
CASES += [("llava", "graphs"), ("qwen3-vl", "graphs"), ("llava", "two processes"), ("qwen2.5-vl", "two processes")]


@pytest.mark.parametrize(("family", "situation"), CASES)
def test_a_family(family, situation, folder, pictures, run):
    batches, options = mixed(family, pictures), SIRA | SITUATIONS[situation]
    found = run("decode", folder(family), options=options, batches=batches, padded=situation == "graphs")
    check(folder(family), batches, found["answers"])


@pytest.mark.parametrize("family", ["llava", "qwen3-vl"])
def test_a_family_without_triton(family, folder, pictures, run):
    batches = mixed(family, pictures)
    options = SIRA | SITUATIONS["compiled, in chunks of 32 that cut pictures"]
    found = run("decode", folder(family), v1=True, options=options, batches=batches)
    check(folder(family), batches, found["answers"])


@pytest.mark.parametrize("family", ["llava", "qwen2.5-vl"])
def test_decoding_steps_as_graphs(family, folder, pictures, run):
    """Four, three and fewer requests in graphs of four and two; nothing is read by the host, and nothing moves."""
    many = [request(family, [picture], f"part {i}", 9 - 2 * i) for i, picture in enumerate(pictures[:3])]
    many.append(request(family, [], "a red house", 5))
    many[1]["sira"] = {"alpha": 0}
    batches = [{"requests": many}]
    found = run("decode", folder(family), options=SIRA, batches=batches, graphs=[2, 4])
    check(folder(family), batches, found["answers"])
    assert min(found["replays"].values()) > 0
    assert (found["reads"], found["moved"]) == ([], [])


@pytest.mark.parametrize("family", ["llava", "qwen2.5-vl"])
def test_steps_that_are_scheduled_ahead(family, folder, pictures, run):
    """A step is prepared while the one before it runs, with requests that have drawn tokens or follow a rule."""
    batches = mixed(family, pictures)
    batches[1]["requests"][10]["sira"] = {"draw": {"seed": 3, "temperature": 1.0, "top_p": 0.9, "top_k": 9, "min_p": 0}}
    batches[1]["requests"][11]["sira"] = {"view": "full", "rule": {"method": "resdec", "settings": {}}}
    found, ahead = (
        run("decode", folder(family), options=SIRA, batches=batches, asynchronous=asynchronous)
        for asynchronous in (False, True)
    )
    check(folder(family), batches, ahead["answers"])
    assert ahead["answers"] == found["answers"]
    assert (found["queue"], ahead["queue"]) == (1, 2)


@pytest.mark.parametrize("family", ["llava", "qwen2.5-vl"])
def test_preempted_and_aborted_requests(family, folder, pictures, run):
    """A cache that is too small for all: requests lose their place, start again, and others take their blocks."""
    many = [request(family, [picture], f"part {i}", 90) for i, picture in enumerate(pictures[:12])]
    many.append(request(family, [], "a red house", 90))
    many[4]["sira"] = {"alpha": 0}
    own = (8, 9, 10, 11)  # which keep a state of their own
    for index in own[:2]:
        draw = {"seed": index, "temperature": 1.0, "top_p": 0.95, "top_k": 50, "min_p": 0.0}
        many[index]["sira"] = {"draw": draw}
    for index in own[2:]:
        many[index]["sira"] = {"view": "full", "rule": {"method": "resdec", "settings": {}}}
    again = {"requests": [*many[:2], *(many[index] for index in own)]}
    batches = [{"requests": many, "abort": {"5": [1], "30": [6, 2]}}, again]
    options = {**SIRA, "num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 256}
    found = run("decode", folder(family), options=options, batches=batches)
    answers, enough = found["answers"]
    assert len(found["preempted"]) > 3
    assert all({f"0-{index}" for index in kind} & {*found["preempted"]} for kind in (own[:2], own[2:]))
    assert answers[1] is None
    assert [answers[index] for index in own] == enough[2:]
    check(folder(family), batches, found["answers"])


@pytest.mark.parametrize(("family", "v1"), [("llava", False), ("qwen2.5-vl", False), ("llava", True)])
def test_scores_of_tokens(family, v1, folder, pictures, run):
    """Of requests that lose their place, among others that want none; each step is scheduled ahead."""
    asked = [request(family, [picture], f"part {i}", 30 + i) for i, picture in enumerate(pictures[:10])]
    draw = {"seed": 5, "temperature": 1.0, "top_p": 0.95, "top_k": 50, "min_p": 0.0}
    scoring = {0: {"scores": 0.5}, 3: {"scores": 1.5, "alpha": 1.5}, 4: {"scores": 0.5, "alpha": 0}}
    scoring |= {8: {"scores": 0.5, "draw": draw}, 9: {"scores": 0.5}}
    for index, wishes in scoring.items():
        asked[index]["sira"] = wishes
        asked[index]["params"] = {"logprob_token_ids": list(SCORED)}
    asked[1]["params"] = {"logprobs": 5}
    asked[2]["params"] = {"logprob_token_ids": [7, 8, 9]}
    asked[9]["images"] = asked[9]["images"] + pictures[:1]
    asked[9]["prompt"] = request(family, asked[9]["images"])["prompt"]
    options = {**SIRA, "num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 256}
    batches = [{"requests": asked}]
    found = run("decode", folder(family), v1=v1, options=options, batches=batches, asynchronous=not v1)
    (answers,) = found["answers"]
    assert {f"0-{index}" for index in scoring} & {*found["preempted"]}
    check(folder(family), batches, [[answer[:2] for answer in answers]])
    for index in (1, 2, *scoring):
        _, tokens, scores = answers[index]
        alpha = scoring.get(index, {"scores": 0.5})["scores"]
        expected = scores_by_attach(folder(family), asked[index], tokens, alpha)
        if index not in scoring:
            expected = [logprob for _, logprob in expected]
        torch.testing.assert_close(torch.tensor(scores), torch.tensor(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("v1", [False, True])
def test_log_probabilities_of_one_stream(v1, folder, pictures, run):
    """The five likeliest tokens at each place of a given text: of full, of CF and of the contrast."""
    about = request("llava", pictures[:1], tokens=6)
    text = by_attach(folder("llava"), about)[1]
    asked = []
    for view in ({"view": "full"}, {"view": "cf"}, {}):
        asked.append({**about, "sira": {"forced": text, **view}, "params": {"logprobs": 5}, "top": True})
    (answers,) = run("decode", folder("llava"), v1=v1, options=SIRA, batches=[{"requests": asked}])["answers"]
    steps: list[Any] = []
    log_probabilities(folder("llava"), about, text, 0.5, steps.append)
    for name, (_, tokens, found) in zip(("full", "cf", "contrast"), answers, strict=True):
        assert tokens == text
        for step, likeliest in zip(steps, found, strict=True):
            expected = getattr(step, name)[0].log_softmax(dim=-1)
            assert {*likeliest} >= {str(token) for token in expected.topk(5).indices.tolist()}
            given = torch.tensor([*likeliest.values()])
            torch.testing.assert_close(given, expected[[int(token) for token in likeliest]], rtol=0, atol=1e-4)


def test_scores_wait_for_no_value_of_the_device():
    pytest.importorskip("vllm")
    from sira_cli.vllm.requests import RequestRows, Row

    z = torch.randn(2, 3, 50)
    rows = RequestRows.__new__(RequestRows)
    rows.streams = SimpleNamespace(z=(z[0], z[1]))
    asking = [Row(SimpleNamespace(extra_args={"sira": {"scores": 2}}), SiraConfig()), None]
    logprobs = torch.zeros(3, 3)
    output = SimpleNamespace(
        sampled_token_ids=torch.tensor([[7], [8], [9]]), logprobs_tensors=SimpleNamespace(logprobs=logprobs)
    )
    with Watch() as watch:
        rows.score(output, [asking[1], asking[0], asking[1]])
    z_full, z_cf = z[:, 1]
    expected = [0, z_full[8] - z_cf[8], (3 * z_full - 2 * z_cf).log_softmax(0)[8]]
    torch.testing.assert_close(logprobs, torch.tensor([[0] * 3, expected, [0] * 3]))
    assert watch.seen
    assert watch.reads == []


def test_settings_of_the_server_and_of_requests(folder, pictures, run):
    """K and beta are taken; a wrong alpha is refused with a sentence, and the others go on."""
    asked = request("llava", pictures[:1])
    wrong = [{"alpha": -1}, {"alpha": "much"}, {"beta": 0.1}, 0.5, "alpha"]
    batch = {"requests": [asked, *({**asked, "sira": value} for value in wrong)]}
    batch["requests"].append({**asked, "params": {"prompt_logprobs": 1}})
    options = {"additional_config": {"sira": {"k": 2, "alpha": 0.5, "beta": 0.5}}}
    found = run("decode", folder("llava"), options=options, batches=[batch])["answers"][0]
    assert found[0][1] != by_attach(folder("llava"), asked)[1]  # which is K = L / 2
    assert all(answer.startswith("VLLMValidationError") for answer in found[1:])
    assert "alpha must be 0 or more; got -1" in found[1]
    assert "alpha must be a number 0 or more; got 'much'" in found[2]
    assert "prompt_logprobs are not defined under SIRA" in found[-1]
    assert '"sira" of a request takes {"alpha": NUMBER}' in found[3]


@pytest.mark.parametrize("v1", [False, True])
def test_a_cut_off_works_among_the_tokens_that_a_request_leaves(v1, folder, pictures, run):
    """Few tokens, a choice of answers, a pattern; and what would lose alpha, or end the engine, is refused."""
    beta = 0.9  # almost only the likeliest tokens are plausible
    few, many = [*range(40, 52)], [*range(0, 400, 3)]
    ways: list[dict[str, Any]] = [{"allowed_token_ids": few}, {"allowed_token_ids": many}]
    for grammar in ({"choice": ["dog", "cat"]}, {"regex": "(dog|cat){4}"}):
        ways.append({"structured_outputs": grammar, "ignore_eos": False})
    ways += [{"logprobs": 4, "watermarking": False, "detokenize": False}, {"seed": 1, "temperature": 1.0}]
    asked = [request("llava", pictures[:1], tokens=8, params=params) for params in ways]
    asked[4]["tokens"] = 1
    options = {"additional_config": {"sira": {"alpha": 0.5, "beta": beta}}}
    options["structured_outputs_config"] = {"backend": "guidance"}
    found = run("decode", folder("llava"), v1=v1, options=options, batches=[{"requests": asked}])["answers"][0]
    for request_, answer, allowed in zip(asked, found, (few, many), strict=False):
        assert answer[1] == by_attach_among(folder("llava"), request_, allowed, beta)
    decode = loaded(folder("llava"))[1].tokenizer.decode
    assert decode(found[2][1], skip_special_tokens=True) in ("dog", "cat")
    assert re.fullmatch("(dog|cat)+", decode(found[3][1], skip_special_tokens=True).replace(" ", ""))
    assert "beam search" in found[4]
    assert ("a seed ends vLLM's engine" in found[5]) == v1


def test_without_the_key_vllm_is_as_before(folder, pictures, run):
    batch = {"requests": [request("llava", pictures[:1]), request("llava", pictures[:2])]}
    found = run("decode", folder("llava"), options={}, batches=[batch])["answers"][0]
    assert found == [by_attach(folder("llava"), asked, 0) for asked in batch["requests"]]


@pytest.mark.parametrize(
    ("broken", "options", "why"),
    [
        ("one stream", COMPILED, "both streams are the same"),
        ("slots off by one", {}, "the streams differ without an image"),
        ("counts not reset", {}, "the streams differ without an image"),
        ("the wrong stream first", {}, "its logits are not the contrast of both"),
    ],
)
def test_a_broken_stream_does_not_start(broken, options, why, folder, run):
    (found,) = run("refused", folder("llava"), options=[SIRA | options], broken=broken, start=True)
    assert found.startswith("UnsupportedModelError: SIRA refuses to serve SiraLlavaForConditionalGeneration")
    assert why in found


def test_layers_that_cannot_run_two_streams_are_refused_by_name(folder, run, tmp_path):
    """A fork among the layers that get features of pictures (DeepStack), and a sliding window after it."""
    checkpoint = shutil.copytree(folder("qwen3-vl"), tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["text_config"] |= {"use_sliding_window": True, "sliding_window": 16}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (found,) = run("refused", checkpoint, options=[{"additional_config": {"sira": {"k": 5}}}], start=True)
    assert found.startswith("UnsupportedModelError: SIRA cannot decode Qwen3VLForConditionalGeneration exactly")
    assert "the model adds features of pictures in 2 layers: k must be at most 4" in found
    assert "attn has a sliding window after the fork" in found


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, "prefix caching by another scheduler: leave out"),
    ({"enable_prefix_caching": False, "scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, ""),
    ({"pipeline_parallel_size": 2}, "pipeline parallelism: use --tensor-parallel-size"),
    ({"enable_lora": True}, "LoRA: merge the adapter"),
    (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
        "speculative decoding: leave out --speculative-config",
    ),
    ({"kv_cache_dtype": "fp8"}, "a cache in fp8"),
    ({"enable_prompt_embeds": True}, "prompts given as embeddings"),
    ({"disable_chunked_mm_input": True}, "leave out --no-enable-chunked-prefill and --disable-chunked-mm-input"),
    ({"additional_config": {"sira": {"alpha": -1}}}, "alpha must be 0 or more; got -1"),
    ({"additional_config": {"sira": {"alhpa": 1}}}, '"sira" has no alhpa; it takes preset, k, k_fraction, alpha, beta'),
    ({"additional_config": {"sira": 0.5}}, '"sira" must be a mapping such as {"alpha": 0.5}; got 0.5'),
    ({"additional_config": {"sira": {"preset": "llava-1.5"}}}, "no preset named 'llava-1.5'"),
    ({"additional_config": {"sira": {"preset": "llava-1.5-7b", "alpha": 1}}}, ""),
]


def test_what_cannot_be_exact_is_refused_by_name(folder, run):
    found = run("refused", folder("llava"), options=[SIRA | more for more, _ in REFUSED])
    for (_, expected), text in zip(REFUSED, found, strict=True):
        assert expected in text
        assert bool(expected) == bool(text)
