"""Diagnostics of the three failure modes of private MoE training (RAPTOR, arXiv 2609.05770), on public records.

Interference of one clip over all roles, dilution by the batch as denominator, and signal that falls with an expert's
load; beside them the bias and variance of the public denominator, the bounds between entropy and that bias, and how
far the routing may drift before owners move. Nothing here knows of budgets: what it is given must be public.
"""
