"""Layers with a state per request in vLLM, against `attach`."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sira_cli.vllm.step import Requests, plan_graph
from tests.vllm.models import by_attach, log_probabilities, request
from tests.vllm.test_plugin import COMPILED, SIRA, SITUATIONS, check

CHUNKS = {"max_num_batched_tokens": 64}  # of 32 rows, as the budget is that of both streams


def several(family: str, pictures: list[str], tokens: int = 10) -> list[dict[str, Any]]:
    """Five requests at once: two pictures, none, and alpha of their own among them."""
    many = [request(family, [picture], f"part {i}", tokens + i) for i, picture in enumerate(pictures[:3])]
    many += [request(family, pictures[3:5], "both", tokens), request(family, [], "a red house", tokens)]
    many[1]["sira"] = {"alpha": 0}
    many[2]["sira"] = {"alpha": 1.5}
    return many


def settings(k: int) -> dict[str, Any]:
    """The fork lies at a linear layer (K = 3), or at attention (K = 4)."""
    return {"additional_config": {"sira": {"alpha": 0.5, "k": k}}}


@pytest.mark.parametrize("family", ["qwen3.5", "lfm2-vl"])
@pytest.mark.parametrize(("k", "options"), [(3, {}), (4, CHUNKS)], ids=["K = 3", "K = 4, in chunks"])
def test_as_on_a_card(family, k, options, folder, pictures, run):
    batches = [{"requests": several(family, pictures)}]
    found = run("decode", folder(family), options=settings(k) | options, batches=batches)
    for asked, answer in zip(batches[0]["requests"], found["answers"][0], strict=True):
        alpha = asked.get("sira", {}).get("alpha", 0.5)
        assert answer == by_attach(folder(family), asked, alpha, k), asked


def test_graphs_of_parts(folder, pictures, run):
    """With as many rows in both streams, compiled, and split at the layers that tell the streams apart."""
    batches = [{"requests": several("qwen3.5", pictures)}]
    options = SIRA | SITUATIONS["graphs"]
    found = run("decode", folder("qwen3.5"), options=options, batches=batches, padded=True)
    check(folder("qwen3.5"), batches, found["answers"])


@pytest.mark.parametrize("family", ["qwen3.5", "lfm2-vl"])
def test_decoding_steps_as_graphs(family, folder, pictures, run):
    batches = [{"requests": several(family, pictures)[1:]}]
    found = run("decode", folder(family), options=SIRA, batches=batches, graphs=[2, 4])
    check(folder(family), batches, found["answers"])
    assert min(found["replays"].values()) > 1
    assert (found["reads"], found["moved"]) == ([], [])


def test_a_graph_keeps_image_rows_out_of_states_and_begins_at_zeros():
    """Of three requests, the first is at an image row, the second at its first text row, the third later."""
    recurrent = pytest.importorskip("sira_cli.vllm.recurrent")
    requests = Requests(3)
    requests.put(0, np.array([False, True]), 0.5)
    requests.put(1, np.array([True, True, False]), 0.5)
    requests.put(2, np.array([True]), 0.5)
    layer = SimpleNamespace(kv_cache=(torch.ones(8, 2), torch.ones(8, 3)))
    step = plan_graph(np.array([1, 2, 5]), np.arange(3), requests, 4)
    table = torch.tensor([[5], [6], [7], [0]])
    assert recurrent.one_row_each(table, step, [layer]).tolist() == [[0], [6], [7], [0]]
    for state in layer.kv_cache:
        assert state.sum(dim=1).eq(0).tolist() == [False] * 6 + [True, False]


class QwenGatedDeltaNetAttention:
    """Stands for vLLM's, with what decides whether it is taken."""

    def __init__(self) -> None:
        self._forward_method = self.forward_cuda

    def forward_cuda(self) -> None:
        """Run on NVIDIA's cards."""

    def forward_hip(self) -> None:
        """Run on AMD's."""


def test_what_is_not_known_of_recurrent_layers_is_refused_by_name():
    kind = pytest.importorskip("sira_cli.vllm.recurrent").Recurrent()
    other = QwenGatedDeltaNetAttention()
    other._forward_method = other.forward_hip
    unfit = functools.partial(kind.unfit, late=True, config=None)
    assert unfit(QwenGatedDeltaNetAttention()) == ""
    assert unfit(SimpleNamespace(), late=False) == "is SimpleNamespace, a recurrent layer that is not known"
    assert unfit(other) == "runs forward_hip, which is not known"


def test_states_of_requests_that_lose_their_place(folder, pictures, run):
    batches = [{"requests": several("qwen3.5", pictures, tokens=40)}]
    options = {**SIRA, "num_gpu_blocks_override": 22, "block_size": 32, "max_model_len": 192}
    found = run("decode", folder("qwen3.5"), options=options, batches=batches)
    assert found["preempted"]
    check(folder("qwen3.5"), batches, found["answers"])


def apart(folder: Path, asked: dict[str, Any], answer: list[Any], alpha: float) -> tuple[float, float]:
    """How far log-probabilities of a text's tokens are from those of `attach` in float32 on average, and the most by
    which a token is less probable than the best one there."""
    _, tokens, found = answer
    expected = log_probabilities(folder, asked, tokens, alpha)  # [T, V]
    chosen = expected[torch.arange(len(tokens)), torch.tensor(tokens)]
    distance = (chosen - torch.tensor(found)).abs().mean()
    return float(distance), float((expected.amax(dim=-1) - chosen).max())


@pytest.mark.parametrize(("v1", "options"), [(False, COMPILED), (True, CHUNKS)], ids=["V2", "V1"])
def test_gated_delta_nets_on_a_cpu(v1, options, folder, pictures, run):
    """In 16 bits, the only ones: near ties may fall otherwise, but not by as much as the contrast changes."""
    family = "qwen3.5, wide"
    many = several(family, pictures, tokens=20)
    for asked in many:
        asked["params"] = {"logprobs": 0}
    options = SIRA | options | {"dtype": "bfloat16"}
    found = run("decode", folder(family), v1=v1, options=options, batches=[{"requests": many}])
    for asked, answer in zip(many, found["answers"][0], strict=True):
        alpha = asked.get("sira", {}).get("alpha", 0.5)
        distance, gap = apart(folder(family), asked, answer, alpha)
        assert distance < 0.05, asked
        assert gap < 0.2, asked
        if asked["images"]:
            other = 0.5 if alpha == 0 else 0
            assert apart(folder(family), asked, answer, other)[0] > 2 * distance, asked
