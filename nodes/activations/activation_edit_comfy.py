"""Edit activations of a MODEL while any sampler runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..host.evaluate import PERCENT, sigma_at
from ..host.hooks import Receivers, hook_calls
from .activation_edit import CallEdit, Edit
from .activation_spec import ActivationSpec
from .tap_inputs import Rows

if TYPE_CHECKING:
    from ..common.network_call import Call
    from ..host.socket_types import ModelPatcher


def steered_model(
    model: ModelPatcher,
    specs: list[ActivationSpec],
    edit: Edit,
    start_percent: float,
    end_percent: float,
    rows: str,
) -> ModelPatcher:
    """A clone of a MODEL with an edit of its activations in a part of the run; ``rows`` as in the
    node.
    """
    kinds = {Rows.CONDITIONAL: {True}, Rows.UNCONDITIONAL: {False}, Rows.BOTH: {True, False}}[
        Rows(rows)
    ]
    first = float("inf") if start_percent <= 0 else sigma_at(model, start_percent, PERCENT)
    last = 0.0 if end_percent >= 1 else sigma_at(model, end_percent, PERCENT)

    def calling(call: Call) -> Receivers | None:
        if not last <= call.sigma <= first:
            return None
        return CallEdit(
            specs, edit, lambda part: (part.positive or part.side) in kinds, call
        ).receivers()

    return hook_calls(model, calling)
