"""Information-flow check: nothing that depends on private data leaves but through a mechanism.

Labels are ordered public < released < private. A node's outputs are at least as private as its inputs, except
for the outputs that a mechanism node releases or a declaration node declares. Every data set that is kept has
a label in the catalog (``metadata.privacy``); an unlabelled memory data set has the label of what it is made
from; parameters are public. Labels are read from the catalog's configuration, so that no data set is built
and no plugin can strip them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import PurePosixPath
from typing import Any

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.mechanism import (
    DECLARATION_TAG,
    DECLARES_PREFIX,
    MECHANISM_TAG,
    RELEASES_PREFIX,
    exemption,
)

LEDGER_ROLE = "mechanism_log"
_IN_MEMORY = {"MemoryDataset", "SharedMemoryDataset"}

Resolve = Callable[[str], Mapping[str, Any]]
"""Data set name to its catalog configuration, data set factories included."""


class Label(IntEnum):
    """Privacy class of a data set."""

    PUBLIC = 0
    RELEASED = 1
    PRIVATE = 2

    @property
    def word(self) -> str:
        """The label as it is written in the catalog."""
        return self.name.lower()


@dataclass(frozen=True)
class Leak:
    """One reason to refuse: the node or place, the data set, the rule it breaks, and why."""

    node: str
    dataset: str
    rule: str
    why: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.node} -> {self.dataset}: {self.why}"


@dataclass(frozen=True)
class Entry:
    """What the check needs to know of a catalog entry."""

    name: str
    label: Label | None
    written_label: Any
    in_memory: bool
    role: str | None
    to_mlflow: bool
    preview: bool
    place: PurePosixPath | None

    @classmethod
    def parse(cls, name: str, config: Mapping[str, Any]) -> Entry:
        """Read an entry; credentials in ``config`` are not kept."""
        metadata = config.get("metadata") or {}
        written = metadata.get("privacy")
        words = {label.word: label for label in Label}
        place = config.get("filepath") or config.get("path")
        return cls(
            name=name,
            label=words.get(written) if isinstance(written, str) else None,
            written_label=written,
            in_memory=_type_name(config).rsplit(".", 1)[-1] in _IN_MEMORY,
            role=metadata.get("role"),
            to_mlflow="mlflow" in metadata or _uses_mlflow(config),
            preview=(metadata.get("kedro-viz") or {}).get("preview") is not False,
            place=PurePosixPath(str(place)) if place else None,
        )


def check_catalog(
    config: Mapping[str, Mapping[str, Any]], base: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Leak]:
    """Rules that hold for a catalog alone: labels, places, previews, and no label below that of ``base``.

    Args:
        config: the catalog's configuration in one environment.
        base: the configuration of the base environment, to refuse an environment that lowers a label.
    """
    entries = [Entry.parse(name, item) for name, item in config.items() if isinstance(item, Mapping)]
    leaks = [leak for entry in entries for leak in _entry_leaks("catalog", entry, entry.label)]
    for entry in entries:
        if base is not None and isinstance(base.get(entry.name), Mapping):
            leaks += _lowered("catalog", entry, Entry.parse(entry.name, base[entry.name]))
    return leaks + _shared_places(entries)


def check_pipeline(pipeline: Pipeline, resolve: Resolve, base: Resolve | None = None) -> list[Leak]:
    """Follow the labels through a pipeline, which may be a part of a registered one.

    Args:
        pipeline: the nodes that will run.
        resolve: catalog of the environment.
        base: catalog of the base environment.
    """
    leaks: list[Leak] = []
    labels: dict[str, Label] = {}
    for name in sorted(pipeline.inputs()):
        if _is_parameter(name):
            _raise_label(labels, name, Label.PUBLIC)
            continue
        entry = Entry.parse(name, resolve(name))
        # An input that nobody makes and nobody labels may hold anything.
        _raise_label(labels, name, Label.PRIVATE if entry.label is None else entry.label)
        leaks += _entry_leaks("input", entry, entry.label)
        leaks += _lowered("input", entry, Entry.parse(name, base(name))) if base else []
    for node in pipeline.nodes:
        leaks += _node_leaks(node, resolve, base, labels)
    return leaks


def _node_leaks(node: Node, resolve: Resolve, base: Resolve | None, labels: dict[str, Label]) -> list[Leak]:
    entries = {name: Entry.parse(name, resolve(name)) for name in node.outputs}
    leaks = _exemption_leaks(node, entries)
    taint = max((labels[_stripped(name)] for name in node.inputs), default=Label.PUBLIC)
    sources = sorted(name for name in node.inputs if labels[_stripped(name)] == taint)
    mark = exemption(node)
    exempt = mark.names(node) if mark else frozenset()
    for name, entry in entries.items():
        floor = taint
        if mark and name in exempt:
            floor = min(taint, Label.RELEASED) if mark.kind == "mechanism" else Label.PUBLIC
        label = floor if entry.label is None else entry.label
        if label < floor:
            why = f"labelled {label.word}, but made from {', '.join(sources)} ({taint.word})"
            leaks.append(Leak(node.name, name, "leak", why))
            label = floor
        leaks += _entry_leaks(node.name, entry, floor if entry.label is None else entry.label)
        leaks += _lowered(node.name, entry, Entry.parse(name, base(name))) if base else []
        _raise_label(labels, name, label)
    return leaks


def _exemption_leaks(node: Node, entries: Mapping[str, Entry]) -> list[Leak]:
    """A mechanism names and records what it releases; nobody else looks like one."""
    mark = exemption(node)
    leaks = []
    if mark is None:
        special = (MECHANISM_TAG, DECLARATION_TAG)
        raw = [
            tag for tag in node.tags if tag in special or tag.startswith((RELEASES_PREFIX, DECLARES_PREFIX))
        ]
        for tag in sorted(raw):
            why = f"tag {tag} is set by hand; use mechanism_node or declaration_node"
            leaks.append(Leak(node.name, ", ".join(node.outputs), "tag", why))
    if mark is not None and not mark.outputs:
        leaks.append(
            Leak(node.name, ", ".join(node.outputs), "no-release", f"the {mark.kind} names no output")
        )
    if mark is not None and mark.kind == "mechanism":
        ledger = None if mark.ledger is None else entries[node.outputs[mark.ledger]]
        if ledger is None or ledger.role != LEDGER_ROLE or ledger.in_memory or ledger.label != Label.RELEASED:
            name = "-" if ledger is None else ledger.name
            why = f"a mechanism writes a released, persistent data set with role {LEDGER_ROLE}"
            leaks.append(Leak(node.name, name, "no-ledger", why))
    else:
        for entry in entries.values():
            if entry.role == LEDGER_ROLE:
                why = "only a mechanism writes a release log"
                leaks.append(Leak(node.name, entry.name, "forged-ledger", why))
    return leaks


def _entry_leaks(where: str, entry: Entry, label: Label | None) -> list[Leak]:
    leaks = []
    if entry.written_label is not None and entry.label is None:
        why = f"unknown label {entry.written_label!r}; use {', '.join(item.word for item in Label)}"
        leaks.append(Leak(where, entry.name, "bad-label", why))
    elif entry.label is None and not entry.in_memory:
        leaks.append(Leak(where, entry.name, "unlabelled", "a kept data set needs metadata.privacy"))
    if label == Label.PRIVATE and entry.to_mlflow:
        leaks.append(Leak(where, entry.name, "mlflow", "private data are never logged to MLflow"))
    if label == Label.PRIVATE and entry.preview and not entry.in_memory:
        why = "private data need metadata.kedro-viz.preview: false"
        leaks.append(Leak(where, entry.name, "preview", why))
    return leaks


def _lowered(where: str, entry: Entry, base: Entry) -> list[Leak]:
    if base.label is None or entry.label is None or entry.label >= base.label:
        return []
    why = f"this environment lowers the label from {base.label.word} to {entry.label.word}"
    return [Leak(where, entry.name, "relabel", why)]


def _shared_places(entries: list[Entry]) -> list[Leak]:
    """Two names for one file need one label; a folder holds nothing more private than itself."""
    leaks = []
    placed = [entry for entry in entries if entry.place is not None and entry.label is not None]
    for inner in placed:
        for outer in placed:
            if inner.name == outer.name or inner.label is None or outer.label is None:
                continue
            inside = inner.place == outer.place or (inner.place and outer.place in inner.place.parents)
            if inside and inner.label > outer.label:
                why = f"{inner.label.word}, but kept in the place of {outer.name} ({outer.label.word})"
                leaks.append(Leak("catalog", inner.name, "shared-place", why))
    return leaks


def _raise_label(labels: dict[str, Label], name: str, label: Label) -> None:
    key = _stripped(name)
    labels[key] = max(label, labels.get(key, Label.PUBLIC))


def _stripped(name: str) -> str:
    """The name without transcoding: ``table@pandas`` and ``table@arrow`` are one data set."""
    return name.split("@", 1)[0]


def _is_parameter(name: str) -> bool:
    return name == "parameters" or name.startswith("params:")


def _type_name(config: Mapping[str, Any]) -> str:
    kind = config.get("type", "")
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _uses_mlflow(config: Mapping[str, Any]) -> bool:
    """Whether the type is an MLflow data set, or wraps one."""
    return "mlflow" in _type_name(config).lower() or any(
        isinstance(value, Mapping) and "type" in value and _uses_mlflow(value) for value in config.values()
    )
