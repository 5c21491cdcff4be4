"""What front end and round workers send each other arrives as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.protos.rounds import Fallback, Finish, RunRequest, Step
from tandem.protos.wire.rounds import decode_run, decode_step, encode_run, encode_step
from tests.contracts.test_codec import (
    bound,
    client,
    ids,
    logprobs,
    over_the_wire,
    samplings,
    shapes,
    small,
    stops,
    token,
    tokens,
    with_history,
    words,
)

runs = st.builds(
    RunRequest,
    words,
    ids,
    tokens,
    samplings | with_history,
    small,
    stops,
    shapes,
    client,
    tokens,
    small,
)
steps = st.builds(
    Step,
    tokens,
    small,
    small,
    small,
    logprobs,
    bound,
    small,
    small,
    bound,
    st.none() | st.sampled_from(Finish),
    st.none() | token,
    small,
    small,
    bound,
    bound,
    st.none() | st.sampled_from(Fallback),
    words,
    words,
)


@given(runs)
def test_a_request_arrives(run: RunRequest) -> None:
    assert decode_run(over_the_wire(encode_run(run))) == run


@given(steps)
def test_a_step_arrives(step: Step) -> None:
    assert decode_step(over_the_wire(encode_step(step))) == step
