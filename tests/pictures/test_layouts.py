"""Pictures of layouts show who holds what: cell for cell where there is room, and every window where there is none."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.pictures.layouts import grid_of_layout
from adjointlab.pictures.model import Drawing, Grid, Mark, Piece, Role, Slice
from adjointlab.pictures.scale import scale
from adjointlab.pictures.svg import as_svg
from adjointlab.pictures.text import as_text
from tests.pictures.drawings import HOSTILE, LAYOUTS

pytestmark = pytest.mark.mpi_skip

WINDOWS = st.lists(
    st.tuples(st.integers(-2, 9), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=4,
)


def rows(text: str) -> dict[int, str]:
    """The cells of each rank."""
    return {int(rank): cells for rank, cells in re.findall(r"(?m)^rank (\d+)  (.*)$", text)}


@given(WINDOWS, st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_each_cell_says_whether_a_rank_holds_it_alone(windows: list[tuple[int, int]], side: int) -> None:
    layout = al.Layout((side,), al.Partition((len(windows),)), [windows])
    cells = {rank: row.split() for rank, row in rows(as_text(layout.drawing())).items()}
    held = [window for window in windows if window[1] > window[0]]
    start = min([0, *(low for low, _ in held)])
    stop = max([side, *(high for _, high in held)])
    for rank, (low, high) in enumerate(windows):
        for index in range(start, stop):
            others = sum(a <= index < b for a, b in windows) - 1
            expected = "·"
            if low <= index < high:
                expected = "□" if not 0 <= index < side else "▒" if others else "■"
            assert cells[rank][index - start] == expected


def test_a_map_names_the_rank_that_holds_each_cell() -> None:
    layout = al.Layout((3, 4), al.Partition((2, 2), (7, 1, 0, 4)), [[(0, 1), (1, 3)], [(0, 3), (3, 4)]])
    lines = as_text(layout.drawing()).splitlines()[-3:]
    assert [line.split()[1:] for line in lines] == [["7", "7", "7", "1"], ["0", "0", "0", "4"], ["0", "0", "0", "4"]]  # fmt: skip


def test_a_marked_cell_of_several_ranks_names_them_all_and_no_sign_that_is_not_drawn() -> None:
    layout = al.Layout((1, 1), al.Partition((2,)), axes=(None, None))
    grid = grid_of_layout(layout, "x", "", [Mark(0, (0, 0), Role.WRONG)])
    text = as_text(Drawing("", (grid,)))
    assert "rank 0 holds [0:1, 0:1]" in text
    assert "rank 1 holds [0:1, 0:1]" in text
    assert "▒" not in text


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("unicode", [True, False])
def test_a_picture_is_small_and_in_ascii_where_that_is_asked_for(name: str, unicode: bool) -> None:
    text = as_text(LAYOUTS[name].drawing(), unicode=unicode, width=100)
    picture = text.split("\n", 1)[-1]
    assert max(map(len, picture.splitlines()), default=0) <= 100
    assert len(text.splitlines()) <= 70
    assert unicode or text.isascii()


def test_ascii_has_the_columns_of_unicode() -> None:
    for layout in LAYOUTS.values():
        plain, signs = (as_text(layout.drawing(), unicode=each).splitlines() for each in (False, True))
        assert list(map(len, plain)) == list(map(len, signs))


def test_no_window_disappears_in_a_long_dimension() -> None:
    cells = rows(as_text(LAYOUTS["long"].drawing()))

    assert all("■" in row for row in cells.values())


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**6), max_size=20), st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_a_scale_keeps_the_order_of_indices(length: int, breaks: list[int], limit: int) -> None:
    axis = scale(0, length, breaks, limit)
    ends = sorted({0, length, *(index for index in breaks if index < length)})
    cells = [axis.cell(index) for index in ends]
    assert cells == sorted(set(cells)) or length == 0
    assert axis.cells <= max(limit, len(ends)) + len(ends)


def test_a_marked_cell_stays_when_ranks_are_left_out() -> None:
    mark = Mark(999, (1999,), Role.WRONG)
    grid = grid_of_layout(LAYOUTS["many ranks"], "x", "", [mark], most_pieces=4)
    text = as_text(Drawing("", (grid,)))
    assert "✖" in rows(text)[999]
    assert "996 more ranks are left out" in text


def test_the_slice_of_a_marked_cell_is_drawn() -> None:
    layout = al.Layout((3, 4, 4), al.Partition((1, 2, 2)))
    grid = grid_of_layout(layout, "x", "", [Mark(3, (2, 3, 3), Role.WRONG)])
    text = as_text(Drawing("", (grid,)))
    assert "[2, :, :]" in text
    assert text.count("✖") == 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_svg_is_xml_that_names_every_rank_that_is_drawn(name: str) -> None:
    layout = LAYOUTS[name]
    root = ElementTree.fromstring(as_svg(layout.drawing()))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    shown = {rank for text in texts for rank in map(int, re.findall(r"(?:rank )?\b(\d+)\b", text))}
    held = {rank for rank in layout.partition.ranks if layout.local_size(rank)}
    assert shown >= set(sorted(held, key=layout.partition.ranks.index)[:4])


def test_names_are_text_in_every_form() -> None:
    drawing = Drawing(HOSTILE, (Grid(HOSTILE, HOSTILE, (1,), (Piece(0, ((0, 1),)),), (Slice((0,)),)),))
    root = ElementTree.fromstring(as_svg(drawing))
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert "\x1b" not in as_text(drawing)
    assert ":rocket: [bold]" in as_text(drawing)


def test_objects_print_themselves_and_show_themselves_in_notebooks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layout = LAYOUTS["cut"]
    layout.draw()
    assert "rank 2" in capsys.readouterr().out
    for each in (layout, al.Space(layout)):
        html = each._repr_html_()
        assert html.startswith('<div class="al-drawing"')
        assert "rank 2" in html
