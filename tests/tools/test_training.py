"""Training: what the model learns from is what it is asked later, and an interruption changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sira_cli import SiraConfig
from sira_cli.core.passes import score
from sira_cli.demo.questions import held_out, mentions
from sira_cli.demo.scenes import OBJECTS, make_scene, render
from sira_cli.errors import SettingsError
from sira_cli.models.chat import chat_inputs
from sira_cli.models.presets import BUNDLED_FOLDER
from sira_cli.run.lvlm import load
from tools import train
from tools.checkpoint import LAYERS, first_token
from tools.pictures import LABEL_WORDS, Pictures
from tools.texts import (
    BLIND_QUESTIONS,
    NUMBER_WEIGHT,
    PADDING,
    PICTURE,
    PREAMBLE,
    Recipe,
    Texts,
    attention_mask,
    named_kinds,
)

FEW = {"vision_scenes": 12, "vision_steps": 4, "vision_batch": 4, "language_scenes": 8}
TINY = Recipe(**FEW, odd_scenes=4, language_steps=4, late_steps=2, language_batch=2, questions=2)


@pytest.fixture(scope="module")
def lvlm():
    return load("demo", method="greedy", max_new_tokens=4)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A work folder with the scenes rendered."""
    folder = tmp_path_factory.mktemp("work")
    Pictures(folder, TINY.vision_scenes, broken=True).render(workers=1)
    Pictures(folder, TINY.language_scenes, broken=False).render(workers=1)
    return folder


def test_training_texts_are_what_the_processor_makes(lvlm):
    texts = Texts(lvlm.processor.tokenizer, TINY)
    batch, picture = texts[0], render(held_out(0))[0]
    for row in range(TINY.language_batch):
        tokens, segments, positions = (batch[name][row] for name in ("token", "segment", "position"))
        prefix = tokens[(segments == PREAMBLE) | (segments == PICTURE)]
        for number in range(int(segments.max()) + 1):
            own = segments == number
            answered = batch["weight"][row][own] > 0
            asked = torch.cat([prefix, tokens[own][~answered]])
            prompt = lvlm.processor.tokenizer.decode(tokens[own][~answered])
            prompt = prompt.removeprefix("\n").removesuffix(" ASSISTANT:")
            inputs = chat_inputs(lvlm.processor, "llava", [picture], [prompt])
            assert inputs["input_ids"][0].tolist() == asked.tolist()
            assert positions[own].tolist() == list(range(len(prefix), len(prefix) + int(own.sum())))
            assert tokens[own][-1] == lvlm.processor.tokenizer.eos_token_id


def test_what_a_caption_has_named_is_known_at_each_token(lvlm):
    def said(tokens: torch.Tensor) -> set[str]:
        return {name for _, _, name in mentions(lvlm.processor.tokenizer.decode(tokens))}

    batch = Texts(lvlm.processor.tokenizer, TINY)[0]
    captions = 0
    for row in range(TINY.language_batch):
        segments = batch["segment"][row]
        for number in range(int(segments.max()) + 1):
            own = segments == number
            answered = batch["weight"][row][own] > 0
            tokens = batch["token"][row][own][answered]
            named = named_kinds(batch["named"][row][own][answered])
            if not named.any():
                continue
            captions += 1
            for end, kinds in enumerate(named):
                known = {name for name, is_named in zip(OBJECTS, kinds, strict=True) if is_named}
                assert said(tokens[:end]) <= known <= said(tokens)
    assert captions == 3 * TINY.language_batch  # with the picture, without it, and with it in early layers only


def test_what_says_how_many_there_are_weighs_more(lvlm):
    vocabulary = lvlm.processor.tokenizer.get_vocab()
    batch = Texts(lvlm.processor.tokenizer, TINY)[0]
    weighed = batch["token"][batch["weight"] == NUMBER_WEIGHT].tolist()
    for word in ("and", "which"):
        assert vocabulary[f"Ġ{word}"] in weighed
    for word in ("There", "is"):
        assert vocabulary[f"Ġ{word}"] not in weighed


