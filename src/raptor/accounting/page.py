"""The certificate as one page of Markdown, made of its fields alone, so that `raptor verify` can make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raptor.accounting.assumptions import CHECKED
from raptor.accounting.facts import NO_COMMIT
from raptor.accounting.words import round_down, round_up
from raptor.errors import LedgerError

NO_CODE = "not recorded by the run"
_MARKUP = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>#|"})


def render_page(certificate: Mapping[str, Any]) -> str:
    """The page of a certificate.

    Raises:
        LedgerError: the certificate lacks a field.
    """
    try:
        parts = [
            _heading(certificate),
            _figures(certificate),
            _streams(certificate["streams"]),
            _search(certificate["search"]),
            _assumptions(certificate["assumptions"]),
            _bullets("Taken as public, not protected", certificate["taken_as_public"]),
            _bullets("Not covered", certificate["not_covered"]),
            _theorems(certificate["theorems"]),
            _audit(certificate["audit"]),
            _origin(certificate),
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(f"no page can be made of the certificate: {error!r}") from None
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(certificate: Mapping[str, Any]) -> str:
    kind = "private" if certificate["private"] else "NOT PRIVATE, a test with seeded noise"
    head = f"# Privacy certificate\n\nRun {certificate['status']}; {kind}."
    return head + "\n\n" + "\n\n".join(plain(sentence) for sentence in certificate["statement"])


def _figures(certificate: Mapping[str, Any]) -> str:
    accounting = certificate["accounting"]
    how = accounting["calibration"]
    if accounting["rho"] is not None:
        how += f", rho {accounting['rho']:g}"
    accountant = certificate["accountant"]
    # Who searched has to quote the search, which comes below.
    quoted = "epsilon, the figure to quote" if certificate["search"] is None else "epsilon of this run alone"
    asked = f"{accountant['method']}, {accountant['bound']} bound by {' and '.join(accountant['asked'])}"
    rows = [
        (f"{quoted}: all streams in one ledger", _number(certificate["epsilon"])),
        (
            "for comparison: stream by stream and added, as the paper counts; valid too, and looser",
            _number(certificate["epsilon_split_sum"]),
        ),
        (
            "for comparison: by Renyi divergences, a rougher upper bound; it agrees when it is not below the first",
            _number(accountant["epsilon_renyi"]),
        ),
        (
            "what was planned before training, and the target that it keeps",
            f"{_number(certificate['epsilon_planned'])}, {certificate['epsilon_target']:g}",
        ),
        ("delta", f"{certificate['delta']:g}"),
        ("adjacency", certificate["adjacency"]),
        ("unit", certificate["unit"]),
        ("units in all", f"{certificate['population']} ({certificate['population_source']})"),
        ("noise calibrated", how),
        ("accountant", asked + (f"; {accountant['note']}" if accountant["note"] else "")),
    ]
    return _table("Figures", ("what", "value"), rows)


def _streams(streams: Sequence[Mapping[str, Any]]) -> str:
    columns = (
        "stream",
        "rate",
        "noise multiplier",
        "clipping norm",
        "denominator",
        "blocks",
        "releases made, charged",
        "epsilon alone",
        "epsilon at its part of delta",
    )
    rows = [
        (
            stream["name"],
            f"{stream['rate']:.6g}",
            f"{stream['noise_multiplier']:.6g}",
            f"{stream['clipping_norm']:g}" + (" (differs by block)" if "block_norms" in stream else ""),
            f"{stream['denominator']:g}",
            str(stream["blocks"]),
            f"{stream['steps_executed']} of {stream['steps_planned']}, {stream['steps_charged']}",
            _number(stream["epsilon_alone"]),
            f"{_number(stream['epsilon_split'])} at {stream['delta_split']:g}",
        )
        for stream in streams
    ]
    note = (
        "What a stream costs alone does not add up to the joint figure. What it costs at its part of delta adds up to "
        "the figure of the paper's way."
    )
    constants = [
        f"{words} of each block of stream {stream['name']}, over the stream's, a public constant: "
        + ", ".join(f"{value:.4g}" for value in stream[name])
        + "."
        for stream in streams
        for name, words in (("block_norms", "Clipping norm and noise"), ("block_steps", "Step size"))
        if name in stream
    ]
    return "\n\n".join([_table("Streams", columns, rows), note, *constants])


def _search(search: Mapping[str, Any] | None) -> str:
    if search is None:
        return ""
    line = (
        f"Selection {search['selection']}, runs {search['runs']}: epsilon {_number(search['epsilon'])} at delta "
        f"{search['delta']:g} for the whole search ({search['method']})."
    )
    needs = "\n".join(f"- {plain(need)}" for need in search["needs"])
    return f"## Search\n\n{line}" + (f"\n\nThis holds if:\n\n{needs}" if needs else "")


def _assumptions(items: Sequence[Mapping[str, str]]) -> str:
    rows = [
        (
            f"**{item['mark']}**" if item["mark"] == CHECKED else item["mark"],
            plain(item["text"]) + (f" ({plain(item['evidence'])})" if item["evidence"] else ""),
        )
        for item in items
    ]
    note = "A check is what the run wrote into its ledger, before its releases or after them."
    return _table("Assumptions", ("mark", "assumption"), rows, is_plain=False) + f"\n\n{note}"


def _theorems(items: Sequence[Mapping[str, str]]) -> str:
    lines = [
        f"- {plain(item['claim'])} {plain(item['paper'])}, arXiv {plain(item['arxiv'])}." for item in items
    ]
    return "\n".join(["## What the figures rest on", "", *lines])


def _audit(audit: Mapping[str, Any] | None) -> str:
    if audit is None:
        return "## Audit\n\nNo audit of this plan was there when the certificate was made."
    outcome = "passed" if audit["passed"] else "FAILED: it contradicts the claim"
    found = round_down(audit["lower_bound"])
    return (
        f"## Audit\n\n{outcome}: attacks on made-up records found an epsilon of at least {found} "
        f"({100 * audit['confidence']:g} % confidence), {_number(audit['claim'])} is proven for the same steps. "
        "An attack that finds less than the claim proves nothing. Digest of the results: "
        f"`{audit['digest']}`."
    )


def _origin(certificate: Mapping[str, Any]) -> str:
    ledger, model = certificate["ledger"], certificate["model"]
    rows = [
        ("ledger", f"`{ledger['digest']}` ({ledger['lines']} lines)"),
        ("model", f"`{model['digest']}`" if model["digest"] else "none"),
        ("protected layers", ", ".join(map(str, certificate["layers"]))),
        ("trained", plain(certificate["trainable"])),
        ("noise generator", plain(certificate["generator"]["name"])),
    ]
    if "processes" in certificate:
        rows.append(("processes that trained together", str(certificate["processes"])))
    for code in certificate["code"]:
        state = {True: ", with changes that are not in it", False: "", None: ""}[code["modified"]]
        commit = (NO_COMMIT if code["commit"] == NO_COMMIT else f"commit {plain(code['commit'])}") + state
        rows.append(("code that ran", f"{commit}; digest `{code['digest']}`"))
    if not certificate["code"]:
        rows.append(("code that ran", NO_CODE))
    rows += [(f"version of {name}", plain(value)) for name, value in certificate["versions"].items()]
    check = "Check this page, the certificate, the ledger and the model: `raptor verify privacy_certificate.json`."
    return _table("Where it is from", ("what", "value"), rows, is_plain=False) + f"\n\n{check}"


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, is_plain: bool = True
) -> str:
    lines = [f"## {title}", "", _row(columns), _row(["---"] * len(columns))]
    lines += [_row([plain(str(cell)) if is_plain else cell for cell in row]) for row in rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _bullets(title: str, items: Sequence[str]) -> str:
    lines = [f"- {plain(item)}" for item in items] or ["- nothing"]
    return "\n".join([f"## {title}", "", *lines])


def plain(text: str) -> str:
    """Text from outside as text: one line, and no markup."""
    return " ".join(text.split()).translate(_MARKUP)


def _number(value: float | None) -> str:
    """A bound, rounded up."""
    return "none" if value is None else round_up(value, 6)
