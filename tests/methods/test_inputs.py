"""What methods take besides the prompt: vcd's noise, prompts without the picture or with a role, calibrations."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from sira_cli import attach, load
from sira_cli.errors import DataError, SettingsError, UnsupportedModelError
from sira_cli.methods.base import PromptBatch
from sira_cli.methods.calibrated import Calibration, Origin
from sira_cli.methods.icd import ROLE
from sira_cli.methods.ict import Ict, slices_of
from sira_cli.methods.maskcd import MASS, MaskCd, usual_threshold, z_scores
from sira_cli.methods.vcd import Vcd, noised, signal_share
from sira_cli.methods.vti import Vti
from sira_cli.models.chat import chat_inputs
from sira_cli.models.inputs import BRANCH
from sira_cli.models.presets import SHIPPED_CALIBRATIONS
from sira_cli.pictures.sources import as_picture
from tests.support import reference_methods as slow
from tests.support import tiny
from tests.support.checkpoints import REPRESENTATIVES
from tests.support.helpers import (
    attached,
    case_of,
    decoded,
    family_prompts,
    generate,
    hooks,
    left_pad,
    mostly_slow,
    stub,
    under,
)
from tests.support.records import key_of
from tests.support.tiny import Tiny

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.png"))
PROMPT = "What is on the left?"

# --- the noise of vcd


@pytest.mark.parametrize("step", [0, 500, 999])
def test_the_noise_schedule_is_the_published_one(step: int):
    assert signal_share(step) == pytest.approx(slow.diffusion_share(step), rel=1e-6)


def epsilon(mixed: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """What `noised` added, by the inverse of its formula."""
    share = slow.diffusion_share(500)
    return (mixed - math.sqrt(share) * pixels) / math.sqrt(1 - share)


ALL, PATCHES = slice(None), {"image_grid_thw": torch.tensor([[1, 4, 4], [1, 2, 6]])}
SIZES = {"image_sizes": torch.tensor([[32, 32], [16, 24]])}
MASK = {"pixel_attention_mask": torch.tensor([[1] * 8, [1] * 8, [1] * 4 + [0] * 4])}
TWO_SIZES = torch.ones(2, 2, 8, 8)
TWO_SIZES[1, 0, 6:], TWO_SIZES[1, 0, :, 5:], TWO_SIZES[1, 1] = 0, 0, 0
# The shape of the pixels, what comes with them, and for each of two prompts its image tokens, the number of its
# pictures, and the parts that show them; a picture has several parts if it is cut into tiles.
SHAPES = {
    "pictures": ((3, 3, 8, 8), {"image_sizes": torch.tensor([[8, 8]] * 3)}, [30, 18], [2, 1], [[0, 1], [2]]),
    "a smaller picture": ((2, 3, 32, 32), SIZES, [16, 6], [1, 1], [[0], [(1, ALL, slice(16), slice(24))]]),
    "tiles": ((6, 3, 8, 8), {}, [32, 16], [2, 1], [[0, 1, 2, 3], [4, 5]]),
    "tiles by picture": ((3, 2, 3, 8, 8), {}, [32, 16], [2, 1], [[(0, 0), (0, 1), (1, 0), (1, 1)], [(2, 0), (2, 1)]]),
    "tiles of two sizes": (
        *((2, 2, 3, 8, 8), {"pixel_attention_mask": TWO_SIZES}, [32, 8], [1, 1]),
        [[(0, 0), (0, 1)], [(1, 0, ALL, slice(6), slice(5))]],
    ),
    "tiles by prompt": ((2, 3, 3, 8, 8), {}, [48, 32], [2, 1], [[(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1)]]),
    "patches": ((28, 3 * 2 * 64), PATCHES, [4, 3], [1, 1], [[slice(16)], [slice(16, 28)]]),
    "rows of patches": ((3, 8, 12), MASK, [4, 1], [1, 1], [[0, 1], [(2, slice(4))]]),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_each_prompt_draws_its_noise_from_its_own_seed(kind: str):
    """Qwen's patches hold copies of a frame, with one noise."""
    shape, more, tokens, counts, prompts = SHAPES[kind]
    copies, noise = 2 if kind == "patches" else 1, torch.zeros(shape)
    for seed, parts in zip((5, 6), prompts, strict=True):
        generator = torch.Generator().manual_seed(seed)
        for part in parts:
            frame = (len(noise[part]), 3, 1, 64) if kind == "patches" else noise[part].shape
            drawn = torch.randn(frame, generator=generator)
            noise[part] = drawn.expand(-1, -1, copies, -1).flatten(1) if kind == "patches" else drawn
    pixels = torch.rand(shape) * (noise != 0)
    mixed = noised({"pixel_values": pixels, **more}, torch.tensor(tokens), copies, 500, (5, 6), counts)
    torch.testing.assert_close(epsilon(mixed, pixels), noise, atol=1e-5, rtol=1e-5)


