"""The latent of a color, against ComfyUI's own preview of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

COLORS = ("#edb98a", "#102040", "#00ff7f")


@pytest.mark.parametrize("name", ["SD15", "SDXL", "Flux", "SD3"])
def test_the_latents_of_colors_preview_as_these_colors(app, name):
    """Within one step of 255 of each, and each by itself."""
    import comfy.latent_formats
    from latent_preview import Latent2RGBPreviewer

    module = app.module("nodes.noise.composition_comfy")
    form = getattr(comfy.latent_formats, name)()
    model = SimpleNamespace(get_model_object={"latent_format": form}.get)
    colors = [module._rgb(color) for color in COLORS]
    latents = module._previewed(model, *colors)
    previewer = Latent2RGBPreviewer(form.latent_rgb_factors, form.latent_rgb_factors_bias)
    for color, latent in zip(colors, latents, strict=True):
        assert latent.shape == (form.latent_channels,)
        image = previewer.decode_latent_to_preview(latent[None, :, None, None].expand(-1, -1, 4, 4))
        pixels = torch.from_numpy(np.asarray(image).reshape(-1, 3).astype(np.float32))
        assert float((pixels - 255 * color).abs().max()) <= 1.5


def test_a_model_without_a_preview_in_colors_gets_a_sentence(app):
    module = app.module("nodes.noise.composition_comfy")
    form = SimpleNamespace(latent_rgb_factors=[[0.1] * 3] * 3, latent_channels=4)
    model = SimpleNamespace(get_model_object={"latent_format": form}.get)
    for without in (None, model):
        with pytest.raises(ValueError, match="Two colors need the VAE, or a MODEL with a preview"):
            module._previewed(without, torch.ones(3))
