"""The demo model's networks: ComfyUI's own classes with small numbers.

So hooks, patches and keys behave as in SD1.5.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Pixels a side that the demo model was trained at, and the factor between pixels and latent.
SIZE = 128
FACTOR = 8
LATENT_CHANNELS = 24
#: Width of the Fourier features of each of the five metadata numbers.
METADATA_FEATURES = 64
METADATA = ("height", "width", "crop_h", "crop_w", "mirror")

UNET = {
    "image_size": SIZE // FACTOR,
    "in_channels": LATENT_CHANNELS,
    "out_channels": LATENT_CHANNELS,
    "model_channels": 64,
    "channel_mult": (1, 1, 2),
    "num_res_blocks": [2, 2, 2],
    "transformer_depth": [1] * 6,
    "transformer_depth_middle": 1,
    "transformer_depth_output": [1] * 9,
    "num_heads": -1,
    "num_head_channels": 32,
    "use_spatial_transformer": True,
    "context_dim": 128,
    "use_linear_in_transformer": False,
    "num_classes": "sequential",
    "adm_in_channels": METADATA_FEATURES * len(METADATA),
    "legacy": False,
}
TEXT = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_act": "gelu",
    "max_position_embeddings": 77,
    "eos_token_id": 49407,
}


def metadata_vector(metadata: Any) -> torch.Tensor:
    """The vector of ``label_emb``: Fourier features of the five numbers of ``METADATA``.

    ``metadata`` float (N, 5), pixels of a 128-pixel image (mirror: 0 or 128) -> float32 (N, 320).
    The frequencies are those of SDXL's size embedding (arXiv 2307.01952, section 2.2), spread over
    128 pixels.
    """
    import torch

    half = METADATA_FEATURES // 2
    frequencies = torch.exp(-math.log(SIZE) * torch.arange(half, device=metadata.device) / half) / 2
    angles = metadata.float()[..., None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1).flatten(1)
