"""NeMo Localize by attribution, inside a real ComfyUI."""

import csv
import io
import re
import types

import pytest
import tiny_transformers
import torch
from tapping import hooks_left

PROMPT = "portrait of zorvex quill"
SMALL = {"noise_samples": 3, "seed": 1, "timestep": "official_961", "width": 128, "height": 128}
HOW = {
    "layers": "all",
    "threshold": 0.2,
    "criterion": "between_seeds",
    "target_score": 0.7,
    "theta_start": 5.0,
    "time_budget": 0.0,
    "method": "attribution",
    "ranking": "multi",
    "stopping_rule": "score",
}
#: Ordinary captions that deviations are measured against.
ORDINARY = [
    f"portrait, {skin} skin, {hair}, {glasses}, {shirt} t-shirt"
    for skin, hair, glasses, shirt in (
        ("pale", "short brown hair", "no glasses", "red"),
        ("black", "bald", "round glasses", "blue"),
        ("brown", "long red hair", "sunglasses", "white"),
        ("tanned", "bun of black hair", "no glasses", "green"),
        ("pale", "afro of pink hair", "round glasses", "black"),
        ("brown", "short blonde hair", "no glasses", "pink"),
        ("black", "long black hair", "sunglasses", "red"),
        ("light", "short gray hair", "round glasses", "gray"),
    )
]


