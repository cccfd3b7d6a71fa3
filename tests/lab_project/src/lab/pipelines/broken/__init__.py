from kedro.pipeline import Node, Pipeline


def fail(records):
    raise KeyError(f"SECRET {records[0]}")


def create_pipeline():
    return Pipeline(
        [
            Node(lambda: ["a private record"], None, "private_train", name="read"),
            Node(fail, "private_train", "private_other", name="fail"),
        ]
    )
