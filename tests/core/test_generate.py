"""Everything `generate` offers works under `attach`, and the model is given back."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Barrier

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from sira_cli._version import __version__
from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.fork import attach
from sira_cli.core.hooks import attached_hooks
from sira_cli.core.rules import cut_offs_kept, newest_cut_off, plausible
from sira_cli.errors import AttachError, ImageTokenError, SettingsError
from tests.support import census, tiny
from tests.support.helpers import Listener, case_of, generate, generate_sira, hooks, slow_contrast

K, ALPHA = 3, 1.0
CONFIG = SiraConfig(k=K, alpha=ALPHA)
NAMES = ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "LFM2-VL", "Gemma 4 E"]
WAYS = {
    "sampled": {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "top_k": 0, "max_new_tokens": 8},
    "sampled sequences": {"do_sample": True, "num_return_sequences": 3, "top_k": 0, "max_new_tokens": 4},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5},
    "beams without a cache": {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5, "use_cache": False},
    "penalty": {"repetition_penalty": 1.5},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_each_way_of_generating_is_that_of_the_slow_contrast(name: str, way: str):
    case, settings = case_of(name), dict(WAYS[way])
    slow = [slow_contrast(case, K, ALPHA, log_softmax="num_beams" in settings)]
    torch.manual_seed(7)
    tokens, steps = generate_sira(case.model, case.inputs, CONFIG, **settings)
    if penalty := settings.pop("repetition_penalty", None):  # after the contrast
        slow.append(RepetitionPenaltyLogitsProcessor(penalty))
    torch.manual_seed(7)
    assert torch.equal(tokens, generate(case.model, case.inputs, logits_processor=slow, **settings))
    assert len(steps[0].full) == settings.get("num_beams", settings.get("num_return_sequences", 1))


@pytest.mark.parametrize("name", NAMES)
def test_processors_streamers_criteria_and_end_tokens(name: str):
    case, seen, listener = case_of(name), [], Listener()
    longest = case.image.shape[1] + 3
    watched = {"logits_processor": [lambda ids, scores: seen.append(scores.clone()) or scores], "streamer": listener}
    stop = [lambda ids, scores, **more: torch.full((len(ids),), ids.shape[1] >= longest)]
    tokens, steps = generate_sira(case.model, case.inputs, CONFIG, stopping_criteria=stop, **watched)
    assert tokens.shape[1] == len(steps) == 3
    assert listener.parts[1:] == [*([token] for token in tokens[0].tolist()), []]
    allowed = [token for token in range(tiny.VOCABULARY) if token not in tiny.SUPPRESS]
    for scores, step in zip(seen, steps, strict=True):
        assert torch.equal(scores[:, allowed], step.contrast[:, allowed])
    end = int(tokens[0, 1])
    until = tokens[0].tolist().index(end) + 1
    assert generate_sira(case.model, case.inputs, CONFIG, eos_token_id=end)[0].tolist() == tokens[:, :until].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_two_generations_and_a_plain_forward_in_one_context(name: str):
    """The forward gives the contrast of the last row."""
    case = case_of(name)
    with attach(case.model, CONFIG) as run, torch.no_grad():
        first, second = generate(case.model, case.inputs), generate(case.model, case.inputs)
        logits = case.model(**case.inputs).logits
    assert torch.equal(first, second)
    assert torch.equal(run.image, case.image)
    z_full = case.model(**case.inputs, use_cache=False).logits[0, -1]
    z_cf = reference.counterfactual(case.model, case.inputs, case.image, K)
    assert logits.shape == (1, 1, tiny.VOCABULARY)
    torch.testing.assert_close(logits[0, 0], (1 + ALPHA) * z_full - ALPHA * z_cf, atol=1e-4, rtol=0)


# --- the model is given back


def parts_of(model) -> list[object]:
    """What `attach` changes: configs of attention, and Llama 4's own scaling of queries."""
    modules = [mixer.module for mixer in find_backbone(model).mixers]
    return [(getattr(each, "attn_temperature_tuning", None), id(getattr(each, "config", None))) for each in modules]


LAYERED = ["LLaVA-1.5", "Qwen3.5", "LFM2-VL", "Gemma 4 E", *sorted({"llama4", "dots3_note"} & census.HERE)]


@pytest.mark.parametrize("name", LAYERED)
def test_no_hook_remains_after_errors_either_and_the_model_works_as_before(name: str):
    """In the prompt, and in a step; before and after the mixers of late layers, and after the model."""
    case = case_of(name)
    forked, _ = generate_sira(case.model, case.inputs, max_new_tokens=4)
    plain, before = generate(case.model, case.inputs), (hooks(case.model), parts_of(case.model))

    def fail(*_: object) -> None:
        if next(left, None) is None:
            raise ZeroDivisionError

    for mixer, steps in product(find_backbone(case.model).mixers[-2:], (0, 2)):
        for register in (mixer.module.register_forward_pre_hook, mixer.module.register_forward_hook):
            with attach(case.model, SiraConfig(k=3)):
                handle, left = register(fail), iter(range(steps))
                with pytest.raises(ZeroDivisionError):
                    generate(case.model, case.inputs)
                handle.remove()
                assert torch.equal(generate(case.model, case.inputs, max_new_tokens=4), forked)
    with pytest.raises(ZeroDivisionError), attach(case.model, on_step=lambda step: 1 / 0):
        generate(case.model, case.inputs)
    assert (hooks(case.model), parts_of(case.model)) == before
    assert torch.equal(generate(case.model, case.inputs), plain)


