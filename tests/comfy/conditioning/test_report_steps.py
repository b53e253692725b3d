"""The steps that reports of metadata show: those of the sigmas that are connected, less the last
one.
"""

import pytest
import torch


def test_every_connected_sigma_but_the_last_is_a_step(app):
    module = app.module("nodes.conditioning.nodes_size_metadata")
    model, _, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    sampling = model.get_model_object("model_sampling")
    sigmas = sampling.sigmas[torch.tensor([900, 400, 99])].tolist()
    steps = module._steps(model, torch.tensor([*sigmas, 0.0]))
    assert [step.sigma for step in steps] == pytest.approx(sigmas)
    assert [step.u for step in steps] == pytest.approx([900 / 999, 400 / 999, 99 / 999], abs=1e-4)
    own = module._steps(model, None)
    assert (
        len(own) > 5
        and own[0].sigma == pytest.approx(float(sampling.sigma_max), rel=1e-5)
        and own[-1].sigma > 0
    )