@pytest.fixture(scope="module")
def planted(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2-planted")


@pytest.fixture(scope="module")
def attribution(app):
    return app.module("nodes.neurons.neuron_attribution_comfy")


def localize(app, planted, **changes):
    return app.run(
        "GBX_NemoLocalize",
        model=planted[0],
        clip=planted[1],
        **({"prompts": PROMPT} | SMALL | HOW | changes),
    )


def known(app):
    import json

    header = app.module("nodes.demo.assets").header("avatars-v2-planted", "changes")
    return {
        text: {tuple(neuron) for neuron in chosen}
        for text, chosen in json.loads(header["planted"]).items()
    }


@pytest.mark.parametrize("ranking", ["multi", "dot"])
def test_the_neuron_of_a_name_is_found_without_statistics(app, planted, ranking):
    """It is planted in one neuron of 1,408; the report counts the rows."""
    given = {"ranking": ranking, "stopping_rule": "fraction", "fraction": 0.5, "anchor": "portrait"}
    mask, _, table, report = localize(app, planted, **given)
    assert set(mask.neurons) == known(app)[PROMPT] and len(mask.neurons) == 1
    assert "4 rows forward and backward" in report or (
        ranking == "dot" and "3 rows forward and backward" in report
    )
    (row,) = csv.DictReader(io.StringIO(table))
    assert row["selected_by"] == "attribution" and not row["z"]
    assert hooks_left(planted[0]) == 0 and all(
        p.is_inference() for p in planted[0].model.parameters()
    )


@pytest.mark.parametrize("name", ["zorvex quill", "oquin veshti"])
def test_the_defaults_find_exactly_the_known_neurons(app, planted, name):
    """One and three neurons of 1,408, where others deviate more; nothing about them is given."""
    statistics, *_ = app.run(
        "GBX_NeuronStatistics",
        model=planted[0],
        clip=planted[1],
        prompts="\n".join(ORDINARY),
        prompts_file="",
        layers="all",
        filename_prefix="",
    )
    given = {name: HOW[name] for name in HOW if name not in ("ranking", "stopping_rule")}
    prompt = f"portrait of {name}"
    mask, *_ = app.run(
        "GBX_NemoLocalize",
        model=planted[0],
        clip=planted[1],
        statistics=statistics,
        **(SMALL | given | {"prompts": prompt, "noise_samples": 4}),
    )
    record = mask.searches[0]
    assert record.converged and set(mask.neurons) == known(app)[prompt]


def test_as_many_neurons_are_taken_as_the_score_needs(app, planted):
    mask, _, _, report = localize(app, planted, anchor="portrait")
    record = mask.searches[0]
    assert record.converged and record.details["score_after_refinement"] <= 0.7
    assert known(app)[PROMPT] <= set(mask.neurons) and mask.count <= 8
    assert "first of the ranking: 1 neurons, score" in report


def test_as_many_neurons_are_taken_as_make_the_image_go(app, planted):
    """Beside a generic prompt on the same model; the report names what is left, and the rows of the
    images count.
    """
    given = {"stopping_rule": "gone", "anchor": "portrait", "vae": planted[2], "cfg": 3.0}
    mask, _, _, report = localize(app, planted, **given)
    assert known(app)[PROMPT] <= set(mask.neurons)
    assert (
        "Left of the image, untouched: similarity 0." in report
        and "generic prompt: similarity 0." in report
    )
    assert (
        ("the image is gone;" in report)
        == mask.searches[0].converged
        == ("Gone: no more is left" in report)
    )
    (rows,) = re.findall(r"(\d+) rows in (\d+) evaluations", report)
    images = 1 + 2 + 4 + 2 * (int(rows[1]) - 3)
    assert int(rows[0]) == 24 * images + 8  # 12 steps with CFG, and the 8 rows of the ranking
    assert hooks_left(planted[0]) == 0


def test_the_rule_gone_needs_images(app, planted):
    with pytest.raises(ValueError, match="connect the model's vae"):
        localize(app, planted, stopping_rule="gone")


@pytest.mark.parametrize("given", [{"method": "search"}, {"ranking": "dot_z"}])
def test_without_statistics_there_is_no_z(app, planted, given):
    with pytest.raises(ValueError, match="connect Neuron Statistics"):
        localize(app, planted, **given)


def test_a_prompt_that_is_not_memorized_is_named_with_its_score(
    app, planted, monkeypatch, attribution
):
    monkeypatch.setattr(attribution, "run", None)  # no gradient is needed
    mask, _, _, report = localize(app, planted, threshold=1.0)
    assert mask.count == 0 and "not memorized (score 0." in report


def test_the_gradient_is_that_of_finite_differences(app, planted, attribution):
    """Of the prediction's part towards where all neurons move it, to all factors together, to 2
    %.
    """
    layers = app.module("nodes.neurons.neuron_layers").value_layers(
        planted[0].model.diffusion_model
    )
    condition = app.run("CLIPTextEncode", clip=planted[1], text=PROMPT)[0]
    x = torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(3))

    def work(session):
        def predicted(value):
            factors = {
                layer.path: torch.full((layer.width,), value, requires_grad=True)
                for layer in layers
            }
            return session.predicted(x, [800], [0], factors).double(), factors

        with torch.no_grad():
            zero, one, lower, higher = (predicted(value)[0] for value in (0.0, 1.0, 0.48, 0.52))
        towards = one - zero
        middle, factors = predicted(0.5)
        (middle * towards).sum().backward()
        return sum(float(factor.grad.sum()) for factor in factors.values()), float(
            ((higher - lower) * towards).sum() / 0.04
        )

    with torch.inference_mode():
        found, expected = attribution.run(
            planted[0], [torch.zeros(1, 24, 16, 16)], [condition], work
        )
    assert found == pytest.approx(expected, rel=0.02) and found != 0


