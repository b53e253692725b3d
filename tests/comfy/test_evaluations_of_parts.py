"""Latents of several parts (video with sound) and texts, joined for one evaluation."""

import pytest
import torch


@pytest.fixture
def parts(app):
    """A latent of a video of two frames, and of its sound."""
    from comfy.nested_tensor import NestedTensor

    generator = torch.Generator().manual_seed(1)
    video = torch.randn(2, 4, 2, 6, 8, generator=generator)
    return NestedTensor([video, torch.randn(2, 3, 5, generator=generator)])


def test_noise_is_that_of_ksampler(app, parts):
    import comfy.sample

    noise_for = app.module("nodes.host.evaluate").noise_for
    before = torch.get_rng_state()
    found = noise_for(parts, 7)
    assert torch.equal(torch.get_rng_state(), before)
    expected = comfy.sample.prepare_noise(parts, 7)
    assert len(found.unbind()) == 2
    assert all(map(torch.equal, found.unbind(), expected.unbind()))
    plain = parts.unbind()[0]
    assert torch.equal(noise_for(plain, 7), comfy.sample.prepare_noise(plain, 7))


def test_a_batch_holds_each_part_of_each(app, parts):
    shapes = app.module("nodes.host.latent_shapes")
    video, sound = shapes.batched([parts, shapes.join([-one for one in parts.unbind()])]).unbind()
    assert torch.equal(video, torch.cat([parts.unbind()[0], -parts.unbind()[0]]))
    assert torch.equal(sound, torch.cat([parts.unbind()[1], -parts.unbind()[1]]))
    plain = parts.unbind()[0]
    assert torch.equal(shapes.batched([plain, plain]), torch.cat([plain, plain]))


def test_texts_without_a_pooled_vector_keep_the_entry(app):
    """As those of T5 alone, for whose networks ComfyUI asks for it."""
    joined = app.module("nodes.host.evaluate").joined_conditioning
    texts = [torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    ((both, beside),) = joined([[[text, {"pooled_output": None}]] for text in texts])
    assert torch.equal(both, torch.cat(texts)) and beside == {"pooled_output": None}
    ((_, nothing),) = joined([[[text, {}]] for text in texts])
    assert nothing == {}
    vectors = [torch.full((1, 3), float(n)) for n in range(2)]
    pairs = zip(texts, vectors, strict=True)
    ((_, with_vector),) = joined([[[text, {"pooled_output": one}]] for text, one in pairs])
    assert torch.equal(with_vector["pooled_output"], torch.cat(vectors))
    assert joined([[[texts[0], {}]], [[texts[1], {"pooled_output": vectors[0]}]]]) is None
