"""The settings of cuBLAS with which a row hardly depends on how many rows are multiplied with it.

Where the library splits sums over thread blocks, the split depends on the number of rows. Without a
workspace the library does not split sums. Trials in `sizes` show whether the settings suffice.
"""

from __future__ import annotations

import os

import torch

WORKSPACES = {
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "CUBLASLT_WORKSPACE_SIZE": "1",
}  # the smallest workspaces, in KiB
SPLIT_SETTING_SINCE = "2.10"  # the version of torch with a setting for the splitting of sums


def disable_split_k() -> None:
    """Stop cuBLAS from splitting sums and from rounding in between, on all CUDA devices. The
    process must not have multiplied on a CUDA device before: the library reads the size of its
    workspace at the first product.
    """
    os.environ.update(WORKSPACES)
    product = torch.backends.cuda.matmul
    never = (False, False) if torch.__version__ >= SPLIT_SETTING_SINCE else False
    product.allow_fp16_reduced_precision_reduction = never
    product.allow_bf16_reduced_precision_reduction = never
    product.fp32_precision = "ieee"
    if torch.version.cuda:  # a build without CUDA has no libraries to prefer
        torch.backends.cuda.preferred_blas_library("cublaslt")
