"""Layers with a sliding window give up memory that the window has left. Whatever is given up,
shared, cut or read in chunks, a row sees the same as without this, and no more memory is used than
there is.
"""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.windows import WindowedService


@settings(max_examples=30)
@given(st.integers(5, 40), st.integers(0, 1 << 30))
def test_whatever_is_given_up_a_row_sees_what_it_is_to_see(pages: int, seed: int) -> None:
    with torch.inference_mode():
        service = WindowedService(pages, random.Random(seed))
        for _ in range(80):
            service.act()
            service.check_all()
        service.close()
