"""Score prompts by what a MODEL makes of them, a scan of many with a file that it resumes from."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ..common.failures import is_out_of_memory, skipped
from ..host import folders
from ..host.identity import clip_digest, embeddings_by_text, model_digest
from ..host.progress import Stopped, with_progress
from ..host.text_encoding import chunks, encode, literal
from .detectors import BRIGHT_ENDING_CFG, INPUTS, Requested, network_rows, score_with_detectors
from .end_attention_comfy import sample_with_attention
from .first_step_comfy import at_first_step, embedding, is_flow, refuse_unscored
from .memorization_score import PromptScore
from .nemo_inputs import FirstStepInputs, PromptSyntax
from .neuron_layers import BlockPart, has_value_layers, value_layers
from .scan_file import Pace, ScanFile, score_columns, score_from_row, score_row

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher


def score_prompts(
    model: ModelPatcher,
    clip: CLIP,
    texts: list[str],
    step: FirstStepInputs,
    requested: Requested,
    scan_name: str,
    prompt_syntax: str = PromptSyntax.LITERAL,
) -> tuple[dict[str, PromptScore], list[str]]:
    """Scores by prompt, and a line for each prompt that failed; resumes a scan."""
    refuse_unscored(model)
    clip = literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip
    if requested.get("anisotropy") and is_flow(model):
        raise ValueError(
            "Anisotropy reads a low noise level of models like SD, and this is a flow model: turn "
            "it off."
        )
    noise = step.noise()
    texts = list(dict.fromkeys(texts))
    scores: dict[str, PromptScore] = {}
    rows = None
    if scan_name.strip():
        identity = {**step.settings, **{name: requested.get(name, 0) for name in INPUTS}}
        identity |= {
            "prompt_syntax": prompt_syntax,
            "model": model_digest(model),
            "clip": clip_digest(clip),
        }
        path = folders.named_file(scan_name, ".csv")
        embeddings = embeddings_by_text(clip, texts)
        rows = ScanFile(path, score_columns(step.noise_samples), identity, embeddings)
        done = {text: rows.done(text) for text in texts}
        scores = {
            text: score_from_row(row, step.noise_samples)
            for text, row in done.items()
            if row is not None
        }
    missing = [text for text in texts if text not in scores]
    failures = []
    pace = Pace(len(missing))
    by_prompt, once = network_rows(requested, step.noise_samples)
    total = len(missing) * by_prompt + once
    logging.info(
        "%d prompts to score: %d rows of the network, %d for each.", len(missing), total, by_prompt
    )

    def predict(conditioning: list, x: torch.Tensor, timestep: int) -> torch.Tensor:
        return at_first_step(
            model,
            conditioning,
            shape=step.shape,
            timestep=timestep,
            work=lambda evaluate: evaluate(x),
            rows=len(x),
        )

    @functools.cache
    def empty() -> list:
        return encode(clip, "")[1]

    @functools.cache
    def unconditional_in_noise(timestep: int) -> torch.Tensor:
        return predict(empty(), noise, timestep)

    def unconditional(x: torch.Tensor, timestep: int) -> torch.Tensor:
        return unconditional_in_noise(timestep) if x is noise else predict(empty(), x, timestep)

    def sampled_of(text: str) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
        return lambda steps: _sampled(model, clip, text=text, empty=empty, noise=noise, steps=steps)

    for text in with_progress(missing):
        try:
            scores[text] = score_with_detectors(
                functools.partial(predict, encode(clip, text)[1]),
                unconditional,
                noise=noise,
                timestep=step.timestep,
                requested=requested,
                sampled=sampled_of(text),
            )
        except Stopped:
            raise
        except Exception as error:
            if rows is None or is_out_of_memory(error):
                raise
            rows.add(text, None, error)
            failures.append(skipped(text, error))
            continue
        if rows is not None:
            rows.add(text, score_row(scores[text]))
        logging.info("Memorization scores: %s.", pace.step())
    if not scores:
        raise ValueError(f"Every prompt failed. {failures[0]}")
    return {text: scores[text] for text in texts if text in scores}, failures


def _sampled(
    model: ModelPatcher,
    clip: CLIP,
    text: str,
    empty: Callable[[], list],
    noise: torch.Tensor,
    steps: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the text adds in every step of sampling, and the attention to the end token in the last
    one.
    """
    tokens, positive = encode(clip, text)
    first = chunks(clip, tokens, tuple(embedding(positive).shape))[0]
    network = model.model.diffusion_model
    paths = []
    if has_value_layers(network):
        down = [layer for layer in value_layers(network) if layer.part == BlockPart.DOWN]
        paths = [layer.path.removesuffix(".to_v") for layer in down]
    end = first.rows.start + first.real - 1
    return sample_with_attention(
        model,
        positive,
        negative=empty(),
        noise=noise,
        steps=steps,
        cfg=BRIGHT_ENDING_CFG,
        paths=paths,
        token=end,
    )
