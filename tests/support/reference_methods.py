"""The other methods by the letter, slow and plain: no cache, every stream a pass over the whole sequence.

One unpadded prompt at a time. It shares no code with the package: rules and branches are written down again.
"""

from __future__ import annotations

import copy
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.reference import extend
from tests.support.tiny import IMAGE, SUPPRESS, Tiny

Inputs = dict[str, Tensor]
Rule = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Texts:
    """`tokens [T]`; `scores [T, V]`: what the rule gave, before any logits processor."""

    tokens: list[int]
    scores: Tensor


@torch.no_grad()
def decode(
    case: Tiny, branch: Inputs | None, rule: Rule, steps: int = 6, penalty: float = 1.0, blind: Any = None
) -> Texts:
    """Greedy decoding by `rule(z, z', t)`, t from 1; z' of `branch`, or nothing.

    `penalty` is a repetition penalty over prompt and text, as a logits processor would put it on the scores. `blind` is
    the model that the branch runs through, if it is another one.
    """
    inputs, tokens, scores = dict(case.inputs), [], []
    second = blind or case.model
    for step in range(1, steps + 1):
        z = case.model(**inputs, use_cache=False).logits[0, -1].float()
        other = z if branch is None else second(**branch, use_cache=False).logits[0, -1].float()
        scores.append(rule(z, other, step))
        tokens.append(chosen(scores[-1], inputs, penalty))
        inputs = extend(inputs, tokens[-1], case.grown)
        if branch is not None:
            branch = extend(branch, tokens[-1], {name: value for name, value in case.grown.items() if name in branch})
    return Texts(tokens, torch.stack(scores))


def chosen(scores: Tensor, inputs: Inputs, penalty: float = 1.0) -> int:
    """The best token after a repetition penalty over prompt and text, as a logits processor would put it."""
    scores, seen = scores.clone(), inputs["input_ids"][0].unique()
    scores[seen] = torch.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
    scores[SUPPRESS] = -torch.inf
    return int(scores.argmax())


def layers_of(model: Any) -> Any:
    """The decoder layers; Llama 4's decoder is a model with a head."""
    decoder = model.get_decoder()
    return getattr(decoder, "model", decoder).layers


def text_only(case: Tiny) -> Inputs:
    """The prompt with its placeholders deleted."""
    text = case.inputs["input_ids"] != IMAGE
    branch = {"input_ids": case.inputs["input_ids"][text][None]}
    branch["attention_mask"] = torch.ones_like(branch["input_ids"])
    if "token_type_ids" in case.inputs:
        branch["token_type_ids"] = torch.zeros_like(branch["input_ids"])
    return branch


@torch.no_grad()
def without_eyes(case: Tiny, alpha: float, steps: int = 6) -> Texts:
    """Greedy decoding by (1 + alpha) z - alpha z', where z' never meets the model around the text stack.

    The text's embeddings go into the decoder by hand, at positions 0, 1, 2, ... and under masks written down here.
    """
    model, config = case.model, case.model.config.get_text_config(decoder=True)
    decoder, ids = model.get_decoder(), case.inputs["input_ids"]
    text, prompt = ids[ids != IMAGE][None], int((ids != IMAGE).sum())
    inputs, tokens, scores = dict(case.inputs), [], []
    for _ in range(steps):
        length = text.shape[1]
        row, column = torch.arange(length)[:, None], torch.arange(length)[None]
        seen = column <= row
        if case.grown.get("token_type_ids") == 1:  # PaliGemma: the prompt's rows see the whole prompt
            seen = seen | ((row < prompt) & (column < prompt))
        window = getattr(config, "sliding_window", None) or length
        masks = {
            "full_attention": seen,
            # all but PaliGemma's prefix looks back so far only
            "sliding_attention": seen & ((column > row - window) | ((row < prompt) & (column > row))),
        }
        masks = {
            kind: torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None] for kind, mask in masks.items()
        }
        masks |= dict.fromkeys(("linear_attention", "conv"))  # nothing is padded
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        positions = torch.arange(length)[None]
        hidden = decoder(
            inputs_embeds=model.get_input_embeddings()(text),
            attention_mask=masks if len(kinds) > 1 else masks[kinds.pop()],
            position_ids=positions.expand(3, 1, -1) if "Qwen" in type(model).__name__ else positions,
            use_cache=False,
        ).last_hidden_state[0, -1]
        blind = model.get_output_embeddings()(hidden).float()
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            blind = cap * torch.tanh(blind / cap)
        z = model(**inputs, use_cache=False).logits[0, -1].float()
        scores.append(z + alpha * (z - blind))
        tokens.append(chosen(scores[-1], inputs))
        inputs = extend(inputs, tokens[-1], case.grown)
        text = torch.cat([text, torch.tensor([[tokens[-1]]])], dim=1)
    return Texts(tokens, torch.stack(scores))


