"""Where a word of the prompt acts: its share of the cross-attention, after DAAM (arXiv 2210.04885, section 3)."""

from __future__ import annotations

import torch

#: ID of the attention averaged over all layers and heads, which heat maps are made of.
SOURCE = "attn-mean"


def positions(tokens: list[int | None], word: list[int]) -> list[int]:
    """Positions of all occurrences of a word's tokens among the prompt's; empty when it is not there.

    ``tokens``: the token at every position, None where there is none. An occurrence is the whole run of the word's
    tokens; a run may go on behind the marks between two chunks of a long prompt.
    """
    placed = [(position, token) for position, token in enumerate(tokens) if token is not None]
    found = []
    for first in range(len(placed) - len(word) + 1):
        run = placed[first : first + len(word)]
        if [token for _, token in run] == word:
            found += [position for position, _ in run]
    return sorted(set(found)) if word else []


def heat_map(attention: torch.Tensor, places: list[int], length: int) -> torch.Tensor:
    """The mean attention to the tokens of a word: float32 (rows, H, W), of attention (rows, tokens, H, W).

    ``length`` is the number of tokens of the prompt. ComfyUI repeats a text until it is as long as the other one of the
    call; the repetitions of a token are added up. Raises ValueError when the lengths do not fit.
    """
    found = attention.shape[1]
    if found % length:
        raise ValueError(
            f"The prompt has {length} tokens and the attention {found}: give the very text that was encoded, and the "
            "CLIP that encoded it."
        )
    return attention.float().unflatten(1, (-1, length)).sum(1)[:, places].mean(1)
