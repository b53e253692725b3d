"""Scores of one activation: correspondence of key points, and few-shot segmentation."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ..common import host
from ..world.scenes import SIZE
from .pictures import PARTS, Pictures, pairs

_SEARCHED = 64  # places a side that correspondence searches
_SHARE = 0.1  # of the face's height, within which a point is found


def hits(feature: torch.Tensor, pictures: Pictures) -> torch.Tensor:
    """Which key points of which pairs are found, bool (pairs, points), by the nearest activation (rows, C, H, W).

    The same as the pack's ``correspondence.nearest_points``, with every picture enlarged once and not once a pair.
    """
    features = host.pack("nodes.activations.features")
    enlarged = F.normalize(features.resized(feature, (_SEARCHED, _SEARCHED)), dim=1).flatten(2)
    columns, rows = (
        ((pictures.points + 0.5) * (_SEARCHED / SIZE) - 0.5).round().long().clamp(0, _SEARCHED - 1).unbind(2)
    )
    found = []
    for source, target in pairs(len(pictures.images)):
        queries = enlarged[source][:, rows[source] * _SEARCHED + columns[source]]
        index = (queries.T @ enlarged[target]).argmax(1)
        place = torch.stack([index % _SEARCHED, index // _SEARCHED], 1)
        found.append(_close((place + 0.5) * (SIZE / _SEARCHED) - 0.5, pictures, target))
    return torch.stack(found)


def same_place_hits(pictures: Pictures) -> torch.Tensor:
    """The same for a guess that needs no model: the point is where it was in the source."""
    return torch.stack([_close(pictures.points[source], pictures, target)
                        for source, target in pairs(len(pictures.images))])  # fmt: skip


def _close(place: torch.Tensor, pictures: Pictures, target: int) -> torch.Tensor:
    distance = (place - pictures.points[target]).norm(dim=1)
    return distance <= _SHARE * pictures.heights[target]


def part_scores(tapped, pictures: Pictures, trained: int, side: int, seed: int, epochs: int) -> torch.Tensor:
    """IoU of background and parts, float64 (classes,): learned from the first ``trained`` pictures, on the others."""
    segmentation = host.pack("nodes.activations.segmentation")
    rows = list(range(len(pictures.images)))
    known, unknown = tapped.only_rows(rows[:trained]), tapped.only_rows(rows[trained:])
    segmenter = segmentation.train(known, pictures.labels[:trained], PARTS, side, seed, epochs)
    found = segmentation.segment(segmenter, unknown).labels
    truth = F.interpolate(pictures.labels[trained:, None].float(), size=(side, side), mode="nearest")[:, 0].long()
    return segmentation.mean_iou(found, truth, len(PARTS) + 1)
