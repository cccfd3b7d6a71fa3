"""What the notebooks see of a run: its public and released results, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raptor.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Results:
    """The results of the last run in the project around the current folder.

    An entry of the catalog that is labelled private, or not labelled at all, cannot be loaded here: a notebook keeps
    what it shows, and is passed on.
    """

    def __init__(self, env: str = "local") -> None:
        """Reads the catalog of an environment, and no data yet.

        Raises:
            ParameterError: the current folder is not inside the project.
        """
        from raptor.hooks.flow_hook import catalog_config
        from raptor.project import bootstrap

        conf = bootstrap()
        self._root = conf.parent
        self._config: Mapping[str, Any] = catalog_config(conf, env)

    @property
    def names(self) -> tuple[str, ...]:
        """What can be loaded."""
        return tuple(name for name in self._config if not name.startswith("_") and self._may_show(name))

    def load(self, name: str) -> Any:
        """One entry of the catalog.

        Raises:
            DataError: it is private, it does not exist, or no run has made it yet.
        """
        from kedro.io import AbstractDataset
        from kedro.io.core import DatasetError

        if name not in self._config or name.startswith("_"):
            raise DataError(f"The catalog has no {name}. There are: {', '.join(self.names)}.")
        if not self._may_show(name):
            raise DataError(
                f"{name} is private: it depends on records without noise, so no notebook may show it. There are: "
                f"{', '.join(self.names)}."
            )
        config = dict(self._config[name])
        if (place := config.get("filepath")) is not None:
            config["filepath"] = str(self._root / place)
        try:
            return AbstractDataset.from_config(name, config).load()
        except DatasetError as error:
            # Kedro puts its own words around those of the data set.
            raise DataError(f"{name}: {error.__cause__ or error}") from error

    def path(self, name: str) -> Path:
        """Where an entry that may be shown is kept.

        Raises:
            DataError: as `load`.
        """
        if name not in self.names:
            self.load(name)
        return Path(self._root / self._config[name]["filepath"])

    def _may_show(self, name: str) -> bool:
        from raptor.hooks.flow import Entry, Label

        label = Entry.parse(name, self._config[name]).label
        return label is not None and label < Label.PRIVATE


class Picture:
    """A figure as a notebook shows it, without a global state of matplotlib."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self._figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()