def test_predictions_are_those_of_the_first_step(app, planted, attribution):
    """Both paths read the same network at the same noise, to 1e-5."""
    first_step = app.module("nodes.neurons.first_step_comfy")
    condition = app.run("CLIPTextEncode", clip=planted[1], text=PROMPT)[0]
    noise = torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = first_step.at_first_step(
            planted[0], condition, (24, 16, 16), 961, lambda predict: predict(noise)
        )
        latents = [torch.zeros(1, 24, 16, 16)]
        found = attribution.run(
            planted[0],
            latents,
            [condition],
            lambda session: session.predicted(noise, [961], [0]).detach(),
        )
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("ranking", ["multi", "dot"])
def test_hidden_units_of_a_transformer_are_ranked(app, attribution, ranking):
    patcher = tiny_transformers.model("SD3")
    layers = app.module("nodes.neurons.neuron_layers").feed_forward_layers(
        patcher.model.diffusion_model
    )
    pure = app.module("nodes.neurons.neuron_attribution")
    neurons, cost = app.module("nodes.neurons.nemo_search").Neurons(tuple(layers)), pure.Cost()
    latent = tiny_transformers.latent(patcher, 1, 8, 8)["samples"]
    noise = torch.randn(2, *latent.shape[1:], generator=torch.Generator().manual_seed(0))
    conditions = tiny_transformers.conditioning(), tiny_transformers.conditioning(5)
    with torch.inference_mode():
        found = attribution.attribution(
            patcher,
            pure.Ranking(ranking),
            *conditions,
            attribution.AnchorPredictions(),
            latents=[latent],
            noise=noise,
            timestep=961,
            neurons=neurons,
            seed=1,
            cost=cost,
        )
    assert found.shape == (sum(layer.width for layer in layers),)
    assert found.isfinite().all() and (found != 0).any() and cost.gradient > 0


def test_a_search_that_ran_out_of_time_is_searched_again(app, planted):
    """Its row says so; another time budget is no other scan. What is finished is not searched
    again.
    """
    given = {"scan_file": "glassbox/attributed", "stopping_rule": "score"}
    localize(app, planted, **given, time_budget=0.001)
    path = app.module("nodes.host.folders").named_file("glassbox/attributed", ".csv")
    (row,) = csv.DictReader(io.StringIO(path.read_text("utf-8")))
    assert row["finished"] == "False" and float(row["score"]) > 0.2
    mask, _, _, report = localize(app, planted, **given)
    *_, row = csv.DictReader(io.StringIO(path.read_text("utf-8")))
    assert row["finished"] == "True" and int(row["neurons"]) == mask.count > 0
    assert "searched in an earlier run" not in report
    assert "searched in an earlier run" in localize(app, planted, **given)[3]


def test_stop_leaves_no_hook_and_no_parameter(app, planted, attribution, monkeypatch):
    import comfy.model_management as management

    def stop(self, *args, **kwargs):
        raise management.InterruptProcessingException

    monkeypatch.setattr(attribution.FactorSession, "predicted", stop)
    with pytest.raises(management.InterruptProcessingException):
        localize(app, planted)
    assert hooks_left(planted[0]) == 0 and all(
        p.is_inference() for p in planted[0].model.parameters()
    )


def test_what_a_search_depends_on_are_the_settings_of_its_method(app):
    """A scan that is resumed with another ranking or fraction is another scan; for search they do
    nothing.
    """
    searches, inputs = (
        app.module("nodes.neurons.prompt_search_comfy"),
        app.module("nodes.neurons.nemo_inputs"),
    )
    search = app.module("nodes.neurons.nemo_search")
    kinds = app.module("nodes.neurons.neuron_attribution")
    step = inputs.FirstStepInputs(
        shape=(24, 12, 16), noise_samples=3, seed=1, timestep_name="official_961"
    )
    settings = search.SearchSettings(
        threshold=0.2, target_score=0.7, criterion=search.Criterion.BETWEEN_SEEDS, theta_start=5.0
    )

    def saved(method, **how):
        statistics = types.SimpleNamespace(check=lambda layers: None)
        return searches.PromptSearches(
            model=None,
            clip=None,
            neurons=search.Neurons(()),
            step=step,
            settings=settings,
            statistics=statistics,
            method=method,
            attribution=searches.AttributionSettings(**how),
            time_budget=0.0,
        ).saved(128, 96)

    first = saved(kinds.Method.ATTRIBUTION)
    assert (
        first["width"] == 128
        and first["height"] == 96
        and first["threshold"] == 0.2
        and first["seed"] == 1
    )
    for change in ({"fraction": 0.4}, {"anchor": "a person"}, {"ranking": kinds.Ranking.DOT}):
        assert saved(kinds.Method.ATTRIBUTION, **change) != first
        assert saved(kinds.Method.SEARCH, **change) == saved(kinds.Method.SEARCH) != first
