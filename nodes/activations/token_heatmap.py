"""Where a word of the prompt acts: its fraction of the cross-attention, after DAAM (arXiv
2210.04885, section 3).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn import functional as F

_SAME = 0.1  # relative difference of a token's marks: half precision makes .01, another word some 1
_PANEL_SIDE = 48  # cells: what is sent to a canvas for each word and image
_RATES = (0.37, 1.13, 1.71, 2.39)  # of sines that are as good as random


def text_marks(text: torch.Tensor) -> torch.Tensor:
    """Four numbers for each token of encoded texts (rows, tokens, channels), by which they are
    recognized.
    """
    places = torch.arange(1, text.shape[2] + 1, device=text.device, dtype=torch.float32)
    directions = torch.stack([torch.sin(places.square() * rate) for rate in _RATES], dim=1)
    return text.detach().float() @ directions / text.shape[2] ** 0.5


def text_places(recorded: torch.Tensor, typed: torch.Tensor, checked: list[int]) -> list[int]:
    """Where a typed prompt begins in a recorded text, by their marks (tokens, 4): ComfyUI repeats
    and joins texts.

    ``checked``: the typed prompt's tokens that have to be the same, such as those before the
    padding.
    """
    length = len(typed)
    if len(recorded) < length:
        return []
    windows = recorded.unfold(0, length, 1).movedim(2, 1)[:, checked]
    own = typed[checked]
    distance = (windows - own).norm(dim=-1)
    return (distance <= _SAME * own.norm(dim=-1)).all(-1).nonzero().flatten().tolist()


def daam_heat_maps(
    maps: dict[str, torch.Tensor],
    sizes: dict[str, tuple[int, int]],
    words: Sequence[list[int]],
    length: int,
    run: Callable[..., torch.Tensor] = lambda work, *tensors: work(*tensors),
) -> torch.Tensor:
    """DAAM's heat maps of words, float32 (words, rows, H, W): means over heads of all layers and
    over a word's tokens.

    ``maps``: (rows, heads, positions, keys) by ID, summed or averaged over steps; ``sizes``: their
    height and width. ``words``: the positions of each word's tokens. Each head's map is enlarged
    bicubically to the largest size, and negative values are set to 0, as in DAAM 0.2.0
    (``RawHeatMapCollection``, ``compute_global_heat_map``). The layers are read once, whatever the
    number of words. ``length`` as for ``heat_map``. ``run`` may do the work on a layer's columns on
    another device.
    """
    size = max((tuple(sizes[id_]) for id_ in maps), key=lambda size: size[0] * size[1])
    positions = sorted({position for word in words for position in word})

    def enlarged(columns: torch.Tensor, layer_size: tuple[int, ...]) -> torch.Tensor:
        columns = columns.flatten(0, 1).unflatten(2, layer_size)
        return F.interpolate(columns, size=size, mode="bicubic").clamp_min(0).sum(1)

    total = torch.zeros(())
    count = 0
    for id_, attention in maps.items():
        columns = _columns(
            attention.movedim(3, 1), positions, length
        )  # (rows, tokens, heads, positions)
        heads = columns.shape[2]
        summed = run(partial(enlarged, layer_size=tuple(sizes[id_])), columns)
        total = total + summed.unflatten(0, (len(attention), -1))
        count += heads
    of_tokens = total / count
    places = {position: place for place, position in enumerate(positions)}
    return torch.stack(
        [of_tokens[:, [places[position] for position in word]].mean(1) for word in words]
    )


def word_panel(
    maps: torch.Tensor, tokens: list[int], words: list[str], shares: list[float]
) -> dict:
    """What the panel of words is given of heat maps (words, images, H, W): at most 48 cells a side,
    in bytes.

    Each word with its share of the attention, its largest value at a place (the sum over its
    ``tokens``), and its maps as fractions of that, (images, H, W) in base64.
    """
    size = [min(side, _PANEL_SIDE) for side in maps.shape[2:]]
    cells = F.adaptive_avg_pool2d(maps.float(), (size[0], size[1])) * torch.tensor(tokens).view(
        -1, 1, 1, 1
    )
    largest = cells.amax((1, 2, 3)).clamp_min(1e-12)
    as_bytes = (
        (cells / largest.view(-1, 1, 1, 1) * 255)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        .cpu()
        .numpy()
    )
    found = zip(words, shares, largest.tolist(), as_bytes, strict=True)
    return {
        "size": size,
        "words": [
            {
                "word": word,
                "share": share,
                "largest": most,
                "map": base64.b64encode(one.tobytes()).decode(),
            }
            for word, share, most, one in found
        ],
    }


def heat_map(attention: torch.Tensor, positions: list[int], length: int) -> torch.Tensor:
    """The mean attention to the tokens of a word: float32 (rows, H, W), of attention (rows, tokens,
    H, W).

    ``length`` is the number of tokens of the prompt. ComfyUI repeats a text until it is as long as
    the other one of the call; the repetitions of a token are summed. Raises ValueError when the
    lengths do not fit.
    """
    return _columns(attention, positions, length).mean(1)


def _columns(attention: torch.Tensor, positions: list[int], length: int) -> torch.Tensor:
    """Of attention (rows, tokens, ...) in float32 these positions, each token's repetitions among
    the tokens summed.

    They are taken before they are converted: a word is a few of 77 tokens or more.
    """
    found = attention.shape[1]
    if found % length:
        raise ValueError(
            f"The prompt has {length} tokens and the attention {found}. Enter the exact text that "
            "was encoded, and connect the CLIP that encoded it."
        )
    taken = [first + position for first in range(0, found, length) for position in positions]
    return attention[:, taken].float().unflatten(1, (-1, len(positions))).sum(1)
