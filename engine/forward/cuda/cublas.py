"""The settings of cuBLAS with which a row hardly depends on how many rows are multiplied with it.

Sums that are split over thread blocks are split by the number of rows: without a workspace,
the library does not split them. What was achieved is found out by trying, in `sizes`.
"""

from __future__ import annotations

import os

import torch

WORKSPACES = {
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "CUBLASLT_WORKSPACE_SIZE": "1",
}  # KiB, at the least
SPLIT_SETTING_SINCE = "2.10"  # of torch, which from then on asks whether sums may be split


def disable_split_k() -> None:
    """Never split a sum, nor round in between, on any CUDA device. Works for a process that has not
    multiplied on one: then the library reads how large its workspace is.
    """
    os.environ.update(WORKSPACES)
    product = torch.backends.cuda.matmul
    never = (False, False) if torch.__version__ >= SPLIT_SETTING_SINCE else False
    product.allow_fp16_reduced_precision_reduction = never
    product.allow_bf16_reduced_precision_reduction = never
    product.fp32_precision = "ieee"
    if torch.version.cuda:  # a build without CUDA has no libraries to prefer
        torch.backends.cuda.preferred_blas_library("cublaslt")