# --- numbers


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3", "PaliGemma 2"])
def test_bfloat16_is_finite_and_contrasted_in_float32(name: str):
    case = tiny.FAMILIES[name]()
    inputs = case.inputs | {"pixel_values": case.inputs["pixel_values"].bfloat16()}
    for step in generate_sira(case.model.bfloat16(), inputs)[1]:
        assert step.full.dtype == step.cf.dtype == step.contrast.dtype == torch.float32
        assert torch.cat([step.full, step.cf]).isfinite().all()
        torch.testing.assert_close(step.contrast, 1.5 * step.full - 0.5 * step.cf, atol=0, rtol=0)
        # Of numbers with 8 bits of mantissa, a contrast in bfloat16 would land on bfloat16 numbers.
        assert not torch.equal(step.contrast, step.contrast.bfloat16().float())


@pytest.mark.parametrize("beta", [0.1, 0.9, 1.0])
def test_beta_leaves_only_plausible_tokens(llava: tiny.Tiny, beta: float):
    """With 1 only the likeliest: the texts are greedy's."""
    tokens, steps = generate_sira(llava.model, llava.inputs, SiraConfig(k=3, alpha=3.0, beta=beta))
    for step, token in zip(steps, tokens[0].tolist(), strict=True):
        assert step.contrast.isfinite().all()  # on_step sees the contrast before the cut-off
        left = step.full[0] >= step.full[0].max() + math.log(beta)
        best = step.contrast[0].masked_fill(~left, -math.inf)
        best[tiny.SUPPRESS] = -math.inf
        assert token == int(best.argmax())
    assert beta < 1 or torch.equal(tokens, generate(llava.model, llava.inputs))


def test_a_token_at_the_cut_itself_is_left():
    z = torch.tensor([[0.0, math.log(0.5), math.log(0.49)], [2.0, 2.0, 1.0]])
    for beta, kept in ((1.0, [[True, False, False], [True, True, False]]), (0.5, [[True, True, False]] * 2)):
        with cut_offs_kept():
            assert newest_cut_off() is None
            assert plausible(torch.ones(2, 3), z, beta).isfinite().tolist() == kept
            assert newest_cut_off()[1:] == (z, beta)
        assert newest_cut_off() is None


# --- the folder for the Hub: `generate(custom_generate=...)` is SIRA, loaded by transformers from files

FOLDER = Path(__file__).parents[2] / "custom_generate"
OURS = {"custom_generate": str(FOLDER), "trust_remote_code": True}


@pytest.fixture
def decode(tmp_path, monkeypatch):
    """Transformers copies the code that it runs; here it must not go into the user's cache."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    return lambda case, **settings: generate(case.model, case.inputs, **OURS | settings)


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Qwen2.5-VL", "Gemma 3"])
def test_texts_are_those_of_the_slow_contrast(name: str, decode):
    """Without K, the fork is in the middle."""
    case = case_of(name)
    expected = generate(case.model, case.inputs, logits_processor=[slow_contrast(case, 3, 1.0)])
    assert torch.equal(decode(case, k=3, alpha=1.0), expected)
    assert torch.equal(decode(case, alpha=1.0), expected)


def test_what_is_refused_leaves_no_hooks(llava, decode):
    with pytest.raises(SettingsError, match="k = 99 is out of range"):
        decode(llava, k=99)
    with pytest.raises(SettingsError, match=r"\['gamma'\].*: the settings of SIRA are k, alpha and beta"):
        decode(llava, gamma=2.0)
    with pytest.raises(ImageTokenError):
        llava.model.generate(input_ids=torch.tensor([[1, 2, 3]]), max_new_tokens=1, **OURS)
    assert torch.equal(decode(llava, alpha=0.0), generate(llava.model, llava.inputs))


def test_of_two_threads_that_attach_at_once_one_is_refused(monkeypatch):
    """Both look whether the model is free before either has taken it, unless looking and taking are one."""
    norm, both = torch.nn.LayerNorm(2), Barrier(2)

    class Slow(set):
        def __contains__(self, value: object) -> bool:
            return super().__contains__(value) or time.sleep(0.2) is not None

    def attach_once() -> None:
        both.wait(60)
        with attached_hooks(norm, norm):
            time.sleep(1)

    monkeypatch.setattr("sira_cli.core.hooks._attached", Slow())
    with ThreadPoolExecutor(2) as pool:
        errors = [each.exception() for each in (pool.submit(attach_once), pool.submit(attach_once))]
    assert {*map(type, errors)} == {type(None), AttachError}


def test_it_asks_for_this_version_of_the_package():
    lines = (FOLDER / "custom_generate" / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [f"sira-cli>={__version__}"]
