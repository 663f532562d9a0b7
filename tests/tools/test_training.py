"""Training: what the model learns from is what it is asked later, and an interruption changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import make_scene, render
from sira_cli.errors import SettingsError
from sira_cli.models.chat import chat_inputs
from sira_cli.models.presets import BUNDLED_FOLDER
from sira_cli.run.lvlm import load
from tools import train
from tools.pictures import Pictures
from tools.texts import BLIND_QUESTIONS, PICTURE, PREAMBLE, Recipe, Texts, attention_mask

FEW = {"vision_scenes": 12, "vision_steps": 4, "vision_batch": 4, "placing_steps": 3, "language_scenes": 8}
TINY = Recipe(**FEW, odd_scenes=4, language_steps=4, balancing_steps=2, language_batch=2, questions=2)


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


def test_balancing_draws_its_share_of_odd_scenes(lvlm):
    for share in (0, 1):
        texts = Texts(lvlm.processor.tokenizer, replace(TINY, balancing_odd=share))
        assert (texts[TINY.language_steps]["index"] >= TINY.language_scenes).float().mean() == share


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
            attention_mask=attention_mask(batch["segment"], batch["seeing"]),
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
            for stage, step in (("vision", 2), ("placing", 1), ("language", 3), ("balancing", 1)):
                with monkeypatch.context() as patch:
                    patch.setattr(train.Progress, "step", stop_at(stage, step))
                    with pytest.raises(KeyboardInterrupt):
                        train.train(TINY, folder, tmp_path / f"{name}-out", workers=1)
        train.train(TINY, folder, tmp_path / f"{name}-out", workers=1)
        weights.append(load_file(tmp_path / f"{name}-out" / "model.safetensors"))
    assert weights[0].keys() == load_file(BUNDLED_FOLDER / "model.safetensors").keys()
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_a_training_begun_with_another_recipe_is_not_mixed_up(tmp_path):
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SettingsError, match="begun with another recipe: give another --work"):
        train.train(TINY, tmp_path, tmp_path / "out", workers=1)