PADDED = ["LLaVA-1.5", "Pixtral (LLaVA)", "Qwen2.5-VL", "Idefics3", "Gemma 3", "Gemma 4", "LFM2-VL", "InternVL"]


@pytest.mark.parametrize("name", PADDED)
def test_under_attach_a_text_depends_on_no_other_row_of_the_batch(name: str):
    """Its picture's noise comes from a generator of its own, in any place."""
    case = case_of(name)
    singles = family_prompts(name, case)[:2]
    settings = {"return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 1, "do_sample": False}

    def logits(inputs: dict) -> torch.Tensor:
        with attach(case.model, method="vcd", inputs=inputs, noise_step=700, beta=1e-6, seed=4):
            return case.model.generate(**inputs, **settings).logits[0]

    alone = torch.cat([logits(single) for single in singles])
    for order in ([0, 1], [1, 0]):
        found = logits(left_pad([singles[place] for place in order]))
        torch.testing.assert_close(found, alone[order], atol=1e-3, rtol=1e-4)


def test_gemma_4_gets_the_noise_of_normalised_pixels():
    """Its processor leaves values of 0 to 1, and the model makes -1 to 1 of them."""
    pixels, places = torch.rand(1, 8, 12), torch.zeros(1, 8, 2, dtype=torch.long)
    places[0, 6:] = -1
    found = noised({"pixel_values": pixels, "image_position_ids": places}, torch.tensor([2]), 1, 500, [5])
    normalised = {"pixel_values": 2 * pixels - 1, "pixel_attention_mask": (places >= 0).all(-1)}
    torch.testing.assert_close(2 * found - 1, noised(normalised, torch.tensor([2]), 1, 500, [5]))


def test_what_is_no_picture_or_cannot_be_told_apart_is_refused():
    case = case_of("Qwen2.5-VL")
    videos = {**case.inputs, "pixel_values_videos": case.inputs["pixel_values"]}
    for inputs, message in (
        (videos, "adds noise to pictures, not to videos"),
        ({"input_ids": videos["input_ids"]}, "finds no"),
    ):
        with pytest.raises(UnsupportedModelError, match=f"method vcd {message}"):
            Vcd().branch_inputs(PromptBatch(stub(case), inputs, [0]))
    for tokens in ([32, 16], [1, 2, 3]):
        with pytest.raises(UnsupportedModelError, match="cannot tell which pixels belong to which picture"):
            noised({"pixel_values": torch.rand(5, 3, 8, 8)}, torch.tensor(tokens), 1, 500, range(len(tokens)))


# --- branches as an `Lvlm` prepares them


def branch_of(lvlm, pictures, prompt: str = PROMPT) -> tuple[dict, dict]:
    """A prompt's own inputs, and those of its contrast stream."""
    inputs = lvlm.prepare([as_picture(str(path)).open().image for path in pictures], [prompt] * len(pictures))
    own = {name: value for name, value in inputs.items() if not name.startswith(BRANCH)}
    return own, {name.removeprefix(BRANCH): inputs[name] for name in inputs if name not in own}


@pytest.mark.parametrize("checkpoint", ["llava_folder", "qwen_folder"])
def test_branches_differ_in_pixels_in_placeholders_or_in_a_role(checkpoint, request, photos):
    lvlm, pictures = load(request.getfixturevalue(checkpoint), dtype="float32"), [photos["coffee"], photos["tall"]]
    own, branch = branch_of(lvlm.under("vcd"), pictures)
    assert own.keys() == branch.keys()
    assert all(torch.equal(own[name], branch[name]) == (name != "pixel_values") for name in own)
    own, branch = branch_of(lvlm.under("text-only"), pictures)
    assert "pixel_values" not in branch
    for row, ids in enumerate(own["input_ids"]):
        expected = ids[own["attention_mask"][row].bool() & ~lvlm.find_image(ids[None])[0]]
        assert torch.equal(branch["input_ids"][row][branch["attention_mask"][row].bool()], expected)
    own, branch = branch_of(lvlm.under("icd"), pictures[:1])
    assert torch.equal(own["pixel_values"], branch["pixel_values"])
    decode = lvlm.processor.tokenizer.decode
    said, disturbed = (decode(inputs["input_ids"][0]).replace("\n", " ") for inputs in (own, branch))
    assert [ROLE in said, ROLE in disturbed, PROMPT in disturbed] == [False, True, True]
    system = "You are a helpful assistant."  # the role takes the place of the template's own
    assert (system in said) == (checkpoint == "qwen_folder")
    assert system not in disturbed


def test_questions_about_one_picture_share_its_noise(demo):
    lvlm, seeded = under(demo, "vcd"), under(demo, "vcd", seed=1)
    own, branch = branch_of(lvlm, [*EXAMPLES[:2], EXAMPLES[0]])
    noise = epsilon(branch["pixel_values"], own["pixel_values"])
    assert abs(float(torch.corrcoef(noise.flatten(1))[0, 1])) < 0.05
    torch.testing.assert_close(noise[0], noise[2])
    _, other = branch_of(lvlm, EXAMPLES[:1], "Is there a dog?")
    assert torch.equal(other["pixel_values"][0], branch["pixel_values"][0])
    assert not torch.equal(branch_of(seeded, EXAMPLES[:1])[1]["pixel_values"], other["pixel_values"])
    assert key_of(seeded, "caption", "a", "b", "c") != key_of(lvlm, "caption", "a", "b", "c")


TEXT = "<image>{{ messages[-1]['content'][-1]['text'] }}"
# A template that refuses a system message, one that leaves it out, and none.
TEMPLATES = ["{{ raise_exception('') if messages[0]['role'] == 'system' }}" + TEXT, TEXT, None]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_role_goes_before_the_prompt_where_there_is_no_system_message(llava_folder, photos, template):
    processor = load(llava_folder).processor
    processor.chat_template = processor.tokenizer.chat_template = template
    ids = chat_inputs(processor, "llava", [Image.open(photos["coffee"])], [PROMPT], system=ROLE)["input_ids"][0]
    assert f"{ROLE} {PROMPT}" in processor.tokenizer.decode(ids)


# --- batches

PROMPTS = ["Is there a cat on the table?", "What is it?", "Describe this picture in detail, please."]
CHECKPOINTS = [*REPRESENTATIVES[:4], "LLaVA-NeXT", "InternVL", "Idefics3"]  # the last three cut pictures up
OTHERS = list(itertools.product(["LLaVA-1.5", "Qwen2.5-VL"], ["m3id", "sid", "dola", "opera"]))
CASES = [*itertools.product(CHECKPOINTS, ["text-only", "vcd", "icd"]), *OTHERS]


# PaliGemma's processor hands torch tensors to numpy's array().
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
@pytest.mark.parametrize(
    ("checkpoint", "method"),
    mostly_slow(CASES, *((name, "vcd") for name in CHECKPOINTS), *CASES[:3], OTHERS[0], OTHERS[1], OTHERS[5]),
)
def test_a_batch_of_several_sizes_gives_the_texts_of_single_runs(checkpoint: str, method: str, checkpoint_of, photos):
    lvlm = load(checkpoint_of(checkpoint), method=method, dtype="float32", max_new_tokens=6)
    pictures = [as_picture(str(photos[name])).open().image for name in ("coffee", "tall", "rocket")]
    together = [answer.text for answer in lvlm.answer(lvlm.prepare(pictures, PROMPTS))]
    for picture, prompt, text in zip(pictures, PROMPTS, together, strict=True):
        single = lvlm.prepare([picture], [prompt])
        own = {name for name in single if not name.startswith(BRANCH)}
        assert {name.removeprefix(BRANCH) for name in single if name not in own} <= own
        assert lvlm.answer(single)[0].text == text


# --- calibrations: what `ict` changes, where, and what it refuses; its texts are in test_methods.py


def tensors(accuracy: list[list[float]], level: str = "image") -> dict[str, torch.Tensor]:
    """A model of 3 layers and 2 slices; slice s of layer l has spread l + s/10 and points along axis 2l + s."""
    spread = torch.tensor([[layer + number / 10 for number in range(2)] for layer in range(3)])
    directions = torch.eye(32)[:6].view(3, 2, 32)
    return {f"{level}.direction": directions, f"{level}.spread": spread, f"{level}.accuracy": torch.tensor(accuracy)}


IMAGE = tensors([[0.6, 0.9], [0.5, 0.8], [0.7, 0.7]])
OBJECT = tensors([[0.9, 0.5], [0.5, 0.8], [0.5, 0.5]], "object")
FIRST, SECOND, THIRD = (0, 32 + 1), (1, 32 + 3), (2, 4)  # layer and number: slice 1 of layers 0 and 1, slice 0 of 2


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        (Ict(slices=2), IMAGE, {FIRST: 0.8, SECOND: 8.8}),  # the most accurate: strength 8, spreads 0.1 and 1.1
        (Ict(slices=2, strength=0.5), IMAGE, {FIRST: 0.05, SECOND: 0.55}),
        (Ict(slices=3), IMAGE, {FIRST: 0.8, SECOND: 8.8, THIRD: 16.0}),  # of equally accurate ones the first
        # Of the object level: layer 0, slice 0, whose spread is 0, and layer 1, slice 1 again.
        (Ict(slices=2), IMAGE | OBJECT, {FIRST: 0.8, SECOND: 17.6}),
        (Ict(slices=2, level="both"), IMAGE | OBJECT, {FIRST: 0.8, SECOND: 17.6}),
        (Ict(slices=2, level="image"), IMAGE | OBJECT, {FIRST: 0.8, SECOND: 8.8}),
        (Ict(slices=2, level="object"), IMAGE | OBJECT, {SECOND: 8.8}),
    ],
)
def test_the_best_slices_get_strength_times_spread_along_their_direction(method: Ict, given, expected):
    added = method.vectors(given, 3, 2)
    assert added.shape == (3, 64)
    assert {(int(i), int(j)): round(float(added[i, j]), 4) for i, j in added.nonzero()} == expected


