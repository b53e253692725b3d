"""Where a word of the prompt acts: its fraction of the cross-attention, after DAAM (arXiv 2210.04885, section 3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F


def token_positions(tokens: list[list[int | None]], word: list[list[int | None]]) -> list[int]:
    """Positions of a word among the tokens of all text encoders, one after the other; empty when it is not there.

    For each encoder the token at every position, None where there is none. An occurrence is the whole run of the
    word's tokens; a run may continue across the boundary of two chunks of a long prompt.
    """
    positions, begin = set(), 0
    for text, part in zip(tokens, word, strict=True):
        placed = [(position, token) for position, token in enumerate(text) if token is not None]
        wanted = [token for token in part if token is not None]
        for first in range(len(placed) - len(wanted) + 1 if wanted else 0):
            run = placed[first : first + len(wanted)]
            if [token for _, token in run] == wanted:
                positions |= {begin + position for position, _ in run}
        begin += len(text)
    return sorted(positions)


def word_positions(
    prompt: str, words: str, words_of: Callable[[str], list[str]], tokens_of: Callable[[str], list[list[int | None]]]
) -> tuple[dict[str, list[int]], int]:
    """Positions of each word or phrase among the tokens of a prompt, and how many tokens the prompt has.

    ``words``: separated by commas or line breaks; empty: those of ``words_of(prompt)``. ``tokens_of``: the tokens
    of a text, as for ``token_positions``. Raises ValueError for words that are not there.
    """
    tokens, positions = tokens_of(prompt), {}
    named = dict.fromkeys(part.strip() for part in re.split(r"[,\n]+", words) if part.strip())
    for word in named or words_of(prompt):
        positions[word] = token_positions(tokens, tokens_of(word))
        if not positions[word]:
            raise ValueError(
                f"{word!r} is not in the prompt {prompt.strip()!r}. Enter words as they are written there."
            )
    if not positions:
        raise ValueError("The prompt has no words. Enter the text that was encoded.")
    return positions, sum(map(len, tokens))


def daam_heat_map(
    maps: dict[str, torch.Tensor],
    sizes: dict[str, tuple[int, int]],
    positions: list[int],
    length: int,
    run: Callable[..., torch.Tensor] = lambda work, *tensors: work(*tensors),
) -> torch.Tensor:
    """DAAM's heat map of a word, float32 (rows, H, W): the mean over heads of all layers, and over the word's tokens.

    ``maps``: (rows, heads, positions, keys) by ID, summed or averaged over steps; ``sizes``: their height and width.
    Each head's map is enlarged bicubically to the largest size, and negative values are set to 0, as in DAAM 0.2.0
    (``RawHeatMapCollection``, ``compute_global_heat_map``). ``length`` as for ``heat_map``. ``run`` may do the work on
    a word's columns of a layer on another device.
    """
    size = max((tuple(sizes[id_]) for id_ in maps), key=lambda size: size[0] * size[1])

    def enlarged(word: torch.Tensor, own: tuple[int, ...]) -> torch.Tensor:
        word = F.interpolate(word.flatten(0, 1).unflatten(2, own), size=size, mode="bicubic").clamp_min(0)
        return word.sum(1)

    total, count = torch.zeros(()), 0
    for id_, attention in maps.items():
        word = _columns(attention.movedim(3, 1), positions, length)  # (rows, tokens, heads, positions)
        summed = run(partial(enlarged, own=tuple(sizes[id_])), word)
        total, count = total + summed.unflatten(0, (len(attention), -1)), count + attention.shape[1]
    return (total / count).mean(1)


def heat_map(attention: torch.Tensor, positions: list[int], length: int) -> torch.Tensor:
    """The mean attention to the tokens of a word: float32 (rows, H, W), of attention (rows, tokens, H, W).

    ``length`` is the number of tokens of the prompt. ComfyUI repeats a text until it is as long as the other one of the
    call; the repetitions of a token are summed. Raises ValueError when the lengths do not fit.
    """
    return _columns(attention, positions, length).mean(1)


def _columns(attention: torch.Tensor, positions: list[int], length: int) -> torch.Tensor:
    """Of attention (rows, tokens, ...) in float32 these positions, each token's repetitions among the tokens summed.

    They are taken before they are converted: a word is a few of 77 tokens or more.
    """
    found = attention.shape[1]
    if found % length:
        raise ValueError(
            f"The prompt has {length} tokens and the attention {found}. Enter the exact text that was encoded, and "
            "connect the CLIP that encoded it."
        )
    taken = [first + position for first in range(0, found, length) for position in positions]
    return attention[:, taken].float().unflatten(1, (-1, len(positions))).sum(1)
