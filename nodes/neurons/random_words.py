"""Random words in a prompt, as a way out of memorisation.

Somepalli et al., Understanding and Mitigating Copying in Diffusion Models (arXiv 2305.20086), section 6; the words are
put at random places, as in the code of Wen et al.
"""

from __future__ import annotations

import random


def with_random_words(prompt: str, words: list[str], count: int, seed: int) -> str:
    """The prompt with ``count`` of the words, each at a random place; the same seed gives the same prompt."""
    draw, parts = random.Random(seed), prompt.split()
    for _ in range(count):
        parts.insert(draw.randint(0, len(parts)), draw.choice(words))
    return " ".join(parts)