@pytest.mark.parametrize(("step", "is_own"), [(0, True), (TINY.language_steps, False)])
def test_what_sees_the_picture_early_is_in_the_end_about_another(lvlm, step, is_own):
    batch = Texts(lvlm.processor.tokenizer, TINY)[step]
    for row in range(TINY.language_batch):
        segments, seeing, tokens = (batch[name][row] for name in ("segment", "seeing", "token"))
        early = (seeing > 0) & (seeing < LAYERS)
        named = []
        for text in (tokens[segments == 0], tokens[early]):
            named.append({name for _, _, name in mentions(lvlm.processor.tokenizer.decode(text))})
        assert (named[0] == named[1]) is is_own


def test_the_picture_is_hidden_as_from_the_counterfactual_stream(lvlm):
    """A caption that sees it in n of L layers has the logits of SIRA's CF stream under K = L - n."""
    model = lvlm.model
    batch = Texts(lvlm.processor.tokenizer, TINY)[0]
    pixels = torch.randn(1, 3, 96, 96)
    for row in range(TINY.language_batch):
        tokens, seeing, weight = (batch[name][row] for name in ("token", "seeing", "weight"))
        hidden = (seeing > 0) & (seeing < LAYERS)
        (count,) = seeing[hidden].unique().tolist()
        embedded = model.get_input_embeddings()(tokens)
        masks = [attention_mask(batch["segment"], batch["seeing"] > number)[row : row + 1] for number in range(LAYERS)]
        with torch.inference_mode():
            embedded[tokens == model.config.image_token_id] = train.image_features(model, pixels)[0]
            with train.masked_by_layer(model.model.language_model.layers, masks):
                states = model.get_decoder()(
                    inputs_embeds=embedded[None], attention_mask=masks[0], position_ids=batch["position"][row : row + 1]
                ).last_hidden_state[0]
        prompt = tokens[(batch["segment"][row] < 0) & (batch["segment"][row] != PADDING) | hidden & (weight == 0)]
        answer = tokens[hidden & (weight > 0)]
        inputs = {"input_ids": prompt[None], "attention_mask": torch.ones_like(prompt)[None], "pixel_values": pixels}
        steps = score(model, SiraConfig(k=LAYERS - count, alpha=0.5), inputs, [answer.tolist()])
        expected = torch.cat([step.cf for step in steps])
        found = model.lm_head(states[hidden][-len(answer) - 1 : -1])
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def test_naming_again_costs_its_log_probability_above_the_margin():
    logits = torch.tensor([[9.0, 1.0, 0.0, 0.0], [1.0, 9.0, 0.0, 0.0]])
    named = torch.tensor([[True, False], [True, False]])
    cost = train.repetition(logits, named, names=torch.tensor([0, 1]))
    p = logits.softmax(-1)[:, 0].log()
    assert cost == pytest.approx(float((p + train.MARGIN).clamp(min=0).mean()))


def test_muon_trains_matrices_but_tables():
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(3, 2), "inner": torch.nn.Linear(2, 2)})
    model["head"] = torch.nn.Linear(2, 3)
    matrices, tables, rest = train._sorted_parameters(model, model["head"])
    assert [id(each) for each in matrices] == [id(model["inner"].weight)]
    assert {id(each) for each in tables} == {id(model["embedding"].weight), id(model["head"].weight)}
    assert {id(each) for each in rest} == {id(model["inner"].bias), id(model["head"].bias)}


def test_the_decoder_begins_with_the_towers_directions(lvlm):
    tokenizer = lvlm.processor.tokenizer
    model = train.checkpoint.make_model(tokenizer, seed=0)
    directions = torch.randn(len(LABEL_WORDS), train.WIDTH)
    train.name_labels(model, tokenizer, directions)
    tokens = [first_token(tokenizer, word) for word in LABEL_WORDS]
    assert len({*tokens}) == len(LABEL_WORDS)
    for table in (model.get_input_embeddings().weight, model.lm_head.weight):
        torch.testing.assert_close(torch.cosine_similarity(table[tokens], directions), torch.ones(len(LABEL_WORDS)))


