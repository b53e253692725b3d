"""What word maps and an edit by words cost a step of a transformer, counted through KSampler.

Networks of the real width with two blocks or three and random weights, at 384 pixels, one row (CFG
1), as few-step models run. Blocks of a network cost the same, so the share of maps is that of the
whole network. An edit adds one row less what the rows share, which is much of two blocks and little
of a whole network. Operations are those of matrix products and attentions; memory is the most bytes
that tensors made by operations hold at once, weights not among them.
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from studies.models import networks, text_encoders
from studies.models.subject import PROMPT, Subject
from tools.launcher import comfyui, in_process

from .memory import LiveBytes

#: By name in studies/models/networks.json: what makes the network as wide as the published one.
WIDE: Mapping[str, dict[str, Any]] = {
    "Flux": {
        "hidden_size": 3072,
        "num_heads": 24,
        "axes_dim": [16, 56, 56],
        "depth": 1,
        "depth_single_blocks": 2,
    },
    "ZImage": {"dim": 3840, "n_heads": 30, "n_kv_heads": 30, "axes_dims": (32, 48, 48)},
    "QwenImage": {
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "axes_dims_rope": (16, 56, 56),
    },
    "WAN21_T2V": {"dim": 5120, "ffn_dim": 13824, "num_heads": 40, "num_layers": 2},
}
#: Latents of 384 x 384 pixels; of Wan 9 frames.
_SIZES = {"Flux": (48, 48), "ZImage": (48, 48), "QwenImage": (1, 48, 48), "WAN21_T2V": (3, 48, 48)}
_ONE_STEP = {"steps": 1, "cfg": 1.0}
_EDIT = "cat -> dog: 1"


def measure(quick: bool) -> dict[str, dict]:
    """Operations and memory that maps and an edit add to a step, by network; ``quick``: of one."""
    with tempfile.TemporaryDirectory() as folder:
        app = in_process.start(comfyui.locate(), Path(folder))
        values: dict[str, dict] = {}
        for name in list(WIDE)[: 1 if quick else None]:
            values |= _of_network(app, Path(folder), name)
            gc.collect()
    return values


def _of_network(app: in_process.Comfy, folder: Path, name: str) -> dict[str, dict]:
    reduced = networks.configurations()[name]
    configuration = dataclasses.replace(
        reduced, size=_SIZES[name], network={**reduced.network, **WIDE[name]}
    )
    subject = CheaplyMade(app, folder, configuration)
    tokens = subject.positive[0][0].shape[1]
    plain = _counted(lambda: subject.sampled(subject.model, **_ONE_STEP))
    about = {
        "n": 1,
        "unit": "fraction",
        "what": f"{tokens} tokens of text, 384 pixels, CFG 1, float32; of one step; counted",
    }
    # The first run finds where text and image stand, which is kept for those that follow.
    first = _counted(lambda: subject.sampled(_recorded(subject), **_ONE_STEP))
    maps = _counted(lambda: subject.sampled(_recorded(subject), **_ONE_STEP))
    edited = _edited(subject)  # it encodes the texts, with an encoder that is no real one
    edit = _counted(lambda: subject.sampled(edited, **_ONE_STEP))
    shares = {
        "finding text and image: operations once": (first.operations - maps.operations)
        / plain.operations,
        "maps of all words: operations added": maps.operations / plain.operations - 1,
        "maps of all words: memory added": maps.memory / plain.memory - 1,
        "edit by words: operations added": edit.operations / plain.operations - 1,
        "edit by words: memory added": edit.memory / plain.memory - 1,
    }
    return {
        f"{configuration.title}, {share}": {"value": value, **about}
        for share, value in shares.items()
    }


class CheaplyMade(Subject):
    """A subject whose text encoder is taken as it is, without sampling with it first."""

    def _make_clip(self):
        return text_encoders.clip(self.configuration)


def _recorded(subject: Subject) -> Any:
    return subject.run(
        "ActivationRecorder",
        model=subject.model,
        preset="cross_attention_mean",
        recorded_steps="all",
        rows="conditional",
    )[0]


def _edited(subject: Subject) -> Any:
    inputs = {"model": subject.model, "clip": subject.text_encoder}
    return subject.run("EditByWords", edits=_EDIT, prompt=PROMPT, **inputs)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Count:
    operations: int
    memory: int  # bytes


def _counted(call: Callable[[], object]) -> _Count:
    gc.collect()
    with LiveBytes() as memory, FlopCounterMode(display=False) as flops:
        call()
    return _Count(operations=flops.get_total_flops(), memory=memory.peak)
