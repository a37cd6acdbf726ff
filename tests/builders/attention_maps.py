"""Weights with names, and what the app's views hand to the browser. Tests of the app alone can import it."""

import base64
import json
import re
from html import unescape

import numpy as np

import models


def words(texts) -> list[models.Word]:
    return [models.Word(text, number > 0, number) for number, text in enumerate(texts)]


def attention(weights, visible=None, queries=None, keys=None) -> models.AttentionMap:
    """Weights [heads, queries, keys] with names."""
    weights = np.array(weights, dtype=np.float32)
    visible = np.ones_like(weights[0], dtype=bool) if visible is None else np.array(visible, dtype=bool)
    queries = words(queries or [f"q{number}" for number in range(weights.shape[1])])
    keys = words(keys or [f"k{number}" for number in range(weights.shape[2])])
    weights = np.where(visible, weights, 0)
    return models.AttentionMap(weights, visible, queries, keys, ("query", "key"), models.Zeros.count(weights, visible))


def data_of(html: str) -> dict:
    """What `view.js` reads, with the weights as numbers [heads, queries, keys]."""
    data = json.loads(unescape(re.search('data-map="([^"]*)"', html)[1]))
    codes = np.frombuffer(base64.b64decode(data["weights"]), dtype="<i2").reshape(
        -1, len(data["queries"]), len(data["keys"])
    )
    return {**data, "weights": codes * data["unit"]}
