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


def test_texts_of_a_figure_are_drawn_as_they_are_written(app):
    """Dollar signs are no formula, but matplotlib's own powers of ten are; long texts are cut, and
    other scripts have a font.
    """
    image_output = app.module("nodes.host.image_output")
    figure = image_output.new_figure(300, 200)
    axes = figure.add_subplot()
    axes.plot([1, 10, 1000], [1, 100, 1e6])
    axes.set(yscale="log", title="$5 for $x_1$", xlabel="x" * 400, ylabel="größer 大")
    image = image_output.to_image(figure)
    assert image.shape == (1, 200, 300, 3) and float(image.min()) < 0.5 < float(image.max())
    assert axes.title.get_text() == "$5 for $x_1$" and not axes.title.get_parse_math()
    assert axes.xaxis.label.get_text() == "x" * 297 + "..."
    families = app.module("nodes.common.fonts").families
    assert list(axes.yaxis.label.get_fontfamily()) == list(families("größer 大"))
    powers = [text for text in axes.get_yticklabels() if "mathdefault" in text.get_text()]
    assert powers and all(text.get_parse_math() for text in powers)
