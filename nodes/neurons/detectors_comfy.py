"""Score prompts by what a MODEL makes of them, a scan of many with a file that it resumes from."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch

from ..host import folders
from ..host.identity import clip_digest, model_digest
from ..host.progress import Stopped, with_progress
from ..host.text_encoding import chunks, encode, literal
from .detectors import BRIGHT_ENDING_CFG, INPUTS, Requested, network_rows, score_with_detectors
from .end_attention_comfy import sample_with_attention
from .first_step_comfy import at_first_step, embedding, is_flow, refuse_unscored
from .memorization_score import PromptScore
from .nemo_inputs import FirstStepInputs, PromptSyntax
from .neuron_layers import BlockPart, has_value_layers, value_layers
from .scan_file import Pace, ScanFile, score_columns, score_from_row, score_row


def score_prompts(
    model,
    clip,
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
        raise ValueError("Anisotropy reads a low noise level of models like SD, and this is a flow model: turn it off.")
    if requested.get("bright_ending_steps") and not has_value_layers(model.model.diffusion_model):
        raise ValueError(
            "Bright Ending reads the cross-attention of U-Nets, which this MODEL does not have: set "
            "bright_ending_steps to 0."
        )
    noise, texts = step.noise(), list(dict.fromkeys(texts))
    scores: dict[str, PromptScore] = {}
    rows = None
    if scan_name.strip():
        identity = {**step.settings, **{name: requested.get(name, 0) for name in INPUTS}}
        identity |= {"prompt_syntax": prompt_syntax, "model": model_digest(model), "clip": clip_digest(clip)}
        rows = ScanFile(folders.named_file(scan_name, ".csv"), score_columns(step.noise_samples), identity)
        done = {text: rows.done(text) for text in texts}
        scores = {text: score_from_row(row, step.noise_samples) for text, row in done.items() if row is not None}
    missing, failures = [text for text in texts if text not in scores], []
    pace, (by_prompt, once) = Pace(len(missing)), network_rows(requested, step.noise_samples)
    total = len(missing) * by_prompt + once
    logging.info("%d prompts to score: %d rows of the network, %d for each.", len(missing), total, by_prompt)

    def predict(conditioning: list, x: torch.Tensor, timestep: int) -> torch.Tensor:
        return at_first_step(model, conditioning, step.shape, timestep, lambda evaluate: evaluate(x), len(x))

    @functools.cache
    def empty() -> list:
        return encode(clip, "")[1]

    @functools.cache
    def unconditional_in_noise(timestep: int) -> torch.Tensor:
        return predict(empty(), noise, timestep)

    def unconditional(x: torch.Tensor, timestep: int) -> torch.Tensor:
        return unconditional_in_noise(timestep) if x is noise else predict(empty(), x, timestep)

    for text in with_progress(missing):
        try:
            scores[text] = score_with_detectors(
                functools.partial(predict, encode(clip, text)[1]),
                unconditional,
                noise,
                step.timestep,
                requested,
                functools.partial(_sampled, model, clip, text, empty, noise),
            )
        except Stopped:
            raise
        except Exception as error:
            if rows is None:
                raise
            rows.add(text, None, error)
            failures.append(f"Failed and skipped: {text} ({type(error).__name__}: {error})")
            continue
        if rows is not None:
            rows.add(text, score_row(scores[text]))
        logging.info("Memorization scores: %s.", pace.step())
    if not scores:
        raise ValueError(f"Every prompt failed. {failures[0]}")
    return {text: scores[text] for text in texts if text in scores}, failures


def _sampled(
    model, clip, text: str, empty: Callable[[], list], noise: torch.Tensor, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the text adds in every step of sampling, and the attention to the end token in the last one."""
    tokens, positive = encode(clip, text)
    first = chunks(clip, tokens, tuple(embedding(positive).shape))[0]
    layers = [layer for layer in value_layers(model.model.diffusion_model) if layer.part == BlockPart.DOWN]
    paths = [layer.path.removesuffix(".to_v") for layer in layers]
    end = first.rows.start + first.real - 1
    return sample_with_attention(model, positive, empty(), noise, steps, BRIGHT_ENDING_CFG, paths, end)
