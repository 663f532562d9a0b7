"""The other methods by the letter, slow and plain: no cache, every stream a pass over the whole sequence.

One unpadded prompt at a time. It shares no code with the package: rules and branches are written down again.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import mean, pstdev
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sira_cli.core.reference import counterfactual, extend
from tests.support.tiny import IMAGE, SUPPRESS, Tiny

Inputs = dict[str, Tensor]
Rule = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Texts:
    """`tokens [T]`; `scores [T, V]`: what the rule gave, before any logits processor."""

    tokens: list[int]
    scores: Tensor


@torch.no_grad()
def greedy(case: Tiny, score: Callable[[Inputs, int], Tensor], steps: int = 6, penalty: float = 1.0) -> Texts:
    """Take the best token of `score(inputs so far, t)`, t from 1, again and again.

    `penalty` is a repetition penalty over prompt and text, as a logits processor would put it on the scores.
    """
    inputs, tokens, scores = dict(case.inputs), [], []
    for step in range(1, steps + 1):
        scores.append(score(inputs, step))
        row, seen = scores[-1].clone(), inputs["input_ids"][0].unique()
        row[seen] = torch.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        row[SUPPRESS] = -torch.inf
        tokens.append(int(row.argmax()))
        inputs = extend(inputs, tokens[-1], case.grown)
    return Texts(tokens, torch.stack(scores))


def logits(model: Any, inputs: Inputs) -> Tensor:
    """The logits after all inputs, `[V]`."""
    found: Tensor = model(**inputs, use_cache=False).logits[0, -1].float()
    return found


def decode(case: Tiny, branch: Inputs | None, rule: Rule, blind: Any = None, **settings: Any) -> Texts:
    """Greedy decoding by `rule(z, z', t)`; z' of `branch` in the model `blind`, if it is another one; or z itself."""
    prompt = case.inputs["input_ids"].shape[1]

    def score(inputs: Inputs, step: int) -> Tensor:
        z = logits(case.model, inputs)
        if branch is None:
            return rule(z, z, step)
        longer, grown = branch, {name: value for name, value in case.grown.items() if name in branch}
        for token in inputs["input_ids"][0, prompt:].tolist():
            longer = extend(longer, token, grown)
        return rule(z, logits(blind or case.model, longer), step)

    return greedy(case, score, **settings)


def layers_of(model: Any) -> Any:
    """The decoder layers; Llama 4's decoder is a model with a head."""
    decoder = model.get_decoder()
    return getattr(decoder, "model", decoder).layers


def hook(modules: Sequence[Any], function: Callable[..., Any]) -> None:
    """Replace what each module of a copy returns by `function(number, output)`; None leaves it."""
    for number, module in enumerate(modules):
        module.register_forward_hook(lambda _, args, output, number=number: function(number, output))


def text_only(case: Tiny) -> Inputs:
    """The prompt with its placeholders deleted."""
    text = case.inputs["input_ids"] != IMAGE
    branch = {"input_ids": case.inputs["input_ids"][text][None]}
    branch["attention_mask"] = torch.ones_like(branch["input_ids"])
    if "token_type_ids" in case.inputs:
        branch["token_type_ids"] = torch.zeros_like(branch["input_ids"])
    return branch


def maskcd(case: Tiny, mass: list[list[float]], threshold: float, **settings: float) -> Texts:
    """MaskCD with alpha 1 and beta 0.1: what the image heads hand on is cut out of the weights of a copy."""
    blind = copy.deepcopy(case.model)
    for layer, row in zip(layers_of(blind), mass, strict=True):
        silent = [(value - mean(row)) / pstdev(row) > threshold for value in row]  # [H]
        layer.self_attn.o_proj.weight.unflatten(1, (len(row), -1))[:, silent] = 0  # [d, H, D]
    return decode(case, dict(case.inputs), vcd_rule(1.0, 0.1), blind, **settings)


def cut(scores: Tensor, z: Tensor, beta: float) -> Tensor:
    """APC for one row `[V]`."""
    return scores.masked_fill(z < float(z.max()) + math.log(beta), -math.inf)


def vcd_rule(alpha: float, beta: float) -> Rule:
    return lambda z, other, step: cut((1 + alpha) * z - alpha * other, z, beta)


def flb_rule(gamma: float, growth: float, beta: float) -> Rule:
    """First Logit Boosting for one text: its first logits, kept from the call with step 1."""
    first: list[Tensor] = []

    def rule(z: Tensor, other: Tensor, step: int) -> Tensor:
        first[:] = [z] if step == 1 else first
        return cut(z + gamma * (1 - math.exp(-growth * (step - 1))) * first[0], z, beta)

    return rule


