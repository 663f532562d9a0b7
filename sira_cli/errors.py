"""Everything that `sira` raises on purpose. Each message names the thing, what was expected, what to do."""


class SiraError(Exception):
    """Base of all errors that tell the user something and stop. `exit_code` is the command line's."""

    exit_code = 1


class SettingsError(SiraError, ValueError):
    """A setting is wrong: K, alpha, an image-token rule, a preset, an option."""

    exit_code = 2


class UnsupportedModelError(SiraError):
    """The model, its attention, its cache or a way to generate is one the fork cannot follow exactly."""

    exit_code = 2


class ImageTokenError(SiraError):
    """The prompt's image tokens cannot be found, or lie where the fork cannot work."""


class AttachError(SiraError):
    """`attach` was used out of order: twice on one model, or with a cache from outside the context."""


class ModelNotFoundError(SiraError):
    """The weights are not on this machine and cannot be fetched."""


class PictureError(SiraError):
    """One picture cannot be opened."""


class UntestedModelWarning(UserWarning):
    """The model has the right shape, but its family is not among those that pass the conformance test."""
