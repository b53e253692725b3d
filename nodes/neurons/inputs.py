"""Inputs that several nodes of the family share, as the keywords of ComfyUI's input classes."""

from __future__ import annotations

from .layers import CHOICES
from .memorization import OFFICIAL_STEP, PAPER_STEP

CATEGORY = "glassbox/neurons"
PAPER = "Finding NeMo (arXiv 2406.02366)"
STEPS = {f"{OFFICIAL_STEP} (official code)": OFFICIAL_STEP, f"{PAPER_STEP} (paper)": PAPER_STEP}
SEED_MAX = 0xFFFFFFFFFFFFFFFF

MODEL = {"id": "model", "tooltip": "SD1.x, SD2.x, SDXL or the demo model, with its LoRAs."}
CLIP = {"id": "clip", "tooltip": "Text encoder of that model."}
SAVE_AS = {
    "id": "save_as",
    "default": "",
    "tooltip": "Prefix of a file in ComfyUI's output folder, such as glassbox/neurons/statistics. Empty: no file.",
}
PROMPTS = {"id": "prompts", "default": "", "multiline": True, "tooltip": "One prompt a line."}
FILE = {
    "id": "file",
    "default": "",
    "tooltip": "More prompts: a .txt (one a line), a .csv with a column Caption, or a folder of .txt files, by its "
    "path "
    "in ComfyUI's input folder. Empty: none.",
}
LAYERS = {
    "id": "layers",
    "default": CHOICES[0],
    "tooltip": "Value layers: down, middle, up, or names such as input_blocks.1.1, apart by commas. The paper searches "
    "down and middle of SD1.4; for another model, ask Layer Ablation.",
}
SEEDS = {
    "id": "seeds",
    "default": 10,
    "min": 2,
    "max": 64,
    "tooltip": "How many noises are compared at once, as one batch. The paper takes 10; the threshold belongs to this "
    "number.",
}
SEED = {
    "id": "seed",
    "default": 1,
    "min": 0,
    "max": SEED_MAX,
    "tooltip": "Seed of the noises, drawn as one batch. The official code takes 1.",
}
TIMESTEP = {
    "id": "timestep",
    "options": list(STEPS),
    "tooltip": "Where the noise is predicted. The paper says the first of 50 steps; its code uses the second one's "
    "timestep. They rarely differ in effect.",
}
WIDTH = {
    "id": "width",
    "default": 512,
    "min": 56,
    "max": 4096,
    "step": 8,
    "tooltip": "Picture width in pixels: the size that the model was trained at. Under 352 the score has one scale "
    "only "
    "(see the help page).",
}
HEIGHT = {**WIDTH, "id": "height", "tooltip": "Picture height in pixels."}
THRESHOLD = {
    "id": "threshold",
    "default": 0.428,
    "min": 0.0,
    "max": 1.0,
    "step": 0.001,
    "tooltip": "From which score on a prompt counts as memorised. .428 is the paper's for SD1.4 at 512 x 512; take "
    "Calibrate Threshold's for anything else.",
}
MASK = {"id": "mask", "tooltip": "From NeMo Localize, Neuron Mask Edit or Load Neuron Mask."}
STRENGTH = {
    "id": "strength",
    "default": 1.0,
    "min": 0.0,
    "max": 2.0,
    "step": 0.05,
    "tooltip": "1 switches the neurons off, 0 changes nothing; a neuron's output is scaled by 1 - strength. Paper: .25 "
    "has almost no effect, .5 a partial one, from .75 on nearly the full one.",
}
BLOCKED_BELOW = {
    "id": "blocked_below",
    "default": 0.0,
    "min": 0.0,
    "max": 1.0,
    "step": 0.001,
    "tooltip": "Until where the criterion must fall for neurons to count as blocking. 0: the threshold, as in "
    "the paper. With 'same seed' a small model needs more, see the help page.",
}
