"""MLX's counter-based keys, independently: Threefry-2x32 with 20 rounds (Salmon et al. 2011)."""

from __future__ import annotations

M32 = 0xFFFFFFFF
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
Key = tuple[int, int]


def threefry(key: Key, counter: tuple[int, int]) -> tuple[int, int]:
    words = (key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = (counter[0] + words[0]) & M32, (counter[1] + words[1]) & M32
    for block in range(5):
        for r in ROTATIONS[block % 2]:
            a = (a + b) & M32
            b = ((b << r | b >> (32 - r)) & M32) ^ a
        a = (a + words[(block + 1) % 3]) & M32
        b = (b + words[(block + 2) % 3] + block + 1) & M32
    return a, b


def key_of(seed: int) -> Key:
    return seed >> 32 & M32, seed & M32


def split(key: Key) -> tuple[Key, Key]:
    """mx.random.split(key): counters (0, 2) and (1, 3) give the first and the second word of both keys."""
    (a0, b0), (a1, b1) = threefry(key, (0, 2)), threefry(key, (1, 3))
    return (a0, a1), (b0, b1)


def uniform(key: Key) -> float:
    """The one double that mx.random.categorical of one row compares with the cumulative mass."""
    return threefry(key, (0, 0))[0] / 2**32
