"""Nodes that hook the network where ComfyUI evaluates the sides of CFG in calls of their own, as it
does where memory is short.
"""

import pytest
from model_changers import CHANGERS
from tapping import World, hooks_left

#: Those that change activations, attentions or neurons in the rows of a side.
USES = (
    "steering",
    "steering, norm kept, masked",
    "attention scaling",
    "neuron mask",
    "neuron mask, positive",
    "sparse features",
)
STEPS = 3


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@pytest.mark.parametrize("use", USES)
def test_two_calls_give_what_one_gives(demo, use, monkeypatch):
    """Within a few times what the MODEL itself is off in calls of other sizes, and 1e-4 of what the
    node does.
    """
    latent = demo.latent(2, 64, 64)
    model = CHANGERS[use][1](demo, demo.model, latent=latent, steps=STEPS)
    rows: list[int] = []

    def count(_network, args):
        rows.append(len(args[0]))

    def samples(sampled, **changes):
        return demo.sample(sampled, latent, steps=STEPS, **changes)["samples"]

    handle = demo.model.model.diffusion_model.register_forward_pre_hook(count)
    try:
        plain, joined = samples(demo.model), samples(model)
        assert rows == [4] * 2 * STEPS
        rows.clear()
        with monkeypatch.context() as patched:
            patched.setattr(demo.model.model, "memory_required", lambda *_, **__: 1e18)
            plain_apart, apart = samples(demo.model), samples(model)
            assert rows == [2] * 4 * STEPS
            alone = samples(model, cfg=1.0)
    finally:
        handle.remove()
    rounding = float((plain_apart - plain).abs().max())
    effect = float((joined - plain).abs().max())
    # Without AVX-512 the rounding is 2e-4 and the weakest effect 5e-3.
    assert effect > 15 * rounding > 0
    assert float((apart - joined).abs().max()) < 4 * rounding + 1e-4 * effect
    assert alone.isfinite().all()
    assert hooks_left(demo.model) == 0
