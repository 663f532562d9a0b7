"""`opera`: beams that avoid over-trusted tokens and roll back after them (Huang et al. 2024, arXiv:2311.17911)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.methods.base import Ability, Method
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.core.streams import OnStep

LENGTHS = ("published", "text")
# Memory and time grow with beams, and with beams times candidates: all are run before a token is chosen.
# The published search has 5 of each.
MOST_BEAMS = 32
MOST_CANDIDATES = 256
MOST_ATTEMPTS = 100
MOST_ROWS = 1024


@dataclass(frozen=True)
class Opera(Method):
    """Beam search with a penalty on tokens that rely on one earlier token of the text, and a rollback to that token.

    As `opera_beam_search` in transformers 4.29.2 of the published code (scores among the candidates, columns counted by
    place in the list of beams), but: phi in float32, -inf for excluded tokens (there -999), the smallest of equally
    frequent columns, refusals kept per place (there for one, by a wrong index), a vote per picture.
    """

    name = "opera"
    abilities = frozenset({Ability.BATCHES})
    own_search = True
    beams: int = setting(5, "beams per picture", low=1, high=MOST_BEAMS)
    candidates: int = setting(5, "tokens that each beam chooses from", low=1, high=MOST_CANDIDATES)
    # sigma, before attention weights are multiplied with each other; lambda, of the gain by image attention (first ten
    # tokens) and of the penalty (afterwards); a factor on phi that is not in the paper
    scale: float = setting(50.0, "scale of attention weights", low=0, above_low=True)
    penalty: float = setting(1.0, "weight of image attention and of the over-trust penalty", low=0)
    damping: float = setting(1e-7, "factor on the over-trust score (the authors' code: 1e-07, the paper: 1)", low=0)
    threshold: int = setting(15, "steps that trust one token before the search goes back", low=2)
    attempts: int = setting(5, "maximum rollbacks to one place", low=0, high=MOST_ATTEMPTS)
    # published: tokens of prompt and text, a picture counted as one, without the end token; text: of the text alone, as
    # in transformers today
    length: str = setting(LENGTHS[0], "length that scores of texts are divided by", choices=LENGTHS)

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.beams * self.candidates
        if rows > MOST_ROWS:
            raise SettingsError(
                f"beams times candidates of method {self.name} must be {MOST_ROWS} or less; got {self.beams} x "
                f"{self.candidates} = {rows}"
            )

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check the model's structure."""
        from sira_cli.core.families import check_columns

        check_columns(model, "method opera")

    def generate(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        config: SiraConfig,
        branch: Mapping[str, Tensor],
        *,
        on_step: OnStep | None = None,
        on_attach: Callable[[Any], None] = lambda decoding: None,
        streamer: Any = None,
        **arguments: Any,
    ) -> Tensor:
        """Decode B prompts together.

        Args:
            model, inputs, config, branch, on_attach, arguments: as for `Method.generate`; there is no contrast stream.
            on_step: refused: there is no second stream to observe.
            streamer: gets a token per text as soon as it is certain that all texts have one.

        `generate` of transformers prepares everything and calls this search instead of its own. Logits
        processors get B rows, one beam of each prompt at a time; stopping criteria get the continuations of one prompt.
        """
        from sira_cli.core.hooks import attached_hooks
        from sira_cli.methods.opera_passes import Passes
        from sira_cli.methods.opera_search import OperaRun

        if on_step is not None:
            raise SettingsError("method opera has no second stream to observe: leave out on_step")
        image = config.image_tokens.resolve(model.config).find(inputs["input_ids"])  # [B, S]
        passes = Passes(model, self.beams)
        run = OperaRun(self, passes, image, streamer)
        with attached_hooks(model, passes.norm) as handles:
            handles.extend(passes.hooks())
            on_attach(run)
            output: Tensor = model.generate(**inputs, custom_generate=run.decode, **arguments)
        return output
