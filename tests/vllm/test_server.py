"""vLLM's own server with SIRA, asked by the `openai` package."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.vllm.conftest import ROOT
from tests.vllm.models import by_attach, loaded, request

openai = pytest.importorskip("openai")


@pytest.fixture
def client(folder, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder("llava"))]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "512", "--enforce-eager", "--generation-config", "vllm"]
    command += ["--additional-config", '{"sira": {"alpha": 0.5}}']
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = tmp_path / "server.txt"
    with log.open("w", encoding="utf-8") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
    try:
        made = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)
        for _ in range(240):
            assert server.poll() is None, log.read_text(encoding="utf-8")[-3000:]
            try:
                made.models.list()
                break
            except openai.APIConnectionError:
                time.sleep(1)
        yield made
    finally:
        server.terminate()
        server.wait(timeout=60)


def test_alpha_of_the_server_and_of_requests(client, folder, pictures):
    data = base64.b64encode(Path(pictures[0]).read_bytes()).decode()
    asked = request("llava", pictures[:1], tokens=16)
    words = asked["prompt"].removeprefix("USER: <image>\n").removesuffix(" ASSISTANT:")
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "text", "text": words},
    ]

    def text(**more):
        body = {"ignore_eos": True, "return_token_ids": True, "add_special_tokens": True, **more}
        made = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}], max_tokens=16, temperature=0, extra_body=body
        )
        return made.choices[0].token_ids

    loaded(folder("llava"))
    by_alpha = {alpha: by_attach(folder("llava"), asked, alpha)[1] for alpha in (0, 0.5)}
    assert text() == by_alpha[0.5]
    assert text(vllm_xargs={"sira": '{"alpha": 0}'}) == by_alpha[0] != by_alpha[0.5]
    with pytest.raises(openai.BadRequestError, match="alpha must be 0 or more; got -1"):
        text(vllm_xargs={"sira": '{"alpha": -1}'})
    with pytest.raises(openai.BadRequestError, match=r"takes .*alpha.* and nothing else"):  # the engine's own words
        text(vllm_xargs={"sira": '{"view": "cf"}'})
