"""A space that is learned: one training for all members, where the paper collects a LoRA of each
(arXiv 2406.09413).

The update of member i in every adapted layer is dW_i = scale * (sum_k c_ik U_k) R, with directions
U_k (out, r) and a projection R (r, in) that all members share, and a code c_i of K numbers, all
that a member has of its own. An update is linear in the code: the midpoint of two codes is the
midpoint of two updates, and every code is a LoRA of rank r. An exact SVD of the members' updates
makes a `Space` of it, in the form of factors as trained, whose down parts are R.
"""

from __future__ import annotations

import math

import torch

from ..common.network_call import rows_in_call
from .flat_layout import Layout, Slot
from .space import Form, Space

#: Standard deviation of the codes at the start; directions start at zero.
CODE_SPREAD = 0.3
_BLOCK = 2**20
_ROWS = 64


class LearnedUpdates:
    """The trained numbers: ``directions`` (K, U) and ``projections`` (P,) of all layers in a row,
    ``codes`` (n, K).

    Float32 parameters. U counts the numbers of all up factors of a LoRA in ``layout``, P those of
    all down factors.
    """

    def __init__(
        self,
        layout: Layout,
        members: int,
        components: int,
        seed: int,
        device: torch.device | str = "cpu",
    ):
        generator = torch.Generator().manual_seed(seed)
        self.layout = layout
        self.rows = torch.empty(0, dtype=torch.long)
        self._places: dict[str, tuple[slice, slice]] = {}
        downs = list[torch.Tensor]()
        first = 0
        ups = 0
        for slot in layout.slots:
            inputs = math.prod(slot.down_shape[1:])
            count = slot.end - slot.up_offset
            numbers = torch.rand(slot.up_offset - slot.offset, generator=generator)
            self._places[slot.layer] = slice(first, first + len(numbers)), slice(ups, ups + count)
            downs.append(
                (2 * numbers - 1) / math.sqrt(inputs)
            )  # uniform, as down factors start in PEFT
            first = first + len(numbers)
            ups = ups + count
        codes = CODE_SPREAD * torch.randn(members, components, generator=generator)
        self.projections = torch.nn.Parameter(torch.cat(downs).to(device))
        self.directions = torch.nn.Parameter(torch.zeros(components, ups, device=device))
        self.codes = torch.nn.Parameter(codes.to(device))
        self._ups = torch.empty(0)

    @classmethod
    def of_space(cls, space: Space, device: torch.device | str = "cpu") -> LearnedUpdates:
        """The updates of a learned space, not trained further: a direction for each of its K
        components, and one more for its mean, whose number in a code is 1.
        """
        updates = cls(space.layout, members=1, components=space.components + 1, seed=0)
        slots = space.layout.slots
        of_ups = torch.cat([torch.arange(slot.up_offset, slot.end) for slot in slots])
        of_downs = torch.cat([torch.arange(slot.offset, slot.up_offset) for slot in slots])
        ups = [
            space.rows(first, first + _ROWS)[:, of_ups] * space.deviation[of_ups]
            for first in range(0, space.components, _ROWS)
        ]
        ups.append(space.mean[None, of_ups])
        for parameter, values in (
            (updates.directions, torch.cat(ups)),
            (updates.projections, space.mean[of_downs]),
        ):
            parameter.requires_grad_(False)
            parameter.data = values.clone().to(device)
        updates.codes.requires_grad_(False)
        updates.codes.data = updates.codes.data.to(device)
        return updates

    @staticmethod
    def training_bytes(layout: Layout, members: int, components: int) -> int:
        """What a training of such updates holds on its device, in bytes: numbers, gradients and
        Adam's two moments.
        """
        ups = sum(slot.end - slot.up_offset for slot in layout.slots)
        downs = sum(slot.up_offset - slot.offset for slot in layout.slots)
        return 4 * 4 * (components * ups + downs + members * components)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name."""
        return {"directions": self.directions, "projections": self.projections, "codes": self.codes}

    def select(self, members: torch.Tensor) -> None:
        """Say whose the rows of the next batch are: numbers of members (B,), in any order and as
        often as wanted.
        """
        distinct, rows = members.to(self.codes.device).unique(return_inverse=True)
        self.use(self.codes[distinct], rows)

    def use(self, codes: torch.Tensor, rows: torch.Tensor) -> None:
        """As ``select``, for codes (m, K), and which of them each row (B,) has."""
        self.rows = rows.to(self.codes.device)
        self._ups = codes.to(self.codes.device) @ self.directions

    def change(self, slot: Slot, x: torch.Tensor) -> torch.Tensor:
        """What a layer adds to its output (B, ..., out) for inputs (B, ..., in), each row by its
        member's update.

        Inputs of a multiple of the rows hold them again, as those of both sides of CFG do.
        """
        down, up = self._places[slot.layer]
        projection = self.projections[down].view(slot.down_shape)
        rows = rows_in_call(self.rows, len(x))
        ups = self._ups[:, up].view(-1, *slot.up_shape)[rows]
        # With all sizes named: an empty text, as Lens encodes one, has no tokens.
        tokens = math.prod(x.shape[1:-1])
        hidden = torch.nn.functional.linear(x, projection).view(len(x), tokens, self.layout.rank)
        added = self.layout.scale * torch.bmm(hidden, ups.mT)
        return added.view(*x.shape[:-1], ups.shape[1])

    @torch.no_grad()
    def sampled_code(self, generator: torch.Generator) -> torch.Tensor:
        """A code (K,) from the normal law of the members' mean and covariance; two members at
        least.
        """
        noise = torch.randn(len(self.codes), generator=generator).to(self.codes)
        mean = self.codes.mean(dim=0)
        return mean + noise @ (self.codes - mean) / math.sqrt(len(self.codes) - 1)

    @torch.no_grad()
    def flat(self, code: torch.Tensor) -> torch.Tensor:
        """The factors of a code (K,) as float32 (D,) in the layout."""
        return self._joined(
            self.projections.detach().cpu(), (code.to(self.codes) @ self.directions).cpu()
        )

    @torch.no_grad()
    def space(self, members: tuple[str, ...], name: str, base: str) -> Space:
        """The space of all members: their mean, and min(K, n - 1) principal directions, exact and
        in float64.

        The SVD of C U, C the centered codes, follows from the K x K matrix U U^T, so that no update
        of a member is ever made. Nothing is standardized: coefficients are in units of the up
        factors. Raises ValueError for fewer than two members, and where all are alike.
        """
        if len(members) < 2:
            raise ValueError(
                "A space needs two members at least: give a folder with two folders of images or "
                "more."
            )
        codes = self.codes.detach().cpu().double()
        directions = self.directions.detach().cpu()
        center = codes.mean(dim=0)
        gram = torch.zeros(len(directions), len(directions), dtype=torch.float64)
        for part in directions.split(_BLOCK, dim=1):
            gram += part.double() @ part.double().T
        squares, axes = torch.linalg.eigh(gram)
        used = squares > squares[-1].clamp_min(1e-300) * 1e-14
        root = squares[used].sqrt()
        axes = axes[:, used]
        left, values, right = torch.linalg.svd(
            (codes - center) @ (axes * root), full_matrices=False
        )
        found = min(int((values > values[:1] * 1e-7).sum()) if len(values) else 0, len(members) - 1)
        if not found:
            raise ValueError(
                "All members came out alike: train longer, or at a higher learning rate."
            )
        mixing = right[:found] @ (axes / root).T  # (k, K): the basis is mixing @ directions
        basis = torch.zeros(found, self.layout.size)
        for slot in self.layout.slots:
            part = directions[:, self._places[slot.layer][1]].double()
            basis[:, slot.up_offset : slot.end] = (mixing @ part).float()
        coefficients = (left * values)[:, :found].float()
        return Space(
            layout=self.layout,
            mean=self.flat(center.float()),
            deviation=torch.ones(self.layout.size),
            basis=basis,
            coefficients=coefficients,
            members=members,
            singular_values=values[:found].float(),
            form=Form.AS_TRAINED,
            squares=coefficients.square().sum(dim=1),
            about={"name": name, "base": base, "standardized": False, "learned": True},
        )

    def _joined(self, downs: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
        places = (self._places[slot.layer] for slot in self.layout.slots)
        return torch.cat([part for down, up in places for part in (downs[down], ups[up])]).float()
