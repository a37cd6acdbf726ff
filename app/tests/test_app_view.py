"""What the app draws of weights."""

import base64
import json
import re
from html import unescape

import numpy as np
import view

import models


def attention(weights, visible=None, texts="abc") -> models.AttentionMap:
    """Weights [heads, queries, keys] with names."""
    weights = np.array(weights, dtype=np.float32)
    visible = np.ones_like(weights[0], dtype=bool) if visible is None else np.array(visible, dtype=bool)
    sides = [
        [models.Word(text, number > 0, number) for number, text in enumerate(texts[:length])]
        for length in weights.shape[1:]
    ]
    weights = np.where(visible, weights, 0)
    return models.AttentionMap(weights, visible, *sides, ("query", "key"), models.Zeros.count(weights, visible))


def data_of(html: str) -> dict:
    """What `view.js` reads, with the weights as numbers [heads, queries, keys]."""
    data = json.loads(unescape(re.search('data-map="([^"]*)"', html)[1]))
    codes = np.frombuffer(base64.b64decode(data["weights"]), dtype="<i2").reshape(
        -1, len(data["queries"]), len(data["keys"])
    )
    return {**data, "weights": codes * data["unit"]}


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
    assert "50\u00a0% of the rows are null rows" in html


def test_words_are_no_markup():
    bad = ["<script>alert(1)</script>", '"><b>', "&amp;"]
    html = view.text_view([("one", attention([[[1, 0, 1]]], texts=bad))])
    assert "<script" not in html
    assert "<b>&amp;quot" not in html
    assert data_of(html)["keys"] == bad
