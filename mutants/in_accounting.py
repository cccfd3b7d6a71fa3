"""Faults in the accountant: composition, its numerics, calibration, and what is charged how."""

from __future__ import annotations

from mutants.fault import Fault, in_file

ACCOUNTANT = "accounting/test_accountant.py"
CALIBRATION = "accounting/test_calibration.py"
JOINT = "accounting/test_joint.py"
PLAN = "dp/test_plan.py"
TYPES = "accounting/test_types.py"

GAUSSIANS = in_file(ACCOUNTANT, "test_unsampled_gaussians_match_the_closed_form")
SCHEDULE = in_file(ACCOUNTANT, "test_a_schedule_of_a_thousand_noise_levels")
MERGED = in_file(ACCOUNTANT, "test_events_merge")
REPLACED = in_file(ACCOUNTANT, "test_replace_one_is_the_double_mixture")
AGREES = in_file(ACCOUNTANT, "test_dp_accounting_agrees_on_the_same_grid")
TINY = in_file(ACCOUNTANT, "test_tiny_delta_stays_above_the_truth")
BUDGET = in_file(PLAN, "test_all_streams_together_stay_just_within_the_budget")
SPLIT = in_file(CALIBRATION, "test_the_joint_ledger_never_needs_more_noise_than_the_split[alone-1.0-0.5]")

COMPOSITION = (
    Fault(
        "delta counted twice",
        "accounting/accountant.py",
        "figure = compose(merged, delta, adjacency)",
        "figure = compose(merged, 2 * delta, adjacency)",
        TINY,
    ),
    Fault(
        "half of delta",
        "accounting/accountant.py",
        "figure = compose(merged, delta, adjacency)",
        "figure = compose(merged, delta / 2, adjacency)",
        TINY,
    ),
    Fault(
        "only adding a record is looked at",
        "accounting/loss.py",
        "return (Direction.REMOVE, Direction.ADD)",
        "return (Direction.ADD,)",
        TINY,
    ),
    Fault(
        "the last event is dropped",
        "accounting/compose.py",
        "    for event in events:\n        if event.steps:",
        "    for event in events[:-1]:\n        if event.steps:",
        in_file(ACCOUNTANT, "test_published_comparison_of_joint_and_split"),
    ),
    Fault(
        "equal events count once",
        "accounting/compose.py",
        "steps.get(key, 0) + event.steps",
        "max(steps.get(key, 0), event.steps)",
        MERGED,
    ),
    Fault(
        "noise of unsampled releases adds by deviation",
        "accounting/compose.py",
        "math.fsum(count / noise**2 for",
        "math.fsum(count / noise for",
        MERGED,
    ),
    Fault(
        "replacing counts as removing",
        "accounting/loss.py",
        "return (Direction.REPLACE,)",
        "return (Direction.REMOVE,)",
        REPLACED,
    ),
    Fault(
        "replacing without the factor 2",
        "accounting/types.py",
        "is Adjacency.ADD_REMOVE else 2 * self.norm",
        "is Adjacency.ADD_REMOVE else self.norm",
        in_file(TYPES, "test_distance_is_doubled_when_a_record_is_replaced"),
    ),
    Fault(
        "the smaller of two accountants' figures",
        "accounting/accountant.py",
        "return max(theirs, figure.epsilon), f",
        "return min(theirs, figure.epsilon), f",
        AGREES,
    ),
    Fault(
        "accountants that disagree are taken",
        "accounting/accountant.py",
        "if abs(theirs - figure.epsilon) > _AGREEMENT",
        "if abs(theirs - figure.epsilon) > 1e6 * _AGREEMENT",
        in_file(ACCOUNTANT, "test_disagreement_of_the_library_is_an_alarm"),
    ),
    Fault(
        "a figure above the Renyi bound is taken",
        "accounting/accountant.py",
        "if figure.renyi < figure.epsilon * (1 - _AGREEMENT) - 1e-9:",
        "if figure.renyi < 0:",
        in_file(ACCOUNTANT, "test_renyi_below_the_loss_distribution_is_an_alarm"),
    ),
    Fault(
        "the Renyi conversion gives delta away twice",
        "accounting/moments.py",
        "- (math.log(delta) + math.log(alpha)) / order",
        "- (math.log(delta) + 2 * math.log(alpha)) / order",
        in_file(ACCOUNTANT, "test_renyi_under_replace_one_counts_the_whole_distance"),
    ),
)

