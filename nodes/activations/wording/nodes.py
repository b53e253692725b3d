"""Where each word of the prompt acts in the picture."""

from __future__ import annotations

import re

import torch
from comfy_api.latest import io
from torch.nn import functional as F

from ...host.schema import schema
from ...host.sockets import Activations
from ...host.words import tokens_of, words_of
from .. import drawing, words
from ..features import Activations as Tapped
from ..inputs import CATEGORY, PAPER, pictures_of

_PROMPTS = {"positive prompt": True, "negative prompt": False}


class TokenHeatMap(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TokenHeatMap",
            display_name="Token Heat Map",
            category=CATEGORY,
            description="Where each word of the prompt acts: cross-attention averaged over heads and layers, and over "
            f"steps when a run was recorded, after DAAM (arXiv 2210.04885). Attention as features is from {PAPER}.",
            search_aliases=["diffusion features", "DAAM", "attention map", "word heat map", "prompt attribution"],
            inputs=[
                Activations.Input(
                    "activations",
                    tooltip="Tapped or recorded with the preset 'attention to words' (the ID attn-mean).",
                ),
                io.Image.Input("image", tooltip="The pictures, to draw on: tapped, or painted by the recorded run."),
                io.Clip.Input("clip", tooltip="The CLIP that encoded the prompt: it splits it into tokens."),
                io.String.Input(
                    "prompt", default="", multiline=True, tooltip="The very text that was encoded, with its weights."
                ),
                io.String.Input(
                    "words",
                    default="",
                    multiline=True,
                    tooltip="Words or phrases of the prompt apart by commas or lines, such as red hair, hoodie. Empty: "
                    "every word.",
                ),
                io.Combo.Input(
                    "prompt_is",
                    options=list(_PROMPTS),
                    tooltip="Which prompt it is. For the negative one, record conditional and unconditional rows (CFG "
                    "above 1).",
                ),
                io.Boolean.Input(
                    "relative",
                    default=True,
                    tooltip="Stretch each word's map to its own range in each picture. Off: one range for all words, "
                    "so that strong and weak words can be told apart.",
                ),
                io.Float.Input(
                    "opacity",
                    default=0.65,
                    min=0.0,
                    max=1.0,
                    step=0.05,
                    tooltip="How much the heat maps hide the pictures.",
                ),
            ],
            outputs=[
                io.Image.Output(display_name="sheet", tooltip="A line a word, with all pictures under its heat map."),
                io.Mask.Output(
                    display_name="masks",
                    tooltip="The heat maps as shown: all pictures of the first word, then of the next.",
                ),
                io.String.Output(display_name="found", tooltip="The words in this order, one a line."),
            ],
        )

    @classmethod
    def execute(
        cls, activations: Tapped, image: torch.Tensor, clip, prompt: str, prompt_is: str, relative: bool,
        opacity: float, **given,
    ) -> io.NodeOutput:  # fmt: skip
        chosen = _rows_of(activations, _PROMPTS[prompt_is], prompt_is)
        pictures, attention = pictures_of(image, chosen), chosen.tensors[words.SOURCE]
        tokens, wished = tokens_of(clip, prompt), _wished(given["words"], prompt)
        places = {word: _places(tokens, tokens_of(clip, word)) for word in wished}
        _check(places, prompt)
        length = sum(map(len, tokens))
        maps = torch.stack([words.heat_map(attention, found, length) for found in places.values()])
        maps = _stretched(maps, (2, 3) if relative else (0, 1, 2, 3))
        shown, _ = drawing.magnified(pictures)
        lines = [(word, drawing.overlay(shown, one, opacity)) for word, one in zip(places, maps, strict=True)]
        sheet = drawing.sheet(lines, side=256, columns=max(1, 4 // len(pictures)))
        masks = F.interpolate(maps.flatten(0, 1)[:, None], size=pictures.shape[1:3], mode="bilinear")[:, 0]
        return io.NodeOutput(sheet, masks, "\n".join(places))


def _rows_of(activations: Tapped, conditional: bool, name: str) -> Tapped:
    """Rows of one prompt, with the attention alone."""
    if words.SOURCE not in activations.tensors:
        raise ValueError(
            f"These activations hold no {words.SOURCE}: tap or record with the preset 'attention to words'."
        )
    rows = [number for number, row in enumerate(activations.rows) if row.conditional == conditional]
    if not rows:
        raise ValueError(
            f"There are no rows of the {name}: record 'both' rows with a CFG above 1, or choose the other prompt."
        )
    return activations.chosen([words.SOURCE]).only_rows(rows)


def _wished(text: str, prompt: str) -> list[str]:
    wished = [part.strip() for part in re.split(r"[,\n]+", text) if part.strip()]
    return list(dict.fromkeys(wished)) or words_of(prompt)


def _places(tokens: list[list[int | None]], word: list[list[int | None]]) -> list[int]:
    """Positions of a word in the texts of all encoders, one after the other."""
    found, begin = [], 0
    for text, part in zip(tokens, word, strict=True):
        wanted = [token for token in part if token is not None]
        found += [begin + position for position in words.positions(text, wanted)]
        begin += len(text)
    return found


def _check(places: dict[str, list[int]], prompt: str) -> None:
    missing = [word for word, found in places.items() if not found]
    if missing:
        raise ValueError(f"'{missing[0]}' is not in the prompt '{prompt.strip()}': write words as they stand there.")
    if not places:
        raise ValueError("The prompt has no words: give the text that was encoded.")


def _stretched(maps: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
    low, high = maps.amin(over, keepdim=True), maps.amax(over, keepdim=True)
    return (maps - low) / (high - low).clamp_min(1e-12)
