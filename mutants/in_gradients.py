"""Faults in per-record gradients, in the roles of parameters, and in the gate that checks them."""

from __future__ import annotations

from mutants.fault import Fault, in_file

GRADIENTS = "dp/test_gradients.py"
PASSES = "dp/test_gradient_passes.py"
FAMILIES = "dp/test_family_gradients.py"
SINGLE = "dp/test_single_taps.py"
HOSTILE = "dp/test_hostile_inputs.py"
ISOLATION = "dp/test_isolation.py"

EXPERTS = in_file(
    GRADIENTS, "test_records_as_many_as_tokens[expert]", "test_a_model_with_dense_layers_is_covered"
)
SHARED = in_file(
    GRADIENTS, "test_records_as_many_as_tokens[shared]", "test_a_model_with_dense_layers_is_covered"
)

NORMS = (
    Fault(
        "every token clipped as a record",
        "dp/gradients/kernels.py",
        "norms = _inner_product(lefts, rights)",
        "norms = (_diagonal(lefts) * _diagonal(rights)).sum(dim=1)",
        in_file(GRADIENTS, "test_both_ways_to_a_linear_norm_agree"),
    ),
    Fault(
        "rounding may make a norm too small",
        "dp/gradients/kernels.py",
        "return norms + torch.finfo(norms.dtype).eps * lengths.square()",
        "return norms",
        in_file(PASSES, "test_rows_that_cancel_are_not_taken_for_a_small_gradient"),
    ),
    Fault(
        "squares that vanish in float32 count as nothing",
        "dp/gradients/kernels.py",
        "tiny = torch.finfo(gradients.dtype).tiny",
        "tiny = 0.0",
        in_file(HOSTILE, "test_squares_that_are_too_small_for_float32"),
    ),
    Fault(
        "a transposed matrix is taken for the matrix",
        "dp/gradients/kernels.py",
        "            activations.stride(),\n            activations.dtype,\n            activations._version,",
        "            activations.dtype,\n            activations._version,",
        in_file(HOSTILE, "test_a_transposed_square_matrix_is_another_matrix"),
    ),
    Fault(
        "padding of an expert's rows counts in the norm",
        "dp/gradients/kernels.py",
        "found.append(torch.where(pairs, strip, strip.new_zeros(())))",
        "found.append(strip + 0 * pairs)",
        in_file(GRADIENTS, "test_segments_of_any_length[ghost]"),
    ),
    Fault(
        "the norm of a bias is that of its tokens",
        "dp/gradients/taps/linear.py",
        "accumulate(gradient).sum(dim=1).square().sum(dim=1)",
        "accumulate(gradient).square().sum(dim=(1, 2))",
        in_file(SINGLE, "test_weight_or_bias_alone[bias-linear]"),
    ),
    Fault(
        "repeated tokens count as different ones",
        "dp/gradients/kernels.py",
        "is_new[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).long()",
        "is_new[:, 1:] = 1",
        in_file(GRADIENTS, "test_repeated_tokens_are_added_before_the_norm"),
    ),
    Fault(
        "padding counts in the gradient of the embedding",
        "dp/gradients/taps/embedding.py",
        "if padding is not None and self._input is not None:",
        "if padding is None and self._input is not None:",
        in_file(SINGLE, "test_padding_that_is_a_real_token_gets_no_gradient_as_in_autograd"),
    ),
    Fault(
        "a tied matrix without the cross term",
        "dp/gradients/taps/embedding.py",
        "return total + cross + 8 *",
        "return total + 0 * cross + 8 *",
        in_file(
            "dp/test_causal_gradients.py",
            "test_language_models_agree_with_a_loop_over_records[olmoe-shared-True]",
        ),
    ),
)

PASS = (
    Fault(
        "mean over the batch in place of the sum",
        "dp/gradients/engine.py",
        "losses.backward(torch.ones_like(losses))",
        "losses.backward(torch.ones_like(losses) / records)",
        SHARED,
    ),
    Fault(
        "parameters keep their gradients",
        "dp/gradients/engine.py",
        "            parameter.requires_grad_(False)\n        with",
        "            parameter.requires_grad_(True)\n        with",
        in_file(HOSTILE, "test_a_parameter_that_asks_for_a_gradient_again_gets_none[shared]"),
    ),
    Fault(
        "a module that is called twice is taken",
        "dp/gradients/taps/base.py",
        "        if self._is_called:\n            raise",
        "        if self._is_called and self._pass.records < 0:\n            raise",
        in_file("dp/test_refusals.py", "test_a_module_that_is_called_twice[Linear]"),
    ),
    Fault(
        "a module that was not called is taken",
        "dp/gradients/taps/base.py",
        "if not self._is_called:",
        "if not self.parameters:",
        in_file("dp/test_refusals.py", "test_a_module_that_the_forward_pass_goes_around"),
    ),
    Fault(
        "an input that changed after its use is taken",
        "dp/gradients/taps/base.py",
        "if self._input._version != self._version:",
        "if self._input._version < self._version:",
        in_file("dp/test_refusals.py", "test_an_input_that_is_changed_after_its_use"),
    ),
)

