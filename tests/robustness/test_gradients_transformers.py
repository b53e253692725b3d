"""Gradients of transformers behind nodes: the same whether activations are kept or computed again.

Their blocks add in place to what they have kept, on the CPU and in fp32 too.
"""

import pytest
import reduced
import torch
from robustness import gradient_reference as reference

_LAYERS = {
    "flux": ("img_attn.qkv", "img_mlp.2", "txt_attn.proj", "linear2", "linear1", "img_in"),
    "sd3": (
        "x_block.attn.qkv",
        "x_block.mlp.fc2",
        "context_block.attn.qkv",
        "context_block.mlp.fc1",
    ),
}
_WORDS = {"edits": "red hair -> blue hat: 1.5", "prompt": "portrait, red hair"}


def _words(app, model, clip):
    return app.run(
        "GBX_EditByWords", model=model, clip=clip, start_percent=0.0, end_percent=1.0, **_WORDS
    )[0]


def _words_in_a_mask(app, model, clip):
    mask = torch.rand(1, 8, 12, generator=torch.Generator().manual_seed(1))
    given = {**_WORDS, "start_percent": 0.0, "end_percent": 1.0, "mask": mask}
    return app.run("GBX_EditByWords", model=model, clip=clip, **given)[0]


def _neurons(app, model, clip):
    layers = app.module("nodes.neurons.neuron_layers").feed_forward_layers(
        model.model.diffusion_model
    )
    scales = {layer.path: dict.fromkeys(range(0, layer.width, 2), 0.0) for layer in layers}
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": "positive"}
    mask = app.module("nodes.neurons.mask").NeuronMask(scales)
    return app.run("GBX_NemoNeuronMask", model=model, mask=mask, **given)[0]


def _interval(app, model, clip):
    from comfy.weight_adapter.lora import LoRAAdapter

    generator, changes = torch.Generator().manual_seed(2), {}
    for name, module in model.model.named_modules():
        if name.endswith("qkv"):
            width, reads = module.weight.shape
            up = 0.3 * torch.randn(width, 2, generator=generator)
            down = torch.randn(2, reads, generator=generator)
            changes[f"{name}.weight"] = LoRAAdapter(set(), (up, down, 2.0, None, None, None))
    return app.module("nodes.weights.lora_intervals_comfy").apply_changes(
        model, changes, 1.0, 0.0, 0.5
    )


_NODES = {
    "nothing": (),
    "Edit by Words": (_words,),
    "Edit by Words in a mask": (_words_in_a_mask,),
    "NeMo Neuron Mask": (_neurons,),
    "W2W Apply in an interval": (_interval,),
    "Edit by Words, then W2W Apply": (_words, _interval),
    "W2W Apply, then Edit by Words": (_interval, _words),
    "NeMo Neuron Mask, then Edit by Words": (_neurons, _words),
    "Edit by Words, then NeMo Neuron Mask": (_words, _neurons),
}


@pytest.fixture(scope="module", params=sorted(_LAYERS))
def transformer(app, request):
    model, clip, _ = reduced.checkpoint(request.param)
    weights = reference.layers_with(model, _LAYERS[request.param])
    texts = [
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("portrait, red hair", "")
    ]
    plain, _ = reference.gradients(app, model, *texts, weights, checkpointing=False)
    return model, clip, weights, texts, plain


@pytest.mark.parametrize("name", _NODES)
def test_checkpointing_changes_no_gradient_of_a_transformer(app, transformer, name):
    model, clip, weights, texts, plain = transformer
    with torch.inference_mode():
        for put in _NODES[name]:
            model = put(app, model, clip)
    kept, loss = reference.gradients(app, model, *texts, weights, checkpointing=False)
    with reference.segments_counted(app) as blocks:
        again, same = reference.gradients(app, model, *texts, weights, checkpointing=True)
    assert same == loss and len(blocks) >= 6
    assert reference.difference(again, kept) <= 1e-5
    if _NODES[name]:
        assert reference.difference(kept, plain) > 1e-3  # else the node took no part
