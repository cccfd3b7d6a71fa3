"""Faults in what can be moved on the mechanism: norms and noise by block, weights, and updates that know the noise."""

from __future__ import annotations

from mutants.fault import Fault, in_file

EXPERT_NORMS = "dp/test_expert_norms.py"
SCALED = in_file(EXPERT_NORMS, "test_with_active_owners_the_scaled_norm_is_spent_once")
OWNER = in_file(
    EXPERT_NORMS,
    "test_a_record_moves_its_owners_sum_by_the_owners_norm_and_the_release_by_c[full]",
)
ROLES = in_file("dp/test_methods.py", "test_roles_with_noise_of_their_own_keep_one_sensitivity[weights1-one]")
TAKEN = in_file(
    "dp/test_optimizer.py",
    "test_what_is_taken_off_is_the_noise_that_was_added_and_nothing_more_is_released[raptor]",
)

LAYERS = "dp/test_several_layers.py"

FAULTS = (
    Fault(
        "owners of all layers are those of the first",
        "pipelines/training/records.py",
        "for layer in layers\n        ]",
        "for layer in layers[:1] * len(layers)\n        ]",
        in_file(LAYERS, "test_owners_come_in_the_order_of_the_layers"),
    ),
    Fault(
        "what a record feeds in the second layer escapes its owner",
        "dp/gradients/engine.py",
        "return batch.owners[:, None] if batch.owners.ndim == 1 else batch.owners",
        "return batch.owners[:, None] if batch.owners.ndim == 1 else batch.owners[:, :1].expand_as(batch.owners)",
        in_file(LAYERS, "test_a_record_moves_its_owners_of_all_layers_by_one_norm[0]"),
    ),
    Fault(
        "factors of experts are in the sum and not in the norm",
        "dp/gradients/taps/experts.py",
        "parts = parts * parts.new_tensor(self._factors).square()[:, None]",
        "parts = parts * 1.0",
        SCALED,
    ),
    Fault(
        "factors of experts are in the norm without their square",
        "dp/gradients/taps/experts.py",
        "parts.new_tensor(self._factors).square()",
        "parts.new_tensor(self._factors)",
        OWNER,
    ),
    Fault(
        "shares of the roles add up to one and not their squares",
        "dp/engines.py",
        "whole = math.hypot(*sizes.values())",
        "whole = max(sizes.values())",
        ROLES,
    ),
    Fault(
        "residual weights have no effect",
        "dp/gradients/losses.py",
        "losses = losses * batch.weights",
        "losses = losses * 1.0",
        in_file(
            "dp/test_residual_weights.py",
            "test_the_sum_is_that_of_weighted_gradients_clipped_one_by_one[1000000000.0-one]",
        ),
    ),
    Fault(
        "the noise that is taken off is that of the sum and not of the mean",
        "dp/training.py",
        "deviation = plan.noise_deviation / plan.denominator",
        "deviation = plan.noise_deviation",
        TAKEN,
    ),
    Fault(
        "a stream samples at the rate of the other's batch size",
        "dp/config.py",
        "return stream.batch_size or self.batch_size",
        "return self.batch_size",
        in_file("dp/test_methods.py", "test_streams_sample_at_the_rate_of_their_own_batch_size"),
    ),
)
