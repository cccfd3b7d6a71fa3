"""Errors a user can act on: one message that says what is wrong, where, and what to do."""

from __future__ import annotations


class RaptorError(Exception):
    """Base of every error raised on purpose; the command line prints its message and exits with 1.

    The message must never hold private content: no record text, no count, loss or norm of private data.
    Places (file, line, record number, column) are allowed, as the user needs them to mend the input.
    """

    def __str__(self) -> str:
        """The message, with what a terminal would obey or could not show written as an escape."""
        return "".join(
            sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode()
            for sign in super().__str__()
        )


class ParameterError(RaptorError):
    """A parameter is unknown, missing or out of range."""


class DataError(RaptorError):
    """The records cannot be read, or cannot be used as they are."""


class ModelError(RaptorError):
    """The model is not a sparse MoE that is covered, or its files are unusable."""


class PrivacyFlowError(RaptorError):
    """A pipeline would publish something that depends on private data."""


class BudgetError(RaptorError):
    """The privacy budget is invalid, infeasible or would be exceeded."""


class CheckpointError(RaptorError):
    """A private training was not ended, and cannot be resumed as things are."""


class LaunchError(RaptorError):
    """The processes of a training cannot be started, or have ended without a result."""


class ProcessLostError(LaunchError):
    """A process of a training was lost; the training can go on from its last checkpoint."""


class AuditError(RaptorError):
    """An attack or a check contradicts what the mechanism claims."""


class LedgerError(RaptorError):
    """A ledger or certificate is broken, incomplete or does not say what it should."""


class ReplayError(LedgerError):
    """A resumed run did not make the same release again that the journal has."""
