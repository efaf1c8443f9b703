"""What can go wrong at a user's hand: one hierarchy, and one shape of message: what, where, what to do."""


class GlassformerError(ValueError):
    """A user's mistake or a broken input. The command line prints it as one line and exits with 2."""

    def __init__(self, what: str, *, where: object | None = None, do: str | None = None):
        """`what` was expected and came, `where` it was found (a path, a field), and what to `do` about it."""
        self.what, self.where, self.do = what, where, do
        place = f"{where}: " if where is not None else ""
        advice = f" ({do})" if do else ""
        super().__init__(f"{place}{what}{advice}")


class SpecError(GlassformerError):
    """A configuration that can't be built: an unknown field, a value out of range, parts that don't fit."""


class DataError(GlassformerError):
    """Text or token data that can't be read, is missing, damaged or too small."""


class TokenizerError(GlassformerError):
    """A tokenizer that can't be trained, read or used as asked."""


class ChatError(GlassformerError):
    """A chat template that is missing, broken or harmful, or a conversation that it refuses."""


class CheckpointError(GlassformerError):
    """A checkpoint or model folder that is missing, damaged, or belongs to another model."""


class RequestError(GlassformerError):
    """A generation request that can't be served: a prompt too long, a sampling parameter out of range."""


class DeviceError(GlassformerError):
    """A device or number format that this machine doesn't have."""


class TrainingError(GlassformerError):
    """Training that had to stop: a loss that is not a number, a disk that is full."""
