"""Faults where texts are continued: what counts of a record, and what one record adds to an evaluation."""

from __future__ import annotations

from mutants.fault import Fault, in_file

RECORDS = "dp/test_prompted_records.py"
TABLES = "reporting/test_completions.py"
SCORES = "pipelines/evaluation/test_completions.py"

FAULTS = (
    Fault(
        "tokens of the prompt count",
        "dp/records.py",
        "labels = ids.masked_fill(~mask | (place < self.prompts[rows, None]), IGNORED)",
        "labels = ids.masked_fill(~mask, IGNORED)",
        in_file(RECORDS, "test_tokens_behind_the_prompt_count_and_no_others"),
    ),
    Fault(
        "a training goes on with other prompts",
        "dp/records.py",
        "more = [self.groups, self.prompts]",
        "more = [self.groups]",
        in_file(RECORDS, "test_a_fingerprint_covers_where_completions_begin"),
    ),
    Fault(
        "the loss of a record is the sum of its tokens",
        "dp/gradients/losses.py",
        "return unit_means(losses.sum(dim=1) / counted.clamp_min(1), counted > 0, batch)",
        "return unit_means(losses.sum(dim=1), counted > 0, batch)",
        in_file(RECORDS, "test_the_loss_of_a_record_is_the_mean_over_its_completion"),
    ),
    Fault(
        "records without a completion are part of a user's mean",
        "dp/gradients/losses.py",
        "return unit_means(losses.sum(dim=1) / counted.clamp_min(1), counted > 0, batch)",
        "return unit_means(losses.sum(dim=1) / counted.clamp_min(1), counted >= 0, batch)",
        in_file(RECORDS, "test_the_gradient_of_a_user_is_that_of_the_mean_of_the_users_records"),
    ),
    Fault(
        "the loss of a held-out record has no bound",
        "reporting/completions.py",
        "posinf=1.0, neginf=0.0).clip(0.0, 1.0)",
        "posinf=1.0, neginf=0.0)",
        in_file(TABLES, "test_a_record_moves_the_table_by_the_sensitivity_at_most"),
    ),
    Fault(
        "a table of completions claims less than a record moves it",
        "reporting/completions.py",
        "SENSITIVITY = 2.0",
        "SENSITIVITY = 1.0",
        in_file(TABLES, "test_a_record_moves_the_table_by_the_sensitivity_at_most"),
    ),
    Fault(
        "a completion is matched by its first token",
        "pipelines/evaluation/scoring.py",
        "sums[1] == 0, numbers > 0",
        "sums[1] < numbers, numbers > 0",
        in_file(SCORES, "test_exact_match_is_that_of_greedy_decoding"),
    ),
)
