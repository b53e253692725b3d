"""The pack's types of sockets, and ComfyUI's that have no class of their own."""

from __future__ import annotations

from comfy_api.latest import io

#: Tapped activations: `nodes/activations/activations.py`, Activations.
Activations = io.Custom("ACTIVATIONS")
#: What Activation Recorder has recorded: `nodes/activations/recorder.py`, Recorder.
ActivationRecording = io.Custom("ACTIVATION_RECORDING")
#: A direction in activations: `nodes/activations/steering.py`, SteeringDirection.
SteeringDirection = io.Custom("STEERING_DIRECTION")
#: A sparse autoencoder of an activation: `nodes/activations/sparse_autoencoder.py`,
#: SparseAutoencoder.
SparseAutoencoder = io.Custom("SPARSE_AUTOENCODER")
#: A trained pixel classifier: `nodes/activations/few_shot.py`, Segmenter.
FewShotSegmenter = io.Custom("FEW_SHOT_SEGMENTER")
#: A space of LoRAs: `nodes/weights/space.py`, Space.
W2WSpace = io.Custom("W2W_SPACE")
#: A model in such a space: `nodes/weights/space.py`, Point.
W2WPoint = io.Custom("W2W_POINT")
#: ComfyUI's own: the tensors of a LoRA file by key.
LoraModel = io.Custom("LORA_MODEL")
#: Which value neurons are scaled: `nodes/neurons/mask.py`, NeuronMask.
NeuronMask = io.Custom("NEURON_MASK")
#: How active neurons are on ordinary prompts: `nodes/neurons/neuron_statistics.py`, Statistics.
NeuronStatistics = io.Custom("NEURON_STATISTICS")
