"""In half precision, too, drafts change no text, compared to the same model without drafts."""

from __future__ import annotations

import pytest

from tests.served import Pair, serve_all, serve_models
from tests.system.test_same_text import ask, texts


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", pytest.param("float16", marks=pytest.mark.long("the same in another dtype"))],
)
async def test_drafts_change_no_text_in_half_precision(
    embedded: Pair, prompts: list[str], dtype: str
) -> None:
    """Drafts are chains and trees; a token in a side branch is drawn from the same bits."""
    some = list(enumerate(prompts[:6]))
    async with (
        serve_models(embedded, dtype=dtype, threads=1) as services,
        serve_all(services) as tandem,
    ):
        plain, chains, trees = [
            await texts(
                tandem.stub,
                [ask(p, temperature=n % 2, seed=n, tokens=24, **shape) for n, p in some],
            )
            for shape in ({"levels": 0}, {"levels": 4, "branches": 1}, {"levels": 4, "branches": 4})
        ]
    assert plain == chains == trees
