"""Cells of the activations family: what each node must do on a network."""

from __future__ import annotations

import torch

from .subject import (
    PROMPT,
    LeftOutError,
    NotVerifiedError,
    Subject,
    batch,
    demand,
    first_part,
    relative,
    repeated_twice,
    with_first_part,
)

_CHANGED_PROMPT = PROMPT.replace("cat", "dog", 1)
_SMALL = (1e-3, 1e-4)  # strengths of steering


def activation_catalog(subject: Subject) -> str:
    """Ids are listed, each once; Layer Activation Tap reads the first and the last."""
    ids = _ids(subject)
    demand(len(set(ids)) == len(ids), "An id is listed twice.")
    return f"{len(ids)} ids"


def _ids(subject: Subject) -> list[str]:
    def listed() -> list[str]:
        text = subject.run("ActivationCatalog", model=subject.model, preset="all_features")[2]
        ids = [line for line in text.replace(",", "\n").split("\n") if line.strip()]
        demand(bool(ids), "No id is listed.")
        return ids

    return subject.once("ids", listed)


def _tap(subject: Subject, ids: str, latent: dict, model: object = None) -> dict:
    tapped = subject.run(
        "LayerActivationTap",
        model=model or subject.model,
        positive=subject.positive,
        latent=latent,
        preset="custom_ids",
        ids=ids,
        precision="fp32",
        noise_unit="sigma",
        level=0.5,
        seed=3,
    )
    return tapped[0].tensors


