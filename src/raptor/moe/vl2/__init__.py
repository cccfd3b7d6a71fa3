"""DeepSeek-VL2 (arXiv 2412.10302) out of parts of transformers: the layout of its Tiny checkpoint."""

from raptor.moe.vl2.config import Vl2Config
from raptor.moe.vl2.model import Vl2Encoder

__all__ = ["Vl2Config", "Vl2Encoder"]
