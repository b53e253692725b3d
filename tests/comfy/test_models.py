"""A column and a row of the matrix of nodes and networks (`python run.py models`)."""

import pytest
import torch

from studies.models import matrix, networks, worker
from studies.models.subject import NotVerifiedError, Subject

# Cheap cells of every family.
COLUMN = [
    "W2WApply",
    "LayerActivationTap",
    "ActivationSteering",
    "ResolutionNoiseRescale",
    "CompositionNoise",
    "NeuronStatistics (feed_forward)",
    "ScoreActivations (quality)",
    "MemorizationScore (layers, feed_forward)",
    "ImmiscibleNoise (gain)",
]
ROW = ["QwenImage", "WAN21_T2V", "ZImage", "Flux"]


@pytest.fixture
def subject(app, tmp_path, monkeypatch):
    """Makes a subject, whose files lie in a folder of the test."""
    import folder_paths

    folder = tmp_path / "models" / "loras"
    folder.mkdir(parents=True)
    kinds = {**folder_paths.folder_names_and_paths}
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", kinds)
    paths, extensions = kinds["loras"]
    kinds["loras"] = ([str(folder), *paths], extensions)
    kinds["w2w"] = ([str(tmp_path / "models" / "w2w")], {".safetensors"})

    def make(name: str) -> Subject:
        with torch.inference_mode():
            return Subject(app, tmp_path, networks.configurations()[name])

    return make


def outcomes(subject: Subject, names: list[str]) -> dict[str, tuple[str, str]]:
    with torch.inference_mode():
        return {name: worker.outcome(subject, cell) for name, cell in matrix.cells(names).items()}


def test_a_column_works(subject):
    found = outcomes(subject("ZImage"), COLUMN)
    assert {name: outcome for name, (outcome, _) in found.items()} == dict.fromkeys(
        COLUMN, "works"
    ), found


@pytest.mark.parametrize("name", ROW)
def test_a_row_works(subject, name):
    assert outcomes(subject(name), ["W2WGuidance"])["W2WGuidance"][0] == "works"


def test_attention_that_cannot_be_seen_is_not_scaled_without_a_word(subject):
    """Stable Cascade's text and image have read each other before its first attention."""
    outcome, sentence = outcomes(subject("StableCascadeC"), ["AttentionScaling"])[
        "AttentionScaling"
    ]
    assert outcome == "refused" and "cannot be scaled" in sentence


def test_a_node_that_does_nothing_is_not_verified(subject):
    """A cell sees a node whose result is stock's, one that changes at rest, and a hook left."""
    network = subject("Flux")
    with pytest.raises(NotVerifiedError, match="does not change"):
        network.changed(network.model)
    clone = network.model.clone()
    clone.add_patches({"diffusion_model.final_layer.linear.weight": (torch.ones(64, 128),)}, 1.0)
    with pytest.raises(NotVerifiedError, match="neutral setting"):
        network.same(clone)
    network.network.register_forward_hook(lambda *_: None)
    assert worker.outcome(network, lambda _: "done")[0] == "failed"


def test_an_error_of_the_packs_own_is_a_sentence_and_another_is_raw(subject):
    network = subject("Flux")

    def refused(subject: Subject) -> str:
        return subject.run("CompositionNoise", latent=subject.empty, seed=0, strength=0.5)

    def raw(_subject: Subject) -> str:
        return {}["missing"]

    assert worker.outcome(network, refused)[0] == "refused"
    assert worker.outcome(network, raw)[0] == "failed"
