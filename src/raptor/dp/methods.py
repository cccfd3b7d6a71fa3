"""The methods that are compared, as data: what each trains, with how many streams, and with privacy or without.

All of them run on one engine, sampler, accountant and schedule. RAPTOR (arXiv 2609.05770) has a stream for each
role. The others are one stream with as many steps as both streams of RAPTOR have together: monolithic training
(Tholoniat et al., arXiv 2402.07334; with adapters Yu et al., arXiv 2110.06500) over everything, and the matched
scopes A (RAPTOR's parameters, one clip and one noise), B (its shared parameters) and C (its experts). Between A and
RAPTOR stands a stream that clips each role for itself on one sample, and releases both roles at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Scope = Literal["shared", "expert", "protected", "joint"]
"""Which trained parameters: one role, both roles of the protected layer, or all that know no roles."""
Method = Literal[
    "raptor",
    "together",
    "monolithic",
    "matched",
    "shared_only",
    "experts_only",
    "nonprivate",
    "nonprivate_matched",
    "nonprivate_shared",
]


@dataclass(frozen=True)
class OneStream:
    """A method without roles.

    Attributes:
        scope: the parameters that its single stream trains.
        is_private: False for training without clipping and noise, on public records only.
        by_role: whether each role has a clip of its own.
    """

    scope: Scope
    is_private: bool = True
    by_role: bool = False


ONE_STREAM: Mapping[Method, OneStream] = {
    "together": OneStream("protected", by_role=True),
    "monolithic": OneStream("joint"),
    "matched": OneStream("protected"),
    "shared_only": OneStream("shared"),
    "experts_only": OneStream("expert"),
    "nonprivate": OneStream("joint", is_private=False),
    "nonprivate_matched": OneStream("protected", is_private=False),
    "nonprivate_shared": OneStream("shared", is_private=False),
}
"""Every method but RAPTOR."""
