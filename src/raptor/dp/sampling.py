"""The one place where private records are sampled."""

from __future__ import annotations

from torch import Tensor

from raptor.dp.streams import RandomStream


class PoissonSampler:
    """Each record is in a sample independently with the same public rate.

    Guarantee:
        A sample includes a record by a coin that no other record influences. Released is nothing: index sets
        and their sizes are private. Together with a Gaussian sum of sensitivity C and deviation sigma C this
        is the event (rate, sigma) of the accountant, for add/remove and for replace-one adjacency.
        Assumes: the rate is a public constant; the coins are from a stream used for nothing else.
    """

    def __init__(self, records: int, rate: float, coins: RandomStream) -> None:
        self._records = records
        self.coins = coins
        self.rate = rate

    def draw(self) -> Tensor:
        """Indices of the next sample, ascending int64; often of another size, and empty now and then."""
        return self.coins.coins(self._records, self.rate).nonzero().squeeze(1)
