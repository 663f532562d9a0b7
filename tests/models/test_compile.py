"""`load(..., compile=True)` and `--compile`: the same texts, one compilation for a folder, refusals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.exc import InductorError
from torch._inductor.utils import fresh_cache

from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import attach
from sira_cli.demo.questions import validation_pictures
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.models.loading import compiled
from sira_cli.models.loading.compiled import CACHE_ROWS, CompiledSteps, compiler_errors
from sira_cli.models.loading.load import load
from sira_cli.models.lvlm import Lvlm
from sira_cli.models.schemas.schema import Schema
from sira_cli.pictures.sources import open_picture
from tests.support import tiny
from tests.support.helpers import generate, generate_sira

# torch's compiler uses deprecated parts of torch.
IMPORTS_INDUCTOR = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def no_compiler_needed(monkeypatch) -> Iterator[None]:
    """Steps are traced and guarded for real, without graph breaks, and then run by torch as they are."""
    torch.compiler.reset()
    counters.clear()
    config = hf.CompileConfig(fullgraph=True, backend="eager", mode=None)
    monkeypatch.setattr(compiled, "CompileConfig", lambda **_: config)
    yield
    torch.compiler.reset()


def small() -> tiny.Tiny:
    """Two layers, one of them late, because a C++ compiler takes its time."""
    text = {**tiny.TEXT, "model_type": "llama", "num_hidden_layers": 2}
    config = hf.LlavaConfig(
        vision_config=tiny.CLIP, text_config=text, image_token_index=tiny.IMAGE, image_seq_length=16
    )
    return tiny.Tiny(tiny.build(config, hf.LlavaForConditionalGeneration), tiny.llava().inputs)


@pytest.mark.slow
@IMPORTS_INDUCTOR
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler g++ here")
def test_compiled_steps_equal_eager_ones(tmp_path):
    """The one test that really compiles; the others trace and guard."""
    case, config = small(), SiraConfig(k=1)
    expected, expected_steps = generate_sira(case.model, case.inputs, config, max_new_tokens=8)
    steps, seen = CompiledSteps(case.model), []
    torch.compiler.reset()
    counters.clear()
    with (
        fresh_cache(dir=str(tmp_path)),
        attach(case.model, config, on_step=lambda step: seen.append(step.contrast.clone())),
    ):
        tokens = generate(case.model, case.inputs, max_new_tokens=8, **steps.arguments(1, 30, 8))
        with torch.compiler.set_stance("fail_on_recompile"):
            again = generate(case.model, case.inputs, max_new_tokens=8, **steps.arguments(1, 30, 8))
    assert torch.equal(tokens, expected)
    assert torch.equal(again, expected)
    torch.testing.assert_close(
        torch.cat(seen), torch.cat([step.contrast for step in expected_steps] * 2), atol=1e-4, rtol=0
    )
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.slow
def test_a_folder_gets_the_same_texts_from_one_compilation(qwen_folder, photos, no_compiler_needed):
    plain, lvlm = load(qwen_folder, max_new_tokens=8), load(qwen_folder, compile=True, max_new_tokens=8)
    prompt_lengths = {lvlm.ask(photos["coffee"], "Why?").prompt_tokens}
    assert counters["stats"]["unique_graphs"] == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        for name, question in [("tall", "Is there a cat in it?"), ("astronaut", "Where?"), ("coffee", "Why?")]:
            expected, result = plain.ask(photos[name], question), lvlm.ask(photos[name], question)
            assert (result.text, result.key) == (expected.text, expected.key)
            prompt_lengths.add(result.prompt_tokens)
    assert len(prompt_lengths) == 3
    images = [open_picture(photos[name]).image for name in ("tall", "coffee")]  # padded on the left
    inputs = plain.prepare(images, ["What is it?", "Why?"])
    assert [answer.text for answer in lvlm.answer(inputs)] == [answer.text for answer in plain.answer(inputs)]


def test_a_cache_is_used_again_until_it_is_too_small(llava: tiny.Tiny):
    steps = CompiledSteps(llava.model)

    def cache(*sizes: int) -> Any:
        return steps.arguments(*sizes)["past_key_values"]

    first = cache(1, 200, 50)
    assert first.get_max_length() == CACHE_ROWS
    assert cache(1, 30, 8) is cache(1, 206, 50) is first
    assert (longer := cache(1, 207, 50)) is not first
    assert longer.get_max_length() == 2 * CACHE_ROWS
    assert cache(1, 30, 8) is longer
    assert cache(1, 30, 51) is not longer
    assert cache(2, 30, 8) is not cache(1, 30, 8)


@pytest.mark.slow
def test_larger_caches_end_up_in_one_graph_for_all_sizes(no_compiler_needed):
    case, config = small(), SiraConfig(k=1)
    steps = CompiledSteps(case.model)
    for number, new_tokens in enumerate([8, 300, 600, 900]):
        arguments = {**steps.arguments(1, 30, new_tokens), "max_new_tokens": 6}
        stance = "default" if number < 2 else "fail_on_recompile"
        with torch.compiler.set_stance(stance), attach(case.model, config):
            tokens = generate(case.model, case.inputs, **arguments)
        assert torch.equal(tokens, generate_sira(case.model, case.inputs, config)[0])


@pytest.mark.slow
@IMPORTS_INDUCTOR
def test_no_compiler_is_an_error_that_says_so(monkeypatch, tmp_path):
    case = small()
    steps = CompiledSteps(case.model)
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    torch.compiler.reset()
    with (
        fresh_cache(dir=str(tmp_path)),
        pytest.raises(SettingsError, match=r"cannot be compiled here \(.*\): torch.compile needs a C\+\+ compiler"),
        compiler_errors(),
    ):
        generate(case.model, case.inputs, **steps.arguments(1, 30, 6))
    torch.compiler.reset()


def test_memory_that_runs_out_while_compiling_stays_what_it_is():
    """So that a batch is halved; made up, for there is no such memory here."""
    inner = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError), compiler_errors():
        raise InductorError(inner, None)
    with (
        pytest.raises(SettingsError, match=r"cannot be compiled here \(.*no triton.*\): leave out compile$"),
        compiler_errors(),
    ):
        raise InductorError(RuntimeError("no triton"), None)


@pytest.mark.parametrize(("make", "mode"), [(tiny.llava, "reduce-overhead"), (tiny.gemma3, "default")])
def test_sliding_windows_get_no_cuda_graphs(make, mode):
    assert CompiledSteps(make().model).arguments(1, 30, 8)["compile_config"].mode == mode


@pytest.mark.parametrize("method", ["vcd", "greedy+apc"])
def test_other_methods(llava_folder, method):
    with pytest.raises(SettingsError, match=rf"needs method sira or greedy, not {method.replace('+', '.')}"):
        load(llava_folder, method=method, compile=True)


def test_beams_and_looks_inside(llava_folder, photos):
    with pytest.raises(SettingsError, match="or num_beams"):
        load(llava_folder, compile=True, num_beams=2)
    lvlm = load(llava_folder, compile=True)
    inputs = lvlm.prepare([open_picture(photos["coffee"]).image], ["What is it?"])
    with pytest.raises(SettingsError, match="a trace or a score of words cannot look into compiled steps"):
        lvlm.answer(inputs, words=True)


def test_models_that_cannot_be_compiled(llava: tiny.Tiny):
    with pytest.raises(UnsupportedModelError, match="no static caches"):
        CompiledSteps(tiny.paligemma(2).model)
    parts = {"config": llava.model.config, "device": torch.device("cpu")}
    with pytest.raises(SettingsError, match="quantization"):
        CompiledSteps(SimpleNamespace(**parts, hf_quantizer=SimpleNamespace(is_compileable=False)))
    with pytest.raises(SettingsError, match="device cpu or cuda, not mps"):
        CompiledSteps(SimpleNamespace(**{**parts, "device": torch.device("mps")}))


def test_command_line(sira, photos, llava_folder, monkeypatch, no_compiler_needed):
    seen: list[Lvlm] = []
    generated = Lvlm.generate
    monkeypatch.setattr(Lvlm, "generate", lambda self, *a, **k: seen.append(self) or generated(self, *a, **k))
    common = ["caption", photos["coffee"], "-m", llava_folder, "--max-new-tokens", "6"]
    assert sira(*common, "--compile")[:2] == sira(*common)[:2]
    assert [lvlm.compiled is not None for lvlm in seen] == [True, False]


@pytest.mark.slow
def test_compiled_steps_follow_schemas(no_compiler_needed):
    """Rows with a schema and without, in a batch: the mask comes after the compiled step."""
    schema = Schema.of({"type": "array", "items": {"enum": ["dog", "cat"]}, "minItems": 2, "maxItems": 4})
    asked = [schema, None]
    eager, lvlm = (load("demo", compile=steps, max_new_tokens=24) for steps in (False, True))
    images = [picture.open().image for picture in islice(validation_pictures(), 2)]
    inputs = lvlm.prepare(images, [lvlm.preset.prompts.caption] * 2)
    expected = eager.answer(inputs, schemas=asked)
    assert 2 <= len(expected[0].data) <= 4
    assert lvlm.answer(inputs, schemas=asked) == expected
