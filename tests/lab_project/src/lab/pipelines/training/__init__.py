from kedro.pipeline import Node, Pipeline

from raptor.pipelines.mechanism import declaration_node, mechanism_node


def read(config):
    return ["a private record"] * 3, {"population": 3}


def train(records, journals, constants, config):
    (journals / "one.jsonl").write_text("{}\n")
    return {"weight": 1.0}, [{"stream": "shared", "step": step} for step in range(config.steps)]


def create_pipeline():
    return Pipeline(
        [
            declaration_node(
                read,
                "params:training",
                ["private_train", "constants"],
                "read",
                declares=["constants"],
                reason="The number of records is public.",
            ),
            mechanism_node(
                train,
                ["private_train", "release_journals", "constants", "params:training"],
                ["model", "release_log"],
                "train",
                releases=["model"],
            ),
            Node(lambda log: {"releases": len(log)}, "release_log", "summary", name="summarise"),
        ]
    )
