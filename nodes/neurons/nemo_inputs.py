"""Inputs that several nodes of the family share: widgets (as keywords of ComfyUI's input classes),
the first denoising step, and lists of prompts.
"""

from __future__ import annotations

import csv
import enum
import io
from dataclasses import dataclass
from pathlib import Path

import torch

from ..common.atomic_write import read_text
from .memorization_score import OFFICIAL_TIMESTEP, PAPER_THRESHOLD, PAPER_TIMESTEP, seeded_noise
from .neuron_layers import PAPER_LAYERS, NeuronType

CATEGORY = "Glassbox/Neurons"
PAPER = "Finding NeMo (arXiv 2406.02366)"
TIMESTEPS = {
    f"official_{OFFICIAL_TIMESTEP}": OFFICIAL_TIMESTEP,
    f"paper_{PAPER_TIMESTEP}": PAPER_TIMESTEP,
}


class PromptSyntax(enum.StrEnum):
    """How the brackets of a prompt are read."""

    LITERAL = "literal"
    WEIGHTED = "weighted"  # ComfyUI's


_COLUMNS = ("caption", "prompt", "text")
_CSV = ".csv"
_TXT = ".txt"

MODEL = {
    "id": "model",
    "tooltip": "Model that generates images from noise, with its LoRAs.",
}
CLIP = {"id": "clip", "tooltip": "Text encoder of the model."}
FILENAME_PREFIX = {
    "id": "filename_prefix",
    "default": "",
    "tooltip": (
        "File prefix in ComfyUI's output folder, e.g. glassbox/neurons/statistics. Empty: no file."
    ),
}
PROMPTS = {"id": "prompts", "default": "", "multiline": True, "tooltip": "One prompt per line."}
PROMPTS_FILE = {
    "id": "prompts_file",
    "default": "",
    "tooltip": (
        "More prompts, as a path in ComfyUI's input folder: a .txt (one per line), a .csv with a "
        "column Caption, or a folder of .txt files. Empty: none."
    ),
}
LAYERS = {
    "id": "layers",
    "default": PAPER_LAYERS,
    "tooltip": (
        "Layers: down, middle, up, all, or names such as input_blocks.1.1, comma-separated. The "
        "paper searches down and middle of SD1.4; for another model, see "
        "layer_ablation of Memorization Score."
    ),
}
PROMPT_SYNTAX = {
    "id": "prompt_syntax",
    "options": PromptSyntax,
    "optional": True,
    "tooltip": (
        "literal: brackets are plain text, as in training captions. weighted: (word) and "
        "(word:1.2) set weights, as in CLIP Text Encode."
    ),
}
NOISE_SAMPLES = {
    "id": "noise_samples",
    "default": 10,
    "min": 2,
    "max": 64,
    "tooltip": (
        "Number of noise samples to compare. Paper: 10. The threshold is valid for this number "
        "only."
    ),
}
SEED_TOOLTIP = "Seed of the noise samples. Official code: 1."
TIMESTEP = {
    "id": "timestep",
    "options": list(TIMESTEPS),
    "tooltip": (
        "Timestep of the first denoising step. The paper uses the first of 50 steps (981), its "
        "code 961. The scores rarely differ."
    ),
}
WIDTH = {
    "id": "width",
    "default": 512,
    "min": 56,
    "max": 4096,
    "step": 8,
    "tooltip": (
        "Image width in pixels; use the training resolution of the model. Below 352 the score "
        "has one scale only."
    ),
}
HEIGHT = {**WIDTH, "id": "height", "tooltip": "Image height in pixels."}
NEURON_TYPE = {
    "id": "neuron_type",
    "options": NeuronType,
    "optional": True,
    "tooltip": (
        "value: channels of cross-attention values, the paper's neurons; in a transformer, the "
        "values of a block's attention at the positions of the text. "
        "feed_forward: hidden units of feed-forward layers."
    ),
}
THRESHOLD = {
    "id": "threshold",
    "default": PAPER_THRESHOLD,
    "min": 0.0,
    "max": 1.0,
    "step": 0.001,
    "tooltip": (
        "Score above which a prompt counts as memorized. Paper: .428 for SD1.4 at 512 x 512; use "
        "Calibrate Threshold for anything else."
    ),
}
MASK = {
    "id": "mask",
    "tooltip": (
        "From NeMo Localize, Optimize Neuron Mask, Concept Neurons, Neuron Mask Edit or Load "
        "Neuron Mask."
    ),
}
STRENGTH = {
    "id": "strength",
    "default": 1.0,
    "min": -4.0,
    "max": 4.0,
    "step": 0.05,
    "tooltip": (
        "Scales a neuron's output by 1 - strength: 1 silences it, 0 changes nothing, 2 negates "
        "and -1 doubles it. Paper: .25 has almost no effect, .5 a partial one, .75 and above "
        "nearly the full one."
    ),
}
TARGET_SCORE = {
    "id": "target_score",
    "default": 0.0,
    "min": 0.0,
    "max": 1.0,
    "step": 0.001,
    "tooltip": (
        "Target of the search: it adds neurons until silencing them brings the criterion down to "
        "this value. 0: the threshold, as in the paper. With same_seed a small model needs a "
        "larger value."
    ),
}
SCAN_FILE = {
    "id": "scan_file",
    "default": "",
    "optional": True,
    "tooltip": (
        "Scan file in ComfyUI's output folder, e.g. glassbox/neurons/scan. Rows are written "
        "prompt by prompt; a run with the same settings resumes. Failed prompts are skipped and "
        "reported. Empty: no file."
    ),
}
SIMILARITY = {
    "id": "similarity",
    "optional": True,
    "tooltip": (
        "Image similarity measure. auto: sscd if sscd_file is set, else clip_vision if "
        "connected, else the demo model's image encoder (with its clip), else ssim. ssim "
        "compares pixels and overrates flat images."
    ),
}
GENERIC_IMAGES = {
    "id": "generic_images",
    "optional": True,
    "tooltip": (
        'Images of a generic prompt (e.g. "portrait") from the unmasked model. The memorized '
        "image counts as removed when the masked outputs are no more similar to it than these."
    ),
}
SSCD_FILE = {
    "id": "sscd_file",
    "default": "",
    "optional": True,
    "tooltip": (
        "SSCD weights (sscd_disc_mixup; .safetensors or .pt state dict), as a path in ComfyUI's "
        "input folder."
    ),
}


