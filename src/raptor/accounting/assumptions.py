"""What the guarantee rests on. Each assumption says who ensures it: the code, or the people who use it."""

from __future__ import annotations

from types import MappingProxyType

ASSUMPTIONS = tuple(
    MappingProxyType({"ensured_by": who, "text": text})
    for who, text in (
        (
            "code",
            "Every release draws its own Poisson sample, independent of all other releases and of the data.",
        ),
        (
            "code",
            "Rates, noise multipliers, clipping norms, denominators and numbers of steps are constants of the "
            "plan, fixed before the first private gradient.",
        ),
        (
            "code",
            "Every coordinate of every release gets its noise, also when no record was sampled and for experts "
            "that own no record.",
        ),
        (
            "code",
            "No record changes the gradient of another: the router is frozen, there is no auxiliary loss, no "
            "expert capacity and no statistic of a batch.",
        ),
        (
            "code",
            "The owner of a record is a function of that record and of public weights; one record moves the "
            "block of one expert.",
        ),
        (
            "code",
            "Noise is normal in float64 from a keyed stream, not an exact discrete Gaussian; attacks on the "
            "lowest bits of floating-point numbers are not covered.",
        ),
        (
            "user",
            "A record holds all that is to be protected together. Somebody with k records is protected k "
            "times less: epsilon grows k-fold, and delta more.",
        ),
        (
            "user",
            "The base model, the public corpus, the parameters and the facts taken as public were not made "
            "from the private records.",
        ),
        (
            "user",
            "Parameters were not chosen by results on the private records; such a search costs privacy that "
            "is not counted here.",
        ),
        (
            "user",
            "Only what is labelled released leaves the machine: not the private data, the journals, unnoised "
            "results, or the time that steps took.",
        ),
    )
)
