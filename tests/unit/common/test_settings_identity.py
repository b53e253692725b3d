"""The identities of kept work are declared once, by the classes of settings."""

import dataclasses
import json

import pytest
import repository
from glassbox.nodes.activations.autoencoder_training import TrainingSettings
from glassbox.nodes.common.resume import FREE, named_input, settings_identity
from glassbox.nodes.neurons.learned_factors import LearningSettings
from glassbox.nodes.noise.training_noise import PairedTrainingOptions
from glassbox.nodes.weights.inversion import InversionSettings
from glassbox.nodes.weights.space_training import SpaceTrainingSettings

#: By the node whose inputs a refusal names: the class, and inputs that it has under another name.
_KEPT = {
    "GBX_TrainLoraImmiscible": PairedTrainingOptions,
    "GBX_W2WInvert": InversionSettings,
    "GBX_W2WTrainSpace": SpaceTrainingSettings,
    "GBX_OptimizeNeuronMask": LearningSettings,
    "GBX_TrainSparseAutoencoder": TrainingSettings,
}
#: Constants of the nodes, which are part of an identity all the same.
_CONSTANTS = {
    "GBX_TrainLoraImmiscible": {
        "nearest_form",
        "penalty",
        "snr_gamma",
        "logit_mean",
        "logit_std",
    },
    "GBX_W2WTrainSpace": {"code_rate", "projection_rate", "prior"},
    "GBX_TrainSparseAutoencoder": {"dead_after"},
}


@dataclasses.dataclass(kw_only=True)
class _Settings:
    steps: int
    rows: int = dataclasses.field(default=2, metadata=named_input("batch_size"))
    interval: int = dataclasses.field(default=5, metadata=FREE)
    decay: float = 0.0

    @property
    def free(self) -> tuple[str, ...]:
        return () if self.decay else ("steps",)


def test_an_identity_has_the_names_of_inputs_and_what_changes_the_work():
    assert settings_identity(_Settings(steps=3)) == {"batch_size": 2, "decay": 0.0}
    decayed = _Settings(steps=3, rows=4, interval=1, decay=0.5)
    assert settings_identity(decayed) == {"steps": 3, "batch_size": 4, "decay": 0.5}


@pytest.mark.parametrize("node", _KEPT)
def test_every_name_is_an_input_of_the_node(node):
    """A refusal names what differs, so that a person finds it on the node."""
    contract = json.loads((repository.ROOT / "tests/node_contract.json").read_text("utf-8"))
    names = {
        field.metadata.get("input", field.name)
        for field in dataclasses.fields(_KEPT[node])
        if not field.metadata.get("free")
    }
    assert names - set(contract[node]["inputs"]) <= _CONSTANTS.get(node, set())
