"""A shuffled order without a table: any place of a pseudo-random permutation in constant time and memory."""

import hashlib

WORDS = 8
ROUNDS = 3


def draw(*key: int) -> tuple[int, ...]:
    """Eight 64-bit numbers that depend on nothing but the key, on any machine (BLAKE2b)."""
    name = b"".join(part.to_bytes(8, "little") for part in key)
    digest = hashlib.blake2b(name, digest_size=8 * WORDS).digest()
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, 8 * WORDS, 8))


class Permutation:
    """`permutation[place]` visits every number below `size` once, in an order drawn by `keys` (at least six).

    Each round multiplies by an odd number, adds, and xors the upper half of the bits onto the lower: all can be undone,
    so that the rounds permute the numbers of `bits` bits. Walking on from results that are too large permutes those
    below `size` (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """

    def __init__(self, size: int, keys: tuple[int, ...]):
        self.size = size
        self._bits = max(1, (size - 1).bit_length())
        self._mask = (1 << self._bits) - 1
        self._rounds = [((keys[2 * r] | 1) & self._mask, keys[2 * r + 1] & self._mask) for r in range(ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self.size:
            raise IndexError(place)
        mask, shift = self._mask, (self._bits + 1) // 2
        while True:
            for factor, offset in self._rounds:
                place = (place * factor + offset) & mask
                place ^= place >> shift
            if place < self.size:
                return place
