"""Scores at the threshold itself, and masks read from either kind of file."""

import pytest
import torch
from glassbox.nodes.neurons import mask_file
from glassbox.nodes.neurons.memorization_score import PromptScore
from glassbox.nodes.neurons.neuron_layers import BlockPart, NeuronLayer

LAYERS = [
    NeuronLayer(f"input_blocks.{n}.1.transformer_blocks.0.attn2.to_v", BlockPart.DOWN, 8)
    for n in (1, 2)
]
HEAD = "Caption;Initial SSIM;Refined SSIM;Initial Neurons;Refined Neurons"


def test_a_score_at_the_threshold_is_not_over_it():
    pairs = torch.eye(4)
    for first, second, value in (
        (0, 1, 0.5),
        (0, 2, 0.25),
        (1, 2, 0.125),
        (0, 3, 0.75),
        (1, 3, 0.0),
        (2, 3, 0.0),
    ):
        pairs[first, second] = pairs[second, first] = value
    score = PromptScore(pairs)
    assert score.by_seed.tolist() == [0.75, 0.5, 0.25, 0.75] and score.value == 0.75
    assert score.memorized_seeds(0.5) == [0, 3] and score.memorized_seeds(0.49) == [0, 1, 3]
    assert score.memorized_seeds(0.75) == []


@pytest.mark.parametrize(("threshold", "converged"), [(0.5, True), (0.4, False)])
def test_a_mask_from_either_kind_of_file(tmp_path, threshold, converged):
    """A table of the official code by its ending, whatever its letters; else JSON."""
    (tmp_path / "official.CSV").write_text(f"{HEAD}\na prompt;0.45;0.3;[[1, 3], []];[[3], []]\n")
    found = mask_file.read(tmp_path / "official.CSV", LAYERS, threshold)
    assert found.scales == {LAYERS[0].path: {3: 0.0}} and found.history == (
        "official table official.CSV",
    )
    assert [search.converged for search in found.searches] == [converged]
    mask_file.write(found, tmp_path / "saved.json")
    again = mask_file.read(tmp_path / "saved.json", [])
    assert (again.scales, again.searches) == (found.scales, found.searches)
