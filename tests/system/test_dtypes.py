"""The promise holds in half precision too, against the same model without drafts."""

from __future__ import annotations

import pytest

from tests.conftest import Pair, serve_all, serve_models
from tests.system.test_same_text import ask, texts


async def drafted_and_plain(pair: Pair, prompts: list[str], dtype: str, **shape: int) -> bool:
    """Whether drafts leave every text as it is."""
    async with serve_models(pair, dtype=dtype) as services, serve_all(services, ray=False) as up:
        requests = [ask(p, temperature=n % 2, seed=n, tokens=40) for n, p in enumerate(prompts)]
        for request in requests:
            request.speculation.num_speculative_tokens = 0
        plain = await texts(up.stub, requests)
        for request in requests:
            request.speculation.num_speculative_tokens = shape["levels"]
            request.speculation.branches = shape["branches"]
        return await texts(up.stub, requests) == plain


@pytest.mark.parametrize("branches", [1, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_drafts_change_no_text_in_half_precision(
    embedded: Pair, prompts: list[str], dtype: str, branches: int
) -> None:
    """Chains and trees: a token from a side branch is drawn from the same bits."""
    assert await drafted_and_plain(embedded, prompts[:12], dtype, levels=4, branches=branches)