NUMERICS = (
    Fault(
        "losses are rounded down to the grid",
        "accounting/loss.py",
        "share = np.clip(",
        "share = np.ones(inner_p.size) + 0 * np.clip(",
        TINY,
    ),
    Fault(
        "losses beyond the grid are forgotten",
        "accounting/transform.py",
        "(lost + float(sum(event.steps * step.beyond",
        "(lost + 0 * float(sum(event.steps * step.beyond",
        in_file("accounting/test_rare_steps.py", "test_two_rare_steps_match_their_integral"),
    ),
    Fault(
        "rounding of the transform is not counted",
        "accounting/transform.py",
        "        rounding + known,\n",
        "        0.0 * (rounding + known),\n",
        in_file(ACCOUNTANT, "test_rounding_of_the_transform_is_counted"),
    ),
    Fault(
        "rounding of the closed form is not counted",
        "accounting/one_step.py",
        "total += (sign + slack) * math.exp(size)",
        "total += (sign - slack) * math.exp(size)",
        in_file("accounting/test_one_step.py", "test_the_figure_is_above_the_truth_and_next_to_it"),
    ),
    Fault(
        "the lower end of the bisection",
        "accounting/one_step.py",
        "            low = middle\n    return high",
        "            low = middle\n    return low",
        in_file("accounting/test_one_step.py", "test_the_figure_is_above_the_truth_and_next_to_it"),
    ),
    Fault(
        "an epsilon between grid points is rounded down",
        "accounting/composed.py",
        "return max(least, min(solved, float(before[first])))",
        "return max(least, min(solved, float(before[first - 1])))",
        TINY,
    ),
)

CALIBRATED = (
    Fault(
        "noise a little below what the budget needs",
        "accounting/calibration.py",
        "multipliers = tuple(shape.at(factor).noise_multiplier",
        "multipliers = tuple(shape.at(factor * 0.9999).noise_multiplier",
        BUDGET,
    ),
    Fault(
        "a result above the budget is not corrected",
        "accounting/calibration.py",
        "while achieved.epsilon > target:",
        "while achieved.epsilon > 2 * target:",
        in_file(CALIBRATION, "test_a_search_that_ends_above_the_budget_is_corrected"),
    ),
    Fault(
        "fixed releases are not charged",
        "accounting/calibration.py",
        "return [shape.at(factor) for shape in shapes] + list(fixed)",
        "return [shape.at(factor) for shape in shapes]",
        in_file(CALIBRATION, "test_fixed_events_are_charged"),
    ),
    Fault(
        "the reserved evaluation is not in the calibration",
        "dp/plan.py",
        "fixed=[event for stream in fixed for event in stream],",
        "fixed=[],",
        BUDGET,
    ),
    Fault(
        "every stream of the split gets the whole delta",
        "accounting/calibration.py",
        "part = delta / (len(shapes) + len(used))",
        "part = delta",
        SPLIT,
    ),
    Fault(
        "the split sum gives every stream the whole delta",
        "accounting/calibration.py",
        "parts = [1 / len(used) if index in used",
        "parts = [1.0 if index in used",
        in_file(CALIBRATION, "test_the_joint_ledger_never_needs_more_noise_than_the_split[alone-1.0-0.5]"),
    ),
    Fault(
        "both streams of the split get the share of one",
        "dp/plan.py",
        "rho if shape.name == SHARED else 1 - rho",
        "max(rho, 1 - rho)",
        in_file(PLAN, "test_the_split_of_the_paper"),
    ),
    Fault(
        "a rate from a population one too large",
        "dp/plan.py",
        "EventShape(shape.batch_size / population, ",
        "EventShape(shape.batch_size / (population + 1), ",
        BUDGET,
    ),
    Fault(
        "a batch larger than the population is taken",
        "dp/plan.py",
        "if largest > population:",
        "if largest > 2 * population:",
        in_file(PLAN, "test_what_does_not_fit_is_refused"),
    ),
    Fault(
        "a delta of 1/n is taken",
        "dp/plan.py",
        "if delta * population >= 1 and",
        "if delta * population > 1 and",
        in_file(PLAN, "test_what_does_not_fit_is_refused"),
    ),
)

CHARGED = (
    Fault(
        "the noise of a step is that of its loudest expert",
        "accounting/joint.py",
        "joint_multiplier(min(blocks) for blocks in self.releases)",
        "joint_multiplier(max(blocks) for blocks in self.releases)",
        in_file(JOINT, "test_layers_and_experts_of_a_step"),
    ),
    Fault(
        "two sums on one sample cost as much as one",
        "accounting/joint.py",
        "return least / math.sqrt(math.fsum((least / value) ** 2 for value in values))",
        "return least",
        in_file(JOINT, "test_joint_noise_of_any_size[1.0]"),
    ),
    Fault(
        "under replace-one a step is charged at its best owner",
        "accounting/joint.py",
        "worst.append(min(events,",
        "worst.append(max(events,",
        in_file(JOINT, "test_owners_of_opposite_schedules"),
    ),
    Fault(
        "the owner who is protected best sets the guarantee",
        "accounting/joint.py",
        "        if renyi[index] <= found.epsilon:\n            break",
        "        break",
        in_file(JOINT, "test_an_owner_of_the_second_largest_renyi_bound_may_be_the_worst"),
    ),
    Fault(
        "a search costs one run",
        "accounting/search.py",
        "steps=event.steps * search.runs",
        "steps=event.steps",
        in_file("accounting/test_search.py", "test_naive_runs_are_composed_in_one_ledger"),
    ),
)

FAULTS = COMPOSITION + NUMERICS + CALIBRATED + CHARGED
