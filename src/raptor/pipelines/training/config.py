"""Parameters of the training stage; they stand beside the mechanism that they set."""

from raptor.dp.config import PrivacyConfig, TrainingConfig

__all__ = ["PrivacyConfig", "TrainingConfig"]
