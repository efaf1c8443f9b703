"""A sequence on its way: the tokens of one request, and how many of them the cache has seen."""

from dataclasses import dataclass, field

from glassformer.engine.pages import Lease


@dataclass(eq=False)
class Sequence:
    """`tokens` starts with the prompt and grows; `most` is the length at which it has to end.

    A model with an encoder also reads a `source`. The first `reused` tokens were remembered from a sequence before it.
    """

    tokens: list[int]
    most: int
    source: tuple[int, ...] = ()
    lease: Lease = field(default_factory=Lease)
    reused: int = 0
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens that the model hasn't read yet (or has to read again)."""
        return len(self.tokens) - self.lease.length


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `count` tokens of a sequence, for one pass; `last` when its next token can be chosen after it."""

    sequence: Sequence
    count: int
    last: bool

    @property
    def tokens(self) -> list[int]:
        start = self.sequence.lease.length
        return self.sequence.tokens[start : start + self.count]
