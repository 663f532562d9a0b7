"""SIRA: one model, two streams, one pass (paper, Section 3 and Algorithm 1).

    layers 0..b-1     [ x_1 ........... x_S ]                      shared prefix, computed once
    at layer b        [ x_1 ........... x_S | x_t for t in text ]  the CF stream's rows are appended
    layers b..L-1     one call per layer; attention runs once per stream, all else on both at once; in layer L-1
                      only the last row of each stream goes further than its key and value
    after layer L-1   last row of each stream -> Norm -> W_out -> z_full, z_cf
    a decoding step   1 row in the shared layers, 2 rows (full, CF) in the late ones

If the last layers read keys of earlier ones (Gemma 4 E), a prompt has only the last row of each stream there.

The paper masks image positions in the counterfactual (CF) stream. A masked row influences nothing, so here the stream
simply does not contain it: the numbers are the same, there are fewer rows, and weights are read once for both streams.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from sira_cli.core.arguments import CACHE, Args, Kwargs, cache_of, hidden_of, with_hidden
from sira_cli.core.attention import Split, scaled_by_column, two_streams
from sira_cli.core.cache import known_streams, open_streams, share_layers
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import ROW_ARGUMENTS, check_row_arguments, fork_place, untested
from sira_cli.core.hooks import Removable, Undo, attached_hooks
from sira_cli.core.indexed import TwoChoices
from sira_cli.core.last_rows import LastRows, LastRowsOnly, features_of_late_layers, last_row_inputs
from sira_cli.core.masks import Pass, cf_columns, cf_mask, pack_rows, text_rows, valid_rows
from sira_cli.core.outputs import OF_ALL_ROWS, asked, check_training, show_full_stream
from sira_cli.core.recurrent import TwoStates
from sira_cli.core.reusable import reusable
from sira_cli.core.rules import contrast, plausible
from sira_cli.core.streams import OnStep
from sira_cli.core.streams import Step as Step  # also public here
from sira_cli.errors import AttachError, ImageTokenError, UnsupportedModelError, UntestedModelWarning

_WARNED: WeakSet[nn.Module] = WeakSet()  # models of untested families; Python's own `once` is per module


@reusable
def attach(model: nn.Module, config: SiraConfig | None = None, *, on_step: OnStep | None = None) -> Iterator[Fork]:
    """Decode `model` with SIRA inside this context: every `model.generate(...)` picks from z_cd.

    Only hooks are used, and the late layers' attention modules get temporary configs. At the end, also after an
    error, the model is as before. A plain forward returns the contrast of the last row, `[B, 1, V]`. Hidden states
    and attentions that `generate` and the model return are the full stream's, in the shapes of a run without a fork.
    Forward hooks of your own on the late layers see the rows of both streams, `[B, q + T, d]`, the full stream's
    first. Not for use by several threads at once. One `attach(...)` serves several blocks, one after the other.

    Args:
        model: a Hugging Face LVLM with `sdpa` or `eager` attention.
        config: settings; default K = L / 2, alpha = 0.5.
        on_step: called once per generated token with the logits of both streams.

    Yields:
        The fork: `k`, `boundary`, `layers`, and `image`, the image positions of the latest prompt.

    Raises:
        UnsupportedModelError: the model, its cache or the way of generating cannot be followed exactly.
        SettingsError: K does not fit the model.
        ImageTokenError: a prompt has no image tokens, or ends with one.
        AttachError: the model is attached already.
    """
    with attached(Fork(model, config or SiraConfig(), on_step)) as fork:
        yield fork


ForkType = TypeVar("ForkType", bound="Fork")


@contextmanager
def attached(fork: ForkType) -> Iterator[ForkType]:
    """Put a fork's hooks on its model, and remove them at the end, also after an error."""
    with attached_hooks(fork.model, fork.norm) as handles:
        for handle in fork.hooks():
            handles.append(handle)  # one by one: after an error each hook put on so far is removed
        yield fork


