"""What hooks the network refuses a compiled MODEL at once, before anything else is looked at; in
whole runs: tests/robustness/test_hosts.py.
"""

import inspect

import pytest
import torch

NODES = (
    "GBX_ActivationPatching",
    "GBX_ActivationRecorder",
    "GBX_ActivationSteering",
    "GBX_AttentionScaling",
    "GBX_EditByWords",
    "GBX_LayerActivationTap",
    "GBX_NemoNeuronMask",
    "GBX_PatchingMap",
    "GBX_PromptSteeringDirection",
    "GBX_SparseFeatureSteering",
    "GBX_TrainSparseAutoencoder",
)


@pytest.fixture(scope="module")
def compiled(app):
    """As TorchCompileModel marks a MODEL."""
    model = app.run("GBX_LoadDemoModel", weights="avatars-v2")[0].clone()
    model.model_options["torch_compile_kwargs"] = {}
    return model


@pytest.mark.parametrize("node_id", NODES)
def test_a_compiled_model_is_refused_first(app, compiled, node_id):
    node = app.classes[node_id]
    names = [entry.id for entry in node.GET_SCHEMA().inputs]
    given = dict.fromkeys(names) | {"model": compiled}
    execute = inspect.unwrap(node.execute.__func__)  # without the checks of inputs
    with pytest.raises(ValueError, match=r"runs through torch\.compile, which cannot be hooked"):
        execute(node, **given)


def test_word_maps_refuse_a_compiled_model(app, compiled):
    """Of Seed Scout, before it samples anything."""
    scout = app.module("nodes.activations.seed_scout_comfy")
    with pytest.raises(ValueError, match=r"runs through torch\.compile, which cannot be hooked"):
        scout.WordMaps(compiled, object(), "portrait", "")


def test_trainings_and_first_steps_refuse_a_compiled_model(app, compiled):
    trainer = app.module("nodes.host.training.trainer")
    with pytest.raises(ValueError, match=r"runs through torch\.compile, which cannot be hooked"):
        trainer.run(compiled, {}, [], [], None, dtype=torch.float32)
    first_step = app.module("nodes.neurons.first_step_comfy")
    with pytest.raises(ValueError, match=r"runs through torch\.compile, which cannot be hooked"):
        first_step.at_first_step(compiled, [], (24, 8, 8), 981, None, 1)


def test_positions_of_a_compiled_model_are_refused(app, compiled):
    positions = app.module("nodes.conditioning.rotary_positions_comfy")
    with pytest.raises(ValueError, match=r"runs through torch\.compile"):
        positions.rotated(compiled, None)
