

def test_values_are_in_memory_of_their_own() -> None:
    space, draw = al.Space(al.Layout((4,), al.Partition((1,)))), Draw(1, 0, "primal", 4)
    first = local_values(space, 0, 0, draw)
    expected = first.copy()
    first[:] = 9
    assert np.array_equal(local_values(space, 0, 0, draw), expected)
