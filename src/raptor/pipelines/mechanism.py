"""The two kinds of node that may give away something of the private data.

Every other node's outputs are at least as private as its inputs. ``mechanism_node`` marks a differentially
private release, ``declaration_node`` a fact that the operator takes as public. The mark sits on the node's
function, so that a tag typed by hand does not make a mechanism; the tags are for filters and pictures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kedro.pipeline import Node, Pipeline

from raptor.errors import PrivacyFlowError

MECHANISM_TAG = "dp_mechanism"
DECLARATION_TAG = "declaration"
RELEASES_PREFIX = "releases."
DECLARES_PREFIX = "declares."

Names = str | list[str] | dict[str, str] | None


@dataclass(frozen=True)
class Exemption:
    """What a node may do against the flow rule. Outputs are positions, so that a namespace changes nothing.

    Args:
        kind: ``mechanism`` or ``declaration``.
        outputs: positions, among the node's outputs, of those that are released or declared.
        ledger: position of the release log, for a mechanism.
        reason: why the declared facts are public, for a declaration.
    """

    kind: str
    outputs: tuple[int, ...]
    ledger: int | None = None
    reason: str = ""

    def names(self, node: Node) -> frozenset[str]:
        """Names of the released or declared outputs in this node."""
        return frozenset(node.outputs[position] for position in self.outputs)


@dataclass(frozen=True)
class Declaration:
    """A data set that the operator declares public, and why."""

    node: str
    dataset: str
    reason: str


def exemption(node: Node) -> Exemption | None:
    """The mark that ``mechanism_node`` or ``declaration_node`` left, None for every other node."""
    mark = getattr(node.func, "__raptor_exemption__", None)
    return mark if isinstance(mark, Exemption) else None


def mechanism_node(
    func: Callable[..., Any],
    inputs: Names,
    outputs: Names,
    name: str,
    *,
    releases: Sequence[str],
    ledger: str = "release_log",
    tags: str | Iterable[str] = (),
    preview_fn: Callable[[], Any] | None = None,
) -> Node:
    """A node that releases outputs under differential privacy.

    Args:
        func: the node's function. What it returns for ``releases`` must be a noised release, or
            post-processing of such; the graph cannot check that, the mechanism's tests do.
        releases: outputs that may be ``released`` though inputs are private. The others stay private.
        ledger: the output that says what was released; its catalog entry has ``role: mechanism_log``. It
            is released along with the others.
        preview_fn: card for kedro-viz.

    Raises:
        PrivacyFlowError: nothing is released, or a named output is not an output of the node.
    """
    names = _output_names(outputs)
    if not releases:
        raise PrivacyFlowError(
            f"Mechanism {name} names no release. Name what it releases, or use a plain node."
        )
    wanted = list(dict.fromkeys([*releases, ledger]))
    positions = _positions(name, names, wanted)
    mark = Exemption("mechanism", positions, ledger=names.index(ledger))
    marks = {MECHANISM_TAG, *(f"{RELEASES_PREFIX}{output}" for output in wanted)}
    return Node(
        _marked(func, mark), inputs, outputs, name=name, tags=_tags(tags, marks), preview_fn=preview_fn
    )


def declaration_node(
    func: Callable[..., Any],
    inputs: Names,
    outputs: Names,
    name: str,
    *,
    declares: Sequence[str],
    reason: str,
    tags: str | Iterable[str] = (),
    preview_fn: Callable[[], Any] | None = None,
) -> Node:
    """A node whose outputs in ``declares`` the operator takes as public, without noise.

    Args:
        declares: outputs that hold nothing but the declared facts.
        reason: one sentence for the certificate: which facts, and why they are public.

    Raises:
        PrivacyFlowError: nothing is declared, a name is not an output, or the reason is missing.
    """
    if not declares:
        raise PrivacyFlowError(f"Declaration {name} declares nothing. Name the outputs, or use a plain node.")
    if not reason.strip():
        raise PrivacyFlowError(f"Declaration {name} gives no reason. Say why the facts are public.")
    positions = _positions(name, _output_names(outputs), declares)
    mark = Exemption("declaration", positions, reason=reason)
    marks = {DECLARATION_TAG, *(f"{DECLARES_PREFIX}{output}" for output in declares)}
    return Node(
        _marked(func, mark), inputs, outputs, name=name, tags=_tags(tags, marks), preview_fn=preview_fn
    )


def declarations(pipeline: Pipeline) -> tuple[Declaration, ...]:
    """All facts that the pipeline's declaration nodes take as public, in the order of the nodes."""
    return tuple(
        Declaration(node.name, dataset, mark.reason)
        for node in pipeline.nodes
        if (mark := exemption(node)) is not None and mark.kind == "declaration"
        for dataset in sorted(mark.names(node))
    )


def _tags(given: str | Iterable[str], marks: set[str]) -> set[str]:
    return marks | ({given} if isinstance(given, str) else set(given))


def _output_names(outputs: Names) -> list[str]:
    if outputs is None:
        return []
    if isinstance(outputs, str):
        return [outputs]
    return list(outputs.values()) if isinstance(outputs, dict) else list(outputs)


def _positions(node: str, outputs: list[str], wanted: Iterable[str]) -> tuple[int, ...]:
    missing = [name for name in wanted if name not in outputs]
    if missing:
        raise PrivacyFlowError(
            f"{node} has no output {', '.join(missing)}; its outputs are {', '.join(outputs)}."
        )
    return tuple(outputs.index(name) for name in wanted)


def _marked(func: Callable[..., Any], mark: Exemption) -> Callable[..., Any]:
    # A wrapper, not an attribute on `func`: the same function in a plain node must stay without the mark.
    @functools.wraps(func)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    marked.__raptor_exemption__ = mark  # type: ignore[attr-defined]
    return marked
