"""Optimise a text embedding: to leave memorisation (Wen et al.), or to bring a picture back (the audit)."""

from __future__ import annotations

from collections.abc import Callable

import torch


def adjust(
    start: torch.Tensor,
    loss: Callable[[torch.Tensor], torch.Tensor],
    steps: int,
    rate: float,
    target: float,
    track: Callable[[int, float], None],
) -> tuple[torch.Tensor, list[float]]:
    """Wen et al. (arXiv 2407.21720), section 4: move the embedding until the text-conditional noise is small.

    ``start`` (1, tokens, D); ``loss`` gives the norm of what the text adds to the prediction; AdamW; the first token
    keeps its embedding. Stops at ``target``. Returns the embedding and the norms before each step and at the end.
    """
    embedding = start.detach().clone().float().requires_grad_()
    optimizer = torch.optim.AdamW([embedding], lr=rate)
    norms = []
    for step in range(steps + 1):
        value = loss(embedding)
        norms.append(float(value.detach()))
        track(step, norms[-1])
        if norms[-1] <= target or step == steps:
            break
        optimizer.zero_grad()
        value.backward()
        embedding.grad[:, 0] = 0
        kept = embedding.detach()[:, :1].clone()
        optimizer.step()
        with torch.no_grad():
            embedding[:, :1] = kept  # AdamW's decay would move it without a gradient
    return embedding.detach(), norms


def recall(
    start: torch.Tensor, loss: Callable[[torch.Tensor, int], torch.Tensor], steps: int, rate: float, track
) -> tuple[torch.Tensor, list[float]]:
    """Finding DoRI (arXiv 2507.16880): optimise the embedding (1, tokens, D) so that the model paints a given picture.

    ``loss(embedding, step)`` is the ordinary diffusion loss on that picture with fresh noise and timesteps; Adam.
    Returns the embedding and the losses.
    """
    embedding = start.detach().clone().float().requires_grad_()
    optimizer, losses = torch.optim.Adam([embedding], lr=rate), []
    for step in range(steps):
        value = loss(embedding, step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
        track(step, losses[-1])
    return embedding.detach(), losses
