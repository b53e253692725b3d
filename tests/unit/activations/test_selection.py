"""Presets, lists and wildcards on stand-in catalogs that hold the published IDs."""

import pytest
from glassbox.nodes.activations import paper_tables, select_ids
from glassbox.nodes.activations.activation_spec import ActivationSpec, Kind


def specs(*ids):
    return [
        ActivationSpec(
            id=id_,
            module="",
            kind=Kind.MAP if id_.endswith("map") else Kind.SPATIAL,
            channels=8,
            scale=1,
        )
        for id_ in ids
    ]


DEMO_LIKE = specs(
    *(
        f"up-level{level}-repeat{repeat}-{part}"
        for level in range(3)
        for repeat in range(3)
        for part in (
            "res-increment",
            "res-out",
            "vit-block0-self-q",
            "vit-block0-self-k",
            "vit-block0-self-v",
            "vit-block0-self-map",
            "vit-block0-cross-q",
            "vit-block0-ffn-inner",
            "vit-block0-out",
            "vit-out",
        )
    )
)


def ids(found):
    return [spec.id for spec in found]


def test_wildcards_lists_and_comments():
    found = select_ids.select(
        DEMO_LIKE,
        select_ids.Preset.CUSTOM_IDS,
        "up-level2-repeat?-res-out, up-level0-repeat0-vit-out # a note\n\n",
    )
    assert ids(found) == [
        "up-level0-repeat0-vit-out",
        *(f"up-level2-repeat{r}-res-out" for r in range(3)),
    ]


def test_the_order_is_the_networks_not_the_lists():
    found = select_ids.match_ids(
        ids(DEMO_LIKE), "up-level1-repeat0-vit-out up-level0-repeat0-vit-out"
    )
    assert found == ["up-level0-repeat0-vit-out", "up-level1-repeat0-vit-out"]


@pytest.mark.parametrize("patterns", ["", "  \n # only a note", ","])
def test_nothing_named(patterns):
    with pytest.raises(select_ids.NoSuchActivationError, match="No activation is named"):
        select_ids.select(DEMO_LIKE, select_ids.Preset.CUSTOM_IDS, patterns)


def test_no_match_suggests_what_is_near():
    with pytest.raises(
        select_ids.NoSuchActivationError,
        match="matches 'up-level1-repeat0-vit-uot'; similar: up-level1-repeat0-vit-out",
    ):
        select_ids.match_ids(ids(DEMO_LIKE), "up-level0-* up-level1-repeat0-vit-uot")


def test_too_many_patterns_are_refused():
    with pytest.raises(
        select_ids.NoSuchActivationError,
        match="There are 100000 IDs and wildcards, and at most 2000",
    ):
        select_ids.match_ids(ids(DEMO_LIKE), "\n".join(f"*{number}*" for number in range(100_000)))
    many = "\n".join(["up-*-vit-out"] * 50_000)  # the same again and again counts once
    assert len(select_ids.match_ids(ids(DEMO_LIKE), many)) == 9


def test_no_match_far_from_everything():
    with pytest.raises(select_ids.NoSuchActivationError, match="Activation Catalog lists all IDs"):
        select_ids.match_ids(ids(DEMO_LIKE), "*qqqqqqq*")


def test_a_set_of_another_model():
    with pytest.raises(
        select_ids.NoSuchActivationError, match="a set for SDXL, and this model is not one"
    ):
        select_ids.select(DEMO_LIKE, "ours_xl")


@pytest.mark.parametrize(
    ("preset", "noun"),
    [(select_ids.Preset.PAPER_POOL, "pool"), (select_ids.Preset.PAPER_FILTER, "filter")],
)
def test_the_paper_has_no_pool_or_filter_for_other_models(preset, noun):
    with pytest.raises(
        select_ids.NoSuchActivationError, match=f"has no 'paper_{noun}' for this model"
    ):
        select_ids.select(DEMO_LIKE, preset)


def test_best_by_analogy():
    assert ids(select_ids.select(DEMO_LIKE, select_ids.Preset.RECOMMENDED)) == [
        "up-level1-repeat2-res-out",
        "up-level2-repeat0-vit-block0-self-k",
    ]


def test_all_but_maps():
    assert len(select_ids.select(DEMO_LIKE, select_ids.Preset.ALL_FEATURES)) == len(DEMO_LIKE) - 9


def test_published_numbers():
    assert [len(paper_tables.flagged("sd15", flag)) for flag in paper_tables.FLAGS] == [
        164,
        33,
        4,
        4,
    ]
    assert [len(paper_tables.flagged("sdxl", flag)) for flag in paper_tables.FLAGS] == [
        279,
        63,
        4,
        3,
    ]
    for name, owner, flag in (
        ("ours_v1_5", "sd15", "ours"),
        ("legacy_v1_5", "sd15", "legacy"),
        ("ours_xl", "sdxl", "ours"),
        ("legacy_xl", "sdxl", "legacy"),
    ):
        assert paper_tables.SETS[name] == (owner, tuple(paper_tables.flagged(owner, flag)))


def test_scores_stand_beside_exactly_the_filtered_ids():
    """Tables 4 to 6: the executable filter gives the very IDs that the paper scores."""
    for owner, score in (("sd15", "sd15_horse21_miou"), ("sdxl", "sdxl_horse21_miou")):
        scored = [id_ for id_, row in paper_tables.table(owner).items() if row[score]]
        assert scored == paper_tables.flagged(owner, "filter")
    assert (
        paper_tables.table("sdxl")["up-level0-repeat0-vit-block3-out"]["sdxl_horse21_miou"]
        == "58.95"
    )
    assert (
        paper_tables.table("sd15")["up-level2-repeat1-vit-block0-cross-q"]["sd15_horse21_miou"]
        == "53.58"
    )


def test_the_maps_that_daam_reads():
    """All cross-attention maps of a U-Net but those of its middle block and of an eighth of the
    latent's side.
    """
    scales = {
        "down-level0-cross-map": 1,
        "down-level2-cross-map": 4,
        "down-level3-cross-map": 8,
        "mid-cross-map": 4,
    }
    scales |= {
        "up-level1-cross-map": 4,
        "up-level1-self-map": 4,
        "up-level1-cross-q": 4,
        "up-level0-cross-map": 8,
    }
    catalog = [
        ActivationSpec(id=id_, module="", kind=Kind.MAP, channels=None, scale=scale)
        for id_, scale in scales.items()
    ]
    assert select_ids.daam_maps(catalog) == [
        "down-level0-cross-map",
        "down-level2-cross-map",
        "up-level1-cross-map",
    ]