OWNERS = (
    Fault(
        "all active experts of a record are trained",
        "dp/gradients/taps/experts.py",
        "return (assignment.expert == owner).nonzero().squeeze(1)",
        "return torch.arange(len(owner))",
        in_file(FAMILIES, "test_float32_agrees_too[olmoe]"),
    ),
    Fault(
        "outputs of experts that do not own the record are detached",
        "dp/gradients/taps/experts.py",
        "return rows, combine(hidden, assignment, outer)",
        "keep = torch.isin(torch.arange(len(outer)), self._owned(assignment))[:, None] if self._pass.owners is not "
        "None else outer == outer; return rows, combine(hidden, assignment, torch.where(keep, outer, "
        "outer.detach()))",
        in_file(
            FAMILIES, "test_norms_and_sums_are_those_of_a_loop_over_records[olmoe-experts of two layers]"
        ),
    ),
    Fault(
        "rows of experts belong to the wrong records",
        "dp/gradients/taps/experts.py",
        'self._pass.tokens, rounding_mode="floor")',
        'self._pass.tokens, rounding_mode="floor").flip(0)',
        EXPERTS,
    ),
    Fault(
        "routing weights are left out of an expert's gradient",
        "dp/gradients/taps/experts.py",
        ".index_select(0, assignment.token) * assignment.weight[:, None].detach()",
        ".index_select(0, assignment.token) * 1",
        EXPERTS,
    ),
    Fault(
        "routers are trained with the shared parameters",
        "moe/roles.py",
        "return ParameterRole(Role.ROUTER, layer.index)",
        "return ParameterRole(Role.SHARED)",
        in_file("dp/test_mechanism.py", "test_the_router_stays_as_it_is"),
    ),
    Fault(
        "experts outside of the protected layer are trained",
        "moe/roles.py",
        "(layers is None or entry.layer in layers)",
        "(layers is None or entry.layer is not None)",
        in_file(
            "dp/test_mechanism.py", "test_one_record_moves_one_block_by_at_most_the_clipping_norm[0-expert]"
        ),
    ),
)

GATE = (
    Fault(
        "the gate does not compare losses alone and in company",
        "dp/isolation/losses.py",
        "wrong = ~((found - expected).abs() <= subject.tolerance * expected.abs().clamp_min(1e-3))",
        "wrong = torch.zeros_like(found, dtype=torch.bool)",
        in_file(ISOLATION, "test_attention_across_records_is_refused_and_the_module_named"),
    ),
    Fault(
        "the gate does not try experts of one token",
        "dp/isolation/losses.py",
        'vars(module)["expert_capacity"] = 1',
        'vars(module)["expert_capacity"] += 0',
        in_file(ISOLATION, "test_a_capacity_that_the_default_hides_is_found_with_the_least_capacity"),
    ),
    Fault(
        "the gate does not compare gradients with autograd",
        "dp/isolation/engines.py",
        "if not error <= self._subject.tolerance:",
        "if not error <= math.inf:",
        in_file(ISOLATION, "test_a_mean_instead_of_a_sum_is_refused"),
    ),
    Fault(
        "the gate does not look at what modules keep",
        "dp/isolation/gate.py",
        "attributes.require_same()",
        "str(attributes)",
        in_file(HOSTILE, "test_the_gate_looks_at_derived_dropout_and_at_what_modules_keep"),
    ),
    Fault(
        "the gate lets a router be trained",
        "dp/isolation/engines.py",
        "check_router(subject.model, spec.name, self._engine.parameters)",
        "check_router(subject.model, spec.name, ())",
        in_file(ISOLATION, "test_a_trained_router_is_refused"),
    ),
    Fault(
        "the gate does not look at what a pass leaves behind",
        "dp/isolation/engines.py",
        "state.require_same(self._spec.name)",
        "str(state)",
        in_file(ISOLATION, "test_an_engine_that_leaves_gradients_is_refused"),
    ),
)

FAULTS = NORMS + PASS + OWNERS + GATE