@pytest.mark.slow
def test_training_pixels_and_features_are_what_processor_and_decoder_have(lvlm, work):
    pixels, _ = Pictures(work, TINY.language_scenes, broken=False).batch(np.arange(3))
    for index in range(3):
        picture = render(make_scene(index))[0]
        expected = chat_inputs(lvlm.processor, "llava", [picture], ["x"])["pixel_values"][0]
        torch.testing.assert_close(pixels[index], expected, atol=1e-5, rtol=0)
    with torch.inference_mode():
        features = torch.stack(list(lvlm.model.get_image_features(pixels).pooler_output))
        torch.testing.assert_close(train.image_features(lvlm.model, pixels), features, atol=1e-5, rtol=1e-5)


def test_texts_in_one_sequence_do_not_see_each_other(lvlm):
    """A packed sequence gives each text what it has alone, with the picture or, if it is blind, without."""
    batch = Texts(lvlm.processor.tokenizer, TINY)[1]
    decoder, embed = lvlm.model.get_decoder(), lvlm.model.get_input_embeddings()
    with torch.inference_mode():
        packed = decoder(
            inputs_embeds=embed(batch["token"]),
            attention_mask=attention_mask(batch["segment"], batch["seeing"] > 0),
            position_ids=batch["position"],
        ).last_hidden_state
        for row in range(TINY.language_batch):
            names = ("token", "segment", "position", "seeing")
            (tokens, segments, positions, seeing), blind = (batch[name][row] for name in names), 0
            for number in range(int(segments.max()) + 1):
                own = segments == number
                sees = bool(seeing[own].all())
                blind += not sees
                seen = own | (segments == PREAMBLE) | (segments == PICTURE if sees else False)
                given = {"inputs_embeds": embed(tokens[seen])[None], "position_ids": positions[seen][None]}
                alone = decoder(**given).last_hidden_state[0]
                torch.testing.assert_close(packed[row][own], alone[-int(own.sum()) :], atol=1e-4, rtol=1e-4)
            assert blind == 1 + BLIND_QUESTIONS


@pytest.mark.slow
def test_an_interrupted_training_ends_as_if_it_had_never_stopped(work, tmp_path, monkeypatch):
    monkeypatch.setattr(train.checkpoint, "make_tokenizer", lambda: load("demo").processor.tokenizer)
    run_once, count, weights = train.Stage.run, train.Progress.step, []
    monkeypatch.setattr(train.Stage, "run", lambda self, losses: run_once(self, losses, save_every=1))

    def stop_at(stage: str, step: int):
        def stop(self, loss=None):
            if (self.name, self.done) == (stage, step):
                raise KeyboardInterrupt
            count(self, loss)

        return stop

    for name, interrupted in (("whole", False), ("torn", True)):
        folder = shutil.copytree(work, tmp_path / name)
        if interrupted:
            for stage, step in (("vision", 2), ("language", 3), ("late", 1)):
                with monkeypatch.context() as patch:
                    patch.setattr(train.Progress, "step", stop_at(stage, step))
                    with pytest.raises(KeyboardInterrupt):
                        train.train(TINY, folder, tmp_path / f"{name}-out", workers=1)
        train.train(TINY, folder, tmp_path / f"{name}-out", workers=1)
        weights.append(load_file(tmp_path / f"{name}-out" / "model.safetensors"))
    assert weights[0].keys() == load_file(BUNDLED_FOLDER / "model.safetensors").keys()
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


@pytest.mark.slow
def test_the_decoder_is_the_mean_of_before_and_after_its_last_steps(work, tmp_path, monkeypatch):
    monkeypatch.setattr(train.checkpoint, "make_tokenizer", lambda: load("demo").processor.tokenizer)
    folder = shutil.copytree(work, tmp_path / "work")
    train.train(replace(TINY, late_rate=3.0), folder, tmp_path / "out", workers=1)
    before, after = (torch.load(folder / f"{name}.pt")["module"]["1.weight"] for name in ("language", "late"))
    (head,) = (
        tensor for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items() if "lm_head" in name
    )
    assert (after - before).abs().median() > 1e-2
    torch.testing.assert_close(head.float(), (before + after) / 2, atol=1e-4, rtol=1e-3)


def test_a_training_begun_with_another_recipe_is_not_mixed_up(tmp_path):
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SettingsError, match="begun with another recipe: give another --work"):
        train.train(TINY, tmp_path, tmp_path / "out", workers=1)
