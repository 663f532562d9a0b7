"""vLLM's own server with SIRA, asked by the `openai` package."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.vllm.conftest import ROOT, V2
from tests.vllm.models import by_attach, request

openai = pytest.importorskip("openai")


def test_alpha_of_the_server_and_of_requests(folder, pictures, tmp_path):
    asked = request("llava", pictures[:1], tokens=16)
    by_alpha = {alpha: by_attach(folder("llava"), asked, alpha)[1] for alpha in (0, 0.5)}
    picture = {"url": f"data:image/png;base64,{base64.b64encode(Path(pictures[0]).read_bytes()).decode()}"}
    words = asked["prompt"].removeprefix("USER: <image>\n").removesuffix(" ASSISTANT:")
    content = [{"type": "image_url", "image_url": picture}, {"type": "text", "text": words}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--served-model-name tiny --host 127.0.0.1 --port {port} --dtype float32 --max-model-len 512".split()
    options += ["--enforce-eager", "--generation-config", "vllm", "--additional-config", '{"sira": {"alpha": 0.5}}']
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder("llava")), *options]
    environment = os.environ | V2 | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)

    def ids(**more):
        body = {"ignore_eos": True, "return_token_ids": True, "add_special_tokens": True, **more}
        sent = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 16}
        return client.chat.completions.create(temperature=0, extra_body=body, **sent).choices[0].token_ids

    log = tmp_path / "server.txt"
    with client, log.open("w", encoding="utf-8") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        try:
            for _ in range(600):
                assert server.poll() is None, log.read_text(encoding="utf-8")[-3000:]
                with suppress(openai.APIConnectionError):
                    client.models.list()
                    break
                time.sleep(1)
            assert ids() == by_alpha[0.5]
            assert ids(vllm_xargs={"sira": '{"alpha": 0}'}) == by_alpha[0] != by_alpha[0.5]
            for wrong, said in {'{"alpha": -1}': "must be 0 or more; got -1", '{"view": "cf"}': "nothing else"}.items():
                with pytest.raises(openai.BadRequestError, match=said):
                    ids(vllm_xargs={"sira": wrong})
        finally:
            server.terminate()
            server.wait(timeout=60)
