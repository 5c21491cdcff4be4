"""Whose draft tokens those of a step are."""

from __future__ import annotations

from tests.laws.relayed import alone
from tests.laws.scene import Scene


def test_steps_name_the_drafter_whose_guess_came_last_when_it_is_another() -> None:
    scene = Scene()
    scene.links[1].name = "a"
    assert scene.wait(lambda: any(len(step.tokens) > 1 for step in scene.relay.steps))
    scene.links[1].name = "b"
    assert scene.finish() == alone()
    steps = list(scene.relay.steps)
    assert [step.drafter for step in steps if step.drafter] == ["a", "b"]
    first = next(place for place, step in enumerate(steps) if step.drafter)
    assert all(len(step.tokens) == 1 for step in steps[:first])
