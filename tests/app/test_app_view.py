"""What the app draws of weights."""

import numpy as np
import view

from builders.attention_maps import attention, data_of


def test_zeros_are_transparent_and_nothing_else_is():
    tiny = 1e-30
    opacity = np.asarray(view.paint(np.array([[0, 1, tiny], [0.5, 0, 0]])))[..., 3]
    np.testing.assert_array_equal(opacity == 0, [[True, False, False], [False, True, True]])
    assert opacity[opacity > 0].min() > 30
    data = data_of(view.text_view([("one", attention([[[0, 1, tiny]]]))]))
    assert (data["weights"] != 0).tolist() == [[[False, True, True]]]


def test_null_rows_and_masked_cells_are_marked():
    weights, visible = np.array([[0, 0, 0], [1, 2, 0]]), np.array([[1, 0, 0], [1, 1, 0]], dtype=bool)
    pixels = np.asarray(view.paint(weights, visible))
    assert tuple(pixels[0, 0, :3]) == view.NULL
    assert {tuple(pixels[place][:3]) for place in ((0, 1), (0, 2), (1, 2))} == {view.MASKED}
    html = view.text_view([("one", attention([weights], visible))])
    assert "∅ null row" in html
    assert "not visible" in html
    assert "50\u00a0% of the rows are null rows" in html
    clean = view.text_view([("one", attention([[[1, 1]]]))])
    assert "null" not in clean
    assert "not visible" not in clean


def test_words_are_no_markup():
    bad = ["<script>alert(1)</script>", '"><b>', "&amp;"]
    html = view.text_view([("one", attention([[[1, 0, 1]]], queries=bad[:1], keys=bad))])
    assert "<script" not in html
    assert "<b>&amp;quot" not in html
    assert data_of(html)["keys"] == bad
