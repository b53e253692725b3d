"""A step of W2W Train Space beside the same rows with one plain LoRA: `python run.py bench weights
--learned`.

Eight members and four rows of each against 32 rows of one LoRA, in turns, on the demo model: the
same images, noise, loss, layers and rank. What differs is what a layer adds: each row its member's
update, or all rows the same.
"""

from __future__ import annotations

import torch
from torch import nn

from studies.common import host
from studies.common.turns import times, timing_numbers

_MEMBERS, _ROWS, _PEOPLE, _RANK, _COMPONENTS = 8, 4, 512, 4, 96
_PLAIN, _LEARNED = "one plain LoRA", "W2W Train Space"


class _PlainLora:
    """One LoRA with the interface of ``LearnedUpdates``, so that the rest of a step is the same."""

    def __init__(self, layout):
        draws, slots = torch.Generator().manual_seed(1), layout.slots
        made = {
            name: nn.Parameter(0.02 * torch.randn(sum(map(size, slots)), generator=draws))
            for name, size in {
                "directions": lambda s: s.end - s.up_offset,
                "projections": _downs,
            }.items()
        }
        self.layout, self.parameters = layout, {**made, "codes": nn.Parameter(torch.zeros(1))}
        self._places, down, up = {}, 0, 0
        for slot in slots:
            ends = down + _downs(slot), up + slot.end - slot.up_offset
            self._places[slot.layer] = slice(down, ends[0]), slice(up, ends[1])
            down, up = ends

    def select(self, _rows: torch.Tensor) -> None:
        """All rows have the same."""

    def change(self, slot, x: torch.Tensor) -> torch.Tensor:
        """What a layer adds to its output."""
        down, up = self._places[slot.layer]
        down = self.parameters["projections"][down].view(slot.down_shape)
        up = self.parameters["directions"][up].view(slot.up_shape)
        return self.layout.scale * nn.functional.linear(nn.functional.linear(x, down), up)


def _downs(slot) -> int:
    return slot.up_offset - slot.offset


def measure(turns: int = 24) -> dict[str, dict]:
    """Milliseconds of the processor on one thread, and their ratio turn by turn."""
    from studies.world.generate import Generator
    from studies.world.release import WORLD

    generator = Generator.load(WORLD)
    comfy_half, pure = (
        host.pack("nodes.weights.learned_space_comfy"),
        host.pack("nodes.weights.space_training"),
    )
    updates, trainer = (
        host.pack("nodes.weights.learned_space"),
        host.pack("nodes.host.training.trainer"),
    )
    layers = comfy_half.layers_of(generator.model, "")
    layout, _ = comfy_half.layout_of(generator.model, layers, _RANK)
    latents = [
        torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(row))
        for row in range(_ROWS)
    ]
    data = pure.MemberImages(
        images=[range(_ROWS)] * _PEOPLE, kinds=["portrait"] * _ROWS, conditions=[0] * _ROWS
    )
    settings = pure.SpaceTrainingSettings(steps=1, members=_MEMBERS, images=_ROWS)
    numbers: dict[str, dict] = {}

    def step(session, run) -> None:
        run.optimizer.zero_grad(set_to_none=True)
        with comfy_half.changed(layers, run.updates):
            run.backward(session, run.draw(0))
        run.optimizer.step()

    def work(session) -> None:
        made = {
            _LEARNED: updates.LearnedUpdates(
                layout, _PEOPLE, _COMPONENTS, 0, generator.model.load_device
            ),
            _PLAIN: _PlainLora(layout),
        }
        runs = {name: pure.SpaceTraining(each, data, settings) for name, each in made.items()}
        contenders = {name: lambda run=run: step(session, run) for name, run in runs.items()}
        what = f"a step of {_MEMBERS} x {_ROWS} rows, {len(layers)} layers of rank {_RANK}, float32"
        numbers.update(
            timing_numbers("demo model", times(contenders, turns, alone=True), _PLAIN, what)
        )

    with torch.inference_mode(False):
        condition = generator.condition(["portrait"])
        trainer.run(generator.model, {}, latents, [condition], work, dtype=torch.float32)
    return numbers
