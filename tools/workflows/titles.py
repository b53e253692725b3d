"""The workflows of the template browser: their files' names, which are all that it shows and
searches.

Every other workflow lies in workflows/further under its short name.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from tools.launcher.paths import FURTHER_WORKFLOWS, ROOT, WORKFLOWS

TITLES = {
    "demo_weights_edit": "01 Edit a face with sliders (demo, no checkpoint)",
    "demo_weights_sample": "02 Meet people who never existed (demo)",
    "demo_weights_edit_photo": "03 Find a person from one image and edit them (demo)",
    "demo_neurons_find_and_mask": (
        "04 Memorization, find a portrait and switch its neurons off (demo)"
    ),
    "demo_activations_token_heat_map": "05 Attention heat map of each word (demo)",
    "demo_activations_correspondence": "06 Find the same point in other faces (demo)",
    "demo_noise_composition": "07 Set the layout with noise (demo)",
    "demo_conditioning_higher_resolution": (
        "08 Upscale beyond the training size without a second head (demo)"
    ),
    "demo_noise_seed_scout": "09 Find the best of sixteen seeds early (demo)",
    "demo_activations_edit_image_by_words": "10 Edit image by words, no inpaint mask (demo)",
    "zimage_activations_edit_image_by_words": "11 Z-Image, edit image by words",
    "zimage_activations_token_heat_map": "12 Z-Image, attention heat map of each word",
    "zimage_weights_train_space": "13 Z-Image, learn sliders from folders of images",
    "qwen_activations_edit_image_by_words": "14 Qwen-Image, edit image by words",
    "qwen_activations_token_heat_map": "15 Qwen-Image, attention heat map of each word",
    "flux2_activations_edit_image_by_words": "16 FLUX.2 klein, edit image by words",
    "krea2_activations_edit_image_by_words": "17 Krea 2, edit image by words",
    "wan_activations_edit_late_by_words": "18 Wan, edit video by words",
    "sdxl_weights_own_space": "19 SDXL, make sliders from your own LoRAs",
    "sdxl_weights_edit_photo": "20 SDXL, find a person from one photo and edit them",
    "sdxl_weights_train_space": "21 SDXL, learn sliders from folders of images",
    "sdxl_activations_edit_image_by_words": "22 SDXL, edit image by words",
    "sdxl_noise_composition": "23 SDXL, set the layout with noise",
    "sdxl_conditioning_higher_resolution": "24 SDXL, upscale to 2048 pixels without a second body",
    "sdxl_neurons_find_and_mask": "25 SDXL, memorization, find a prompt and switch its neurons off",
    "sdxl_noise_train_lora": "26 SDXL, train LoRA with immiscible noise",
    "demo_weights_train_slider": "27 Make a slider from two phrases (demo)",
    "demo_conditioning_seed_variety": "28 Get more variety from seeds (demo)",
}
#: Workflows beside them whose image a document shows.
ILLUSTRATED = (
    "demo_activations_steering_sliders",
    "demo_conditioning_size_sweep",
)


def path_of(name: str) -> Path:
    """The file of the workflow with a short name."""
    return (
        WORKFLOWS / f"{TITLES[name]}.json" if name in TITLES else FURTHER_WORKFLOWS / f"{name}.json"
    )


LIST = ROOT / "docs" / "workflows.md"


def listed(names: Iterable[str]) -> str:
    """The text of ``LIST``: every workflow with its short name."""
    shown = sorted(names, key=lambda name: TITLES.get(name, f"~{name}"))
    links = (quote(path_of(one).relative_to(ROOT).as_posix()) for one in shown)
    rows = [
        f"| [{path_of(one).stem}](../{link}) | `{one}` |"
        for one, link in zip(shown, links, strict=True)
    ]
    return f"""# All workflows

Those with a number are in ComfyUI's template browser. The others show a paper's claim or repeat a
template for another model; open them with Ctrl+O. `python run.py demo --only NAME` takes the short
name, by which files were named before.

| workflow | short name |
|---|---|
{chr(10).join(rows)}
"""
