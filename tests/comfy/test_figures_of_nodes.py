"""Figures that node files draw themselves; those of the methods: tests/unit/test_figures.py."""

import figures
import numpy as np
import torch


def test_the_curve_of_a_sparse_autoencoder(app, monkeypatch):
    module, found = app.module("nodes.activations.nodes_train_autoencoder"), []
    monkeypatch.setattr(module, "to_image", lambda figure: found.append(figures.read(figure)))
    curve = torch.tensor([[0.0, 0.1, 30.0], [10.0, 0.4, 12.0], [20.0, 0.55, 3.0]])
    module._curve_figure(curve)
    (drawing,) = found
    variance, dead = drawing.panels
    np.testing.assert_allclose(variance.lines["explained variance, held out"], curve[:, :2])
    np.testing.assert_allclose(dead.lines["dead features"], curve[:, ::2])
    assert drawing.legend == ["explained variance, held out", "dead features"]
    assert (variance.xlabel, variance.ylim, dead.ylim[0]) == ("batches", (0, 1), 0)
