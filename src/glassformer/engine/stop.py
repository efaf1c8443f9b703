"""Stop strings: text ends where one begins, and nothing of it is ever let out, however tokens cut it."""

from collections.abc import Sequence


class StopGuard:
    """Lets text through as soon as it can't belong to a stop string.

    The stop string that is complete first ends the text (of several that end at the same character, the longest), so
    the result does not depend on how the text arrives in pieces.
    """

    def __init__(self, stops: Sequence[str]):
        self.stops: tuple[str, ...] = tuple(stops)
        self.stopped = False
        self._held: str = ""
        self._longest = max((len(stop) for stop in stops), default=0)

    def push(self, text: str) -> str:
        """What may be shown now that `text` has arrived."""
        if not self.stops or self.stopped:
            return "" if self.stopped else text
        text = self._held + text
        found = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when nothing more will come: it was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self.stops):
                return length
        return 0
