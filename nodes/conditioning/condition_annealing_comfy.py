"""Condition annealing on a MODEL: the guider's positive conditionings, changed for one prediction
at a time.

A wrapper around each prediction of the sampler gives the guider other conditionings, so that every
evaluation within it (areas, PAG, tiles, context windows) and every node behind it sees them, and
what a prompt's tokens are recognized by stays.
"""

from __future__ import annotations

import bisect
import weakref
from typing import TYPE_CHECKING, Any

import comfy.utils
import torch
from comfy.patcher_extension import WrappersMP
from torch.utils.weak import WeakIdKeyDictionary

from ..common.network_call import POSITIVE, WRITTEN, step_of
from ..host.evaluate import evaluating, levels_of
from ..host.hooks import RunLevels
from ..host.schema import later_seed
from .condition_annealing import VarietyMethod, VarietySettings, draw_noise

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher, WrapperExecutor

_KEY = "glassbox_seed_variety"
#: Encoded texts among the conditionings of ComfyUI's models, tokens before channels.
_TEXTS = (
    "c_crossattn",
    "encoder_hidden_states_t5",
    "encoder_hidden_states_llama3",
    "txt_byt5",
    "clip_text",
    "clip_text_pooled",
)
#: Of the vector that may begin with the pooled text.
_VECTOR = "y"
_INTERVALS = 256
#: Times are rounded to a thousandth, so that a run in two parts draws what it draws in one.
_TICKS = 1000
_TABLES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def varied(patcher: ModelPatcher, settings: VarietySettings) -> ModelPatcher:
    """A clone of a MODEL whose positive prompts have noise on them as ``settings`` say."""
    clone = patcher.clone()
    if not settings.is_off:
        clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, _KEY, _Varied(settings).predict)
    return clone


def time_of(sampling: Any, sigma: float) -> float:
    """The time t of a noise level, from 0, clean, to 1, pure noise: 1 less ComfyUI's percent of
    sampling, so that a shift of the schedule moves it along.
    """
    sigmas = _table(sampling)
    upper = bisect.bisect_left(sigmas, sigma)
    if upper == 0:
        return 0.0
    if upper > _INTERVALS:
        return 1.0
    below = sigmas[upper - 1]
    return (upper - 1 + (sigma - below) / (sigmas[upper] - below)) / _INTERVALS


def _table(sampling: Any) -> list[float]:
    """The noise levels at equally distant times, rising; computed once, as that may wait for the
    device.
    """
    if sampling not in _TABLES:
        inner = [
            float(sampling.percent_to_sigma(1 - number / _INTERVALS))
            for number in range(1, _INTERVALS)
        ]
        _TABLES[sampling] = [0.0, *inner, float(sampling.sigma_max)]
    return _TABLES[sampling]


class _Varied:
    def __init__(self, settings: VarietySettings):
        self._settings = settings
        self._levels = RunLevels()
        #: Of a vector (rows, width): how many of its first numbers are the pooled text.
        self._pooled_widths: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def predict(
        self,
        executor: WrapperExecutor,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict | None = None,
        seed: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """A prediction of the sampler, of one or more evaluations.

        A training learns from the prompt as it is written.
        """
        options = model_options or {}
        guider = executor.class_obj
        if getattr(guider, "trains", False):
            return executor(x, timestep, options, seed, *args, **kwargs)
        with evaluating(timestep):
            sampling = guider.inner_model.model_sampling
            sigma = levels_of(timestep)[0]
            time = time_of(sampling, sigma)
            if self._settings.gamma(time) == 1:
                return executor(x, timestep, options, seed, *args, **kwargs)
            tick = self._tick(sampling, sigma, options)
            conds = guider.conds
            guider.conds = {
                name: [self._changed(entry, x, time, key=(seed or 0, tick)) for entry in entries]
                if name in POSITIVE and entries
                else entries
                for name, entries in conds.items()
            }
            try:
                return executor(x, timestep, options, seed, *args, **kwargs)
            finally:
                guider.conds = conds

    def _tick(self, sampling: Any, sigma: float, options: dict) -> int:
        """A number for the noise of a step, the same for all evaluations in it; -1 where there is
        one noise for all steps.
        """
        if self._settings.method != VarietyMethod.ANNEALED:
            return -1
        levels = self._levels.levels(options.get("transformer_options", {}))
        if levels:
            sigma = levels[min(step_of(sigma, levels)[0], len(levels) - 1)]
        return round(_TICKS * time_of(sampling, sigma))

    def _changed(self, entry: dict, x: torch.Tensor, time: float, key: tuple[int, int]) -> dict:
        """An entry of a conditioning with noise on its texts and on its pooled text."""
        encoded = dict(entry["model_conds"])
        for name in _TEXTS:
            if name in encoded:
                text = comfy.utils.repeat_to_batch_size(encoded[name].cond, len(x))
                encoded[name] = encoded[name]._copy_with(self._noised(text, time, (*key, name)))
        if _VECTOR in encoded:
            stock = encoded[_VECTOR].cond
            width = self._pooled_width(stock, entry.get("pooled_output"))
            if width:
                vector = comfy.utils.repeat_to_batch_size(stock, len(x))
                pooled = self._noised(vector[:, :width], time, (*key, _VECTOR))
                changed = torch.cat([pooled, vector[:, width:]], dim=1)
                encoded[_VECTOR] = encoded[_VECTOR]._copy_with(changed)
        return {**entry, "model_conds": encoded, WRITTEN: entry.get(WRITTEN, entry["model_conds"])}

    def _noised(self, text: torch.Tensor, time: float, key: tuple[int, int, str]) -> torch.Tensor:
        """A text (images, ..., channels); each image has noise of its own.

        An image's noise is by the sampler's seed plus its number in the batch: image i of a batch
        is that of a batch of one from i seeds later, as in Seed Scout.
        """
        sampler_seed, tick, name = key
        shape = tuple(text.shape[1:])
        own = self._settings.seed
        noise = torch.stack(
            [
                draw_noise(shape, (own, later_seed(sampler_seed, image), tick, name))
                for image in range(len(text))
            ]
        )
        return self._settings.changed(text.float(), noise.to(text.device), time).to(text.dtype)

    def _pooled_width(self, vector: torch.Tensor, pooled: torch.Tensor | None) -> int:
        """How many of a vector's first numbers are the pooled text, which other models put
        nowhere. Compared once a run, as that waits for the device.
        """
        if pooled is None or vector.ndim != 2:
            return 0
        if vector not in self._pooled_widths:
            begin = vector[:, : pooled.shape[-1]]
            is_first = begin.shape == pooled.shape and torch.equal(begin, pooled.to(begin))
            self._pooled_widths[vector] = pooled.shape[-1] if is_first else 0
        return self._pooled_widths[vector]
