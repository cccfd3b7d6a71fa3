"""Faults where users are the unit: who is bounded, owned, sampled and clipped."""

from __future__ import annotations

from mutants.fault import Fault, in_file

UNITS = "dp/test_users.py"
KEPT = "text/test_users.py"
PEOPLE = "pipelines/ingestion/test_users.py"

FAULTS = (
    Fault(
        "records are sampled where users are the unit",
        "dp/records.py",
        "        return len(self.owners)",
        "        return len(self.labels)",
        in_file(UNITS, "test_samples_are_of_users"),
    ),
    Fault(
        "users may be trained on as single records",
        "dp/steps.py",
        "        records.require_unit(rule.unit)\n",
        "",
        in_file(UNITS, "test_plan_and_data_must_be_of_one_unit"),
    ),
    Fault(
        "a record may be of two users",
        "dp/records.py",
        "if not torch.equal(members, torch.arange(len(self.labels))) or bool((groups[:, :1] < 0).any()):",
        "if bool((groups[:, :1] < 0).any()):",
        in_file(UNITS, "test_groups_that_are_no_users_are_refused"),
    ),
    Fault(
        "records that fill up count",
        "dp/records.py",
        "            counts = is_own.flatten()\n",
        "",
        in_file(UNITS, "test_the_sum_is_of_the_clipped_means_of_users"),
    ),
    Fault(
        "the loss of a user is divided by all rows",
        "dp/gradients/losses.py",
        "numbers = counted.view(-1, batch.members).sum(dim=1).clamp_min(1)",
        "numbers = batch.members",
        in_file(UNITS, "test_the_sum_is_of_the_clipped_means_of_users"),
    ),
    Fault(
        "a record that changes hands goes unnoticed",
        "dp/records.py",
        "more = [self.groups, self.prompts]",
        "more = [self.prompts]",
        in_file(UNITS, "test_a_record_that_changes_hands_is_another_training"),
    ),
    Fault(
        "users keep all their records",
        "text/users.py",
        "for user in np.flatnonzero(counts > most):",
        "for user in np.flatnonzero(counts > 10**9):",
        in_file(KEPT, "test_every_user_keeps_as_many_as_there_are_up_to_the_bound"),
    ),
    Fault(
        "which records a user keeps depends on the users before",
        "text/users.py",
        "hashlib.shake_256(key + names[user].encode())",
        "hashlib.shake_256(key + str(user).encode())",
        in_file(KEPT, "test_no_users_choice_depends_on_another_user"),
    ),
    Fault(
        "several records of a user are held out",
        "pipelines/ingestion/nodes.py",
        "measured = bound_users(measured, 1, split_key)",
        "measured = bound_users(measured, records_per_user, split_key)",
        in_file(PEOPLE, "test_users_are_bounded_and_numbered"),
    ),
    Fault(
        "a user's last record decides the owner",
        "pipelines/ingestion/owners.py",
        "np.add.at(total, users[rows], votes[layer].numpy())",
        "total[users[rows]] = votes[layer].numpy()",
        in_file(PEOPLE, "test_a_users_owner_is_by_the_votes_of_all_its_tokens"),
    ),
    Fault(
        "owners are decided in float32",
        "pipelines/ingestion/owners.py",
        "    in_double(encoder)\n",
        "    encoder.float()\n",
        in_file(
            "pipelines/ingestion/test_nodes.py",
            "test_votes_move_with_their_company_by_float64_rounding_alone",
        ),
    ),
    Fault(
        "what routes in float32 by its own code does so when owners are decided",
        "pipelines/ingestion/owners.py",
        "        with DoubleThroughout():\n",
        "        with torch.no_grad():\n",
        in_file(
            "pipelines/ingestion/test_nodes.py",
            "test_votes_move_with_their_company_by_float64_rounding_alone",
        ),
    ),
    Fault(
        "a handful of users is accepted",
        "pipelines/training/planning.py",
        'if privacy.unit == "user" and population < FEWEST_USERS:',
        'if privacy.unit == "user" and population < 0:',
        in_file(PEOPLE, "test_a_handful_of_users_is_refused"),
    ),
    Fault(
        "a word for a missing user is a user",
        "text/collect.py",
        "if not name or name.casefold() in MISSING_WORDS | DOUBTFUL_WORDS:",
        "if not name:",
        in_file(
            "text/test_more_kinds.py",
            "test_what_cannot_stops_with_its_place_and_without_its_value[a user called nan]",
        ),
    ),
)
