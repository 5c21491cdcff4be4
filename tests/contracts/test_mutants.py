"""The planted mistakes run by hand, because they take hours; here is checked that each can still be
planted.
"""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_text_of_a_mistake_stands_once_in_its_file(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.right) == 1
