"""The words that people type are found where ComfyUI 0.3.75 searches: in the names of template
files and in the display names of nodes.
"""

import re

import pytest
import repository

#: Its search (Fuse.js, threshold 0.3, distance 100) finds no word that begins further right.
_FURTHEST = 30


@pytest.mark.parametrize(
    ("typed", "short_name"),
    [
        ("slider", "demo_weights_edit"),
        ("face", "demo_weights_edit"),
        ("attention", "demo_activations_token_heat_map"),
        ("heat map", "demo_activations_token_heat_map"),
        ("heat map", "zimage_activations_token_heat_map"),
        ("seed", "demo_noise_seed_scout"),
        ("train lora", "sdxl_noise_train_lora"),
        ("upscale", "demo_conditioning_higher_resolution"),
        ("upscale", "sdxl_conditioning_higher_resolution"),
        ("memorization", "demo_neurons_find_and_mask"),
        ("memorization", "sdxl_neurons_find_and_mask"),
        ("variety", "demo_conditioning_seed_variety"),
        ("layout", "demo_noise_composition"),
        ("layout", "sdxl_noise_composition"),
        ("inpaint", "demo_activations_edit_image_by_words"),
        ("edit image", "demo_activations_edit_image_by_words"),
        ("edit image", "sdxl_activations_edit_image_by_words"),
    ],
)
def test_a_template_is_found_by_what_people_type(typed, short_name):
    title = repository.named(short_name).stem
    assert 0 <= title.lower().find(typed) <= _FURTHEST


@pytest.mark.parametrize(
    ("typed", "node"),
    [
        ("slider", "GBX_W2WEdit"),
        ("heat map", "GBX_TokenHeatMap"),
        ("attention", "GBX_TokenHeatMap"),
        ("seed", "GBX_SeedScout"),
        ("train lora", "GBX_TrainLoraImmiscible"),
        ("upscale", "GBX_PositionalResample"),
        ("memorization", "GBX_MemorizationScore"),
        ("variety", "GBX_SeedVariety"),
        ("layout", "GBX_CompositionNoise"),
        ("edit image", "GBX_EditByWords"),
        ("sae", "GBX_SparseFeatures"),
        ("sae", "GBX_LoadSparseAutoencoder"),
        ("sae", "GBX_TrainSparseAutoencoder"),
    ],
)
def test_a_node_is_found_by_what_people_type(typed, node):
    """The heading of its help page is its display name, which another test holds."""
    page = (repository.ROOT / "web" / "docs" / f"{node}.md").read_text("utf-8")
    name = re.match(r"# (.+)", page)[1]
    assert 0 <= name.lower().find(typed) <= _FURTHEST


@pytest.mark.parametrize(
    "model", ["Z-Image", "Qwen-Image", "FLUX.2 klein", "Krea 2", "Wan", "SDXL"]
)
def test_titles_begin_with_the_model_that_they_are_for(model):
    titles = [path.stem for path in repository.TEMPLATES if model in path.stem]
    assert titles and all(re.match(rf"\d\d {re.escape(model)}, ", title) for title in titles)