class Fork:
    """The two streams of one model, made by `attach`; its methods are the hooks, in the order in which they run.

    A subclass may run another counterfactual stream. It overrides `choose_cf_rows` (which rows the stream holds),
    `visible_cf_rows` (which of them it sees) and `hooks`.

    Attributes:
        config: the settings.
        model, late_layers, norm: the model, its layers b..L-1, its final norm.
        k, layers, boundary: K, L and b = L - K.
        image: `[B, S]` bool, P_img of the latest prompt (None before the first).
    """

    def __init__(
        self, model: nn.Module, config: SiraConfig, on_step: OnStep | None = None, *, last_rows: int = 1
    ) -> None:
        """Check the model and the settings; `last_rows` of each stream reach the final norm, all text if several."""
        backbone, self.boundary = fork_place(model, config)  # b
        self.config = config
        self.layers = len(backbone.decoder_layers)  # L
        self.k = self.layers - self.boundary  # K
        if not backbone.tested and model not in _WARNED:
            _WARNED.add(model)
            warnings.warn(
                f"{type(model).__name__} has the structure that SIRA needs, but {untested(model)}; "
                "check results with alpha = 0",
                UntestedModelWarning,
                stacklevel=5,  # this, `attach`, contextlib, `Reusable`, and the line with `with attach(...)`
            )
        self.norm = backbone.norm
        self.image: Tensor | None = None
        self._thread = get_ident()  # of the prompt
        self.model = model
        self._find_image = config.image_tokens.resolve(model.config).find
        self._on_step = on_step
        self._last_rows = last_rows
        self._few_queries_in = self.k - 1 if backbone.few_queries and last_rows == 1 else None  # which late layer
        self._backbone = backbone
        self.late_layers = backbone.decoder_layers[self.boundary :]
        self._mixers = backbone.mixers[self.boundary :]
        self._sharing = [layer for layer, mixer in enumerate(backbone.mixers) if mixer.keys_from != layer]
        self._last_layer = LastRowsOnly(backbone.after_keys)
        self._drops_rows = backbone.few_queries and last_rows == 1
        self._pass: Pass | None = None  # only while the model runs

    def hooks(self) -> Iterator[Removable]:
        """Put the hooks on one by one, and yield the handle of each."""
        yield self.model.register_forward_pre_hook(self.begin, with_kwargs=True)
        for index in self._sharing if self._drops_rows else ():
            yield self._backbone.decoder_layers[index].register_forward_pre_hook(self.drop_rows, with_kwargs=True)
        yield self.late_layers[0].register_forward_pre_hook(self.fork_streams, with_kwargs=True)
        yield from features_of_late_layers(self._backbone, self.boundary, self.running)
        for layer in self.late_layers:
            yield layer.register_forward_pre_hook(self.run_both, with_kwargs=True)
        yield two_streams(
            {late: mixer.module for late, mixer in enumerate(self._mixers) if mixer.plain}, self.split_attention
        )
        yield from TwoChoices.put_on([mixer.module for mixer in self._mixers if mixer.indexed], self.running)
        yield from TwoStates.put_on([mixer.module for mixer in self._mixers if mixer.recurrent], self.running)
        yield Undo(self._last_layer.end)
        yield from scaled_by_column([mixer.module for mixer in self._mixers], self.columns)
        yield self.norm.register_forward_pre_hook(self.join)
        yield self.model.register_forward_hook(self.contrast_logits)

    def columns(self) -> Tensor:
        """Return the full stream's column of each row that a late layer holds, `[B or 1, rows]`."""
        return self.running().columns()

    def choose_cf_rows(self, image: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the prompt's rows that form the CF stream: for SIRA the text rows.

        Args:
            image: `[B, S]` bool, P_img.
            valid: `[B, S]` bool, False at padding.

        Returns:
            positions `[B, T]`, and bool `[B, T]`, False at fillers.
        """
        return text_rows(image, valid)

    def visible_cf_rows(self, now: Pass) -> Tensor | None:
        """Return which of the prompt's CF rows this pass may see, `[B, T]`; None: all but fillers, as for SIRA."""
        return None

    def begin(self, model: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Before the model: find P_img in a prompt (Algorithm 1, input)."""
        input_ids = kwargs.get("input_ids", args[0] if args else None)
        if input_ids is None:
            raise UnsupportedModelError(
                "the model was called without input_ids, so its image tokens cannot be found: "
                "pass input_ids instead of inputs_embeds"
            )
        if model.training and any(getattr(part, "gradient_checkpointing", False) for part in model.modules()):
            raise UnsupportedModelError(
                "gradient checkpointing runs layers a second time, without the other stream: call model.eval(), or "
                "model.gradient_checkpointing_disable()"
            )
        cache: Cache | None = cache_of(args, kwargs)
        q = input_ids.shape[1]
        seen = 0 if cache is None else int(cache.get_seq_length())
        if self._last_layer.handles:  # an error ended the last prompt
            self._last_layer.end()
        if seen == 0:  # a prompt
            check_training(model, kwargs)
            self._thread = get_ident()
            if cache is not None:
                share_layers(cache, self.boundary, self._backbone.mixers)
            self._pass = Pass(q, *self._read_prompt(input_ids, kwargs.get("attention_mask")))
            self._pass.recorded = any(asked(model, kwargs, name) for name in OF_ALL_ROWS)
        elif q == 1:
            if self._thread != get_ident():  # before this pass takes the place of another thread's
                raise _other_thread()
            self._pass = Pass(q, None, None)
        else:
            raise UnsupportedModelError(
                f"{q} new tokens arrived on a cache that already holds {seen}: chunked prefill, assisted "
                "generation and continued conversations are not supported. Pass the whole prompt, without "
                f"{CACHE}, assistant_model, prompt_lookup_num_tokens or prefill_chunk_size."
            )
        kept = kwargs.get("logits_to_keep")
        if not self._sharing or not isinstance(kept, int) or kept == 0:
            return None
        # Before layers that share keys, Gemma 4 keeps only the last `kept` rows by default, but the CF stream begins
        # with rows of the prompt. `drop_rows` drops them later for both streams.
        # A slice works with hidden states on any device.
        return args, {**kwargs, "logits_to_keep": slice(-kept, None)}

    def _read_prompt(self, input_ids: Tensor, attention_mask: Any) -> tuple[Tensor, Tensor]:
        """Return a prompt's CF rows, and which of them are live: `input_ids [B, S]` -> `[B, T]` each."""
        valid = valid_rows(attention_mask, input_ids)  # [B, S]
        if valid.shape != input_ids.shape:
            raise UnsupportedModelError(
                f"the attention mask covers {valid.shape[1]} positions but {input_ids.shape[1]} "
                "arrived: chunked prefill is not supported, leave out prefill_chunk_size"
            )
        self.image = self._find_image(input_ids)  # [B, S]
        if not bool(valid[:, -1].all()):
            raise ImageTokenError("the prompts are padded on the right: pad them on the left to generate")
        if bool(self.image[:, -1].any()):
            raise ImageTokenError(
                "the prompt ends with an image token, so the CF stream has no last row: put text after the image, and "
                "leave out prefill_chunk_size, which cuts the prompt into pieces"
            )
        return self.choose_cf_rows(self.image, valid)

    def drop_rows(self, layer: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Before each layer that shares keys: keep only the last row of each stream of a prompt."""
        now = self.running()
        if now.cf_rows is not None and cache_of(args, kwargs) is not None and not now.recorded:
            if now.cache is None:  # the fork comes later
                self.open(now, kwargs)
                args = (args[0][:, -1:], *args[1:])  # [B, 1, d]
            else:
                args = (LastRows(now.q, now.cf_rows.shape[1], 1).take(args[0]), *args[1:])  # [B, 2, d]
            now.keep_last()
            self._last_layer.end()
        return None if now.whole is None else last_row_inputs(layer, now, args, kwargs)

    def open(self, now: Pass, kwargs: Kwargs) -> None:
        """Prepare the cache for both streams of a prompt, or count the rows of a step."""
        now.cache = cache_of((), kwargs)
        if now.cf_rows is not None:  # this pass is a prompt
            now.streams = now.prompt_streams()
            open_streams(now.cache, self.boundary, self.layers, now.streams)
        else:
            now.streams = known_streams(now.cache, self.boundary)
            now.streams.steps += 1
        now.texts = now.streams.rows.shape[0]

    def fork_streams(self, layer: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Before layer b: append the CF stream's rows to h^b (Algorithm 1, lines 5-6 and 13-14)."""
        now = self.running()
        hidden = hidden_of(layer, args, kwargs)
        if hidden is None or hidden.ndim > 4 or hidden.shape[-2] != now.q:
            raise UnsupportedModelError(
                f"{type(layer).__name__} was not called with hidden states [B, {now.q}, d] as its first argument: the "
                "fork does not know how to pack its inputs"
            )
        if now.whole is None:
            self.open(now, kwargs)
        rows = None if now.cf_rows is None else self.last_rows()
        if rows is not None:
            self._last_layer.begin(rows)
        if hidden.ndim == 4:  # AltUp keeps several hidden states per row, [A, B, q, d]
            packed = torch.stack([pack_rows(each, now.cf_rows) for each in hidden])
        else:
            packed = pack_rows(hidden, now.cf_rows)  # [B, q + T, d]
        return with_hidden(layer, args, kwargs, packed)

    def run_both(self, layer: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Before each layer b..L-1: positions, and other arguments with a row per token, for both streams (Eq. 2)."""
        now = self.running()
        call = (*args[1:], *kwargs, *kwargs.values())
        for earlier, (packed_args, packed) in now.calls:  # most layers share theirs
            if len(earlier) == len(call) and all(map(operator.is_, earlier, call)):
                return (*args[:1], *packed_args), packed
        if now.cf_rows is not None:  # a prompt: in a step anything may look like one row per token
            check_row_arguments(layer, args[1:], kwargs, now.has_rows)
        packed = dict(kwargs)
        for name in ROW_ARGUMENTS:
            if name in kwargs:
                packed[name] = now.pack(kwargs[name])
        packed_args = tuple(map(now.pack, args[1:]))
        now.calls.append((call, (packed_args, packed)))
        return (*args[:1], *packed_args), packed

    def split_attention(self, late_layer: int, mask: Tensor | None) -> Split:
        """Inside attention of layer b + `late_layer`: the CF stream's mask, keys and values."""
        now = self.running()
        if id(mask) not in now.packed:
            now.packed[id(mask)] = mask, self._cf_mask(mask, now)
        seen = now.packed[id(mask)][1]
        last = self.last_rows() if late_layer == self._few_queries_in and now.cf_rows is not None else None
        source = self._mixers[late_layer].keys_from
        if source < self.boundary:  # a shared layer: the CF stream's keys are some of the full stream's
            return Split(now.q, seen, cf_columns=cf_columns(mask, now.streams), last=last)
        if now.cache is None:
            return Split(now.q, seen, last=last)
        late: Any = now.cache.layers[source]
        return Split(now.q, seen, late.cf.keys, late.cf.values, last=last)  # [B, H, N, D]

    def _cf_mask(self, mask: Tensor | None, now: Pass) -> Tensor | None:
        """Return the CF stream's mask for a mask of the model; None: causal, all rows seen."""
        visible = self.visible_cf_rows(now)
        if mask is None and visible is None and now.streams.live is None:
            return None
        return cf_mask(mask, now.streams, now.newest(), visible)

    def last_rows(self) -> LastRows | None:
        """Return a prompt's rows that `join` keeps, if the last layer need not finish others. None in a step."""
        now = self.running()
        if now.cf_rows is None or now.recorded:
            return None
        return LastRows(now.q, now.cf_rows.shape[1], self._last_rows)

    def join(self, norm: nn.Module, args: Args) -> Any:
        """Before the final norm: keep the last rows of each stream, stacked along the batch (Eq. 3)."""
        now = self.running()
        hidden = args[0]  # [B, q + T, d]
        rows = self._last_rows
        if now.cf_rows is not None:
            self._last_layer.end()
        if now.recorded:
            now.normed = norm.forward(hidden[:, : now.q], *args[1:])  # a call would come back to this hook
        h_full = hidden[:, now.q - rows : now.q]  # [B, rows, d]
        h_cf = hidden[:, -rows:]  # [B, rows, d]
        return (torch.cat([h_full, h_cf], dim=0), *args[1:])  # [2B, rows, d]

    def contrast_logits(self, model: nn.Module, args: Args, output: Any) -> Any:
        """After the model: z_cd = (1 + alpha) z_full - alpha z_cf, in float32 (Eq. 4)."""
        now = self.running()
        self._pass = None
        if not hasattr(output, "logits"):
            raise UnsupportedModelError("the model returned a tuple: call it with return_dict=True")
        z = output.logits[:, -1].float()  # [2B, V]
        z_full, z_cf = z.chunk(2)  # [B, V]
        z_cd = contrast(z_full, z_cf, self.config.alpha)  # [B, V]
        if self._on_step is not None:
            self._on_step(Step(z_full, z_cf, z_cd))
        if self.config.beta is not None:
            z_cd = plausible(z_cd, z_full, self.config.beta)
        output["logits"] = z_cd[:, None]  # [B, 1, V]
        show_full_stream(output, now)
        return output

    def running(self) -> Pass:
        """Return the pass under way, which is still the one of this thread."""
        if self._thread != get_ident():
            raise _other_thread()
        if self._pass is None:
            raise AttachError(
                "a part of the model was called by itself inside `with attach(...)`: call, and attach, the whole "
                "model whose `generate` you use (not `model.model`, nor a wrapper such as torch.compile's)"
            )
        return self._pass

    def end(self) -> None:
        """Forget the pass: the model has run."""
        self._pass = None


def _other_thread() -> AttachError:
    return AttachError(
        "another thread called the model inside the same `with attach(...)`: threads that share a model must take "
        "turns, with their own lock, or generate together as one batch"
    )
