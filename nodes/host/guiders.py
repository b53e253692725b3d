"""Guiders of the pack's own: objects with which SamplerCustomAdvanced asks a MODEL."""

from __future__ import annotations

import comfy.samplers


class MetadataGuider(comfy.samplers.CFGGuider):
    """Guidance by text with strength λ (``cfg``) and by metadata with relative strength β.

    λ (β e(s, c) + (1 - β) e(s, r)) + (1 - λ) e(0, r): s the text, c the metadata asked for, r the reference metadata.
    Three evaluations only where all three have a weight; CFG's two at most for β = 0, β = 1 or λ = 0. β = 1 and β = 0
    are ComfyUI's own CFG against e(0, r), bit for bit; between them it is DualCFGGuider with cfg_conds = λβ and
    cfg_cond2_negative = λ.
    """

    def set_conds(self, positive: list, reference: list, negative: list) -> None:
        """(s, c), (s, r) and (0, r)."""
        self.inner_set_conds({"positive": positive, "reference": reference, "negative": negative})

    def set_strengths(self, cfg: float, metadata_strength: float) -> None:
        """λ and β."""
        self.cfg, self.metadata_strength = cfg, metadata_strength

    def predict_noise(self, x, timestep, model_options=None, seed=None):
        options = model_options or {}
        told, reference, nothing = (self.conds.get(name) for name in ("positive", "reference", "negative"))
        if self.metadata_strength in (0, 1) or self.cfg == 0:
            text = reference if self.metadata_strength == 0 else told
            return comfy.samplers.sampling_function(
                self.inner_model, x, timestep, nothing, text, self.cfg, model_options=options, seed=seed
            )
        if self.cfg == 1 and not options.get("disable_cfg1_optimization", False):
            nothing = None
        out = comfy.samplers.calc_cond_batch(self.inner_model, [nothing, reference, told], x, timestep, options)
        guided = comfy.samplers.cfg_function(
            self.inner_model, out[1], out[0], self.cfg, x, timestep, options, cond=reference, uncond=nothing
        )
        return guided + (out[2] - out[1]) * (self.cfg * self.metadata_strength)