@dataclass(frozen=True, kw_only=True)
class FirstStepInputs:
    """The step at which prompts are scored: shape of the latents, number and seed of noise samples,
    timestep.
    """

    shape: tuple[int, ...]
    noise_samples: int
    seed: int
    timestep_name: str

    @property
    def timestep(self) -> int:
        """The timestep, 0 to 999."""
        return TIMESTEPS[self.timestep_name]

    @property
    def settings(self) -> dict:
        """What a scan must have in common to resume."""
        return {
            "noise_samples": self.noise_samples,
            "seed": self.seed,
            "timestep": self.timestep,
            "latent": list(self.shape),
        }

    @property
    def side(self) -> int:
        """The smallest side of the latents."""
        return min(self.shape[-2:])

    def noise(self) -> torch.Tensor:
        """The noise samples (N, *shape)."""
        return seeded_noise(self.shape, self.noise_samples, self.seed)


def parse_prompts(text: str) -> list[str]:
    """One prompt per line, without empty lines."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def collect_prompts(
    text: str, path: Path | None = None, least: int = 0, name: str = "prompts"
) -> list[str]:
    """The prompts of a text, and of a file or folder. Raises ValueError for fewer than
    ``least``.
    """
    found = parse_prompts(text) + (read_prompts(path) if path else [])
    if len(found) < least:
        raise ValueError(
            f"{name} needs {least} or more prompts and has {len(found)}: write one per line."
        )
    return found


def read_prompts(path: Path) -> list[str]:
    """The prompts of a .txt (one a line), a .csv with a column Caption, or a folder of .txt files,
    each one prompt.

    Raises ValueError for anything else.
    """
    if path.is_dir():
        found = [" ".join(read_text(file).split()) for file in sorted(path.glob(f"*{_TXT}"))]
    elif path.suffix.lower() == _CSV:
        found = _read_table(path)
    elif path.suffix.lower() == _TXT:
        found = parse_prompts(read_text(path))
    else:
        raise ValueError(
            f"{path.name} is not a list of prompts: give a .txt, a .csv with a column Caption, or "
            "a folder of .txt."
        )
    return [prompt for prompt in found if prompt]


def _read_table(path: Path) -> list[str]:
    text = read_text(path)
    head = text.partition("\n")[0]
    try:
        rows = [
            *csv.reader(
                io.StringIO(text), delimiter=";" if head.count(";") > head.count(",") else ","
            )
        ]
    except csv.Error as error:
        raise ValueError(
            f"{path.name} cannot be read as a table ({error}): save it as CSV again."
        ) from None
    names = [name.strip().lower() for name in (rows[0] if rows else [])]
    column = next((names.index(name) for name in _COLUMNS if name in names), None)
    if column is None:
        raise ValueError(
            f"{path.name} has no column Caption, Prompt or Text: name one so in its first line."
        )
    return [row[column].strip() for row in rows[1:] if len(row) > column]
