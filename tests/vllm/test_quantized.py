"""Checkpoints with weights in 4 or 8 bits: vLLM unpacks them, and both streams go through the same matrices."""

from __future__ import annotations

import pytest

from tests.vllm.models import request
from tests.vllm.quantized import FORMATS, write

OPTIONS = {"dtype": "bfloat16"}  # the kernels of these formats take 16 bits
SIRA = {"additional_config": {"sira": {"alpha": 0.5}}}


# vLLM has no kernel of FP8 in blocks for processors without AMX.
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "FP8 in blocks"])
def test_alpha_0_gives_the_tokens_that_vllm_gives_and_alpha_others(name, folder, pictures, run, tmp_path):
    folder("llava")  # skips where vLLM is not
    write(tmp_path, name)
    plain = [request("llava", [picture], tokens=16) for picture in pictures[:3]]
    asked = [*({**each, "sira": {"alpha": 0}} for each in plain), *plain]
    (found,) = run("decode", tmp_path, v1=True, options=OPTIONS | SIRA, batches=[{"requests": asked}])["answers"]
    (theirs,) = run("decode", tmp_path, v1=True, options=OPTIONS, batches=[{"requests": plain}])["answers"]
    assert found[:3] == theirs
    assert all(answer not in theirs for answer in found[3:])
