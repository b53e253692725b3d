"""Sliders inside a learned space: from two phrases a direction of K numbers, without labels.

Concept Sliders (arXiv 2311.12092, equation 7) trains the weights of a LoRA. Here the model is a
point of the space, its weights W(p), and a slider moves the point by its direction d,

    e(x, c_t; W(p + s u d)) = e(x, c_t; W(p)) + s eta (e(x, c_+; W(p)) - e(x, c_-; W(p))),

with u the standard deviation of each coefficient over the members and s the strength. A person
stays in the space, so one slider is trained on several: members, and sampled points between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from . import points
from .directions import max_projection
from .learned_space import LearnedUpdates
from .slider_phrases import SliderPhrases
from .space import Direction, Space

if TYPE_CHECKING:
    from ..common.lora_reader import Factors
    from .flat_layout import Slot

#: Characters that end a name in the text of W2W Edit.
_SEPARATORS = str.maketrans(",;:=\n", "     ")
#: The fraction of the error above which a direction is noise: phrases that do nothing leave it all.
_UNLEARNED = 0.95
#: The spread of the sampled points, as of W2W Sample.
_SPREAD = 1.0


class SpaceSliders:
    """Directions in a learned space as one parameter ``flat`` (sliders, K), in standard deviations
    of each coefficient over the members.

    ``points`` (N, K): the coefficients of each image's point. Rows of a batch have an image, a
    slider and a strength each (``select``); after ``off`` each has its image's point.
    Raises ValueError for a space whose changes are not linear in the coefficients.
    """

    def __init__(
        self,
        space: Space,
        points: torch.Tensor,
        sliders: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if not space.learned:
            raise ValueError(
                f"The space {space.name} was collected from LoRAs: phrases train directions in a "
                "space of W2W Train Space only. Fit directions to labels with W2W Fit Directions."
            )
        self.layout = space.layout
        self.flat = torch.nn.Parameter(torch.zeros(sliders, space.components, device=device))
        self._space = space
        self._points = space_points(points, device)
        self._unit = space.pad(space.spread[1]).to(device)
        self._updates = LearnedUpdates.of_space(space, device)

    @staticmethod
    def training_bytes(space: Space, sliders: int) -> int:
        """What a training of such directions holds on its device, in bytes: the space in float32,
        and for each slider its numbers, their gradient and Adam's two moments.
        """
        return 4 * (space.components + 1) * space.layout.size + 16 * sliders * space.components

    def off(self, images: Sequence[int]) -> None:
        """The next batch is evaluated by the points of these images."""
        self._use(self._points[torch.tensor(images, device=self._points.device)])

    def select(
        self, sliders: Sequence[int], strengths: Sequence[float], images: Sequence[int]
    ) -> None:
        """The slider, the strength and the image of each row of the next batch."""
        device = self._points.device
        moved = self._unit * self.flat[torch.tensor(sliders, device=device)]
        steps = torch.tensor(strengths, device=device)[:, None] * moved
        self._use(self._points[torch.tensor(images, device=device)] + steps)

    def change(self, slot: Slot, x: torch.Tensor) -> torch.Tensor:
        """What a layer adds to its output (B, ..., out) for inputs (B, ..., in)."""
        return self._updates.change(slot, x)

    def vector(self, slider: int) -> torch.Tensor:
        """The change of coefficients (K,) at a strength of 1, on the CPU."""
        return (self._unit * self.flat[slider].detach()).float().cpu()

    def layers(self, slider: int) -> dict[str, Factors]:
        """The factors of what a strength of 1 adds to any point, float32 on the CPU."""
        space = self._space
        moved = space.rebuild(self.vector(slider)) - space.mean
        factors = space.layout.unflatten(moved)
        shared = space.layout.unflatten(space.mean)
        return {
            name: type(each)(shared[name].down, each.up, each.scale)
            for name, each in factors.items()
        }

    def direction(self, slider: int, left: float) -> Direction:
        """A slider as a direction of the space; ``left``: the fraction of its error on unseen
        noise. One that has learned next to nothing is marked as noise.
        """
        vector = self.vector(slider)
        largest = max_projection(self._space, vector)
        norm = float(vector.norm())
        reach = norm / largest if largest else 0.0
        about = (
            f"trained from two phrases; their difference times guidance_scale is a strength of "
            f"{reach:.2f}, {100 * left:.0f} % of the error is left on unseen noise"
        )
        return Direction(vector, largest, about, noise=norm == 0.0 or left > _UNLEARNED)

    def _use(self, coefficients: torch.Tensor) -> None:
        # The last code is that of the mean, which every point has.
        codes = torch.nn.functional.pad(coefficients, (0, 1), value=1.0)
        self._updates.use(codes, torch.arange(len(codes), device=codes.device))


def direction_names(sliders: Sequence[SliderPhrases]) -> list[str]:
    """A name for the direction of each slider, as W2W Edit reads names: without commas and colons,
    and with a number where several sliders begin with the same phrase.
    """
    names: list[str] = []
    for phrases in sliders:
        words = (phrases.increase or phrases.decrease).translate(_SEPARATORS)
        plain = " ".join(words.split())
        name = plain
        number = 1
        while name in names:
            number += 1
            name = f"{plain} ({number})"
        names.append(name)
    return names


def training_points(space: Space, seed: int, count: int) -> torch.Tensor:
    """The coefficients (count, K) of the points that sliders are trained on: half of them members
    drawn at random, or all members, and then points near members.
    """
    members = points.random_members(space, seed, -(-count // 2))
    sampled = points.near_members(
        space, seed, count=count - len(members), components=space.known, spread=_SPREAD
    )
    order = [*members, *sampled]
    return torch.stack([point.coefficients for point in order])[:count]


def space_points(coefficients: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Coefficients that gradients may cross, on a device: those of a node are inference tensors."""
    return coefficients.detach().clone().float().to(device)
