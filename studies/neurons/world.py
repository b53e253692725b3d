"""The demo model with the family's nodes, called as the queue calls them."""

from __future__ import annotations

import copy
import csv
import functools
import io

import numpy as np
import torch

from ..common import host
from ..world import captions
from ..world.denoiser import named_pictures
from ..world.scenes import random_scene, render

WORLD = "avatars-v1"
SIZE, CFG = 128, 3.0
#: The name that the demo model has learnt by heart sits in all parts of it, unlike SD1.4's prompts.
LAYERS = "down, middle, up"
_NODES = {
    "NemoLocalize": "nodes", "NemoNeuronMask": "nodes", "NeuronStatistics": "reference.nodes",
    "MemorizationScore": "detection.nodes", "LayerAblation": "detection.nodes", "NeuronMaskEdit": "masks.nodes",
    "AttentionScaling": "baselines.nodes", "EmbeddingAdjustment": "baselines.nodes", "RandomTokens": "baselines.nodes",
    "MemorizationAudit": "baselines.nodes",
}  # fmt: skip


class World:
    """A demo model; ``seeds`` noises for every score, ordinary captions, and the names with their pictures."""

    def __init__(self, seeds: int, ordinary: int, world: str = WORLD):
        host.prepare()
        self.model, self.clip, self.vae = (
            host.pack(f"nodes.demo.{name}").load(world) for name in ("model", "text", "autoencoder")
        )
        self.first_step = {"seeds": seeds, "seed": 1, "timestep": "961 (official code)", "width": SIZE, "height": SIZE}
        rng = np.random.default_rng(7)
        self.scenes = [random_scene(rng) for _ in range(ordinary)]
        self.ordinary = list(dict.fromkeys(captions.caption(scene, rng) for scene in self.scenes))
        self.names = {kind: [captions.name_caption(name) for name in names] for kind, names in captions.NAMES.items()}
        self.originals = {text: render(scenes[0]) for text, scenes in named_pictures(variants=1)}

    def run(self, node: str, **inputs) -> tuple:
        """What a node gives out."""
        cls = getattr(host.pack(f"nodes.neurons.{_NODES[node]}"), node)
        with torch.inference_mode():
            return tuple(cls.execute(**inputs).args)

    def scores(self, texts: list[str], norm: bool = False) -> list[tuple[float, float]]:
        """Score and text norm of each prompt."""
        table = self.run("MemorizationScore", model=self.model, clip=self.clip, prompts="\n".join(texts), file="",
                         threshold=0.5, text_norm=norm, save_as="", **self.first_step)[4]  # fmt: skip
        rows = {row["prompt"]: row for row in csv.DictReader(io.StringIO(table))}
        return [(float(rows[text]["score"]), float(rows[text]["text norm"] or 0)) for text in texts]

    @functools.cached_property
    def ordinary_norm(self) -> float:
        """The median text norm of some ordinary captions: what the embedding adjustment aims at."""
        return float(np.median([norm for _, norm in self.scores(self.ordinary[:8], norm=True)]))

    def statistics(self, layers: str):
        """Neuron statistics of the ordinary captions and the control names."""
        texts = [*self.ordinary, *self.names["control"]]
        return self.run("NeuronStatistics", model=self.model, clip=self.clip, prompts="\n".join(texts), file="",
                        layers=layers, save_as="")[0]  # fmt: skip

    def layers(self, texts: list[str]) -> str:
        """The layers that Layer Ablation tells to search."""
        return self.run("LayerAblation", model=self.model, clip=self.clip, prompts="\n".join(texts),
                        **self.first_step)[1]  # fmt: skip

    @functools.cached_property
    def thresholds(self) -> tuple[float, float]:
        """From where on a prompt counts as memorised and below which it counts as blocked.

        One deviation over and one under the mean of ordinary captions: the paper's threshold and the strictest of its
        ablation (its table 4).
        """
        normal, learn = (
            [score for score, _ in self.scores(self.ordinary)],
            host.pack("nodes.neurons.calibration").threshold,
        )
        return learn(normal, 1.0).value, learn(normal, -1.0).value

    def localize(self, text: str, statistics, layers: str = LAYERS, **changes):
        """The mask of one prompt, as the demo's workflow finds it; ``changes`` to the node's inputs."""
        threshold, blocked_below = self.thresholds
        how = {"model": self.model, "criterion": "between seeds", "threshold": threshold,
               "blocked_below": blocked_below, "mode": "fast", "first_theta": 5.0, "time_budget": 0.0,
               **self.first_step}  # fmt: skip
        return self.run("NemoLocalize", clip=self.clip, statistics=statistics, prompts=text, layers=layers,
                        **(how | changes))[0]  # fmt: skip

    def in_low_precision(self):
        """The model in bfloat16."""
        clone = self.model.clone()
        clone.model = copy.deepcopy(self.model.model)
        clone.model.diffusion_model.to(torch.bfloat16).dtype = torch.bfloat16
        return clone

    def masked(self, mask, strength: float = 1.0):
        """The model with a mask."""
        return self.run("NemoNeuronMask", model=self.model, mask=mask, strength=strength, start_percent=0.0,
                        end_percent=1.0, rows="both (paper)")[0]  # fmt: skip

    @torch.inference_mode()
    def encode(self, text: str) -> list:
        """A prompt's CONDITIONING."""
        return host.pack("nodes.host.prompts").encode(self.clip, text)[1]

    @torch.inference_mode()
    def paint(self, model, positive: list, count: int, steps: int = 12, seed: int = 1000) -> np.ndarray:
        """Pictures uint8 (count, 128, 128, 3) from seeds that no score has seen."""
        painting = host.pack("nodes.host.painting")
        pictures = painting.paint(model, self.vae, positive, self.encode(""), (8, SIZE // 8, SIZE // 8), count, seed,
                                  steps=steps, cfg=CFG)  # fmt: skip
        return (pictures * 255).round().to(torch.uint8).numpy()
