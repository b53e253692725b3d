"""What words are recognized by in a recording: marks of the texts, wherever attention is read."""

import pytest
import torch
from glassbox.nodes.activations.activation_spec import ActivationSpec, Attention, Kind
from glassbox.nodes.activations.tap import CallTap, TapSettings
from glassbox.nodes.activations.token_heatmap import text_marks
from glassbox.nodes.common.network_call import WHOLE, Call, Part

FEATURE = ActivationSpec(id="a-out", module="a", kind=Kind.SPATIAL, channels=3, scale=1)
MAP = ActivationSpec(
    id="b-cross-map",
    module="q",
    kind=Kind.MAP,
    channels=None,
    scale=1,
    attention=Attention(query="q", key="k", heads=2),
)


@pytest.mark.parametrize(
    ("specs", "marked"), [([MAP], True), ([FEATURE, MAP], True), ([FEATURE], False)]
)
@pytest.mark.parametrize("unconditional", [True, False])
def test_texts_are_marked_where_any_activation_is_attention(specs, marked, unconditional):
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randn(2, tokens, 8, generator=generator) for tokens in (5, 7)]
    parts = tuple(
        Part(role=role, rows=slice(2 * row, 2 * row + 2), area=WHOLE, text=text)
        for row, (role, text) in enumerate(zip(("positive", "negative"), texts, strict=True))
    )
    call = Call(network=torch.nn.Identity(), parts=parts, rows=4, sigma=1.0, schedule=())
    tap = CallTap(specs, TapSettings(unconditional=unconditional), call)
    sides = [True, False] if unconditional else [True]
    assert set(tap.marks) == (set(sides) if marked else set())
    for side, text in zip(sides, texts, strict=False):
        if marked:
            torch.testing.assert_close(tap.marks[side], text_marks(text))
