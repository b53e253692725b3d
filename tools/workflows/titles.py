"""The workflows of the template browser: their files' names, which are all that it shows and searches.

Every other workflow lies in tests/workflows under its short name.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from tools.launcher.paths import FURTHER_WORKFLOWS, ROOT, WORKFLOWS

TITLES = {
    "demo_weights_edit": "01 Edit a face with sliders (demo, no checkpoint)",
    "demo_weights_sample": "02 Meet people who never existed (demo)",
    "demo_weights_edit_photo": "03 Find a person from one image and edit them (demo)",
    "demo_neurons_find_and_mask": "04 Find a memorized portrait and switch its neurons off (demo)",
    "demo_activations_token_heat_map": "05 See where each word acts, a heat map (demo)",
    "demo_activations_correspondence": "06 Find the same point in other faces (demo)",
    "demo_noise_composition": "07 Set the layout with noise (demo)",
    "demo_conditioning_higher_resolution": "08 Go beyond the training size without a second head (demo)",
    "demo_noise_seed_scout": "09 Find the best of sixteen seeds early (demo)",
    "demo_activations_edit_image_by_words": "10 Change a word in an image (demo)",
    "sdxl_weights_own_space": "11 Make sliders from your own LoRAs (SDXL)",
    "sdxl_weights_edit_photo": "12 Find a person from one photo and edit them (SDXL)",
    "sdxl_weights_train_space": "13 Learn sliders from folders of images (SDXL)",
    "sdxl_activations_edit_image_by_words": "14 Change a word in an image (SDXL)",
    "sdxl_activations_token_heat_map": "15 See where each word acts, a heat map (SDXL)",
    "sdxl_noise_seed_scout": "16 Find the best of sixteen seeds early (SDXL)",
    "sdxl_noise_composition": "17 Set the layout with noise (SDXL)",
    "sdxl_conditioning_higher_resolution": "18 Go to 2048 pixels without a second body (SDXL)",
    "sdxl_noise_portrait_desk": "19 Layout, seed, words and size on one desk (SDXL)",
    "sdxl_neurons_find_and_mask": "20 Find a memorized prompt and switch its neurons off (SDXL)",
    "sdxl_noise_train_lora": "21 Train a LoRA with immiscible noise (SDXL)",
    "sdxl_activations_correspondence": "22 Find the same point in another image (SDXL)",
    "sdxl_activations_sparse_features": "23 Turn single features of the network up and down (SDXL Turbo)",
    "sd15_weights_official_release": "24 Edit people of the official weights2weights release (SD1.5)",
    "sd15_neurons_find_and_mask": "25 Find a memorized prompt and switch its neurons off (SD1.5)",
    "sd15_neurons_scan_and_mask": "26 Scan a list of prompts for memorized images (SD1.5)",
    "sd15_activations_steering_sliders": "27 Steer summer to winter and day to night with sliders (SD1.5)",
    "sd15_activations_patching": "28 Carry features of one image into another (SD1.5)",
    "sd15_activations_few_shot_segmentation": "29 Segment your own classes from a few masks (SD1.5)",
    "sd15_conditioning_resolution_rescale": "30 Right noise for larger images (SD1.5)",
    "flux_activations_token_heat_map": "31 See where each word acts, a heat map (Flux)",
    "flux_conditioning_higher_resolution": "32 Go to 2048 pixels (Flux)",
    "flux_weights_own_space": "33 Make sliders from your own LoRAs (Flux)",
    "sd3_conditioning_larger_images": "34 Larger images than the model was trained on (SD3)",
    "demo_weights_train_space": "35 Learn sliders from folders of images (demo)",
    "demo_weights_sweep": "37 A grid of beard against dark skin (demo)",
    "demo_weights_to_lora": "38 Save a person as a LoRA for any ComfyUI (demo)",
    "demo_neurons_concept": "40 Turn sunglasses up and down with ten neurons (demo)",
    "demo_activations_steering_sliders": "41 Steer a face with sliders made from captions (demo)",
    "demo_activations_sparse_features": "42 Turn single features of the network up and down (demo)",
    "demo_activations_clusters": "43 Segment faces without training (demo)",
    "demo_conditioning_size_sweep": "44 Sharper or softer with the original size (demo)",
    "demo_world_text_to_image": "45 Generate faces with the demo model (demo)",
    "demo_noise_portrait_desk": "46 Layout, seed, sliders and size on one desk (demo)",
}


def path_of(name: str) -> Path:
    """The file of the workflow with a short name."""
    return WORKFLOWS / f"{TITLES[name]}.json" if name in TITLES else FURTHER_WORKFLOWS / f"{name}.json"


LIST = ROOT / "docs" / "workflows.md"


def listed(names: Iterable[str]) -> str:
    """The text of ``LIST``: every workflow with its short name."""
    shown = sorted(names, key=lambda name: TITLES.get(name, f"~{name}"))
    links = (quote(path_of(one).relative_to(ROOT).as_posix()) for one in shown)
    rows = [f"| [{path_of(one).stem}](../{link}) | `{one}` |" for one, link in zip(shown, links, strict=True)]
    return f"""# All workflows

Those with a number are in ComfyUI's template browser. The others show a paper's claim or repeat a template for another
model; open them with Ctrl+O. `python run.py demo --only NAME` takes the short name, by which files were named before.

| workflow | short name |
|---|---|
{chr(10).join(rows)}
"""
