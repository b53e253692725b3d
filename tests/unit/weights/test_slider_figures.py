"""The figure of Discover Sliders, read off before it becomes an image."""

import functools

import torch
from figures import drawn
from glassbox.nodes.weights import slider_discovery


def test_ends_of_a_direction():
    """The images of the very ends stand outside, of pairs in any order."""
    images = torch.arange(16.0).view(16, 1, 1, 1).expand(16, 4, 6, 3) / 16
    scores = torch.linspace(-1, 1, 16)
    direction = slider_discovery.DiscoveredDirection(
        scores=scores,
        explained=0.5,
        by_chance=0.1,
        low=[2, 0, 4, 1, 3],
        high=[12, 15, 13, 11, 14],
    )
    draw = functools.partial(slider_discovery.draw, phrases=[("beard", "")])
    drawing = drawn(draw, images, [direction])
    shown = [float(panel.images[0][0, 0, 0] * 16) for panel in drawing.panels if panel.images]
    assert shown == [0, 1, 2, 3, 12, 13, 14, 15]
