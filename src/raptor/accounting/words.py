"""What a certificate says in sentences: the statement, what it rests on, and what it does not cover."""

from __future__ import annotations

import math

from raptor.accounting.ledger import Ledger
from raptor.accounting.plan import Accounting
from raptor.accounting.selection import Selection
from raptor.accounting.totals import StreamTotal
from raptor.accounting.types import Adjacency, EpsilonBound, Mode, Unit

NOT_COVERED = (
    "facts that were taken as public, listed in this certificate",
    "what can be learned about a person without that person's record, such as what holds for everybody",
    "the private data themselves, where they are stored, and who may read them",
    "results computed from the private records in other ways than by the releases of the ledger",
)

_GAUSSIAN = {
    "claim": "One release is a Gaussian mechanism: a sum that one unit moves by at most C, and normal noise of "
    "deviation sigma C on every coordinate.",
    "paper": "Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy",
    "arxiv": "1805.06530",
}
_SAMPLED = {
    "claim": "The sum is over a Poisson sample of its own, so that each release is one Poisson-subsampled Gaussian.",
    "paper": "Balle, Barthe and Gaboardi, Privacy Amplification by Subsampling",
    "arxiv": "1807.01647",
}
_EXPERTS = {
    "claim": "The releases of all experts in one step are one Gaussian mechanism and are counted once: a unit moves "
    "their blocks as one vector by at most the clipping norm, those of its owner experts alone or of all its "
    "active experts, and all blocks have the same noise multiplier.",
    "paper": "RAPTOR, lemma 1; as one Gaussian mechanism by the paper of the first line",
    "arxiv": "2609.05770",
}
_COMPOSED = {
    "claim": "All releases, each chosen by the ones before it, cost together what the composed privacy loss "
    "distributions of dominating pairs cost.",
    "paper": "Zhu, Dong and Wang, Optimal Accounting of Differential Privacy via Characteristic Function",
    "arxiv": "2106.08567",
}
_NUMBERS = {
    "claim": "The distributions are made discrete so that the figure is an upper bound.",
    "paper": "Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, Connect the Dots",
    "arxiv": "2207.04380",
}
_REPLACED = {
    "claim": "Under replace-one, two opposite gradients are the worst pair; that none is worse was checked by "
    "computation, it is not proven there.",
    "paper": "Zhu, Dong and Wang, for dominating pairs",
    "arxiv": "2106.08567",
}
_BEST = {
    "claim": "The best of a random number of runs costs what the divergences of one run and that distribution give.",
    "paper": "Papernot and Steinke, Hyperparameter Tuning with Renyi Differential Privacy",
    "arxiv": "2110.03620",
}


def theorems(ledger: Ledger) -> list[dict[str, str]]:
    """What the figures rest on, with paper and arXiv number."""
    used = [_GAUSSIAN, _SAMPLED]
    used += [_EXPERTS] * any(total.planned.blocks > 1 for total in ledger.totals)
    used += [_COMPOSED, _NUMBERS]
    used += [_REPLACED] * (ledger.plan.adjacency is Adjacency.REPLACE_ONE)
    used += [_BEST] * ledger.plan.search.selection.is_random
    return [dict(item) for item in used]