def maskcd(case: Tiny, mass: list[list[float]], threshold: float, **settings: float) -> Texts:
    """MaskCD with alpha 1 and beta 0.1: what the image heads hand on is cut out of the weights of a copy."""
    blind = copy.deepcopy(case.model)
    text = case.model.config.get_text_config()
    for layer, row in zip(layers_of(blind), mass, strict=True):
        weight = layer.self_attn.o_proj.weight  # [d, H * D]
        size = weight.shape[1] // text.num_attention_heads
        for head, value in enumerate(row):
            if (value - statistics.mean(row)) / statistics.pstdev(row) > threshold:
                weight[:, head * size : (head + 1) * size] = 0
    return decode(case, dict(case.inputs), vcd_rule(1.0, 0.1), blind=blind, **settings)


def cut(scores: Tensor, z: Tensor, beta: float) -> Tensor:
    """APC for one row `[V]`."""
    return torch.tensor(
        [
            s if v >= float(z.max()) + math.log(beta) else -math.inf
            for s, v in zip(scores.tolist(), z.tolist(), strict=True)
        ]
    )


def vcd_rule(alpha: float, beta: float) -> Rule:
    return lambda z, other, step: cut((1 + alpha) * z - alpha * other, z, beta)


def flb_rule(gamma: float, growth: float, beta: float) -> Callable[..., Tensor]:
    """First Logit Boosting for one text: its first logits, kept from the call with step 1."""
    first: list[Tensor] = []

    def rule(z: Tensor, other: Tensor | None, step: int) -> Tensor:
        first[:] = [z] if step == 1 else first
        return cut(z + gamma * (1 - math.exp(-growth * (step - 1))) * first[0], z, beta)

    return rule


