"""The demo model with the family's nodes, executed as the queue executes them."""

from __future__ import annotations

import copy
import csv
import functools
import io

import numpy as np
import torch

from ..common import host
from ..common.similarity import images_ssim
from ..world import captions, judge
from ..world.autoencoder import CHANNELS
from ..world.denoiser import named_images
from ..world.scenes import random_scene, render

WORLD = "avatars-v2"
SIZE, CFG = 128, 3.0
#: The memorized names of the demo model are carried by all of its parts, unlike SD1.4's prompts.
LAYERS = "down, middle, up"
_NODES = {
    "NemoLocalize": "nodes_nemo",
    "NemoNeuronMask": "nodes_nemo",
    "OptimizeNeuronMask": "nodes_optimize_mask",
    "ConceptNeurons": "nodes_concept",
    "NeuronStatistics": "nodes_statistics",
    "MemorizationScore": "nodes_detection",
    "NeuronMaskEdit": "nodes_mask",
    "AttentionScaling": "nodes_mitigations",
    "EmbeddingAdjustment": "nodes_mitigations",
    "RandomTokens": "nodes_mitigations",
    "AdversarialUnlearning": "nodes_mitigations",
    "MemorizationAudit": "nodes_audit",
}


class World:
    """A demo model; ``seeds`` noise samples for every score, ordinary captions, and the names with
    their images.
    """

    def __init__(self, seeds: int, ordinary: int, world: str = WORLD):
        host.prepare()
        self.model, self.clip, self.vae = (
            host.pack(f"nodes.demo.{name}").load(world)
            for name in ("denoiser", "text_encoder", "autoencoder")
        )
        self.first_step = {
            "noise_samples": seeds,
            "seed": 1,
            "timestep": "official_961",
            "width": SIZE,
            "height": SIZE,
        }
        rng = np.random.default_rng(7)
        self.scenes = [random_scene(rng) for _ in range(ordinary)]
        self.ordinary = list(dict.fromkeys(captions.caption(scene, rng) for scene in self.scenes))
        self.names = {
            kind: [captions.name_caption(name) for name in names]
            for kind, names in captions.NAMES.items()
        }
        self.originals = {text: render(scenes[0]) for text, scenes in named_images(variants=1)}

    def run(self, node: str, **inputs) -> tuple:
        """The outputs of a node."""
        cls = getattr(host.pack(f"nodes.neurons.{_NODES[node]}"), node)
        with torch.inference_mode():
            return tuple(cls.execute(**inputs).args)

    def scores(self, texts: list[str], norm: bool = False) -> list[tuple[float, float]]:
        """Score and text norm of each prompt."""
        return [
            (float(row["score"]), float(row["text_norm"] or 0))
            for row in self.detected(texts, text_norm=norm)
        ]

    def detected(self, texts: list[str], **detectors: int) -> list[dict[str, str]]:
        """The row of Memorization Score's table for each prompt; ``detectors``: which it measures
        beside the score.
        """
        table = self.run(
            "MemorizationScore",
            model=self.model,
            clip=self.clip,
            prompts="\n".join(texts),
            prompts_file="",
            threshold=0.5,
            filename_prefix="",
            **self.first_step,
            **detectors,
        )[4]
        rows = {row["prompt"]: row for row in csv.DictReader(io.StringIO(table))}
        return [rows[text] for text in texts]

    @functools.cached_property
    def ordinary_norm(self) -> float:
        """The median text norm of some ordinary captions: what the embedding adjustment aims at."""
        return float(np.median([norm for _, norm in self.scores(self.ordinary[:8], norm=True)]))

    def statistics(self, layers: str):
        """Neuron statistics of the ordinary captions and the control names."""
        texts = [*self.ordinary, *self.names["control"]]
        return self.run(
            "NeuronStatistics",
            model=self.model,
            clip=self.clip,
            prompts="\n".join(texts),
            prompts_file="",
            layers=layers,
            filename_prefix="",
        )[0]

    def layers(self, texts: list[str]) -> str:
        """The layers that Memorization Score's layer_ablation suggests, averaged over the texts."""
        return self.run(
            "MemorizationScore",
            model=self.model,
            clip=self.clip,
            prompts="\n".join(texts),
            prompts_file="",
            threshold=0.0,
            filename_prefix="",
            layer_ablation="value",
            **self.first_step,
        )[6]

    @functools.cached_property
    def thresholds(self) -> tuple[float, float]:
        """The detection threshold, and the target score below which a prompt counts as blocked.

        One deviation over and one under the mean of ordinary captions: the paper's threshold and
        the strictest of its ablation (its table 4).
        """
        normal, calibrate = (
            [score for score, _ in self.scores(self.ordinary)],
            host.pack("nodes.neurons.score_threshold").calibrate,
        )
        return calibrate(normal, 1.0).value, calibrate(normal, -1.0).value

    def localize(self, text: str, statistics, layers: str = LAYERS, **changes):
        """The mask of one prompt, as the demo's workflow finds it; ``changes`` to the node's
        inputs.
        """
        threshold, target_score = self.thresholds
        how = {
            "model": self.model,
            "criterion": "between_seeds",
            "threshold": threshold,
            "target_score": target_score,
            "theta_start": 5.0,
            "time_budget": 0.0,
            **self.first_step,
        }
        return self.run(
            "NemoLocalize",
            clip=self.clip,
            statistics=statistics,
            prompts=text,
            layers=layers,
            **(how | changes),
        )[0]

    def in_low_precision(self):
        """The model in bfloat16."""
        clone = self.model.clone()
        clone.model = copy.deepcopy(self.model.model)
        clone.model.diffusion_model.to(torch.bfloat16).dtype = torch.bfloat16
        return clone

    def masked(self, mask, strength: float = 1.0):
        """The model with a mask."""
        return self.run(
            "NemoNeuronMask",
            model=self.model,
            mask=mask,
            strength=strength,
            start_percent=0.0,
            end_percent=1.0,
            apply_to="both",
        )[0]

    @torch.inference_mode()
    def encode(self, text: str) -> list:
        """A prompt's CONDITIONING."""
        return host.pack("nodes.host.text_encoding").encode(self.clip, text)[1]

    @torch.inference_mode()
    def generate(
        self, model, positive: list, count: int, steps: int = 12, seed: int = 1000
    ) -> np.ndarray:
        """Images uint8 (count, 128, 128, 3) from seeds that no score has seen."""
        evaluate = host.pack("nodes.host.evaluate")
        images = evaluate.sample_images(
            model,
            self.vae,
            positive,
            self.encode(""),
            (CHANNELS, SIZE // 8, SIZE // 8),
            count,
            seed,
            steps=steps,
            cfg=CFG,
        )
        return (images * 255).round().to(torch.uint8).numpy()

    def left(self, model, text: str, prompt: str, count: int) -> dict[str, float]:
        """What images of a prompt have of a name's portrait, as ``remains`` has it."""
        return self.remains(self.generate(model, self.encode(prompt), count), text)

    def remains(self, images: np.ndarray, text: str) -> dict[str, float]:
        """What images (N, 128, 128, 3) have of a name's portrait: similarity, its labels, the
        fraction with one face, and how sure the judge is of what it reads, which a smear lowers.
        """
        network, original = host.pack("nodes.demo.judge").load(WORLD), self.originals[text]
        labels = judge.read(network, original[None])[0][0]
        repeated = np.repeat(original[None], len(images), 0)
        return {
            "similarity": float(np.mean(images_ssim(images, repeated))),
            "labels": float((judge.read(network, images)[0] == labels).mean()),
            "faces": float((judge.locate(network, images)[2] == 1).mean()),
            "confidence": float(judge.confidence(network, images).mean()),
        }


def silencing(neurons):
    """The mask that silences neurons (path, index)."""
    mask = host.pack("nodes.neurons.mask")
    return mask.NeuronMask(mask.uniform_scales(neurons))
