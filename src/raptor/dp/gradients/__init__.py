"""Per-record gradients: what a role's parameters receive from each record, clipped and summed."""
