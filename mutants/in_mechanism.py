"""Faults in clipping, noise and steps."""

from __future__ import annotations

from mutants.fault import Fault, in_file

MECHANISM = "dp/test_mechanism.py"
NONFINITE = "dp/test_nonfinite_records.py"
SINGLE = "dp/test_single_taps.py"

DEVIATION = in_file(MECHANISM, "test_the_noise_has_deviation_sigma_times_c_over_the_denominator[0.5-shared]")
ONE_RECORD = in_file(MECHANISM, "test_one_record_moves_one_block_by_at_most_the_clipping_norm[0-shared]")
EMPTY_EXPERT = in_file(MECHANISM, "test_an_expert_without_records_gets_exactly_its_noise")
UNSAMPLED = in_file(MECHANISM, "test_an_unsampled_step_is_a_normal_step")
LATTICE = in_file("dp/test_lattice.py", "test_sum_and_noise_are_added_as_integers[0.7]")
UNRELATED = in_file(MECHANISM, "test_noise_of_two_blocks_and_of_two_steps_is_unrelated")
IN_PARTS = in_file(MECHANISM, "test_physical_batches_change_nothing[5-shared]")
BEYOND = in_file(MECHANISM, "test_no_release_beyond_the_plan_and_none_of_another_sensitivity")
SINGLES = in_file(
    SINGLE, "test_weight_or_bias_alone[weight-linear]", "test_weight_or_bias_alone[bias-linear]"
)
BROKEN = in_file(
    NONFINITE,
    "test_all_records_broken_give_zeros[shared]",
    "test_a_token_with_a_broken_embedding[olmoe-shared-nan]",
)

NOISE = (
    Fault(
        "half the noise",
        "dp/mechanism.py",
        ".mul_(deviation / spacing)",
        ".mul_(deviation / spacing / 2)",
        DEVIATION,
    ),
    Fault(
        "no noise",
        "dp/mechanism.py",
        ".mul_(deviation / spacing)",
        ".mul_(0 * deviation / spacing)",
        DEVIATION,
    ),
    Fault(
        "deviation of the noise without the clipping norm",
        "dp/mechanism.py",
        ".mul_(deviation / spacing)",
        ".mul_(self.stream.noise_multiplier / spacing)",
        DEVIATION,
    ),
    Fault(
        "noise added after the division",
        "dp/mechanism.py",
        "noise.mul_(spacing / self.stream.denominator)",
        "noise.sub_(part).add_(part / self.stream.denominator).mul_(spacing)",
        DEVIATION,
    ),
    Fault(
        "noise off the lattice",
        "dp/mechanism.py",
        "(deviation / spacing).round_()",
        "(deviation / spacing)",
        LATTICE,
    ),
    Fault(
        "sums off the lattice",
        "dp/mechanism.py",
        "part.div_(spacing).round_()",
        "part.div_(spacing)",
        LATTICE,
    ),
    Fault(
        "sums too large for exact integers",
        "dp/mechanism.py",
        ".round_().clamp_(-LARGEST, LARGEST)",
        ".round_()",
        in_file("dp/test_lattice.py", "test_no_sum_is_so_large_that_it_swallows_the_noise"),
    ),
    Fault(
        "a zero with the sign of the sum",
        "dp/mechanism.py",
        "noise.add_(part).add_(0.0)",
        "noise.add_(part)",
        in_file("dp/test_lattice.py", "test_a_zero_has_no_sign"),
    ),
    Fault(
        "what the lattice adds to the sensitivity is not in the noise",
        "dp/mechanism.py",
        "release.noise_deviation * (1.0 + LATTICE)",
        "release.noise_deviation",
        LATTICE,
    ),
    Fault(
        "a lattice as coarse in every dimension",
        "dp/mechanism.py",
        "LATTICE * norm / math.sqrt(max(dimension, 1))",
        "LATTICE * norm",
        in_file("dp/test_lattice.py", "test_the_lattice_adds_next_to_nothing_to_the_sensitivity"),
    ),
    Fault(
        "the same noise for every tensor",
        "dp/mechanism.py",
        "noise = self.noise.normals(part.shape)",
        "noise = (self.noise.seek(0), self.noise.normals(part.shape))[1]",
        UNRELATED,
    ),
    Fault(
        "noise only where the sum is not zero",
        "dp/mechanism.py",
        ".mul_(deviation / spacing)",
        ".mul_(deviation / spacing).mul_(part != 0)",
        EMPTY_EXPERT,
    ),
    Fault(
        "an expert without records is left out",
        "dp/mechanism.py",
        "for name, tensor in total.tensors.items()",
        "for name, tensor in total.tensors.items() if bool(tensor.any())",
        EMPTY_EXPERT,
    ),
    Fault(
        "noise is drawn before the ledger is written",
        "dp/mechanism.py",
        "        self._sink.append(release)",
        "        self.noise.normals((1,))\n        self._sink.append(release)",
        in_file(MECHANISM, "test_the_ledger_is_written_before_noise_is_drawn"),
    ),
    Fault(
        "a step is not written into the ledger",
        "dp/mechanism.py",
        "self._sink.append(release)",
        "str(release)",
        UNSAMPLED,
    ),
    Fault(
        "one release more than planned",
        "dp/mechanism.py",
        "if self.released >= plan.steps:",
        "if self.released > plan.steps:",
        BEYOND,
    ),
    Fault("releases are not counted", "dp/mechanism.py", "self.released += 1", "self.released += 0", BEYOND),
    Fault(
        "a sum of larger sensitivity is taken",
        "dp/mechanism.py",
        "if total.sensitivity.norm != plan.clipping_norm:",
        "if total.sensitivity.norm < plan.clipping_norm:",
        BEYOND,
    ),
    Fault(
        "divided by the realised sample size",
        "dp/steps.py",
        "self._optimizer.apply(self._team.spread(mine.unscaled(self._mechanism.release(mine))))",
        "self._optimizer.apply({n: v / max(len(sample), 1) for n, v in self._mechanism.release(mine).items()})",
        ONE_RECORD,
    ),
    Fault(
        "an empty sample makes no release",
        "dp/steps.py",
        "        with self._team.whole(",
        "        if not len(sample):\n            return\n        with self._team.whole(",
        UNSAMPLED,
    ),
)