@torch.no_grad()
def pai(case: Tiny, raised: float = 0.2, first: int = 2, gamma: float = 1.1, **settings: float) -> Texts:
    """PAI: eager attention written out, in which the rows that were the newest of their step see more of the image."""
    model, prompt, image = copy.deepcopy(case.model), case.inputs["input_ids"].shape[1], case.image[0]
    model.set_attn_implementation("eager")
    late = {layer.self_attn for layer in layers_of(model)[first:]}
    module = sys.modules[type(layers_of(model)[0].self_attn).__module__]
    original = module.eager_attention_forward

    def attention(attn: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
        if attn not in late or query.shape[0] > 1:
            return original(attn, query, key, value, attention_mask, **more)
        heads = []
        for head in range(query.shape[1]):
            group = head * key.shape[1] // query.shape[1]
            scores = query[0, head] @ key[0, group].T * more["scaling"]  # [S, S]
            if more.get("softcap"):
                scores = more["softcap"] * torch.tanh(scores / more["softcap"])
            for row in range(prompt - 1, len(scores)):
                for column in image.nonzero().flatten().tolist():
                    scores[row, column] += raised * abs(scores[row, column])
            hidden = torch.full_like(scores, -1e30).triu(1) if attention_mask is None else attention_mask[0, 0]
            scores = scores + hidden
            heads.append(scores.softmax(-1) @ value[0, group])
        return torch.stack(heads, dim=1)[None], None

    def rule(z: Tensor, other: Tensor, step: int) -> Tensor:
        log_p, log_q = z.log_softmax(0), other.log_softmax(0)
        return cut(gamma * (log_p - log_q) + log_q, log_p, 0.1)

    module.eager_attention_forward = attention
    try:
        return decode(Tiny(model, case.inputs, case.grown), text_only(case), rule, blind=case.model, **settings)
    finally:
        module.eager_attention_forward = original


@torch.no_grad()
def vista(case: Tiny, strength: float = 0.17, mix: float = 0.3, steps: int = 6, penalty: float = 1.0) -> Texts:
    """VISTA without a cache: v of the prompt with and without its image, then every row of every MLP steered by it."""
    layers, head = layers_of(case.model), case.model.get_output_embeddings()
    window = range(25 * len(layers) // 32, 30 * len(layers) // 32 + 1)

    def outputs(inputs: Inputs, steering: list[Tensor] | None) -> tuple[list[Tensor], Tensor]:
        kept: dict[int, Tensor] = {}
        handles = []
        for number, layer in enumerate(layers):

            def keep(module: Any, args: Any, out: Any, number: int = number) -> None:
                kept[number] = (out[0] if isinstance(out, tuple) else out)[0, -1]

            def steer(module: Any, args: Any, out: Any, number: int = number) -> Any:
                if steering is None:
                    return None
                if isinstance(out, tuple):
                    return steer(module, args, out[0], number), *out[1:]
                rows = []
                for x in out[0]:
                    unit = steering[number] / steering[number].norm()
                    near = max(0.0, float(-(x @ unit) / x.norm()))
                    moved = x / x.norm() + strength * (1 + near) * unit
                    rows.append(moved / moved.norm() * x.norm())
                return torch.stack(rows)[None]

            handles += [layer.register_forward_hook(keep), layer.mlp.register_forward_hook(steer)]
        try:
            z = case.model(**inputs, use_cache=False).logits[0, -1].float()
        finally:
            for handle in handles:
                handle.remove()
        return [kept[number] for number in range(len(layers))], z

    blind, seen = outputs(text_only(case), None)[0], outputs(case.inputs, None)[0]
    steering = [one - other for one, other in zip(seen, blind, strict=True)]
    inputs, tokens, scores = dict(case.inputs), [], []
    for _ in range(steps):
        hidden, z = outputs(inputs, steering)
        early = torch.stack([head(hidden[number]).float() for number in window]).mean(0)
        scores.append(mix * early + (1 - mix) * z)
        tokens.append(chosen(scores[-1], inputs, penalty))
        inputs = extend(inputs, tokens[-1], case.grown)
    return Texts(tokens, torch.stack(scores))


def m3id_rule(z: Tensor, other: Tensor, step: int) -> Tensor:
    gamma = math.exp(-0.02 * step)
    full, blind = z.log_softmax(0), other.log_softmax(0)
    return cut(full + (1 - gamma) / gamma * (full - blind), z, 0.1)


def diffusion_share(step: int) -> float:
    """The cumulative product of VCD's published noise schedule."""
    betas = torch.sigmoid(torch.linspace(-6, 6, 1000, dtype=torch.float64)) * (0.5e-2 - 1e-5) + 1e-5
    return float(torch.cumprod(1 - betas, dim=0)[step])


@torch.no_grad()
def dola(case: Tiny, candidates: list[int], steps: int = 6) -> Texts:
    """DoLa as it came with transformers, for one row."""
    inputs, tokens, scores = dict(case.inputs), [], []
    for _ in range(steps):
        output = case.model(**inputs, use_cache=False, output_hidden_states=True)
        z = output.logits[0, -1].float()
        early = [
            case.model.get_output_embeddings()(output.hidden_states[number][0, -1]).float() for number in candidates
        ]
        p = z.softmax(0)
        divergences = []
        for other in early:
            m = 0.5 * (p + other.softmax(0))
            kl1 = torch.nn.functional.kl_div(z.log_softmax(0), m, reduction="none").mean()
            kl2 = torch.nn.functional.kl_div(other.log_softmax(0), m, reduction="none").mean()
            divergences.append(float(0.5 * (kl1 + kl2)))
        base = early[divergences.index(max(divergences))]
        scores.append(cut(z.log_softmax(0) - base.log_softmax(0), z.log_softmax(0), 0.1))
        tokens.append(chosen(scores[-1], inputs))
        inputs = extend(inputs, tokens[-1], case.grown)
    return Texts(tokens, torch.stack(scores))


@torch.no_grad()
def sid(case: Tiny, visible: int, steps: int = 6) -> tuple[Texts, list[set[int]]]:
    """SID with alpha 0.5, beta 0.1, and the image tokens that each step's row leaves visible.

    Each row of the contrast pass keeps the choice of the step in which it was the newest; the prompt's rows
    share that of the prompt's last row. Run on a copy with eager attention, which gives its weights.
    """
    model = copy.deepcopy(case.model)
    model.set_attn_implementation("eager")
    inputs, image = dict(case.inputs), case.image[0]
    prompt, positions = len(image), image.nonzero().flatten()
    tokens, scores, choices = [], [], []
    for _ in range(steps):
        output = model(**inputs, use_cache=False, output_attentions=True)
        weights = output.attentions[1][0].float().mean(dim=0)[-1]  # [S]
        choices.append({int(positions[i]) for i in weights[positions].argsort()[:visible]})
        hidden = set(positions.tolist())
        blocked = torch.zeros(len(weights), len(weights), dtype=torch.bool)
        for row in range(len(weights)):
            blocked[row, sorted(hidden - choices[max(0, row - prompt + 1)])] = True
        z = output.logits[0, -1].float()
        scores.append(vcd_rule(0.5, 0.1)(z, blocked_pass(model, inputs, blocked), 0))
        tokens.append(chosen(scores[-1], inputs))
        inputs = extend(inputs, tokens[-1], case.grown)
    return Texts(tokens, torch.stack(scores)), choices


def blocked_pass(model: Any, inputs: Inputs, blocked: Tensor) -> Tensor:
    """z' `[V]` with `blocked [S, S]` out of sight from layer 2 on."""

    def block(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, mask = args[0], kwargs["attention_mask"]
        lowest = torch.finfo(hidden.dtype).min
        if mask is None:
            mask = torch.full((1, 1, *blocked.shape), lowest).triu(1)
        return args, {**kwargs, "attention_mask": mask.masked_fill(blocked, lowest)}

    handles = [layer.register_forward_pre_hook(block, with_kwargs=True) for layer in layers_of(model)[2:]]
    try:
        logits: Tensor = model(**inputs, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits[0, -1].float()


def ict_vectors(
    tensors: Inputs, layers: int, strength: float, slices: int, levels: tuple[str, ...]
) -> list[list[float]]:
    """What ICT adds in each layer, number by number."""
    width = tensors[f"{levels[0]}.direction"].shape[1] * 32
    added = [[0.0] * width for _ in range(layers)]
    for level in levels:
        direction, spread, accuracy = (
            tensors[f"{level}.{name}"].tolist() for name in ("direction", "spread", "accuracy")
        )
        places = [(layer, number) for layer in range(layers) for number in range(width // 32)]
        for layer, number in sorted(places, key=lambda place: -accuracy[place[0]][place[1]])[:slices]:
            for i in range(32):
                added[layer][number * 32 + i] += strength * spread[layer][number] * direction[layer][number][i]
    return added


@torch.no_grad()
def ict(case: Tiny, vectors: list[list[float]], steps: int = 6, penalty: float = 1.0) -> Texts:
    """ICT without a cache: the vectors are added behind o_proj at each position that was the last one in its step."""
    inputs, tokens, scores = dict(case.inputs), [], []
    prompt = case.inputs["input_ids"].shape[1]

    def adding(vector: list[float]) -> Callable[..., Tensor]:
        def add(module: Any, args: Any, output: Tensor) -> Tensor:
            changed = output.clone()
            for position in range(prompt - 1, output.shape[1]):
                changed[0, position] = output[0, position] + torch.tensor(vector)
            return changed

        return add

    layers = layers_of(case.model)
    handles = [
        layer.self_attn.o_proj.register_forward_hook(adding(vector))
        for layer, vector in zip(layers, vectors, strict=True)
    ]
    try:
        for _ in range(steps):
            scores.append(case.model(**inputs, use_cache=False).logits[0, -1].float())
            tokens.append(chosen(scores[-1], inputs, penalty))
            inputs = extend(inputs, tokens[-1], case.grown)
    finally:
        for handle in handles:
            handle.remove()
    return Texts(tokens, torch.stack(scores))
