"""A space of LoRAs: mean, deviation and principal directions of many flattened members (arXiv 2406.09413, section 3.1).

theta = mean + deviation * (beta @ basis), and beta = ((theta - mean) / deviation) @ basis^T. Members are standardised
number by number and not whitened: the spread of coefficient k is s_k / sqrt(n - 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from ...kernels import flat_weights
from .layout import Layout
from .lora_files import Factors, Lora, bare
from .quantisation import opened
from .reduction import reduced, signed

#: How members were brought to the layout: as they were trained, or through the singular value decomposition.
AS_TRAINED, BALANCED = FORMS = ("as trained", "singular values")
_ROWS = 64


@dataclass(frozen=True)
class Direction:
    """A direction of a space for one attribute, with norm as it was fitted; ``about`` says how, and how well."""

    vector: torch.Tensor
    reach: float  # the largest projection of a training member onto the unit direction
    about: str = ""


@dataclass(frozen=True)
class Space:
    """k principal directions of n members of D numbers.

    ``mean``, ``deviation`` float32 (D,); ``basis`` (k, D) float32, float16 or int8 with ``basis_scale``;
    ``coefficients`` float32 (n, k), or fewer of them; ``singular_values`` float32 of all directions that were found,
    more than k of them when k was limited; ``kept`` (n,) is the share of each member's change that its rank
    in the layout keeps, ``squares`` (n,) the squared norm of each standardised member.
    """

    layout: Layout
    mean: torch.Tensor
    deviation: torch.Tensor
    basis: torch.Tensor
    coefficients: torch.Tensor
    members: tuple[str, ...]
    singular_values: torch.Tensor
    form: str = BALANCED
    basis_scale: torch.Tensor | None = None
    sign_reference: torch.Tensor | None = None
    kept: torch.Tensor | None = None
    squares: torch.Tensor | None = None
    labels: dict[str, torch.Tensor] = field(default_factory=dict)
    directions: dict[str, Direction] = field(default_factory=dict)
    about: dict[str, object] = field(default_factory=dict)  # name, base, standardised, measured errors, notes

    @property
    def components(self) -> int:
        return self.basis.shape[0]

    @property
    def known(self) -> int:
        """How many of the components the members' coefficients are known for: 1,000 in the official release."""
        return self.coefficients.shape[1]

    @property
    def name(self) -> str:
        return str(self.about.get("name", "unnamed"))

    @cached_property
    def spread(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and unbiased standard deviation of each known coefficient over the members."""
        return self.coefficients.mean(dim=0), self.coefficients.std(dim=0)

    @cached_property
    def explained(self) -> torch.Tensor:
        """Share of the members' variance that each known component explains, float64."""
        squares = self.singular_values.double().square()
        total = self.about.get("total_squares") or float(squares.sum())
        return squares[: self.known] / total

    @cached_property
    def steps(self) -> dict[tuple, Step]:
        """Steps that edits have taken, by what asked for them: a slider that moves again needs no more of the basis."""
        return {}

    def rebuild(self, coefficients: torch.Tensor) -> torch.Tensor:
        """The flat vector float32 (D,) of coefficients (k,) or fewer, the rest being zero."""
        return flat_weights(self.padded(coefficients), self.basis, self.mean, self.deviation, self.basis_scale)

    def project(self, flat: torch.Tensor) -> torch.Tensor:
        """Coefficients float32 (k,) of a flat vector (D,). The deviation is used as it is, negative entries too."""
        centred = (flat - self.mean) / self.deviation
        blocks = range(0, self.components, _ROWS)
        return torch.cat([self.rows(first, first + _ROWS) @ centred for first in blocks])

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Basis vectors ``first`` to ``last`` - 1 in float32."""
        scale = None if self.basis_scale is None else self.basis_scale[first:last]
        return opened(self.basis[first:last], scale)

    def padded(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Coefficients with zeros up to k; raises ValueError when there are more than k."""
        count = len(coefficients)
        if count > self.components:
            raise ValueError(f"The space {self.name} has {self.components} components and was given {count}: "
                             "take the space that the point is of.")  # fmt: skip
        return torch.nn.functional.pad(coefficients.float(), (0, self.components - count))

    def flatten(self, lora: Lora) -> tuple[torch.Tensor, dict[str, float]]:
        """A LoRA as a flat vector of this space's form, and the shares of its change that were left out, by reason."""
        return flattened(lora, self.layout, self.form, self.sign_reference)

    def with_directions(self, directions: dict[str, Direction]) -> Space:
        """The same space with these directions beside its own."""
        return replace(self, directions={**self.directions, **directions})


@dataclass(frozen=True)
class Step:
    """A change of coefficients float32 (k,), and of flat vectors, which is the same from wherever it is made."""

    space: Space
    vector: torch.Tensor

    @cached_property
    def flat(self) -> torch.Tensor:
        """The change of a flat vector for a strength of 1, float32 (D,)."""
        space = self.space
        nothing = torch.zeros_like(space.mean)
        return flat_weights(self.vector.float(), space.basis, nothing, space.deviation, space.basis_scale)


@dataclass(frozen=True)
class Point:
    """A model: coefficients float32 (k,) in a space; ``edited`` is the point before a step, the step, its strength."""

    space: Space
    coefficients: torch.Tensor
    name: str = "point"
    edited: tuple[Point, Step, float] | None = None

    @cached_property
    def flat(self) -> torch.Tensor:
        """The flat vector of the model's factors, float32 (D,)."""
        if self.edited is None:
            return self.space.rebuild(self.coefficients)
        before, step, strength = self.edited
        return before.flat + strength * step.flat

    def layers(self) -> dict[str, Factors]:
        """The low-rank factors of the model by layer."""
        return self.space.layout.unflatten(self.flat)

    def at(self, coefficients: torch.Tensor, name: str) -> Point:
        """Another point of the same space."""
        return Point(self.space, coefficients.float(), name)

    def moved(self, step: Step, strength: float, name: str) -> Point:
        """The point after a step."""
        return Point(self.space, self.coefficients + strength * step.vector, name, (self, step, strength))


def flattened(
    lora: Lora, layout: Layout, form: str, reference: torch.Tensor | None
) -> tuple[torch.Tensor, dict[str, float]]:
    """A LoRA in a layout and form: float32 (D,), and shares of its change that are lost, by reason.

    Raises ValueError with the end of a sentence when layers have other sizes, or in the form AS_TRAINED another rank.
    """
    sizes = {slot.layer: (bare(slot.down_shape[1:]), slot.up_shape[0]) for slot in layout.slots}
    layers, whole, lost = {}, 0.0, {"other layers": 0.0, "rank": 0.0}
    for name, factors in lora.layers.items():
        if name not in sizes:
            norm = factors.squared_norm()
            lost["other layers"] += norm
        else:
            _check(name, factors, sizes[name], layout.rank, form)
            if form == AS_TRAINED:
                layers[name], norm = factors, factors.squared_norm()
            else:
                layers[name], kept, norm = reduced(factors, layout.rank)
                lost["rank"] += norm - kept
        whole += norm
    if not layers:
        raise ValueError("changes no layer of this space: it is made for another base model.")
    flat = layout.flatten(layers)
    if reference is not None:
        flat = signed(layout, flat, reference)
    whole += sum(lora.dropped.values())
    return flat, {reason: part / whole for reason, part in {**lost, **lora.dropped}.items() if part > 1e-12 * whole}


def _check(name: str, factors: Factors, size, rank: int, form: str) -> None:
    inputs, outputs = bare(factors.down.shape[1:]), factors.up.shape[0]
    if (inputs, outputs) != size:
        raise ValueError(f"has {name} of {inputs} inputs and {outputs} outputs, and the space has {size[0]} and "
                         f"{size[1]}: it is made for another base model.")  # fmt: skip
    if form == AS_TRAINED and factors.rank != rank:
        raise ValueError(f"has rank {factors.rank} and the space {rank}: use the form '{BALANCED}'.")
