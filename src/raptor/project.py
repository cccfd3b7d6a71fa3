"""Find and start the Kedro project that the current folder belongs to."""

from __future__ import annotations

from pathlib import Path

from raptor.errors import ParameterError


def bootstrap() -> Path:
    """Configure Kedro for the project around the current folder.

    Returns:
        The project's configuration folder.

    Raises:
        ParameterError: the current folder is not inside a Kedro project.
    """
    from kedro.framework.project import settings
    from kedro.framework.startup import bootstrap_project
    from kedro.utils import find_kedro_project

    root = find_kedro_project(Path.cwd())
    if root is None:
        raise ParameterError(f"{Path.cwd()} is not inside a Kedro project. Change to the project's folder.")
    bootstrap_project(Path(root))
    return Path(root) / str(settings.CONF_SOURCE)
