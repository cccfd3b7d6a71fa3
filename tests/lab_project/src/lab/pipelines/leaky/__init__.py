from kedro.pipeline import Node, Pipeline


def create_pipeline():
    return Pipeline([Node(len, "private_train", "profile", name="count_records")])