def layer_activation_tap(subject: Subject) -> str:
    """Moving a patch of the latent moves the activation there most."""
    ids = _ids(subject)
    local = next((name for name in ids if name.endswith("-q")), ids[0])
    moved = first_part(subject.latent["samples"]).clone()
    height, width = moved.shape[-2:]
    rows = (height // 4, height // 4 + 2)
    columns = (width // 2, width // 2 + 2)
    moved[..., rows[0] : rows[1], columns[0] : columns[1]] += 3.0
    changed = {"samples": with_first_part(subject.latent["samples"], moved)}
    before = _tap(subject, local, subject.latent)[local]
    after = _tap(subject, local, changed)[local]
    map_ = (after - before).abs().amax(tuple(range(before.ndim - 2)))
    demand(float(map_.max()) > 0, f"{local} does not see the latent.")
    row, column = divmod(int(map_.argmax()), map_.shape[1])
    near = _is_near(row, rows, map_.shape[0] / height) and _is_near(
        column, columns, map_.shape[1] / width
    )
    ends = f"{ids[0]}, {ids[-1]}"
    demand(set(_tap(subject, ends, subject.latent)) == {ids[0], ids[-1]}, f"Not all of {ends}.")
    demand(near, f"{local} changes most at row {row}, column {column}, not where the latent does.")
    return f"{local} changes where the latent does"


def _is_near(place: int, bounds: tuple[int, int], scale: float) -> bool:
    return bounds[0] * scale - 1 <= place < bounds[1] * scale + 1


def _recorded(subject: Subject):
    def record():
        middle = _outputs(subject)[len(_outputs(subject)) // 2]
        model, recording = subject.run(
            "ActivationRecorder",
            model=subject.model,
            preset="custom_ids",
            ids=middle,
            recorded_steps="all",
            rows="both",
            precision="fp32",
        )
        return middle, recording, subject.sampled(model)

    return subject.once("recording", record)


def _outputs(subject: Subject) -> list[str]:
    outputs = [name for name in _ids(subject) if name.endswith("-out")]
    if not outputs:
        raise LeftOutError("The catalog lists no output of a block.")
    return outputs


def activation_recorder(subject: Subject) -> str:
    """Recording leaves the run bit-equal, and holds both sides of each step."""
    name, recording, latent = _recorded(subject)
    demand(_equal(latent, subject.sampled(subject.model)), "Recording changes the image.")
    steps = [
        subject.run("ReadActivations", recording=recording, latent=latent, step_index=step)[0]
        for step in (0, 1)
    ]
    sides = {row.conditional for row in steps[0].rows}
    demand(sides == {True, False}, "One side of CFG is missing.")
    demand(
        not torch.equal(steps[0].tensors[name], steps[1].tensors[name]),
        "Two steps hold the same activations.",
    )
    return f"{name} of both sides and steps, image bit-equal"


def _equal(first: dict, second: dict) -> bool:
    pairs = ((first["samples"], second["samples"]),)
    if getattr(first["samples"], "is_nested", False):
        pairs = tuple(zip(first["samples"].unbind(), second["samples"].unbind(), strict=True))
    return all(torch.equal(one, other) for one, other in pairs)


def token_heat_map(subject: Subject) -> str:
    """Words requested in another order have the same maps in that order."""
    model, recording = subject.run(
        "ActivationRecorder",
        model=subject.model,
        preset="cross_attention_mean",
        recorded_steps="all",
        rows="conditional",
        precision="fp32",
    )
    latent = subject.sampled(model)
    activations = subject.run("ReadActivations", recording=recording, latent=latent, step_index=0)[
        0
    ]
    frames = subject.configuration.size[0] if len(subject.configuration.size) == 3 else 1
    image = torch.rand(frames, subject.side, subject.side, 3)

    def masks(words: str) -> torch.Tensor:
        return subject.run(
            "TokenHeatMap",
            activations=activations,
            image=image,
            clip=subject.text_encoder,
            prompt=PROMPT,
            words=words,
        )[1]

    both = masks("cat, dog")
    swapped = masks("dog, cat")
    pairs = both.reshape(2, -1) if len(both) == 2 else both.reshape(-1, 2, *both.shape[1:])
    if len(both) == 2:
        expected = swapped.flip(0)
        differ = not torch.equal(pairs[0], pairs[1])
    else:
        halves = both.chunk(2)
        expected = torch.cat([swapped.chunk(2)[1], swapped.chunk(2)[0]])
        if not torch.equal(both, expected):  # frames first, then words
            expected = swapped.reshape(-1, 2, *swapped.shape[1:]).flip(1).flatten(0, 1)
        differ = not torch.equal(halves[0], halves[1])
    demand(torch.equal(both, expected), "The maps depend on the order of the words.")
    demand(differ and float(both.max()) > 0, "The maps of two words are the same.")
    return f"{len(both)} maps of two words"


def _direction(subject: Subject):
    name = _outputs(subject)[len(_outputs(subject)) // 2]
    channels = _tap(subject, name, subject.latent)[name].shape[1]
    vector = torch.randn(channels, generator=torch.Generator().manual_seed(0))
    steering = subject.app.module("nodes.activations.steering")
    return name, steering.SteeringDirection({name: vector}, "random")


def activation_steering(subject: Subject) -> str:
    """Opposite strengths, so small that they change no choice of experts, change the image
    oppositely. The larger one is above the rounding of all networks but for such a choice.
    """
    name, direction = subject.once("direction", lambda: _direction(subject))

    def steered(strength: float):
        return subject.run(
            "ActivationSteering",
            model=subject.model,
            direction=direction,
            strength=strength,
            rows="both",
        )[0]

    subject.same(steered(0.0))
    asymmetries = []
    for strength in _SMALL:
        plus = subject.changed(steered(strength)) - subject.plain
        minus = subject.changed(steered(-strength)) - subject.plain
        asymmetries.append(float((plus + minus).norm() / plus.norm()))
    asymmetry = min(asymmetries)
    demand(asymmetry < 0.5, f"Opposite strengths are no opposite changes ({asymmetry:.2g}).")
    return f"{name}, opposite within {asymmetry:.2g}"


def prompt_steering_direction(subject: Subject) -> str:
    """Prompts in exchanged roles give the opposite direction."""

    def direction(toward: str, away: str):
        return subject.run(
            "PromptSteeringDirection",
            model=subject.model,
            clip=subject.text_encoder,
            latent=subject.empty,
            toward_prompts=toward,
            away_prompts=away,
            preset="custom_ids",
            ids=_outputs(subject)[-1],
            steps=1,
        )[0].vectors

    forward = direction("a red cat", "a blue dog")
    back = direction("a blue dog", "a red cat")
    for name, vector in forward.items():
        demand(float(vector.norm()) > 0, "The direction is zero.")
        demand(torch.allclose(vector, -back[name], atol=1e-5), "The direction has no sign.")
    return f"{len(forward)} ids"


def activation_patching(subject: Subject) -> str:
    """A run patched with its own activations is itself; another seed's run changes."""
    name, recording, latent = _recorded(subject)

    def patched(strength: float):
        return subject.run(
            "ActivationPatching",
            model=subject.model,
            recording=recording,
            latent=latent,
            ids=name,
            strength=strength,
        )[0]

    subject.same(patched(0.0))
    stock = subject.sample(subject.model, seed=5)
    other = subject.sample(patched(1.0), seed=5)
    demand(not torch.equal(other, stock), "Patching changes nothing.")
    error = relative(subject.sample(patched(1.0)), subject.plain, stock)
    demand(error < 1e-4, f"The patch of a run's own activations changes it by {error:.2g}.")
    return f"own run within {error:.1g}"


def train_sparse_autoencoder(subject: Subject) -> str:
    """A feature's decoder row steers, and strength 0 is stock."""
    autoencoder = subject.run(
        "TrainSparseAutoencoder",
        model=subject.model,
        clip=subject.text_encoder,
        latent=subject.empty,
        activation_id=_outputs(subject)[len(_outputs(subject)) // 2],
        prompts="a red cat\na blue dog",
        features=32,
        k=4,
        training_steps=2,
        batch_size=64,
        steps=1,
        name=f"models/{subject.configuration.name}",
    )[0]

    def steered(strengths: str):
        return subject.run(
            "SparseFeatureSteering",
            model=subject.model,
            autoencoder=autoencoder,
            strengths=strengths,
            mode="add",
            rows="both",
        )[0]

    subject.same(steered("0 = 0"))
    subject.changed(steered("\n".join(f"{feature} = 20" for feature in range(8))))
    return "features steer, strength 0 bit-equal"


def edit_by_words(subject: Subject) -> str:
    """At strength 1 away from the prompt, the run is that of the changed prompt."""

    def edited(edits: str):
        return subject.run(
            "EditByWords",
            model=subject.model,
            clip=subject.text_encoder,
            edits=edits,
            prompt=PROMPT,
        )[0]

    subject.same(edited("cat -> dog: 0"))
    result = subject.changed(edited("cat -> dog: 1"))
    beside = subject.positive[0][1]
    changed = [[subject.encode(_CHANGED_PROMPT)[0][0], beside]]
    expected = subject.sample(subject.model, positive=changed)
    error = relative(result, expected, subject.plain)
    if error < 1e-3:
        return f"equals the changed prompt within {error:.1g} of the edit"
    # Prompts that ride in other keys too (pooled texts, second encoders) change with the words.
    whole = subject.sample(subject.model, positive=subject.encode(_CHANGED_PROMPT))
    error = min(error, relative(result, whole, subject.plain))
    if error >= 1e-3:
        raise NotVerifiedError(f"It differs from the changed prompt by {error:.2g} of the edit.")
    return f"equals the changed prompt within {error:.1g} of the edit"


def activation_quality(subject: Subject) -> str:
    """Every requested id is measured, on two noise samples of two images."""
    name = _outputs(subject)[-1]
    images = batch(subject, 2)
    repeated = repeated_twice(images["samples"])
    try:
        subject.sample(subject.model, {"samples": repeated})
    except ValueError as error:
        raise LeftOutError(f"ComfyUI samples no batch of this network ({error}).") from error
    tapped = subject.run(
        "LayerActivationTap",
        model=subject.model,
        positive=subject.positive,
        preset="custom_ids",
        ids=name,
        latent={"samples": repeated},
        noise_unit="sigma",
        level=0.5,
    )[0]
    report = subject.run(
        "ScoreActivations",
        measure="quality",
        activations=tapped,
        latent=images,
        noise_samples=2,
        filename_prefix="",
        max_noise_fraction=1.0,
        max_locality=1.0,
    )[1]
    demand(name in report, f"{name} is not in the report.")
    return "measured"


def patching_map(subject: Subject) -> str:
    """The id that is patched is ranked."""
    name = _outputs(subject)[0]
    report = subject.run(
        "PatchingMap",
        model=subject.model,
        source_positive=subject.negative,
        positive=subject.positive,
        negative=subject.negative,
        latent=subject.empty,
        preset="custom_ids",
        ids=name,
        steps=1,
        cfg=1.0,
        precision="fp32",
    )[2]
    demand(name in report, f"{name} is not in the report.")
    return "ranked"


CELLS = {
    "ActivationCatalog": activation_catalog,
    "LayerActivationTap": layer_activation_tap,
    "ActivationRecorder": activation_recorder,
    "TokenHeatMap": token_heat_map,
    "ActivationSteering": activation_steering,
    "PromptSteeringDirection": prompt_steering_direction,
    "ActivationPatching": activation_patching,
    "PatchingMap": patching_map,
    "ScoreActivations (quality)": activation_quality,
    "TrainSparseAutoencoder, SparseFeatureSteering": train_sparse_autoencoder,
    "EditByWords": edit_by_words,
}
