"""Rows of the table of costs on small tensors: they time the node itself, beside a rival that does
the same.
"""

import pytest
import torch

#: The class of each row by the row's name, of which each goes through the node's ``execute``.
CLASSES = {
    "ActivationPicture": ("activations.nodes_visualize", "ActivationVisualizer"),
    "ActivationSimilarity": ("activations.nodes_visualize", "ActivationSimilarity"),
    "ActivationCorrespondence": ("activations.nodes_visualize", "ActivationCorrespondence"),
    "ActivationClusters": ("activations.nodes_segment", "ActivationClusters"),
    "FewShotSegmenter": ("activations.nodes_segment", "ApplyFewShotSegmenter"),
    "SparseFeatures": ("activations.nodes_sparse_autoencoder", "SparseFeatures"),
    "TokenHeatMap": ("activations.nodes_token_heatmap", "TokenHeatMap"),
    "ActivationSteering": ("activations.nodes_steering", "ActivationSteering"),
    "TrainSparseAutoencoder": ("activations.nodes_train_autoencoder", "TrainSparseAutoencoder"),
    "MemorizationScore": ("neurons.nodes_detection", "MemorizationScore"),
    "NeuronStatistics": ("neurons.nodes_statistics", "NeuronStatistics"),
    "NemoNeuronMask": ("neurons.nodes_nemo", "NemoNeuronMask"),
    "MetadataGuider": ("conditioning.nodes_size_metadata", "MetadataGuider"),
    "NoisyReplicatePadding": ("conditioning.nodes_padding", "NoisyReplicatePadding"),
    "ResolutionNoiseRescale": ("conditioning.nodes_resolution", "ResolutionNoiseRescale"),
    "W2WApply": ("weights.nodes_lora", "W2WApply"),
    "W2WMix": ("weights.nodes_points", "W2WMix"),
    "ImmiscibleNoise": ("noise.nodes_immiscible", "ImmiscibleNoise"),
    "CompositionNoise": ("noise.nodes_composition", "CompositionNoise"),
}


@pytest.fixture(scope="module")
def made(app):
    """Contenders of a row on small tensors, each a function without arguments."""
    import folder_paths

    from benchmarks.nodes import rows, sizes

    output = folder_paths.get_output_directory()
    temporary = folder_paths.get_temp_directory()

    size = sizes.Size("small", "sd15", 8, 8, 16, 64, ((1, 8, 2),), 768)
    by_name = {row.node: row for row in rows.ROWS}

    def make(name):
        contenders = by_name[name].make(size)
        return {
            key: lambda work=work, tensors=tensors: work(*tensors)
            for key, (work, *tensors) in contenders.items()
        }

    yield make
    folder_paths.set_output_directory(output)  # rows write elsewhere
    folder_paths.set_temp_directory(temporary)


def test_every_row_is_here():
    from benchmarks.nodes.rows import ROWS

    assert {row.node for row in ROWS} == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_a_row_times_the_node(made, monkeypatch, name):
    from studies.common import host

    module, class_name = CLASSES[name]
    node = getattr(host.pack(f"nodes.{module}"), class_name)
    execute = node.execute.__func__
    calls = []

    def counted(cls, *args, **options):
        calls.append(name)
        return execute(cls, *args, **options)

    monkeypatch.setattr(node, "execute", classmethod(counted))
    with torch.inference_mode():
        for work in made(name).values():
            work()
    assert set(calls) == {name}


def test_the_patched_weight_is_that_of_stocks_patch(made):
    """In half precision, of which both round once."""
    with torch.inference_mode():
        contenders = made("W2WApply")
        ours, rival = contenders["ours"](), contenders["rival"]()
    assert ours.shape == rival.shape == (1280, 1280)
    plain = torch.randn(1280, 1280, generator=torch.Generator().manual_seed(0)).half()
    assert (ours - plain).float().norm() > 1e-3 * plain.float().norm()
    torch.testing.assert_close(ours, rival, rtol=2e-3, atol=2e-3)


def test_the_mixed_weights_are_the_mean_of_both(made):
    with torch.inference_mode():
        contenders = made("W2WMix")
        torch.testing.assert_close(
            contenders["ours"](), contenders["rival"](), rtol=1e-4, atol=1e-5
        )
