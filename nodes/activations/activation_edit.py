"""Change activations while a network is called: receivers that replace the outputs of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ..common.network_call import TILED, Area, Call, Part, for_autograd
from .activation_spec import ActivationSpec, Kind
from .select_ids import NoSuchActivationError
from .tap import AttentionReceivers, CallLayout, ImageTokens, Receivers

#: Gets a spec, the part of the call that the rows are of, the activation in float32 (rows, C, H,
#: W), where each frame of a video is a row, and the number of frames; returns what replaces the
#: activation.
Edit = Callable[[ActivationSpec, Part, torch.Tensor, int], torch.Tensor]


def editable_specs(
    channels: Mapping[str, int | None], specs: list[ActivationSpec], source: str
) -> list[ActivationSpec]:
    """The specs of a network with these IDs and channels, which come from ``source``, in words.

    Raises NoSuchActivationError when the network does not have an ID with these channels,
    ValueError for IDs whose tensors cannot be changed.
    """
    known = {spec.id: spec for spec in specs}
    for id_, count in channels.items():
        spec = known.get(id_)
        is_output = spec is not None and not spec.from_input and not spec.projection
        if spec is not None and (spec.kind not in (Kind.SPATIAL, Kind.TOKENS) or not is_output):
            raise ValueError(
                f"{id_} can be read but not changed. Use the output of a module, such as *-out."
            )
        if spec is None or spec.channels != count:
            raise NoSuchActivationError(
                f"The {source} has {count} channels at {id_}, which this model does not have. Use "
                f"the model of the {source}."
            )
    return [known[id_] for id_ in channels]


class CallEdit:
    """Receivers for one call of a network that change the outputs of modules, in the rows of the
    ``changed`` parts.
    """

    def __init__(
        self, specs: list[ActivationSpec], edit: Edit, changed: Callable[[Part], bool], call: Call
    ):
        self._specs = specs
        self._edit = edit
        self._changed = changed
        self._call = call
        self._layout = CallLayout(specs)

    def receivers(self) -> tuple[Receivers, Receivers, AttentionReceivers] | None:
        """Receivers of outputs, which return the changed output, and of first inputs; None when no
        row is changed.
        """
        if not any(map(self._changed, self._call.parts)):
            return None
        outputs, inputs, attentions = self._layout.receivers()
        return (
            [
                *outputs,
                *((spec.module, partial(self._change, spec)) for spec in self._specs),
            ],
            inputs,
            attentions,
        )

    def _change(self, spec: ActivationSpec, output: Any) -> Any:
        if spec.kind == Kind.TOKENS:
            image = self._layout.in_output(spec, output)
            element = image.element
            before = image.tokens
        else:
            image = None
            element = spec.item if isinstance(output, tuple) else None
            before = output if element is None else output[element]
        tensor = before.clone()
        # Edits read what the module has put out: a gradient may need it, and the copy changes in
        # place.
        for part, rows in self._call.split(before):
            if self._changed(part):
                tensor[part.rows] = self._replaced(spec, part, rows, image)
        if element is None:
            return tensor.reshape(output.shape)
        tensor = tensor.reshape(output[element].shape)
        return (*output[:element], tensor, *output[element + 1 :])

    def _replaced(
        self, spec: ActivationSpec, part: Part, rows: torch.Tensor, image: ImageTokens | None
    ) -> torch.Tensor:
        """Rows (B, C, H, W), or (B, N, C') with the image's tokens in them, as the edit changes
        them.
        """
        frames = self._layout.frames
        if image is None:
            return self._edit(spec, part, rows.float(), frames).to(rows)
        channels = slice(None)
        if not spec.block:
            # editable_specs lets none without through
            channels = slice(spec.begin, spec.begin + (spec.channels or 0))
        tokens = rows[:, image.positions, channels]  # (B, frames * H * W, C)
        feature = tokens.float().unflatten(1, (frames, -1)).flatten(0, 1).transpose(1, 2)
        changed = self._edit(spec, part, feature.unflatten(2, self._layout.size(spec)), frames)
        result = rows.clone()
        result[:, image.positions, channels] = (
            changed.flatten(2).transpose(1, 2).unflatten(0, (-1, frames)).flatten(1, 2).to(rows)
        )
        return result


def mask_at(
    mask: torch.Tensor, feature: torch.Tensor, frames: int, area: Area | None
) -> torch.Tensor:
    """Masks (M, H, W) of the image in 0..1 at the size of a feature (rows, C, h, w) of an area of
    it: (rows, 1, h, w).

    The M masks repeat over the images; the frames of an image share its mask. ValueError where the
    area is not known.
    """
    if area is None:
        raise ValueError(f"{TILED}: a mask cannot be placed.")
    sized = F.interpolate(area.cut(mask).float()[:, None], size=feature.shape[-2:], mode="area").to(
        feature.device
    )
    return for_autograd(sized[torch.arange(len(feature)) // frames % len(mask)])
