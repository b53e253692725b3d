"""Scores of one activation: correspondence of key points, and few-shot segmentation."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ..common import host
from ..world.scenes import SIZE
from .labeled_faces import PARTS, LabeledFaces, pairs

_SEARCHED = 64  # places a side that correspondence searches
_FRACTION = 0.1  # of the face's height, within which a point is found


def hits(feature: torch.Tensor, faces: LabeledFaces) -> torch.Tensor:
    """Which key points of which pairs are found, bool (pairs, points), by the nearest activation
    (rows, C, H, W).

    The same as the pack's ``correspondence.nearest_points``, with every image enlarged once and not
    once a pair.
    """
    features = host.pack("nodes.activations.activations")
    enlarged = F.normalize(features.resize(feature, (_SEARCHED, _SEARCHED)), dim=1).flatten(2)
    columns, rows = (
        ((faces.points + 0.5) * (_SEARCHED / SIZE) - 0.5)
        .round()
        .long()
        .clamp(0, _SEARCHED - 1)
        .unbind(2)
    )
    found = []
    for source, target in pairs(len(faces.images)):
        queries = enlarged[source][:, rows[source] * _SEARCHED + columns[source]]
        index = (queries.T @ enlarged[target]).argmax(1)
        place = torch.stack([index % _SEARCHED, index // _SEARCHED], 1)
        found.append(_close((place + 0.5) * (SIZE / _SEARCHED) - 0.5, faces, target))
    return torch.stack(found)


def same_place_hits(faces: LabeledFaces) -> torch.Tensor:
    """The same for a guess that needs no model: the point is where it was in the source."""
    return torch.stack(
        [_close(faces.points[source], faces, target) for source, target in pairs(len(faces.images))]
    )


def _close(place: torch.Tensor, faces: LabeledFaces, target: int) -> torch.Tensor:
    distance = (place - faces.points[target]).norm(dim=1)
    return distance <= _FRACTION * faces.heights[target]


def part_scores(
    tapped, faces: LabeledFaces, trained: int, side: int, seed: int, epochs: int
) -> torch.Tensor:
    """IoU of background and parts, float64 (classes,): learned from the first ``trained`` images,
    on the others.
    """
    segmentation = host.pack("nodes.activations.few_shot")
    rows = list(range(len(faces.images)))
    known, unknown = tapped.select_rows(rows[:trained]), tapped.select_rows(rows[trained:])
    segmenter = segmentation.train(known, faces.labels[:trained], PARTS, side, seed, epochs)
    found = segmentation.segment(segmenter, unknown).labels
    truth = F.interpolate(faces.labels[trained:, None].float(), size=(side, side), mode="nearest")[
        :, 0
    ].long()
    return segmentation.mean_iou(found, truth, len(PARTS) + 1)