@pytest.mark.parametrize(("layers", "slices", "expected"), [(32, 128, 256), (28, 112, 196), (8, 6, 3), (3, 2, 1)])
def test_the_number_of_slices_is_the_authors_share(layers, slices, expected):
    accuracy = torch.rand(layers, slices, generator=torch.Generator().manual_seed(0))
    given = {"image.direction": torch.ones(layers, slices, 32), "image.spread": torch.ones(layers, slices)}
    added = Ict().vectors({**given, "image.accuracy": accuracy}, layers, slices)
    assert int(added.view(-1, 32).any(dim=1).sum()) == expected


@pytest.mark.parametrize(
    ("method", "given", "shape", "error", "message"),
    [
        (Ict("c", slices=7), IMAGE, (3, 2), SettingsError, "slices of method ict must be 6 or less"),
        (Ict("c", level="object"), IMAGE, (3, 2), SettingsError, "c: has no object level, only image"),
        (Ict("c"), IMAGE, (4, 2), SettingsError, r"made for a model of 3 x 2 slices .* this one has 4 x 2"),
        (Ict("c"), {"image.spread": torch.ones(3, 2)}, (3, 2), DataError, "c: has no image.direction: make it again"),
    ],
)
def test_a_calibration_of_ict_that_does_not_fit_is_refused(method, given, shape, error, message, tmp_path):
    with pytest.raises(error, match=message):
        method.vectors(given, *shape)
    with pytest.raises(UnsupportedModelError, match="slices of 32, which do not fit into 80"):
        slices_of(80)
    case, path = case_of("LLaVA-1.5"), tmp_path / "other.safetensors"
    other = Ict().stand_in(case.model) | {"image.direction": torch.ones(6, 4, 32)}
    Calibration(Origin("ict", "tiny", "tiny", {}, "0"), other).write(path)
    before = hooks(case.model)
    with pytest.raises(SettingsError, match=r"6 x 4 slices .* this one has 6 x 2"), attached(Ict(str(path)), case):
        pass
    assert hooks(case.model) == before


