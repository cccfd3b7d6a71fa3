"""Faults in checkpoints, in what they are bound to, and in releases that are made again after a crash."""

from __future__ import annotations

from mutants.fault import Fault, in_file

RESUME = "dp/test_resume.py"

SAME_BITS = in_file(RESUME, "test_a_training_that_stopped_anywhere_ends_with_the_same_bits[5]")
UNTOUCHED = in_file(RESUME, "test_a_training_that_stopped_anywhere_ends_with_the_same_bits[3]")
ANOTHER = in_file(RESUME, "test_another_training_is_refused_and_the_budget_told")
DIFFERS = in_file(RESUME, "test_a_replay_that_differs_is_charged_and_uses_no_noise_twice")
COMPARED = in_file(RESUME, "test_the_journal_compares_what_is_made_again")
DOES_NOT_FIT = in_file(RESUME, "test_a_torn_line_that_does_not_fit_is_charged")
ENDED = in_file(RESUME, "test_the_checkpoint_is_closed_to_others_and_deleted_at_the_end")
DISK = in_file(RESUME, "test_a_checkpoint_is_on_the_disk_before_it_takes_the_place_of_another")

RESTORED = (
    Fault(
        "the key of the noise is not restored",
        "dp/checkpoints.py",
        'RandomSource(bytes.fromhex(source["key"]),',
        "RandomSource(bytes(32),",
        in_file(RESUME, "test_a_secure_key_is_kept_and_not_drawn_again"),
    ),
    Fault(
        "the position of the noise is not restored",
        "dp/steps.py",
        "self._mechanism.noise.seek(state.noise)",
        "self._mechanism.noise.seek(0)",
        SAME_BITS,
    ),
    Fault(
        "the position of the coins is not restored",
        "dp/steps.py",
        "self._sampler.coins.seek(state.coins)",
        "self._sampler.coins.seek(0)",
        SAME_BITS,
    ),
    Fault(
        "the schedule of step sizes starts anew",
        "dp/steps.py",
        "self._optimizer.restore(tensors, state.updates)",
        "self._optimizer.restore(tensors, 0)",
        SAME_BITS,
    ),
    Fault(
        "the moments of the optimizer are not restored",
        "dp/optimizer.py",
        "= value.to(parameter.device, copy=True)",
        "= torch.zeros_like(value)",
        SAME_BITS,
    ),
)

REPEATED = (
    Fault(
        "a release that is made again is written again",
        "accounting/journal.py",
        "        if found is None:\n            if not self._torn:",
        "        if found is None or self._made:\n            if not self._torn:",
        SAME_BITS,
    ),
    Fault(
        "a release that is made again is not compared",
        "accounting/journal.py",
        'if canonical(found["data"]) != canonical(release.to_json()):',
        'if not canonical(found["data"]):',
        COMPARED,
    ),
    Fault(
        "releases do not name the one before",
        "dp/mechanism.py",
        "follows=self.last,",
        "follows=None,",
        COMPARED,
    ),
    Fault(
        "noise that met other sums is used again",
        "dp/resume.py",
        "found.state.randomness.fresh()",
        "found.state.randomness",
        DIFFERS,
    ),
    Fault(
        "a fresh source has the old key",
        "dp/streams.py",
        "key = secrets.token_bytes(KEY_BYTES) if self.is_secure else",
        "key = self._key if self.is_secure else",
        in_file(RESUME, "test_a_fresh_source_shares_nothing_with_the_one_before"),
    ),
    Fault(
        "releases that were lost are not charged",
        "dp/resume.py",
        "released=sum(release.stream == name for release in releases)",
        "released=stream.released",
        DIFFERS,
    ),
    Fault(
        "a step that is not paid for is tried",
        "dp/steps.py",
        "return self._optimizer.updates < released >= self._mechanism.stream.steps",
        "return self._optimizer.updates < 0 * released",
        DIFFERS,
    ),
    Fault(
        "a release of which a piece is written is not charged",
        "accounting/journal.py",
        "        if _is_note(torn):",
        "        if torn:",
        DOES_NOT_FIT,
    ),
    Fault(
        "a torn line is completed with another release",
        "accounting/journal.py",
        "if not content.startswith(self._torn):",
        "if not content:",
        DOES_NOT_FIT,
    ),
)

KEPT = (
    Fault(
        "no checkpoint before the first release",
        "dp/resume.py",
        "if self._state is None and self._every:",
        "if self._state is not None and self._every:",
        UNTOUCHED,
    ),
    Fault(
        "a checkpoint of releases that are not compared yet",
        "dp/resume.py",
        "if self.journal.is_replaying:",
        "if self.journal.place[0] < 0:",
        in_file(RESUME, "test_no_checkpoint_is_made_of_releases_that_are_not_known_to_be_the_same"),
    ),
    Fault(
        "a checkpoint is not synced before it is renamed",
        "dp/checkpoints.py",
        "            _sync(partial)\n",
        "",
        DISK,
    ),
    Fault(
        "the new name of a checkpoint is not synced",
        "dp/checkpoints.py",
        "            _sync(self._file.parent)\n        except",
        "        except",
        DISK,
    ),
    Fault(
        "a checkpoint is written over the old one",
        "dp/checkpoints.py",
        '        partial = self._file.with_name(f"{FILE}.partial")\n        try:',
        "        partial = self._file\n        try:",
        DISK,
    ),
    Fault(
        "others may read the checkpoint",
        "dp/checkpoints.py",
        "partial.chmod(0o600)",
        "partial.chmod(0o644)",
        ENDED,
    ),
    Fault(
        "the checkpoint outlives the training",
        "dp/checkpoints.py",
        "            self.discard()",
        "            self.load()",
        ENDED,
    ),
    Fault(
        "the checkpoint of another training is deleted",
        "dp/checkpoints.py",
        'any(line["hash"] == found.last for line in log)',
        "log is not None",
        ENDED,
    ),
)

BOUND = (
    Fault(
        "a damaged checkpoint is taken",
        "dp/checkpoints.py",
        'if _digest(facts, tensors) != metadata["digest"]:',
        'if not metadata["digest"]:',
        in_file(RESUME, "test_a_checkpoint_with_another_bit_is_refused"),
    ),
    Fault(
        "two processes train at once",
        "dp/checkpoints.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        in_file(RESUME, "test_two_processes_at_once_are_refused"),
    ),
    Fault(
        "a training goes on with other parameters",
        "dp/resume.py",
        "changed = differences(found.identity, identify(found.salt))",
        "changed = differences(found.identity, found.identity)",
        ANOTHER,
    ),
    Fault(
        "a training goes on with other labels",
        "dp/records.py",
        "held = (self.input_ids, self.lengths, self.labels, self.owners)",
        "held = (self.input_ids, self.lengths, self.owners)",
        ANOTHER,
    ),
    Fault(
        "a training goes on with other code",
        "dp/identity.py",
        '"raptor\'s code": hashlib.sha256(code.encode()).hexdigest(),',
        '"raptor\'s code": str(len(code)),',
        in_file(RESUME, "test_identities_know_the_code_and_hide_the_records"),
    ),
    Fault(
        "a training goes on with the journal of another",
        "accounting/journal.py",
        'or lines[length - 1]["hash"] != last:',
        'or not lines[length - 1]["hash"]:',
        in_file(RESUME, "test_a_journal_of_other_releases_is_refused"),
    ),
)

FAULTS = RESTORED + REPEATED + KEPT + BOUND
