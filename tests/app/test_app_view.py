"""What the app draws of weights."""

import re

import numpy as np
import view

import models
from builders.attention_maps import attention, data_of


def test_zeros_are_transparent_and_nothing_else_is():
    tiny = 1e-30
    opacity = np.asarray(view.paint(np.array([[0, 1, tiny], [0.5, 0, 0]])))[..., 3]
    np.testing.assert_array_equal(opacity == 0, [[True, False, False], [False, True, True]])
    assert opacity[opacity > 0].min() > 30


def test_negative_weights_have_colours_of_their_own():
    pixels = np.asarray(view.paint(np.array([[-1, -0.02, 0, 0.02, 1]])))[0].astype(int)
    assert (np.sign(pixels[:, 0] - pixels[:, 2]) == [1, 1, -1, -1, -1]).all()
    assert pixels[2, 3] == 0


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


def test_mean_of_the_heads_hides_zeros():
    html = view.text_view([("one", attention([[[1, 0]], [[0, 1]]]))])
    assert "<b>50\u00a0%</b> of these weights are exactly zero" in html
    assert "In the mean of the heads 0\u00a0% are left" in html
    assert html.count("50\u00a0% zeros") >= 4  # what is seen and what is read out, of each head
    softmax = view.text_view([("one", attention([[[0.9, 0.1]]]))])
    assert "<b>0\u00a0%</b>" in softmax
    assert "that is how softmax gives weights" in softmax


def test_shares_are_rounded_to_none_and_all_only_if_they_are():
    shown = [view.percent(share).replace("\u00a0", "") for share in (0, 1e-6, 0.5, 0.9999, 1)]
    assert shown == ["0%", "under 1%", "50%", "over 99%", "100%"]


def test_weights_reach_the_browser():
    weights = np.array([[[0, 1e-9, 2], [0.5, 0, 0]], [[1, -1, 0], [0, 0, 0.25]]])
    data = data_of(view.text_view([("one", attention(weights))]))
    np.testing.assert_allclose(data["weights"], weights, atol=1e-4)
    np.testing.assert_array_equal(data["weights"] == 0, weights == 0)
    assert (data["queries"], data["keys"]) == (["q0", "q1"], ["k0", "k1", "k2"])


def test_sharpest_head_comes_first():
    weights = [[[1, 1, 1]], [[0, 1, 0]], [[0, 0, 0]]]
    assert view.sharpest(np.array(weights)) == 1
    assert 'data-head="1"' in view.text_view([("one", attention(weights))])


def test_words_are_no_markup():
    bad = ["<script>alert(1)</script>", '"><b>', "&amp;"]
    html = view.text_view([("one", attention([[[1, 0, 1]]], queries=bad[:1], keys=bad))])
    assert "<script" not in html
    assert "<b>&amp;quot" not in html
    assert data_of(html)["keys"] == bad


def test_every_picture_says_what_it_shows(classifier, image_file):
    patches = classifier.attend(classifier.classify(models.open_image(image_file))[1], 0)
    pictures = re.findall(
        "<img[^>]*>",
        view.text_view(
            [
                ("one", attention([[[1, 0]]])),
            ]
        ),
    )
    pictures += re.findall("<img[^>]*>", view.image_view([("one", patches)]))
    assert len(pictures) == 2 + 3 + 2 * classifier.config.num_attention_heads
    # the image behind the weights is said once
    decoration = [picture for picture in pictures if 'alt=""' in picture]
    assert len(decoration) == 1 + classifier.config.num_attention_heads
    assert all(re.search('alt="[^"]{10,}"', picture) for picture in pictures if picture not in decoration)
