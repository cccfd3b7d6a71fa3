import os
import sys
from pathlib import Path

from kedro.pipeline import Node, Pipeline


def make_corpus():
    if log := os.environ.get("LAB_FIRST_NODE"):
        Path(log).write_text(
            " ".join(name for name in ("torch", "transformers", "datasets") if name in sys.modules)
        )
    return ["public words of a public corpus"]


def profile(corpus, config):
    return {"entropy": {"layer 0": 0.5}, "words[0]": len(corpus[0].split()[: config.words]), "note": "text"}


def create_pipeline():
    return Pipeline(
        [
            Node(make_corpus, None, "corpus", name="make_corpus"),
            Node(profile, ["corpus", "params:selection"], "profile", name="profile"),
        ]
    )