def resdec_rule(weight: float, pool: int, beta: float) -> Rule:
    """Residual Decoding for one text, whose earlier logits are kept from the call with step 1."""
    past: list[Tensor] = []

    def rule(z: Tensor, other: Tensor, step: int) -> Tensor:
        earlier, mixed = past[: step - 1], z
        past[:] = [*earlier, z]
        if earlier:
            candidates = sorted(range(len(z)), key=lambda token: -float(z[token]))[:pool]
            p = [each[candidates].double().softmax(0) for each in earlier]
            apart = [_jensen_shannon(*pair) for pair in itertools.pairwise(p)]
            first = apart.index(min(apart)) if apart else 0
            sure = [-float(each.log().mean()) for each in p[first:]]
            mixed = (1 - weight) * z
            for c, each in zip(sure, earlier[first:], strict=True):
                mixed = mixed + weight * c / sum(sure) * each
        return cut(mixed, z, beta)

    return rule


def _jensen_shannon(p: Tensor, q: Tensor) -> float:
    m = (p + q) / 2
    return float(sum(F.kl_div(m.log(), each, reduction="sum") for each in (p, q))) / 2


def after_sira(case: Tiny, rule: Rule, k: int = 3, alpha: float = 0.5, **settings: Any) -> Texts:
    """Greedy decoding by `rule(z_cd, z_cd, t)`, z_cd of Algorithm 1."""

    def score(inputs: Inputs, step: int) -> Tensor:
        image = F.pad(case.image, (0, step - 1), value=False)
        z_cd = (1 + alpha) * logits(case.model, inputs) - alpha * counterfactual(case.model, inputs, image, k)
        return rule(z_cd, z_cd, step)

    return greedy(case, score, **settings)


def m3id_rule(z: Tensor, other: Tensor, step: int) -> Tensor:
    gamma = math.exp(-0.02 * step)
    full, blind = z.log_softmax(0), other.log_softmax(0)
    return cut(full + (1 - gamma) / gamma * (full - blind), z, 0.1)


