"""Seeds that follow a seed, up to the largest that ComfyUI takes and from 0 again."""


def test_later_seeds_follow_and_begin_again(app):
    schema = app.module("nodes.host.schema")
    largest = 2**64 - 1
    assert largest == schema.SEED_MAX
    assert [schema.later_seed(7, number) for number in range(4)] == [7, 8, 9, 10]
    assert schema.later_seed(largest - 1, 1) == largest
    assert schema.later_seed(largest, 1) == 0 and schema.later_seed(largest, 5) == 4
    assert schema.later_seed(3, -1) == 2 and schema.later_seed(0, -1) == largest