def test_the_vectors_follow_the_precision_of_the_layers():
    case = tiny.llava()
    with pytest.raises(UnsupportedModelError, match="chunked"):  # the last positions of pieces would change
        decoded(Ict(), case, prefill_chunk_size=8)
    half = Tiny(case.model.bfloat16(), {**case.inputs, "pixel_values": case.inputs["pixel_values"].bfloat16()})
    assert decoded(Ict(), half)[0].shape == (1, 6)


# --- and `maskcd`

UNEVEN = [  # of 6 layers with 4 heads; above 0.7 their layer's mean, in standard deviations: none, one or two of them
    [0.1, 0.1, 0.1, 0.1],
    [0.1, 0.9, 0.1, 0.1],
    [0.9, 0.1, 0.9, 0.1],
    [0.2, 0.3, 0.4, 0.5],
    [0.8, 0.7, 0.8, 0.1],
    [0.1, 0.1, 0.1, 0.9],
]


def written(folder: Path, mass: object, **settings) -> MaskCd:
    path = folder / "maskcd.safetensors"
    Calibration(Origin("maskcd", "tiny", "r", {}, "0"), {MASS: torch.as_tensor(mass)}).write(path)
    return MaskCd(calibration=str(path), **settings)


def test_z_scores_and_the_usual_threshold_by_hand():
    assert z_scores(torch.tensor([[1.0, 1.0, 1.0, 5.0]]))[0].tolist() == pytest.approx([-1 / 3**0.5] * 3 + [3**0.5])
    assert usual_threshold(32) == usual_threshold(40) == 2.5
    # One head of many that stands out has sqrt(H - 1), and no other z-score is larger: 2.5 is 0.449 of it for 32.
    assert usual_threshold(4) == pytest.approx(2.5 * 3**0.5 / 31**0.5)
    assert usual_threshold(28) == pytest.approx(2.5 * 27**0.5 / 31**0.5)
    assert MaskCd(threshold=2.5).threshold_for(4) == 2.5


