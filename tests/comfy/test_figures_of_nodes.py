"""Figures that node files put together themselves; those of the methods: tests/unit/test_figures.py."""

import figures
import numpy as np
import pytest
import torch


@pytest.fixture
def figure_of(app, monkeypatch):
    """Runs a function and reads the one figure off that a module makes of it."""

    def read(module, make):
        found = []
        real = module.to_image
        monkeypatch.setattr(module, "to_image", lambda figure: found.append(figures.read(figure)) or real(figure))
        make()
        (drawing,) = found
        return drawing

    return read


def test_the_curve_of_a_sparse_autoencoder(app, figure_of):
    module = app.module("nodes.activations.nodes_train_autoencoder")
    curve = torch.tensor([[0.0, 0.1, 30.0], [10.0, 0.4, 12.0], [20.0, 0.55, 3.0]])
    drawing = figure_of(module, lambda: module._curve_figure(curve))
    variance, dead = drawing.panels
    np.testing.assert_allclose(variance.lines["explained variance, held out"], curve[:, :2])
    np.testing.assert_allclose(dead.lines["dead features"], curve[:, ::2])
    assert drawing.legend == ["explained variance, held out", "dead features"]
    assert (variance.xlabel, variance.ylim, dead.ylim[0]) == ("batches", (0, 1), 0)


@pytest.mark.parametrize("z", [True, False])
def test_the_report_of_a_mask(app, figure_of, z):
    """The counts of layers, the z-scores where the mask has them, and a matrix of similarities for each batch."""
    _, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    pack = app.module("nodes.neurons.mask")
    path = "output_blocks.3.1.transformer_blocks.0.attn2.to_v"
    details = {"z": {path: {"1": 4.5, "6": 3.25}}} if z else {}
    mask = pack.NeuronMask({path: {1: 0.0, 6: 0.0}}, (pack.SearchRecord("a face", {path: (1, 6)}, True, details),))
    faces = app.run("GBX_DemoPicture", image_index=0, count=3, part="face")[0]
    given = {"mask": mask, "clip": clip, "prompt": "a face", "images_before": faces[:2], "images_after": faces[1:]}
    module = app.module("nodes.neurons.nodes_mask")
    panels = figure_of(module, lambda: app.run("GBX_NeuronReport", **given)).panels
    counts, *others = [panel for panel in panels if panel.ylabel != "similarity"]
    assert counts.title == "2 masked neurons" and counts.bars[:, 2].tolist() == [2]
    assert [panel.title.partition(",")[0] for panel in others] == [
        *["Activation on the prompts"] * z,
        "before",
        "after",
    ]
    if z:
        np.testing.assert_array_equal(others[0].bars[:, 3], np.histogram([4.5, 3.25], 20)[0])
    for panel in others[-2:]:
        (matrix,) = panel.images
        assert matrix.shape == (2, 2) and matrix[0, 1] == matrix[1, 0] and np.isnan(np.diag(matrix)).all()
        assert panel.title.endswith(f"median {matrix[0, 1]:.2f}")
