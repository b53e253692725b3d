"""Scale rows of weights for good: as weight patches, which Save Checkpoint writes into the file."""

from __future__ import annotations

import torch

from .value_hooks import Factors


def with_scaled_rows(patcher, factors: Factors):
    """A clone of a MODEL in which the weight rows of layers are multiplied by ``factors`` (rows,) by dotted path.

    After the LoRAs that the MODEL has by now; LoRAs that are added later are not scaled.
    """
    clone = patcher.clone()
    for path, factor in factors.items():
        key = f"diffusion_model.{path}.weight"
        for row in (factor != 1).nonzero().flatten().tolist():
            # ComfyUI multiplies the part of the weight that an offset names by the model's strength.
            nothing = ("diff", (torch.zeros(1),))
            clone.add_patches({(key, (0, row, 1)): nothing}, strength_patch=0.0, strength_model=float(factor[row]))
    return clone
