"""Memorization mitigations that Finding NeMo compares with: text embedding adjustment and random
tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import torch


def adjust_embedding(
    start: torch.Tensor,
    losses: Callable[[torch.Tensor], Iterable[torch.Tensor]],
    steps: int,
    learning_rate: float,
    target: float,
    show_progress: Callable[[int], None],
) -> tuple[torch.Tensor, list[float]]:
    """Wen et al. (arXiv 2407.21720), section 4: optimize the embedding until the text-conditional
    noise is small.

    ``start`` (1, tokens, D). ``losses`` gives what sums to the norm of what the text adds to the
    prediction, piece by piece, so that one piece at a time is in memory. AdamW; the first token
    keeps its embedding. Stops at ``target``. Returns the embedding and the norms before each step
    and at the end.
    """
    embedding = start.detach().clone().float().requires_grad_()
    optimizer = torch.optim.AdamW([embedding], lr=learning_rate)
    norms = []
    for step in range(steps + 1):
        optimizer.zero_grad()
        total = torch.zeros((), device=embedding.device)
        with torch.set_grad_enabled(step < steps):
            for piece in losses(embedding):
                total += piece.detach()
                if step < steps:
                    piece.backward()
        norms.append(float(total))
        show_progress(step)
        if norms[-1] <= target or step == steps:
            break
        assert embedding.grad is not None  # of the pieces
        embedding.grad[:, 0] = 0
        first = embedding.detach()[:, :1].clone()
        optimizer.step()
        with torch.no_grad():
            embedding[:, :1] = first  # AdamW's decay would move it without a gradient
    return embedding.detach(), norms


def describe_norms(norms: list[float], target: float) -> str:
    """One sentence on the norms of ``adjust_embedding``."""
    end = "reached" if norms[-1] <= target else "not reached: use more steps"
    values = ", ".join(f"{value:.3f}" for value in norms)
    return f"Text norm {values} after {len(norms) - 1} step(s); target {target:g} {end}."


def insert_random_words(prompt: str, words: list[str], count: int, seed: int) -> str:
    """The prompt with ``count`` of the words, each at a random place; the same seed gives the same
    prompt.

    Somepalli et al. (arXiv 2305.20086), section 6; the words go to random places, as in the code of
    Wen et al.
    """
    random_draw = random.Random(seed)
    parts = prompt.split()
    for _ in range(count):
        parts.insert(random_draw.randint(0, len(parts)), random_draw.choice(words))
    return " ".join(parts)
