"""Change activations while a network is called: receivers that replace the outputs of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.nn import functional as F

from ..common.network_call import TILED, Area, Call, Part
from .activation_spec import ActivationSpec, Kind
from .attention_capture import Receivers
from .select_ids import NoSuchActivationError
from .tap import CallLayout

#: Gets a spec, the part of the call that the rows are of, the activation in float32 (rows, C, H, W), where each frame
#: of a video is a row, and the number of frames; returns what replaces the activation.
Edit = Callable[[ActivationSpec, Part, torch.Tensor, int], torch.Tensor]


def editable_specs(
    channels: Mapping[str, int | None], specs: list[ActivationSpec], source: str
) -> list[ActivationSpec]:
    """The specs of a network with these IDs and channels, which come from ``source``, in words.

    Raises NoSuchActivationError when the network does not have an ID with these channels, ValueError for IDs whose
    tensors cannot be changed.
    """
    known = {spec.id: spec for spec in specs}
    for id_, count in channels.items():
        spec = known.get(id_)
        if spec is not None and (spec.kind not in (Kind.SPATIAL, Kind.TOKENS) or spec.from_input):
            raise ValueError(f"{id_} can be read but not changed. Use the output of a module, such as *-out.")
        if spec is None or spec.channels != count:
            raise NoSuchActivationError(
                f"The {source} has {count} channels at {id_}, which this model does not have. Use the model of the "
                f"{source}."
            )
    return [known[id_] for id_ in channels]


class CallEdit:
    """Receivers for one call of a network that change the outputs of modules, in the rows of the ``changed`` parts."""

    def __init__(self, specs: list[ActivationSpec], edit: Edit, changed: Callable[[Part], bool], call: Call):
        self._specs, self._edit, self._changed, self._call = specs, edit, changed, call
        self._layout = CallLayout(specs)

    def receivers(self) -> tuple[Receivers, Receivers] | None:
        """Receivers of outputs, which return the changed output, and of first inputs; None when no row is changed."""
        if not any(map(self._changed, self._call.parts)):
            return None
        outputs, inputs = self._layout.receivers()
        return [*outputs, *((spec.module, partial(self._change, spec)) for spec in self._specs)], inputs

    def _change(self, spec: ActivationSpec, output: torch.Tensor | tuple[torch.Tensor, ...]):
        tensor = (output[spec.item] if isinstance(output, tuple) else output).clone()
        for part, rows in self._call.split(tensor):
            if self._changed(part):
                self._replace(spec, part, rows)
                if not isinstance(part.rows, slice):  # else the rows are a view
                    tensor[part.rows] = rows
        if isinstance(output, tuple):
            return (*output[: spec.item], tensor, *output[spec.item + 1 :])
        return tensor

    def _replace(self, spec: ActivationSpec, part: Part, rows: torch.Tensor) -> None:
        """Change rows (B, C, H, W), or the image's tokens in (B, N, C'), in place."""
        frames = self._layout.frames
        if spec.kind != Kind.TOKENS:
            rows.copy_(self._edit(spec, part, rows.float(), frames))
            return
        channels = slice(spec.begin, spec.begin + (spec.channels or 0))  # editable_specs lets none without through
        tokens = rows[:, self._layout.token_slice(spec, rows.shape[1]), channels]  # (B, frames * H * W, C)
        feature = tokens.float().unflatten(1, (frames, -1)).flatten(0, 1).transpose(1, 2)
        changed = self._edit(spec, part, feature.unflatten(2, self._layout.size(spec)), frames)
        tokens.copy_(changed.flatten(2).transpose(1, 2).unflatten(0, (-1, frames)).flatten(1, 2))


def mask_at(mask: torch.Tensor, feature: torch.Tensor, frames: int, area: Area | None) -> torch.Tensor:
    """Masks (M, H, W) of the image in 0..1 at the size of a feature (rows, C, h, w) of an area of it: (rows, 1, h, w).

    The M masks repeat over the images; the frames of an image share its mask. ValueError where the area is not known.
    """
    if area is None:
        raise ValueError(f"{TILED}: a mask cannot be placed.")
    sized = F.interpolate(area.cut(mask).float()[:, None], size=feature.shape[-2:], mode="area").to(feature.device)
    return sized[torch.arange(len(feature)) // frames % len(mask)]
