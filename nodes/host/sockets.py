"""The pack's own socket types."""

from __future__ import annotations

from comfy_api.latest import io

#: Tapped activations: `nodes/activations/features.py`, Activations.
Activations = io.Custom("ACTIVATIONS")
#: What Activation Recorder has recorded: `nodes/activations/recorder.py`, Recorder.
ActivationRecording = io.Custom("ACTIVATION_RECORDING")
