"""A space of LoRAs: mean, deviation and principal directions of many flattened members (arXiv
2406.09413, section 3.1).

theta = mean + deviation * (beta @ basis), and beta = ((theta - mean) / deviation) @ basis^T.
Members are standardized number by number and not whitened: the spread of coefficient k is s_k /
sqrt(n - 1).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

import torch

from ...kernels import BASIS_GROUP as GROUP
from ...kernels import flat_weights
from ..common.lora_keys import trim_shape
from ..common.lora_reader import Factors, Layers, Lora
from ..common.safetensors_files import MappedFile
from .flat_layout import CommonBasis, Layout, Slot
from .quantization import dequantize
from .rank_reduction import align_signs, reduce_rank

_ROWS = 64
_STEPS_BYTES = 2**24
#: The root mean square error of rounding to float16, of values and of those near its least; that of
#: sums in float32 (measured, largest of eight real files: 5e-7); how much of all that may be cut.
_HALF = 2**-10 / 12**0.5 / (1.5 / math.log(2)) ** 0.5
_LEAST_HALF = 2**-24 / 12**0.5
_SUMS = 2e-6
_MARGIN = 1.5
#: A point and its edits are kept rebuilt, at most so many vectors of so many bytes, where a basis
#: has this many times the rows. Of a basis of more bytes than that a rebuild is slow however few
#: rows it has: a quarter of it is kept.
_MOST_KEPT = 8
_KEPT_BYTES = 2**26
_KEPT_FRACTION = 32
_KEPT_FRACTION_LARGE = 4


class Form(StrEnum):
    """What a member's numbers are: of its updates dW, its factors as trained, or factors from its
    singular values.
    """

    WEIGHT_UPDATES = "weight_updates"
    AS_TRAINED = "as_trained"
    SINGULAR_VALUES = "singular_values"


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a direction was measured to do, on people without its attribute.

    ``reached``: the fraction of them who show it at a strength of 1. ``appears``: between which
    strengths it first shows in half of those who get it.
    """

    reached: float
    appears: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.appears
        return (
            f"measured: first shows at {f'{low:g}' if low == high else f'{low:g} to {high:g}'}, at "
            f"1 in {self.reached:.0%} of people"
        )


@dataclass(frozen=True)
class Direction:
    """A direction of a space for one attribute, with norm as it was fitted; ``about`` says how, and
    how well, ``reach`` what it does where that was measured.

    ``noise``: no better than the more frequent value on held-out members, or fits to halves of them
    do not agree.
    """

    vector: torch.Tensor
    max_projection: float  # the largest projection of a training member onto the unit direction
    about: str = ""
    noise: bool = False
    reach: Reach | None = None