OTHER_MODEL = r"made for a model of {} heads .* has 6 x 4: sira calibrate maskcd"


@pytest.mark.parametrize(
    ("mass", "threshold", "error", "message"),
    [
        # Else it would be greedy, unseen.
        (
            UNEVEN,
            2.5,
            SettingsError,
            r"no head has a z-score above 2\.5, the largest is 1\.732 \(layer 1, head 1\): give",
        ),
        ([[0.5] * 4] * 6, 0.0, SettingsError, "no head has"),
        ([[0.1] * 3 + [0.9]] * 5, 1.0, SettingsError, OTHER_MODEL.format("5 x 4")),
        ([[0.1] * 7 + [0.9]] * 6, 1.0, SettingsError, OTHER_MODEL.format("6 x 8")),
        (torch.ones(2), 1.0, DataError, "has no image_mass"),
        (torch.full((6, 4), torch.nan), 1.0, DataError, "has no image_mass"),
    ],
)
def test_a_calibration_of_maskcd_that_does_not_fit_is_refused(mass, threshold, error, message, tmp_path):
    case, method = case_of("LLaVA-1.5"), written(tmp_path, mass, threshold=threshold)
    with pytest.raises(error, match=message):
        method.check_model(case.model, None)
    with pytest.raises(error, match=message), attached(method, case):
        pass


@pytest.mark.parametrize("name", ["LLaVA-1.5", "Gemma 3", "Qwen3-VL"])
def test_several_heads_and_layers_without_one_equal_the_reference(tmp_path, name):
    """Gemma 3 and Qwen3-VL have heads of a size of their own, all of them share keys between heads."""
    case = case_of(name)
    mass = [[*row[:3], row[3] + 1e-4] for row in UNEVEN]  # so that the reference can divide by every spread
    expected = slow.maskcd(case, mass, 0.99)
    tokens, scores = decoded(written(tmp_path, mass, threshold=0.99), case)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=1e-4, rtol=1e-5)


def test_records_and_keys_hold_the_threshold_in_force(tmp_path):
    lvlm, threshold = load("demo", method="maskcd", max_new_tokens=4), 2.5 * math.sqrt(2 / 31)
    held = lvlm.caption(EXAMPLES[0]).method_settings
    assert held["threshold"] == pytest.approx(threshold)
    assert held["calibration"].startswith("sha256:")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(next((SHIPPED_CALIBRATIONS / "maskcd").glob("*.safetensors")).read_bytes())

    def key(**settings):
        return key_of(load("demo", method="maskcd", **settings), "caption", "a", "b", "c")

    assert key() == key(calibration=str(copy)) == key(threshold=threshold) != key(threshold=1.2)
    with pytest.raises(SettingsError, match=r"the largest is 1\.4"):
        load("demo", method="maskcd", threshold=2.5)
    # The shipped calibration silences some heads, and says what it is from.
    heads, origin = lvlm.decoder.image_heads(), lvlm.decoder.read().origin
    assert 0 < int(heads.sum()) < heads.numel() / 2
    assert [origin.kind, origin.model, origin.revision] == ["maskcd", "bundled", lvlm.revision]


