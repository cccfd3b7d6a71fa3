"""Faults in the journal, the chain, the ledger, the certificate and its verification."""

from __future__ import annotations

from mutants.fault import Fault, in_file

JOURNAL = "accounting/test_journal.py"
LEDGER = "accounting/test_ledger.py"
CERTIFICATE = "accounting/test_certificate.py"

SYNCED = in_file(JOURNAL, "test_every_line_is_synced_before_append_returns")
BROKEN_LINE = in_file(JOURNAL, "test_the_first_broken_line_is_named")
NOT_THE_PLANS = in_file(LEDGER, "test_a_release_that_is_not_the_plans_is_refused")
NEW_CHAIN = in_file(CERTIFICATE, "test_a_ledger_with_a_new_chain_is_refused")
CHANGED = in_file(CERTIFICATE, "test_a_changed_certificate_is_refused")

WRITTEN = (
    Fault("a line is not synced", "accounting/journal.py", "os.fsync(self._descriptor)", "pass", SYNCED),
    Fault(
        "the name of a new journal is not synced",
        "accounting/journal.py",
        "_sync_folder(place.parent)",
        "place.parent.is_dir()",
        SYNCED,
    ),
    Fault(
        "an old journal is overwritten",
        "accounting/journal.py",
        "os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL",
        "os.O_WRONLY | os.O_APPEND | os.O_CREAT",
        in_file(JOURNAL, "test_an_existing_file_is_never_overwritten"),
    ),
    Fault(
        "a disk that refuses does not stop the journal",
        "accounting/journal.py",
        '            self.close()\n            raise LedgerError(f"the journal {self.path} cannot be written',
        '            raise LedgerError(f"the journal {self.path} cannot be written',
        in_file(JOURNAL, "test_a_full_disk_stops_the_journal"),
    ),
)

CHAIN = (
    Fault(
        "the hash of a line is not checked",
        "accounting/chain.py",
        'if line["hash"] != _digest(body):',
        'if not line["hash"]:',
        BROKEN_LINE,
    ),
    Fault(
        "the number of a line is not checked",
        "accounting/chain.py",
        'if line["index"] != index:',
        'if line["index"] < 0:',
        BROKEN_LINE,
    ),
    Fault(
        "a line need not follow the one before",
        "accounting/chain.py",
        'if line["previous"] != previous:',
        'if not line["previous"]:',
        in_file(JOURNAL, "test_a_line_sealed_on_another_predecessor_is_noticed"),
    ),
    Fault(
        "the hash leaves out the data",
        "accounting/chain.py",
        "hashlib.sha256(canonical(body))",
        'hashlib.sha256(canonical({**body, "data": 0}))',
        BROKEN_LINE,
    ),
    Fault(
        "a torn line is dropped without a word",
        "accounting/chain.py",
        "    if torn:\n",
        "    if torn and not lines:\n",
        in_file(JOURNAL, "test_a_torn_last_line_is_reported_as_such"),
    ),
)