CLIPPING = (
    Fault("short gradients are scaled up to C", "dp/clipping.py", ".clamp(max=1.0)", "", SINGLES),
    Fault(
        "gradients are clipped a little above C",
        "dp/clipping.py",
        "(1.0 - NORM_MARGIN)",
        "(1.0 + NORM_MARGIN)",
        ONE_RECORD,
    ),
    Fault(
        "the clipping factor depends on the size of the batch",
        "dp/clipping.py",
        "limit = self.norm * (1.0 - NORM_MARGIN)",
        "limit = self.norm * (1.0 - NORM_MARGIN) / len(squared_norms)",
        IN_PARTS,
    ),
    Fault(
        "the norm lacks the parameters of one module",
        "dp/clipping.py",
        "for tap in taps]).sum(dim=0)",
        "for tap in taps[1:]]).sum(dim=0)",
        ONE_RECORD,
    ),
    Fault(
        "every module is clipped by the largest module's norm",
        "dp/clipping.py",
        "for tap in taps]).sum(dim=0)",
        "for tap in taps]).amax(dim=0)",
        ONE_RECORD,
    ),
    Fault(
        "a record that is not finite is kept",
        "dp/clipping.py",
        "broken = ~(torch.isfinite(squared) & finite)",
        "broken = torch.zeros_like(finite)",
        BROKEN,
    ),
    Fault(
        "a record with an infinite loss is kept",
        "dp/clipping.py",
        "broken = ~(torch.isfinite(squared) & finite)",
        "broken = ~torch.isfinite(squared)",
        in_file(NONFINITE, "test_a_loss_that_is_not_finite_counts_though_its_gradient_is"),
    ),
    Fault(
        "a broken record is scaled by 0 and not erased",
        "dp/clipping.py",
        "tap.erase(broken)",
        "tap.erase(broken & False)",
        BROKEN,
    ),
    Fault(
        "the stated sensitivity is half of the clipping norm",
        "dp/clipping.py",
        "Sensitivity(norm=self.norm,",
        "Sensitivity(norm=self.norm / 2,",
        BEYOND,
    ),
    Fault(
        "a physical batch replaces the sum of those before",
        "dp/clipping.py",
        "self.tensors[name].add_(value)",
        "self.tensors[name].copy_(value)",
        IN_PARTS,
    ),
    Fault(
        "only the last physical batch is released",
        "dp/steps.py",
        "total.add(self._engine.clipped_sum(batch, self._rule))",
        "total = self._engine.clipped_sum(batch, self._rule)",
        IN_PARTS,
    ),
)

FAULTS = NOISE + CLIPPING
