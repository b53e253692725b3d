"""Labels of members as people write them."""

import members
import pytest
import torch
from glassbox.nodes.weights import (
    labels,
    member_sources,
    space_builder,
)

COUNT = 24


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    folder = members.write_folder(tmp_path_factory.mktemp("loras"), COUNT)
    target = tmp_path_factory.mktemp("spaces") / "s.safetensors"
    return space_builder.build(
        member_sources.file_sources(folder), space_builder.BuildSettings(form="as_trained"), target
    )


def test_labels_are_read_from_csv_and_json(space):
    text = "member,beard,glasses\nmember_00.safetensors,1,no\nmember_02,0,\nstranger,1,1"
    found = labels.parse(text, space)
    assert found["beard"][:3].tolist()[::2] == [1, 0] and found["beard"][1] != found["beard"][1]
    assert found["glasses"][0] == 0 and found["glasses"][2] != found["glasses"][2]
    same = labels.parse(
        '{"member_00": {"beard": true, "glasses": 0}, "member_02": {"beard": 0}}', space
    )
    for name in found:
        torch.testing.assert_close(same[name], found[name], equal_nan=True)
    from dataclasses import replace

    labeled = replace(space, labels=found)
    again = labels.parse(labels.to_csv(labeled.members, labeled.labels), labeled)
    torch.testing.assert_close(again["beard"], found["beard"], equal_nan=True)


@pytest.mark.parametrize(
    "text",
    [
        "member;beard\nmember_00;0,5\n\nmember_02;0\n",
        "\ufeffmember\tbeard\nmember_00\t0.5\n \t \nmember_02\t0",
        "member,beard\r\nMember_00.SAFETENSORS,0.5\r\n.\\member_02.sft,0\r\n",
        '{"member_00.ckpt": {"beard": 0.5}, "MEMBER_02": {"beard": 0}}',
    ],
)
def test_labels_are_read_as_people_write_them(space, text):
    """Separators, decimal commas, blank lines, a byte order mark, endings, case and slashes."""
    remarks = []
    found = labels.parse(text, space, remarks)
    assert found["beard"][:3].tolist()[::2] == [0.5, 0]
    assert remarks == [f"{len(space.members) - 2} of {len(space.members)} members have no row."]


def test_names_count_in_any_unicode_form(space):
    from dataclasses import replace

    named = replace(space, members=("zoe\u0308", *space.members[1:]))
    assert labels.parse("member,a\nZO\u00cb,1", named)["a"][0] == 1


def test_rows_of_nobody_and_rows_that_stand_twice_are_named(space):
    remarks = []
    text = "member,a\nmember_00,1\nx,1\ny,1\nz,1\nw,1\nmember_00.pt,0"
    assert labels.parse(text, space, remarks)["a"][0] == 0
    assert remarks[0] == "4 rows of the labels name no member: x, y, z and 1 more."
    assert remarks[1] == "1 rows stand twice, and the last counts: member_00.pt."


def test_members_that_differ_by_case_need_their_own_name(space):
    from dataclasses import replace

    named = replace(space, members=("Ada", "ada", *space.members[2:]))
    assert labels.parse("member,a\nAda,1\nada,0", named)["a"][:2].tolist() == [1, 0]
    with pytest.raises(ValueError, match="ADA may be two members: write Ada or ada"):
        labels.parse("member,a\nADA,1", named)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nothing", "are not a table"),
        ("member,a,a\nmember_00,1,0", "two columns 'a'"),
        ("member,a\nmember_00", "Line 2 .* has 1 cells"),
        ("member,a\nx,1", "No name"),
        ("member,a\nmember_00,perhaps", "'perhaps' of member_00"),
        ("{", "are not JSON"),
        ('{"a": 1}', "no attributes"),
    ],
)
def test_bad_labels_are_refused(space, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        labels.parse(text, space)
