from kedro.pipeline import Node, Pipeline


def create_pipeline():
    return Pipeline([Node(lambda: {"loss": float("nan")}, None, "profile", name="diverge")])