def test_attach_takes_a_calibration_and_one_s_own_inputs(tmp_path):
    case = case_of("LLaVA-1.5")
    method = written(tmp_path, MaskCd().stand_in(case.model)[MASS])  # one image head per layer
    assert method.image_heads().sum(dim=1).tolist() == [1] * tiny.LAYERS
    expected, _ = decoded(method, case)
    with attach(case.model, method="maskcd", inputs=case.inputs, calibration=method.calibration):
        assert torch.equal(generate(case.model, case.inputs), expected)
    needed = pytest.raises(SettingsError, match="set `calibration=` to a file")
    with needed, attach(case.model, method="maskcd", inputs=case.inputs):
        pass


# --- and `vti`


def vti_of(folder: Path, tensors: dict[str, torch.Tensor], **settings) -> Vti:
    path = folder / "vti.safetensors"
    Calibration(Origin("vti", "tiny", "r", {}, "0"), tensors).write(path)
    return Vti(calibration=str(path), **settings)


@pytest.mark.parametrize(("text", "image"), [(3.0, 0.0), (0.0, 3.0), (0.5, 2.0)])
def test_decoder_and_tower_are_steered_with_strengths_of_their_own(tmp_path, text, image):
    case = case_of("LLaVA-1.5")
    tensors = {name: 5 * tensor.float() for name, tensor in Vti().stand_in(case.model).items()}  # length is no matter
    tokens, scores = decoded(vti_of(tmp_path, tensors, alpha_text=text, alpha_image=image), case)
    expected = slow.vti(case, tensors, text, image)
    assert tokens[0].tolist() == expected.tokens
    torch.testing.assert_close(scores[:, 0], expected.scores, atol=1e-4, rtol=1e-5)
    assert float((scores[0, 0] - slow.vti(case, tensors, 0.0, 0.0).scores[0]).abs().max()) > 0.05


def test_without_directions_of_a_tower_only_the_decoder_is_steered(tmp_path):
    case = case_of("Qwen2.5-VL")
    tensors = Vti().stand_in(case.model)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {"text": (6, 64)}
    method = vti_of(tmp_path, tensors)
    assert (method.settings()["alpha_image"], Vti().settings()["alpha_image"]) == (0.0, None)
    with pytest.raises(SettingsError, match=r"has no directions for the image tower.*`alpha_image=`, or set it to 0"):
        method.with_values(alpha_image=0.9).check_model(case.model, None)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"text": torch.ones(5, 64)}, SettingsError, r"made for 5 x 64 .* has 6 x 64: sira calibrate vti"),
        ({"image": torch.ones(3, 26, 32)}, SettingsError, r"made for 3 x 26 x 32 .* has 3 x 17 x 32"),
        ({"text": torch.full((6, 64), torch.nan)}, DataError, "has no finite text directions"),
    ],
)
def test_a_calibration_of_vti_that_does_not_fit_is_refused(changed, error, message, tmp_path):
    case = case_of("LLaVA-1.5")
    method = vti_of(tmp_path, Vti().stand_in(case.model) | changed)
    with pytest.raises(error, match=message):
        method.check_model(case.model, None)


def test_keys_of_vti_hold_its_calibration_and_the_strengths_in_force(tmp_path):
    shipped = next((SHIPPED_CALIBRATIONS / "vti").glob("*.safetensors"))
    copy, other = tmp_path / "copy.safetensors", tmp_path / "other.safetensors"
    copy.write_bytes(shipped.read_bytes())
    made = Calibration.read(shipped)
    Calibration(made.origin, {**made.tensors, "text": -made.tensors["text"]}).write(other)

    def key(**settings):
        return key_of(load("demo", method="vti", **settings), "caption", "a", "b", "c")

    assert key() == key(calibration=str(copy)) == key(alpha_image=0.9, alpha_text=0.9)
    assert len({key(), key(calibration=str(other)), key(alpha_image=0.0), key(alpha_text=0.5)}) == 4
