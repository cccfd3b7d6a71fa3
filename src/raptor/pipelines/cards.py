"""Cards that kedro-viz shows on the nodes that release or declare something.

A card is made of public facts only: names of catalog entries, parameters and formulas. The values belong to the
run and stand in the privacy plan and the certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kedro.pipeline.preview_contract import TextPreview

Card = Callable[[], "TextPreview"]


@dataclass(frozen=True)
class MechanismFacts:
    """What a mechanism does, in one line each.

    Attributes:
        sampling: how the records of a release are drawn.
        sensitivity: how far one record can move a release.
        noise: what is added to it.
        after: what is done with the noisy value.
    """

    sampling: str
    sensitivity: str
    noise: str
    after: str


GAUSSIAN_SUMS = MechanismFacts(
    sampling="Poisson, at the public rate of its stream",
    sensitivity="C, the clipping norm of its stream: one record moves a sum by at most C",
    noise="normal, standard deviation sigma C in every coordinate",
    after="division by a public denominator",
)

FACTS = {
    "train_raptor": MechanismFacts(
        sampling="Poisson at rate B/n, a fresh sample for every shared and every expert step",
        sensitivity="C_s for a shared step; C_e for an expert step, in the block of the record's owner alone",
        noise="normal, sigma_s C_s and sigma_e C_e in every coordinate, for experts without a record too",
        after="division by the public B (shared) or B/E (expert), then the optimizer",
    ),
}


def mechanism_card(
    name: str, releases: Sequence[str], ledger: str, facts: MechanismFacts | None = None
) -> Card:
    """The card of a mechanism node: what it releases, how it is protected, where it is recorded.

    Args:
        name: the node's name.
        releases: catalog entries that leave the private side.
        ledger: catalog entry that records every release.
        facts: what the mechanism does; by default what is known for ``name``, else Gaussian sums.

    Returns:
        A function for ``kedro.pipeline.Node(preview_fn=...)``.
    """
    known = facts or FACTS.get(name, GAUSSIAN_SUMS)
    return _card(
        f"Differentially private mechanism: {name}",
        {
            "Releases": ", ".join(releases),
            "Recorded in": f"{ledger}, before a noisy value is used",
            "Sampling": known.sampling,
            "Sensitivity": known.sensitivity,
            "Noise": known.noise,
            "After the noise": known.after,
            "Adjacency": "privacy.adjacency; unit of privacy: privacy.unit",
            "Values": "privacy_plan before the run, privacy_certificate after it",
        },
    )


def declaration_card(name: str, declares: Sequence[str], reason: str) -> Card:
    """The card of a node that takes a fact about private data as public, by the operator's word.

    Args:
        name: the node's name.
        declares: catalog entries that are taken as public.
        reason: why they may be, as in the certificate.
    """
    return _card(
        f"Declared public: {name}",
        {
            "Declares": ", ".join(declares),
            "Reason": reason,
            "Guarantee": "none for these facts; the certificate lists them as taken as public",
        },
    )


def _card(title: str, lines: dict[str, str]) -> Card:
    text = "\n".join([title, "", *(f"{key}: {value}" for key, value in lines.items())])

    def card() -> TextPreview:
        from kedro.pipeline.preview_contract import TextPreview

        return TextPreview(content=text)

    return card