@dataclass(frozen=True)
class Space:
    """k principal directions of n members of D numbers.

    ``mean``, ``deviation`` float32 (D,); ``basis`` (k, D) float32, float16 or int8 with
    ``basis_scale``; ``coefficients`` float32 (n, k), or fewer of them; ``singular_values`` float32
    of all directions that were found, more than k of them when k was limited; ``kept`` (n,) is the
    fraction of each member's change that its rank in the layout keeps, ``squares`` (n,) the squared
    norm of each standardized member.
    """

    layout: Layout
    mean: torch.Tensor
    deviation: torch.Tensor
    basis: torch.Tensor
    coefficients: torch.Tensor
    members: tuple[str, ...]
    singular_values: torch.Tensor
    form: str = Form.SINGULAR_VALUES
    basis_scale: torch.Tensor | None = None
    sign_reference: torch.Tensor | None = None
    kept: torch.Tensor | None = None
    squares: torch.Tensor | None = None
    labels: dict[str, torch.Tensor] = field(default_factory=dict)
    directions: dict[str, Direction] = field(default_factory=dict)
    about: dict[str, Any] = field(
        default_factory=dict
    )  # name, base, standardized, measured errors, notes
    file: MappedFile | None = field(
        default=None, compare=False, repr=False
    )  # that the basis is mapped from

    def __str__(self) -> str:
        return (
            f"W2W_SPACE: {self.name}, {len(self.members)} members, {self.components} components of "
            f"{len(self.mean):,} numbers\ndirections: {', '.join(self.directions) or 'none'}"
        )

    @property
    def components(self) -> int:
        return self.basis.shape[0]

    @property
    def stored_basis(self) -> torch.Tensor:
        """The basis as it is stored; raises ValueError where its file was written to since it was
        read.
        """
        if self.file is not None:
            self.file.check()
        return self.basis

    @property
    def known(self) -> int:
        """How many of the components the members' coefficients are known for: 1,000 in the official
        release.
        """
        return self.coefficients.shape[1]

    @property
    def name(self) -> str:
        return str(self.about.get("name", "unnamed"))

    @property
    def learned(self) -> bool:
        """Whether W2W Train Space made it, in one training for all members."""
        return bool(self.about.get("learned"))

    @property
    def precision(self) -> float:
        """How exact a point's change is, relative: the rounding of the stored basis has the rank of
        the whole space.
        """
        stored = {torch.float32: 1e-5, torch.float16: 1e-3}
        bases = self.layout.left.dtype if isinstance(self.layout, CommonBasis) else torch.float32
        return max(stored.get(self.basis.dtype, 1e-2), stored[bases])

    @property
    def reaches(self) -> dict[str, Reach]:
        """What the directions that the space's labels give by default were measured to do."""
        measured = self.about.get("sliders", {})
        return {
            name: Reach(reached=entry["reached"], appears=tuple(entry["appears"]))
            for name, entry in measured.items()
        }

    @property
    def groups(self) -> list[list[str]]:
        """Members that are near copies of each other, such as checkpoints of one training."""
        return self.about.get("groups", [])

    @property
    def common_norm(self) -> float | None:
        """The |dW| that members were brought to; None where they kept their own."""
        return self.about.get("common_norm")

    @cached_property
    def strengths(self) -> torch.Tensor:
        """What each member's dW was multiplied by (n,)."""
        return strengths_of(self.about) if self.common_norm else torch.ones(len(self.members))

    @property
    def stems(self) -> dict[str, str]:
        """The names that members' files give to layers, where these are not the usual ones."""
        return self.about.get("stems", {})

    @cached_property
    def spread(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and unbiased standard deviation of each known coefficient over the members."""
        return self.coefficients.mean(dim=0), self.coefficients.std(dim=0)

    @cached_property
    def explained(self) -> torch.Tensor:
        """Fraction of the members' variance that each known component explains, float64."""
        squares = self.singular_values.double().square()
        total = self.about.get("total_squares") or float(squares.sum())
        return squares[: self.known] / total

    @cached_property
    def projections(self) -> dict[str, tuple[float, float]]:
        """The least and the largest projection of a member onto each unit direction; zeros for a
        direction of zeros.
        """
        found: dict[str, tuple[float, float]] = {}
        names = list(self.directions)
        for first in range(0, len(names), _ROWS):
            part = names[first : first + _ROWS]
            units = torch.nn.functional.normalize(
                torch.stack([self.directions[name].vector for name in part])
            )
            extremes = (self.coefficients @ units[:, : self.known].T).aminmax(dim=0)
            found.update(
                zip(part, zip(*(side.tolist() for side in extremes), strict=True), strict=True)
            )
        return found

    @cached_property
    def _steps(self) -> OrderedDict[tuple, torch.Tensor]:
        return OrderedDict()

    def cached_steps(
        self, keys: Sequence[tuple], make: Callable[[list[tuple]], torch.Tensor]
    ) -> list[torch.Tensor]:
        """The vectors (k,) of these keys: those used last, and the others from what ``make`` gives,
        (keys, k).

        A slider that moves again needs no projection of all members. 16 MiB are kept at most.
        """
        missing = [key for key in dict.fromkeys(keys) if key not in self._steps]
        found = dict(zip(missing, make(missing), strict=True)) if missing else {}
        found = {
            key: found[key].clone() if key in found else self._steps.pop(key)
            for key in dict.fromkeys(keys)
        }
        self._steps.update(found)
        while len(self._steps) > max(_STEPS_BYTES // (4 * self.components), 1):
            self._steps.popitem(last=False)
        return [found[key] for key in keys]

    def rebuild(self, coefficients: torch.Tensor) -> torch.Tensor:
        """The flat vector float32 (D,) of coefficients (k,) or fewer, the rest being zero."""
        padded = self.pad(coefficients)
        return flat_weights(
            padded,
            self.stored_basis,
            mean=self.mean,
            deviation=self.deviation,
            basis_scale=self.basis_scale,
        )

    @cached_property
    def most_kept(self) -> int:
        """How many vectors (D,) of a point and its edits are kept: none where a rebuild is not much
        more work.
        """
        large = self.basis.nbytes > _KEPT_BYTES
        size = max(_KEPT_BYTES, self.basis.nbytes // _KEPT_FRACTION_LARGE)
        rows = self.components // (_KEPT_FRACTION_LARGE if large else _KEPT_FRACTION)
        return min(_MOST_KEPT, size // (4 * max(self.layout.size, 1)), rows)

    @cached_property
    def _kept(self) -> OrderedDict[tuple[bool, bytes], torch.Tensor]:
        return OrderedDict()

    def kept_flat(self, coefficients: torch.Tensor, change: bool) -> torch.Tensor:
        """``rebuild`` of coefficients (k,), or the ``change`` of a flat vector by them, kept for
        the next call.
        """
        return self._kept_flats([coefficients], [change])[0]

    def kept_edit(
        self, origin: torch.Tensor, steps: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """``rebuild`` of an origin (k,) and the changes by steps (k,) each, kept for the next call;
        the basis is read once for all that are new.
        """
        vectors = [origin, *steps]
        flats = self._kept_flats(vectors, [False, *(True for _ in steps)])
        return flats[0], flats[1:]

    def _kept_flats(
        self, vectors: Sequence[torch.Tensor], changes: Sequence[bool]
    ) -> list[torch.Tensor]:
        keys = [
            (change, vector.numpy().tobytes())
            for vector, change in zip(vectors, changes, strict=True)
        ]
        flats = {key: self._kept.pop(key) for key in dict.fromkeys(keys) if key in self._kept}
        missing = {
            key: vector for key, vector in zip(keys, vectors, strict=True) if key not in flats
        }
        if missing:
            none = torch.zeros_like(self.mean)
            rebuilt = flat_weights(
                torch.stack([self.pad(vector) for vector in missing.values()]),
                self.stored_basis,
                mean=torch.stack([none if change else self.mean for change, _ in missing]),
                deviation=self.deviation,
                basis_scale=self.basis_scale,
            )
            # a vector of its own each: another may be dropped before it
            flats |= {key: flat.clone() for key, flat in zip(missing, rebuilt, strict=True)}
        self._kept.update({key: flats[key] for key in dict.fromkeys(keys)})
        while len(self._kept) > self.most_kept:
            self._kept.popitem(last=False)
        return [flats[key] for key in keys]

    def project(self, flat: torch.Tensor) -> torch.Tensor:
        """Coefficients float32 (k,) of a flat vector (D,). The deviation is used as it is, negative
        entries too.
        """
        return self._products((flat - self.mean) / self.deviation)

    @cached_property
    def along_mean(self) -> torch.Tensor:
        """Products (k,) of the basis, in units of a coefficient, with the mean."""
        return self._products(self.mean * self.deviation)

    def _products(self, flat: torch.Tensor) -> torch.Tensor:
        blocks = range(0, self.components, _ROWS)
        return torch.cat([self.rows(first, first + _ROWS) @ flat for first in blocks])

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Basis vectors ``first`` to ``last`` - 1 in float32."""
        scale = None if self.basis_scale is None else self.basis_scale[first:last]
        return dequantize(self.stored_basis[first:last], scale)

    def pad(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Coefficients with zeros up to k; raises ValueError when there are more than k."""
        count = len(coefficients)
        if count > self.components:
            raise ValueError(
                f"The space {self.name} has {self.components} components and the point has "
                f"{count}: take the space of the point."
            )
        return torch.nn.functional.pad(coefficients.float(), (0, self.components - count))

    def flatten(self, lora: Lora) -> tuple[torch.Tensor, dict[str, float]]:
        """A LoRA as a flat vector of this space's form, and the fractions of its change left out,
        by reason.
        """
        return flatten_lora(lora, self.layout, self.form, self.sign_reference)

    def with_directions(self, directions: dict[str, Direction]) -> Space:
        """The same space with these directions beside its own."""
        return replace(self, directions={**self.directions, **directions})

    def with_member(self, name: str, coefficients: torch.Tensor) -> Space:
        """The same space, mean and axes, with one member more whose labels are unknown.

        Raises ValueError for a name that is empty or taken.
        """
        if not name or name in self.members:
            raise ValueError(
                f"{name!r} is a member of {self.name} already: choose another member_name."
                if name
                else "The new member has no name: fill member_name."
            )
        row = self.pad(coefficients)[None].float()
        about = dict(self.about)
        if self.common_norm:  # which a point has: nothing is multiplied
            about["norms"] = [*about["norms"], self.common_norm]
        if about.get("faces"):  # the new member's is unknown
            about["faces"] = [*about["faces"], ""]

        def one_more(column: torch.Tensor | None, value: float) -> torch.Tensor | None:
            return None if column is None else torch.cat([column, column.new_tensor([value])])

        return replace(
            self,
            members=(*self.members, name),
            coefficients=torch.cat([self.coefficients, row[:, : self.known]]),
            kept=one_more(self.kept, 1.0),
            squares=one_more(self.squares, float(row.double().square().sum())),
            labels={
                label: torch.cat([column, torch.full((1,), torch.nan)])
                for label, column in self.labels.items()
            },
            about=about,
        )


@dataclass(frozen=True)
class Point:
    """A model: coefficients float32 (k,) in a space. It keeps no weights, so that many points take
    little memory.

    A point with a few edits knows the coefficients of its ``origin`` and the ``steps`` from there,
    each a vector (k,) and a strength; ``steps`` is None once there are too many for
    ``Space.most_kept``.
    """

    space: Space
    coefficients: torch.Tensor
    name: str = "point"
    origin: torch.Tensor | None = None
    steps: tuple[tuple[torch.Tensor, float], ...] | None = ()

    def __str__(self) -> str:
        first = ", ".join(f"{one:+.2f}" for one in self.coefficients[:5].tolist())
        return (
            f"W2W_POINT: {self.name} in {self.space.name}\n{len(self.coefficients)} coefficients: "
            f"{first}, ..."
        )

    @property
    def flat(self) -> torch.Tensor:
        """The flat vector of the model's factors, float32 (D,), a new one at each call.

        Of a few edits origin and steps are rebuilt once each and added, whatever was computed
        before, so that a slider that moves reads no basis; otherwise one rebuild from the summed
        coefficients.
        """
        if self.origin is None or not self.steps:
            return self.space.rebuild(self.coefficients)
        origin, changes = self.space.kept_edit(self.origin, [step for step, _ in self.steps])
        flat = origin.clone()
        for change, (_, strength) in zip(changes, self.steps, strict=True):
            flat.add_(change, alpha=strength)
        return flat

    def layers(self) -> dict[str, Factors]:
        """The low-rank factors of the model by layer, views of one flat vector that is rebuilt at
        each call.
        """
        return self.space.layout.unflatten(self.flat)

    def tolerances(self) -> dict[str, float]:
        """What of each layer's |dW| is rounding of the stored space: singular values below it say
        nothing.

        Rounding errors are independent, and those of the components add up with the squares of
        their coefficients: a member may be small in a layer where the components that make it up
        are not.
        """
        space = self.space
        layout = self.space.layout
        if not isinstance(layout, CommonBasis):
            return {slot.layer: space.precision for slot in layout.slots}
        flat = self.flat
        found = {}
        weights = space.pad(self.coefficients).square()
        of_bases = 0.0 if layout.left.dtype == torch.float32 else 2 * _HALF**2
        for slot in layout.slots:
            columns = slice(slot.offset, slot.end)
            squares = space.stored_basis[:, columns].float().square()
            errors = _SUMS**2 * squares
            if space.basis_scale is not None:
                groups = torch.arange(slot.offset, slot.end) // GROUP
                errors = space.basis_scale[:, groups].square() / 12
            elif space.basis.dtype == torch.float16:
                errors = (_HALF**2 * squares).clamp_min(_LEAST_HALF**2)
            noise = float(space.deviation[0]) ** 2 * float(weights @ errors.sum(1))
            noise += _SUMS**2 * float(space.mean[columns].square().sum())
            square = float(flat[columns].double().square().sum())
            found[slot.layer] = max(_MARGIN * (noise / max(square, 1e-300) + of_bases) ** 0.5, 1e-5)
        return found

    def lazy_layers(self) -> Layers:
        """The same, each made when it is used: all of them at once are larger than the space.

        Until then an edited point is its origin and its steps, which the space keeps rebuilt:
        another strength of an edit rebuilds nothing.
        """
        if self.origin is None or not self.steps:
            numbers = _Numbers(self._flat_to_keep)
        else:
            origin, changes = self.space.kept_edit(self.origin, [step for step, _ in self.steps])
            strengths = [strength for _, strength in self.steps]
            numbers = _Numbers(origin, tuple(zip(changes, strengths, strict=True)))
        layout = self.space.layout
        return Layers(
            {slot.layer: partial(numbers.factors, layout, slot) for slot in layout.changed}
        )

    @property
    def _flat_to_keep(self) -> torch.Tensor:
        """The flat vector, kept for edits of this point where the space keeps any."""
        if (
            self.steps is None or not self.space.most_kept
        ):  # another point after each move: none is met again
            return self.space.rebuild(self.coefficients)
        return self.space.kept_flat(self.coefficients, change=False)

    def with_coefficients(self, coefficients: torch.Tensor, name: str) -> Point:
        """Another point of the same space."""
        return Point(self.space, coefficients.float(), name)

    def with_steps(self, steps: Sequence[tuple[torch.Tensor, float]], name: str) -> Point:
        """The point after steps, each of a vector (k,) and a strength."""
        coefficients = self.coefficients
        for step, strength in steps:
            coefficients = coefficients + strength * step
        if self.steps is None or 1 + len(self.steps) + len(steps) > self.space.most_kept:
            return Point(self.space, coefficients, name, steps=None)
        origin = self.coefficients if self.origin is None else self.origin
        return Point(
            space=self.space,
            coefficients=coefficients,
            name=name,
            origin=origin,
            steps=(*self.steps, *steps),
        )


@dataclass(frozen=True)
class _Numbers:
    """A flat vector (D,) as the sum of an origin and of steps, each times its strength."""

    origin: torch.Tensor
    steps: tuple[tuple[torch.Tensor, float], ...] = ()

    def factors(self, layout: Layout, slot: Slot) -> Factors:
        """The factors of one layer."""
        place = slice(slot.offset, slot.end)
        numbers = self.origin[place]
        for step, strength in self.steps:
            numbers = torch.add(numbers, step[place], alpha=strength)
        return layout.factors_of(slot, numbers)


def strengths_of(about: Mapping[str, Any]) -> torch.Tensor:
    """What brings members of the norms that a space notes to its common norm (n,): 1 without one,
    and for norm 0.
    """
    norms = about["norms"]
    common = about["common_norm"]
    return torch.tensor([common / norm if common and norm > 0 else 1.0 for norm in norms])


def flatten_lora(
    lora: Lora, layout: Layout, form: str, reference: torch.Tensor | None
) -> tuple[torch.Tensor, dict[str, float]]:
    """A LoRA in a layout and form: float32 (D,), and fractions of its change that are lost, by
    reason.

    Raises ValueError with the end of a sentence when layers have other sizes, or another rank in
    the form AS_TRAINED.
    """
    sizes = layout.sizes
    updates = form == Form.WEIGHT_UPDATES
    lora = Lora({**lora.layers, **lora.text}, {}, lora.dropped) if updates else lora.without_text()
    layers = {}
    whole = 0.0
    lost = {"other layers": 0.0, "rank": 0.0}
    complete = (
        form == Form.AS_TRAINED and not lora.dropped and lora.layers.keys() <= sizes.keys()
    )  # loses nothing
    for name, factors in lora.layers.items():
        if name not in sizes:
            norm = factors.squared_norm()
            lost["other layers"] += norm
        else:
            if (factors.down.shape, factors.up.shape) != layout.shapes[name]:
                _check(name, factors, size=sizes[name], rank=layout.rank, form=form)
            if form == Form.SINGULAR_VALUES:
                layers[name], kept, norm = reduce_rank(factors, layout.rank)
                lost["rank"] += norm - kept
            else:
                layers[name] = factors
                norm = 0.0 if complete else factors.squared_norm()
                lost["rank"] += norm if updates else 0.0
        whole += norm
    if not layers:
        raise ValueError("changes no layer of this space: it is made for another base model.")
    flat = layout.flatten(layers)
    if updates:
        lost["rank"] = max(lost["rank"] - float(flat.double().square().sum()), 0.0)
    if reference is not None:
        flat = align_signs(layout, flat, reference)
    whole += sum(lora.dropped.values())
    return flat, {
        reason: part / whole
        for reason, part in {**lost, **lora.dropped}.items()
        if part > 1e-12 * whole
    }


def _check(name: str, factors: Factors, size: Any, rank: int, form: str) -> None:
    inputs = trim_shape(factors.down.shape[1:])
    outputs = factors.up.shape[0]
    if (torch.Size(inputs).numel(), outputs) != (torch.Size(size[0]).numel(), size[1]):
        raise ValueError(
            f"has {name} of {inputs} inputs and {outputs} outputs, and the space has {size[0]} and "
            f"{size[1]}: it is made for another base model."
        )
    if form == Form.AS_TRAINED and factors.rank != rank:
        raise ValueError(
            f"has rank {factors.rank} and the space {rank}: use the form {Form.WEIGHT_UPDATES}."
        )
