"""Networks prepared for one size: half precision, folded norms, fused passes, a CUDA graph per step."""

from fullfield.models.prepared.runner import (
    PRECISIONS,
    PreparedFlow,
    PreparedFlowCache,
    choose_cpu_dtype,
    explain_no_half_precision,
)

__all__ = ["PRECISIONS", "PreparedFlow", "PreparedFlowCache", "choose_cpu_dtype", "explain_no_half_precision"]