@contextmanager
def scores_changed(model: Any, layers: slice, change: Callable[[Tensor, float | None], Tensor]) -> Iterator[None]:
    """Write attention out in some layers of a model: `change [B, H, S, S]` of the scores, before mask and softmax."""
    model.set_attn_implementation("eager")
    changed = {layer.self_attn for layer in layers_of(model)[layers]}
    module = sys.modules[type(layers_of(model)[0].self_attn).__module__]
    original = module.eager_attention_forward

    def attention(attn: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
        if attn not in changed or query.shape[0] > 1:
            return original(attn, query, key, value, attention_mask, **more)
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
        scores = change(query @ key.transpose(2, 3) * more["scaling"], more.get("softcap"))  # [1, H, S, S]
        causal = torch.full_like(scores, -1e30).triu(1)
        scores = scores + (causal if attention_mask is None else attention_mask)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    module.eager_attention_forward = attention
    try:
        yield
    finally:
        module.eager_attention_forward = original


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    return softcap * torch.tanh(scores / softcap) if softcap else scores


def pai(case: Tiny, raised: float = 0.2, first: int = 2, gamma: float = 1.1, **settings: float) -> Texts:
    """PAI: the rows that were the newest of their step see more of the image."""
    model, prompt, image = copy.deepcopy(case.model), case.image.shape[1], case.image[0].nonzero().flatten()

    def change(scores: Tensor, softcap: float | None) -> Tensor:
        scores = capped(scores, softcap)
        scores[:, :, prompt - 1 :, image] += raised * scores[:, :, prompt - 1 :, image].abs()
        return scores

    def rule(z: Tensor, other: Tensor, step: int) -> Tensor:
        log_p, log_q = z.log_softmax(0), other.log_softmax(0)
        return cut(gamma * (log_p - log_q) + log_q, log_p, 0.1)

    with scores_changed(model, slice(first, None), change):
        return decode(replace(case, model=model), text_only(case), rule, case.model, **settings)


def vaf(case: Tiny, enhance: float = 1.15, suppress: float = 0.95, **settings: float) -> Texts:
    """VAF as in its authors' `AttnAdapter`, in the layers 9 to 14 of 32: rows after the image see more of it."""
    model, image = copy.deepcopy(case.model), case.image[0].nonzero().flatten()
    start, end = int(image[0]), int(image[-1]) + 1
    layers = len(layers_of(model))

    def change(scores: Tensor, softcap: float | None) -> Tensor:
        scores[:, :, end:, image] = enhance * scores[:, :, end:, image]
        scores[:, :, end:, :start] = suppress * scores[:, :, end:, :start]
        return capped(scores, softcap)

    with scores_changed(model, slice(9 * layers // 32, max(15 * layers // 32, 9 * layers // 32 + 1)), change):
        return greedy(case, lambda inputs, step: logits(model, inputs), **settings)


def vista(case: Tiny, strength: float = 0.17, mix: float = 0.3, **settings: float) -> Texts:
    """VISTA without a cache: v of the prompt with and without its image, then every row of every MLP steered by it."""
    model, hidden, steering = copy.deepcopy(case.model), list[Tensor](), list[Tensor]()
    layers, head = layers_of(model), model.get_output_embeddings()
    window = range(25 * len(layers) // 32, 30 * len(layers) // 32 + 1)

    def steer(number: int, out: Any) -> Any:
        if not steering:
            return None
        if isinstance(out, tuple):
            return steer(number, out[0]), *out[1:]
        unit, length = steering[number] / steering[number].norm(), out.norm(dim=-1, keepdim=True)
        near = (-(out @ unit)[..., None] / length).clamp(min=0)
        moved = out / length + strength * (1 + near) * unit
        return moved / moved.norm(dim=-1, keepdim=True) * length

    def run(inputs: Inputs) -> Tensor:
        hidden.clear()
        return logits(model, inputs)

    def score(inputs: Inputs, step: int) -> Tensor:
        z = run(inputs)
        early = torch.stack([head(hidden[number]).float() for number in window]).mean(0)
        return mix * early + (1 - mix) * z

    hook(layers, lambda number, out: hidden.append((out[0] if isinstance(out, tuple) else out)[0, -1]))
    hook([layer.mlp for layer in layers], steer)
    with torch.no_grad():
        last_rows = [(run(inputs), [*hidden])[1] for inputs in (case.inputs, text_only(case))]
    steering = [seen - blind for seen, blind in zip(*last_rows, strict=True)]
    return greedy(case, score, **settings)


def vti(case: Tiny, tensors: Inputs, alpha_text: float = 0.9, alpha_image: float = 0.9, **settings: float) -> Texts:
    """VTI as in its authors' `VTILayer`, behind every MLP of a copy's decoder, and of its tower if there is a part."""
    model = copy.deepcopy(case.model)

    def turned(alpha: float, direction: Tensor, out: Any) -> Any:
        if isinstance(out, tuple):
            return turned(alpha, direction, out[0]), *out[1:]
        d = direction.float() / direction.float().norm(dim=-1, keepdim=True)
        length = out.norm(dim=-1, keepdim=True)
        moved = out / length + 0.1 * alpha * d
        return moved / moved.norm(dim=-1, keepdim=True) * length

    mlps = [layer.mlp for layer in layers_of(model)]
    hook(mlps, lambda number, out: turned(alpha_text, tensors["text"][number], out))
    if "image" in tensors:
        tower = [layer.mlp for layer in model.model.vision_tower.encoder.layers]
        hook(tower, lambda number, out: turned(alpha_image, tensors["image"][number], out))
    return greedy(case, lambda inputs, step: logits(model, inputs), **settings)


def diffusion_share(step: int) -> float:
    """The cumulative product of VCD's published noise schedule."""
    betas = torch.sigmoid(torch.linspace(-6, 6, 1000, dtype=torch.float64)) * (0.5e-2 - 1e-5) + 1e-5
    return float(torch.cumprod(1 - betas, dim=0)[step])


def dola(case: Tiny, candidates: list[int], **settings: Any) -> Texts:
    """DoLa as it came with transformers, for one row."""
    head = case.model.get_output_embeddings()

    def score(inputs: Inputs, step: int) -> Tensor:
        output = case.model(**inputs, use_cache=False, output_hidden_states=True)
        z = output.logits[0, -1].float()
        early = torch.stack([head(output.hidden_states[number][0, -1]).float() for number in candidates])  # [C, V]
        m = 0.5 * (z.softmax(0) + early.softmax(1))
        sides = z.log_softmax(0).expand_as(m), early.log_softmax(1)
        base = early[sum(F.kl_div(side, m, reduction="none").mean(1) for side in sides).argmax()]
        return cut(z.log_softmax(0) - base.log_softmax(0), z.log_softmax(0), 0.1)

    return greedy(case, score, **settings)


def deco(case: Tiny, alpha: float = 0.6, top_p: float = 0.9, top_k: int = 20, **settings: Any) -> Texts:
    """DeCo's `deco_greedy_search`, for one row, with the layers 20 to 28 of 32."""
    decoder, head = case.model.get_decoder(), case.model.get_output_embeddings()
    stack = getattr(decoder, "model", decoder)
    norm = next(part for name, part in stack.named_children() if "norm" in name)  # the only one outside the layers
    layers = len(layers_of(case.model))
    first = 20 * layers // 32
    window = range(first, max(29 * layers // 32, first + 1))

    def score(inputs: Inputs, step: int) -> Tensor:
        output = case.model(**inputs, use_cache=False, output_hidden_states=True)
        z = output.logits[0, -1].float()
        early = torch.stack([head(norm(output.hidden_states[number][0, -1])).float() for number in window])  # [C, V]
        likeliest, tokens = z.softmax(0).topk(min(top_k, len(z)))
        reached = int(torch.searchsorted(likeliest.cumsum(0), top_p)) + 1
        tokens = tokens[: min(reached, top_k)]
        among = early.softmax(1)[:, tokens]  # [C, candidates]
        layer = int(among.argmax()) // len(tokens)
        corrected = torch.full_like(z, -math.inf)
        corrected[tokens] = z[tokens] + alpha * float(among.max()) * early[layer, tokens]
        return corrected

    return greedy(case, score, **settings)


def sid(case: Tiny, visible: int, **settings: Any) -> tuple[Texts, list[set[int]]]:
    """SID with alpha 0.5, beta 0.1, and the image tokens that each step's row leaves visible.

    Each row of the contrast pass keeps the choice of the step in which it was the newest; the prompt's rows
    share that of the prompt's last row. Run on a copy with eager attention, which gives its weights.
    """
    model, choices, blocked = copy.deepcopy(case.model), list[set[int]](), list[Tensor]()
    model.set_attn_implementation("eager")
    prompt, positions = case.image.shape[1], case.image[0].nonzero().flatten()

    def block(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Put `blocked [S, S]`, if there is one, out of sight."""
        if not blocked:
            return None
        mask, lowest = kwargs["attention_mask"], torch.finfo(args[0].dtype).min
        if mask is None:
            mask = torch.full((1, 1, *blocked[0].shape), lowest).triu(1)
        return args, {**kwargs, "attention_mask": mask.masked_fill(blocked[0], lowest)}

    def score(inputs: Inputs, step: int) -> Tensor:
        blocked.clear()
        output = model(**inputs, use_cache=False, output_attentions=True)
        weights = output.attentions[1][0].float().mean(dim=0)[-1]  # [S]
        choices.append({int(positions[i]) for i in weights[positions].argsort()[:visible]})
        blocked.append(torch.zeros(len(weights), len(weights), dtype=torch.bool))
        for row in range(len(weights)):
            blocked[0][row, sorted({*positions.tolist()} - choices[max(0, row - prompt + 1)])] = True
        return vcd_rule(0.5, 0.1)(output.logits[0, -1].float(), logits(model, inputs), 0)

    for layer in layers_of(model)[2:]:
        layer.register_forward_pre_hook(block, with_kwargs=True)
    return greedy(case, score, **settings), choices


def ict(case: Tiny, tensors: Inputs, **settings: float) -> Texts:
    """ICT without a cache: 8 spread d of each level's most accurate slice, behind o_proj, wherever a step was last."""
    model, prompt, added = copy.deepcopy(case.model), case.inputs["input_ids"].shape[1], {}
    for level in ("image", "object"):
        direction, spread, accuracy = (tensors[f"{level}.{name}"] for name in ("direction", "spread", "accuracy"))
        layer, number = divmod(int(accuracy.argmax()), accuracy.shape[1])
        added.setdefault(layer, []).append((number * 32, 8.0 * spread[layer, number] * direction[layer, number]))

    def add(number: int, output: Tensor) -> Tensor:
        changed = output.clone()
        for start, vector in added.get(number, ()):
            changed[0, prompt - 1 :, start : start + 32] += vector
        return changed

    hook([layer.self_attn.o_proj for layer in layers_of(model)], add)
    return greedy(case, lambda inputs, step: logits(model, inputs), **settings)
