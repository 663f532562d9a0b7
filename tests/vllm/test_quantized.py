"""Checkpoints with weights in 4 or 8 bits: vLLM unpacks them, and both streams go through the same matrices."""

from __future__ import annotations

import pytest
import torch

from tests.vllm.models import request
from tests.vllm.quantized import FORMATS, write

OPTIONS = {"dtype": "bfloat16"}  # the kernels of these formats take 16 bits
SIRA = {"additional_config": {"sira": {"alpha": 0.5}}}


@pytest.mark.parametrize("name", FORMATS)
def test_alpha_0_gives_the_tokens_that_vllm_gives_and_alpha_others(name, folder, pictures, run, tmp_path):
    folder("llava")  # skips where vLLM is not
    if name == "FP8 in blocks" and not torch.cpu.get_capabilities().get("amx_tile"):
        pytest.skip("vLLM has no kernel of FP8 in blocks for processors without AMX")
    write(tmp_path, name)
    plain = [request("llava", [picture], tokens=16) for picture in pictures[:3]]
    asked = [*({**each, "sira": {"alpha": 0}} for each in plain), *plain]
    (found,) = run("decode", tmp_path, v1=True, options=OPTIONS | SIRA, batches=[{"requests": asked}])["answers"]
    # As many requests: the kernel of FP8 in blocks rounds by the number of rows, without SIRA too.
    (theirs,) = run("decode", tmp_path, v1=True, options=OPTIONS, batches=[{"requests": plain * 2}])["answers"]
    assert found[:3] == theirs[:3]
    assert all(answer not in theirs for answer in found[3:])
