"""Presets, lists and wildcards on stand-in catalogs that hold the published IDs."""

import pytest
from glassbox.nodes.activations import published, selection
from glassbox.nodes.activations.entries import Entry


def entries(*ids):
    return [Entry(id_, "", "map" if id_.endswith("map") else "spatial", 8, 1) for id_ in ids]


DEMO_LIKE = entries(
    *(f"up-level{level}-repeat{repeat}-{part}" for level in range(3) for repeat in range(3)
      for part in ("res-increment", "res-out", "vit-block0-self-q", "vit-block0-self-k", "vit-block0-self-v",
                   "vit-block0-self-map", "vit-block0-cross-q", "vit-block0-ffn-inner", "vit-block0-out", "vit-out"))
)  # fmt: skip


def ids(found):
    return [entry.id for entry in found]


def test_wildcards_lists_and_comments():
    found = selection.select(
        DEMO_LIKE, selection.LIST, "up-level2-repeat?-res-out, up-level0-repeat0-vit-out # a note\n\n"
    )
    assert ids(found) == ["up-level0-repeat0-vit-out", *(f"up-level2-repeat{r}-res-out" for r in range(3))]


def test_the_order_is_the_networks_not_the_lists():
    assert ids(selection.matching(DEMO_LIKE, "up-level1-repeat0-vit-out up-level0-repeat0-vit-out"))[0].startswith(
        "up-level0"
    )


@pytest.mark.parametrize("patterns", ["", "  \n # only a note", ","])
def test_nothing_named(patterns):
    with pytest.raises(selection.NoSuchActivationError, match="No activation is named"):
        selection.select(DEMO_LIKE, selection.LIST, patterns)


def test_no_match_suggests_what_is_near():
    with pytest.raises(
        selection.NoSuchActivationError, match="matches 'up-level1-repeat0-vit-uot'; near it: up-level1-repeat0-vit-out"
    ):
        selection.matching(DEMO_LIKE, "up-level0-* up-level1-repeat0-vit-uot")


def test_no_match_far_from_everything():
    with pytest.raises(selection.NoSuchActivationError, match="Activation Catalog lists all IDs"):
        selection.matching(DEMO_LIKE, "*qqqqqqq*")


def test_a_set_of_another_model():
    with pytest.raises(selection.NoSuchActivationError, match="a set for SDXL, and this model is none"):
        selection.select(DEMO_LIKE, "Ours-XL")


@pytest.mark.parametrize(("preset", "noun"), [(selection.POOL, "pool"), (selection.FILTER, "filter")])
def test_the_paper_has_no_pool_or_filter_for_other_models(preset, noun):
    with pytest.raises(selection.NoSuchActivationError, match=f"gives no {noun} for this model"):
        selection.select(DEMO_LIKE, preset)


def test_best_by_analogy():
    assert ids(selection.select(DEMO_LIKE, selection.BEST)) == [
        "up-level1-repeat0-vit-block0-cross-q",
        "up-level1-repeat0-vit-block0-out",
        "up-level1-repeat2-res-out",
        "up-level2-repeat0-vit-block0-self-k",
    ]


def test_all_but_maps():
    assert len(selection.select(DEMO_LIKE, selection.ALL_BUT_MAPS)) == len(DEMO_LIKE) - 9


def test_published_numbers():
    assert [len(published.flagged("sd15", flag)) for flag in published.FLAGS] == [164, 33, 4, 4]
    assert [len(published.flagged("sdxl", flag)) for flag in published.FLAGS] == [279, 63, 4, 3]
    for name, owner, flag in (("Ours-v1.5", "sd15", "ours"), ("Legacy-v1.5", "sd15", "legacy"),
                              ("Ours-XL", "sdxl", "ours"), ("Legacy-XL", "sdxl", "legacy")):  # fmt: skip
        assert published.SETS[name] == (owner, tuple(published.flagged(owner, flag)))


def test_scores_stand_beside_exactly_the_filtered_ids():
    """Tables 4 to 6: the executable filter gives the very IDs that the paper scores (oracle O5)."""
    for owner, score in (("sd15", "sd15_horse21_miou"), ("sdxl", "sdxl_horse21_miou")):
        scored = [id_ for id_, row in published.table(owner).items() if row[score]]
        assert scored == published.flagged(owner, "filter")
    assert published.table("sdxl")["up-level0-repeat0-vit-block3-out"]["sdxl_horse21_miou"] == "58.95"
    assert published.table("sd15")["up-level2-repeat1-vit-block0-cross-q"]["sd15_horse21_miou"] == "53.58"