def statement(ledger: Ledger, bound: EpsilonBound, split: float, search: EpsilonBound | None) -> list[str]:
    """What is guaranteed, sentence by sentence."""
    plan = ledger.plan
    change = {
        Adjacency.ADD_REMOVE: f"one {plan.unit.value} is added or removed",
        Adjacency.REPLACE_ONE: f"one {plan.unit.value} is replaced by any other",
    }[plan.adjacency]
    sentences = []
    if plan.mode is Mode.SEEDED:
        sentences.append(
            "Not private: the noise came from a seed, and whoever knows or guesses the seed can remove it. "
            "This run is a test; what follows would hold for secure noise."
        )
    if ledger.status == "incomplete":
        sentences.append(_stopped(ledger))
    others = "all other records" if plan.unit is Unit.RECORD else "all records of all other users"
    sentences += [
        f"All releases of the ledger together are ({round_up(bound.epsilon)}, {plan.delta:g})-differentially private "
        f"when {change}.",
        "In words: whatever somebody does with the released model, the probability of any outcome grows by at "
        f"most the factor {_factor(bound.epsilon)} when {change}, except with probability {plan.delta:g}.",
        f"Somebody who knows {others} and guesses, at even odds, whether one {plan.unit.value} was used "
        f"for training is right in at most {_success(bound.epsilon, plan.delta)} % of the cases.",
        f"All streams ({', '.join(total.planned.name for total in ledger.totals)}) are counted together in one "
        "ledger; what is reserved for evaluation and diagnostics is counted whether it is used or not.",
        _calibration(ledger, split),
    ]
    if search is not None:
        sentences.append(_search(ledger, search))
    if plan.delta * plan.population >= 1:
        sentences.append(
            f"Weak: delta is not below 1/{plan.population}, so publishing one whole record would satisfy it."
        )
    if plan.unit is Unit.RECORD:
        sentences.append("A person who appears in several records is protected less than one record is.")
    else:
        sentences.append(
            "A user is protected with all of the user's records together, as far as they stand under one name: "
            "somebody under several names counts as several."
        )
    return sentences


def _stopped(ledger: Ledger) -> str:
    if ledger.end is not None and ledger.end.left_out:
        return (
            f"The last {ledger.end.left_out} steps of the schedule were left out, because releases that were lost in a "
            "crash had used up their budget. The figures cover what was spent, the lost releases included."
        )
    done = ", ".join(
        f"{total.planned.name} {total.executed} of {total.planned.steps}" for total in _trained(ledger)
    )
    return f"The training stopped early ({done} releases). The figures cover what was spent."


def _calibration(ledger: Ledger, split: float) -> str:
    plan = ledger.plan
    added = f"each stream alone at its part of delta, and added: {round_up(split)}"
    if plan.accounting is Accounting.SPLIT:
        return (
            f"The noise was calibrated as the paper does it, with the share {plan.rho:g} of epsilon for the shared "
            f"stream; counted in that way ({added}) the guarantee holds too, but is weaker than need be."
        )
    return (
        f"The noise was calibrated for all streams in one ledger. As the paper counts ({added}) it is weaker."
    )


def _search(ledger: Ledger, bound: EpsilonBound) -> str:
    search = ledger.plan.search
    figures = f"({round_up(bound.epsilon)}, {ledger.plan.delta:g})-differentially private"
    if search.selection is Selection.NAIVE:
        return (
            f"The run is one of a search of {search.runs} runs on these records: all releases of all runs together, "
            f"and whatever is chosen by them, are {figures}."
        )
    return (
        f"The run is the best of a random number of runs on these records ({search.selection}, mean {search.runs}): "
        f"what leaves of the whole search is {figures}, under the conditions that this certificate lists."
    )


def _trained(ledger: Ledger) -> list[StreamTotal]:
    return [total for total in ledger.totals if not total.planned.is_reserved]


def round_up(value: float, digits: int = 4) -> str:
    """So many significant digits, rounded up: a bound that is shown must still be one."""
    if value == 0:
        return "0"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return f"{math.ceil(value * scale - 1e-6) / scale:.{digits}g}"


def round_down(value: float, digits: int = 4) -> str:
    """So many significant digits, rounded down: for a lower bound."""
    if value <= 0:
        return "0"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale + 1e-6) / scale:.{digits}g}"


def _factor(value: float) -> str:
    return round_up(math.exp(value)) if value < 30 else f"e^{round_up(value)}"


def _success(epsilon_value: float, delta: float) -> str:
    """Best accuracy of a membership guess, in percent rounded up to one digit: 1 - (1 - delta) / (1 + e^eps)."""
    wrong = (1 - delta) * math.exp(-epsilon_value) / (1 + math.exp(-epsilon_value))
    return f"{math.ceil(1000 * (1 - wrong) - 1e-6) / 10:.1f}"