COUNTED = (
    Fault(
        "reserved releases are not charged",
        "accounting/totals.py",
        "return self.planned.steps if self.planned.is_reserved else self.executed",
        "return self.executed",
        in_file(LEDGER, "test_a_complete_run"),
    ),
    Fault(
        "planned steps are charged in place of those made",
        "accounting/totals.py",
        "return self.planned.steps if self.planned.is_reserved else self.executed",
        "return self.planned.steps",
        in_file(LEDGER, "test_an_incomplete_run_says_so_and_charges_what_was_spent"),
    ),
    Fault(
        "more releases than planned are taken",
        "accounting/totals.py",
        "if total.executed > total.planned.steps:",
        "if total.executed > 2 * total.planned.steps:",
        in_file(LEDGER, "test_more_releases_than_planned_are_refused"),
    ),
    Fault(
        "a release may be missing",
        "accounting/totals.py",
        "if release.step != executed[release.stream]:",
        "if release.step < executed[release.stream]:",
        NOT_THE_PLANS,
    ),
    Fault(
        "a run that lacks a step is called complete",
        "accounting/totals.py",
        "or self.executed == self.planned.steps",
        "or self.executed >= self.planned.steps - 1",
        in_file(LEDGER, "test_a_run_that_lacks_one_step_is_incomplete"),
    ),
    Fault(
        "a run that left steps out is called complete",
        "accounting/totals.py",
        "and (end is None or not end.left_out)",
        "",
        in_file("accounting/test_forgeries.py", "test_a_run_that_left_steps_out_is_not_complete"),
    ),
    Fault(
        "releases may be taken out of a run that ended",
        "accounting/totals.py",
        "if missing is not None and end is not None",
        "if missing is not None and end is None",
        in_file(
            "accounting/test_forged_sets.py",
            "test_plan_releases_and_journal_forged_together[whole cycles are missing]",
        ),
    ),
    Fault(
        "a change within the tolerance passes verification",
        "accounting/verification.py",
        "if stated != fields_digest(found):",
        "if not stated:",
        in_file("accounting/test_forgeries.py", "test_every_field_changed_alone_is_refused"),
    ),
    Fault(
        "fewer releases than the journal had are taken",
        "accounting/ledger.py",
        'if stated["releases"] != releases:',
        'if stated["releases"] < releases:',
        NEW_CHAIN,
    ),
    Fault(
        "releases of another journal are taken",
        "accounting/ledger.py",
        'if digest(made) != stated["digest"]:',
        "if not digest(made):",
        NEW_CHAIN,
    ),
    Fault(
        "the journal of another plan is taken",
        "accounting/ledger.py",
        "if canonical(header) != canonical(dict(plan)):",
        "if not canonical(header):",
        in_file(LEDGER, "test_the_log_of_another_plan_is_refused"),
    ),
    Fault(
        "a release with another noise is taken",
        "accounting/plan.py",
        '"noise multiplier": (release.noise_multiplier, stream.noise_multiplier),',
        '"noise multiplier": (release.noise_multiplier, release.noise_multiplier),',
        NOT_THE_PLANS,
    ),
    Fault(
        "a release with another rate is taken",
        "accounting/plan.py",
        '"rate": (release.rate, stream.rate),',
        '"rate": (release.rate, release.rate),',
        NOT_THE_PLANS,
    ),
)

CERTIFIED = (
    Fault(
        "a seeded run is called private",
        "accounting/certificate.py",
        "plan.mode is not Mode.SEEDED",
        "plan.mode is not None",
        in_file(CERTIFICATE, "test_seeded_noise_is_stamped_not_private"),
    ),
    Fault(
        "a ledger above its target gets a certificate",
        "accounting/certificate.py",
        "if bound.epsilon > plan.epsilon_target * (1 + _ROUNDING):",
        "if bound.epsilon > 1e3 * plan.epsilon_target:",
        in_file(CERTIFICATE, "test_a_ledger_above_its_target_gets_no_certificate"),
    ),
    Fault(
        "figures of the plan are not computed anew",
        "accounting/certificate.py",
        "if not math.isclose(stated, actual,",
        "if not math.isclose(actual, actual,",
        in_file(CERTIFICATE, "test_figures_of_the_plan_must_be_its_own"),
    ),
    Fault(
        "another model passes verification",
        "accounting/verification.py",
        'if actual != expected["model"]["digest"]:',
        "if not actual:",
        in_file(CERTIFICATE, "test_another_model_is_refused[weights]"),
    ),
    Fault(
        "the digest of a model leaves out its contents",
        "accounting/certificate.py",
        "\\0{content}\\n",
        "\\0{len(content)}\\n",
        in_file(CERTIFICATE, "test_another_model_is_refused[weights]"),
    ),
    Fault(
        "another ledger passes verification",
        "accounting/verification.py",
        'if digest != expected["ledger"]["digest"]:',
        "if not digest:",
        CHANGED,
    ),
    Fault(
        "an epsilon a little lower passes verification",
        "accounting/verification.py",
        '"epsilon": 1e-6,',
        '"epsilon": 1e-4,',
        CHANGED,
    ),
    Fault(
        "a field that is left out passes verification",
        "accounting/verification.py",
        "            if key not in found:\n                raise",
        "            if key not in found:\n                continue\n                raise",
        CHANGED,
    ),
)

FAULTS = WRITTEN + CHAIN + COUNTED + CERTIFIED
