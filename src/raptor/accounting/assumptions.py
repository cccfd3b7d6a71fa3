"""What the guarantee rests on: what this run has checked, by its ledger, and what is for the reader to ensure.

A check counts only where the ledger shows that every process of the run made it. Otherwise the same assumption
stands there as one for the reader.
"""

from __future__ import annotations

from raptor.accounting.ledger import Ledger
from raptor.accounting.selection import Selection
from raptor.accounting.types import Unit

CHECKED = "checked by this run"
YOURS = "for you to ensure"
NOT_CHECKED = "not checked by this run"


def assumptions(ledger: Ledger) -> list[dict[str, str]]:
    """Every assumption with its mark, and what the mark rests on."""
    made = [
        _check("router", ROUTER, _router(ledger)),
        _check("isolation", ISOLATION, _isolation(ledger)),
        _check("samples", SAMPLES, _samples(ledger)),
        _check("constants", CONSTANTS, _constants(ledger)),
        _check("noise", NOISE, _noise(ledger)),
        _check("records", RECORDS, _records(ledger)),
    ]
    search = TUNED if ledger.plan.search.selection is Selection.NONE else SEARCHED
    yours = [
        _yours("code", CODE),
        _yours("unit", UNIT if ledger.plan.unit is Unit.RECORD else USERS),
        _yours("public inputs", PUBLIC_INPUTS),
        _yours("search", search),
        _yours("files", FILES),
    ]
    return made + yours


ROUTER = "The routers are frozen: they are those of the public base model."
ISOLATION = (
    "No record changes the loss or the gradient of another: there is no auxiliary loss and no statistic of a batch, "
    "and where experts have a capacity it is counted in each record alone."
)
SAMPLES = "Every release draws its own Poisson sample, independent of all other releases and of the data."
CONSTANTS = (
    "Rates, noise multipliers, clipping norms, denominators and numbers of steps are constants of the plan, fixed "
    "before the first private gradient."
)
NOISE = (
    "Every coordinate that is trained gets its noise in every release, also when no record was sampled and for "
    "experts that own no record."
)
RECORDS = "All releases of the training are of the same records."
CODE = (
    "The code that ran, named below by commit and digest, is RAPTOR's. Its tests show, and not a run, that what a "
    "record adds to the experts, to its owner alone or to all its active ones, follows from that record and released "
    "weights and is clipped as one vector, and that gradients are clipped before they are summed. Noise is normal in "
    "float64 from a keyed stream and rounded to the lattice on which it is added, which is not an exact discrete "
    "Gaussian."
)
UNIT = (
    "A record holds all that is to be protected together. Somebody with k records is protected k times less: "
    "epsilon grows k-fold, and delta more."
)
USERS = (
    "The column of users names the person whose record it is, and every person always by the same name. What a record "
    "tells of somebody else is not protected as that person's."
)
PUBLIC_INPUTS = (
    "The base model, the public corpus, the parameters and the facts taken as public were not made from the private "
    "records."
)
TUNED = (
    "Parameters were not chosen by results on the private records; such a search costs privacy that is not counted "
    "here (privacy.search)."
)
SEARCHED = (
    "The search is the declared one: no more runs on these records than it says, all with releases that cost no more "
    "than these, and the run is chosen by nothing but what its ledger pays for or what is public; what the bound for a "
    "random number of runs needs besides is listed with the search."
)
FILES = (
    "Only what is labelled released leaves the machine: not the private data, the journals, unnoised results, or the "
    "time that steps took."
)


def _check(name: str, text: str, evidence: str | None) -> dict[str, str]:
    mark = YOURS if evidence is None else CHECKED
    return {"check": name, "mark": mark, "text": text, "evidence": evidence or NOT_CHECKED}


def _yours(name: str, text: str) -> dict[str, str]:
    return {"check": name, "mark": YOURS, "text": text, "evidence": ""}


def _trained(ledger: Ledger) -> list[str]:
    return [total.planned.name for total in ledger.totals if total.executed]


def _router(ledger: Ledger) -> str | None:
    if ledger.end is None or not ledger.end.router_weights:
        return None
    return f"{ledger.end.router_weights:,} weights of routers are the same after training as before"


def _isolation(ledger: Ledger) -> str | None:
    gates = [start.isolation for start in ledger.starts]
    first = gates[0] if gates else None
    if not ledger.checked_from_start or first is None:
        return None
    for gate in gates:
        if gate is None or not set(_trained(ledger)) <= set(gate.groups):
            return None
    precisions = [
        name for name in first.precisions if all(gate and name in gate.precisions for gate in gates)
    ]
    notes = "".join(f"; {note.rstrip('.')}" for note in first.notes)
    return (
        f"the isolation gate passed on synthetic records for the {' and '.join(first.groups)} parameters in "
        f"{' and '.join(precisions)}{notes}"
    )


def _samples(ledger: Ledger) -> str | None:
    """Each stream has a keystream of coins of its own; the ledger shows that each release is a step of its own."""
    if ledger.end is None or len(set(ledger.end.keystreams)) < len(ledger.end.keystreams):
        return None
    coins = [f"{name}/coins" for name in _trained(ledger)]
    if not coins or not set(coins) <= set(ledger.end.keystreams):
        return None
    text = f"coins and noise came from {len(ledger.end.keystreams)} keystreams, each given out once"
    # A run that was killed goes on with its keystreams where they stood, or with new ones.
    return text if len(ledger.starts) == 1 else f"{text} in each of the {len(ledger.starts)} processes"


def _constants(ledger: Ledger) -> str | None:
    if not ledger.checked_from_start or not all(start.constants for start in ledger.starts):
        return None
    return "the plan is the first line of the journal, and every release was compared with it"


def _noise(ledger: Ledger) -> str | None:
    if not ledger.checked_from_start:
        return None
    sizes = ledger.starts[0].coordinates
    if not _trained(ledger) or not set(_trained(ledger)) <= set(sizes):
        return None
    words = " and ".join(f"{sizes[name]:,} ({name})" for name in _trained(ledger))
    return f"every release had noise on all trained coordinates: {words}"


def _records(ledger: Ledger) -> str | None:
    if not ledger.checked_from_start or ledger.end is None or not ledger.end.records_unchanged:
        return None
    if any(start.records != "same" for start in ledger.starts[1:]):
        return None
    return "the records in memory were the same after the last release as before the first one"
