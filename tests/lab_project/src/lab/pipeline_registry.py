from kedro.framework.project import find_pipelines


def register_pipelines():
    pipelines = find_pipelines(raise_errors=True)
    if "__default__" in pipelines:
        pipelines["__default__"] = pipelines["selection"] + pipelines["training"]
    return pipelines
