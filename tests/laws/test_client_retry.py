"""Which errors make the client try again, and when."""

from __future__ import annotations

import pytest

from tandem.client.request import build
from tandem.client.retry import Retry
from tandem.protos.errors import Busy, InvalidRequest, TandemError, TransportLost
from tandem.protos.wire.options import options
from tandem.v1 import orchestrator_pb2 as api

LOST = TransportLost("gone")


def pauses(retry: Retry, *errors: TandemError) -> list[tuple[float | None, int]]:
    """Return the number of the last front end that is asked, after each error."""
    return [(retry.pause(error, 1.0, 0.5), retry.asked) for error in errors]


def test_another_front_end_is_asked_at_once_and_then_with_pauses() -> None:
    found = pauses(Retry(60.0, 0.0, 2), *[LOST] * 8)
    assert found == list(zip([0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], [1, 0] * 4, strict=True))


def test_the_only_one_is_asked_after_pauses_that_double() -> None:
    assert pauses(Retry(60.0, 0.0), LOST, LOST, LOST) == [(0.05, 0), (0.1, 0), (0.2, 0)]
    assert Retry(60.0, 0.0).pause(LOST, 1.0, 0.0) == 0.025
    assert pauses(Retry(10.0, 0.0), Busy("full", 3.0)) == [(3.0, 0)], "as long as it asked"


def test_it_never_fails_by_itself_however_often_it_has_failed() -> None:
    retry = Retry(1e9, 0.0)
    assert [retry.pause(LOST, 1.0, 0.5) for _ in range(3000)][-1] == 1.0


def test_progress_forgets_failures() -> None:
    retry = Retry(10.0, 0.0, 2)
    for _ in range(5):
        retry.pause(LOST, 9.0, 0.5)
    retry.progress(11.0)
    assert retry.pause(LOST, 20.9, 0.5) == 0.0


def test_it_gives_up_after_so_many_seconds_without_progress() -> None:
    assert Retry(10.0, 5.0).pause(LOST, 14.9, 0.5) is not None
    assert Retry(10.0, 5.0).pause(LOST, 15.0, 0.5) is None
    wrong = InvalidRequest.of("text", "is empty")
    assert Retry(10.0, 0.0, 2).pause(wrong, 0.0, 0.5) is None, "it cannot succeed"


def test_after_a_busy_one_the_others_are_asked_first() -> None:
    retry = Retry(60.0, 0.0, 3, asked=1)
    assert pauses(retry, Busy("full", 3.0), Busy("full", 2.0)) == [(0.0, 2), (0.0, 0)]
    assert pauses(retry, Busy("full", 9.0)) == [(2.0, 2)], "who asked for the shortest time"


def test_a_busy_one_is_not_asked_while_another_may_be() -> None:
    retry = Retry(60.0, 0.0, 2)
    assert pauses(retry, Busy("full", 3.0), LOST, LOST) == [(0.0, 1), (0.1, 1), (0.2, 1)]
    assert retry.pause(LOST, 4.0, 0.5) == 0.4
    assert retry.asked == 0, "its time is over"


def test_every_option_of_the_api_is_a_keyword() -> None:
    request = build(
        [1, 2],
        logprobs=3,
        prompt_logprobs=0,
        echo=True,
        temperature=0.5,
        logit_bias={7: -1.0},
        stop="end",
        stop_token_ids=[4],
        rule="match",
        schedule=api.DRAFT_SCHEDULE_CONSTANT,
        top_k=None,
    )
    assert list(request.token_ids.ids) == [1, 2]
    assert (request.logprobs, request.HasField("prompt_logprobs"), request.echo) == (3, True, True)
    assert request.sampling.temperature == 0.5
    assert request.sampling.logit_bias == {7: -1.0}
    assert not request.sampling.HasField("top_k")
    assert list(request.stopping.stop) == ["end"]
    assert request.speculation.rule == api.ACCEPTANCE_RULE_MATCH
    assert request.speculation.schedule == api.DRAFT_SCHEDULE_CONSTANT
    assert len(options()) == sum(
        len(kind.DESCRIPTOR.fields) for kind in (api.Sampling, api.Stopping, api.Speculation)
    )


def test_a_request_can_be_sent_again() -> None:
    one, other = build("a"), build("a")
    assert one.sampling.HasField("seed")
    assert one.request_id != other.request_id
    assert build("a", seed=3).sampling.seed == 3


def test_bad_options_are_named() -> None:
    with pytest.raises(TypeError, match="'temprature'; did you mean 'temperature'"):
        build("a", temprature=1)
    for name, value in (("rule", "mtch"), ("top_k", -1), ("temperature", "hot"), ("stop", 3)):
        with pytest.raises(InvalidRequest, match=name):
            build("a", **{name: value})


def test_a_silent_one_is_asked_when_there_is_no_other() -> None:
    retry = Retry(60.0, 0.0, 3)
    retry.pause(LOST, 1.0, 0.5, silent={0, 1})
    assert retry.asked == 2
    retry.pause(LOST, 1.0, 0.5, silent={0, 1, 2})
    assert retry.asked == 0


def test_a_silent_one_is_asked_rather_than_one_that_is_busy_for_long() -> None:
    retry = Retry(60.0, 0.0, 2, asked=1)
    assert retry.pause(Busy("full", 10.0), 1.0, 0.5, silent={0}) == 0.0
    assert retry.asked == 0
    retry = Retry(60.0, 0.0, 2, asked=1)
    assert retry.pause(Busy("full", 1.0), 1.0, 0.5, silent={0}) == 1.0
    assert retry.asked == 1


def test_a_silent_one_may_be_returned_to_once_when_it_answers_again() -> None:
    retry = Retry(60.0, 0.0, 2)
    assert not retry.may_return({})
    retry.pause(LOST, 1.0, 0.5, {0})
    assert retry.asked == 1
    assert [retry.may_return(silent) for silent in ({0}, {})] == [False, True]
    retry.progress(2.0)
    assert not retry.may_return({}), "it has brought something"
    retry.pause(LOST, 3.0, 0.5, {1})
    retry.pause(LOST, 4.0, 0.5, {0})
    assert not retry.may_return({}), "it was returned to"


def test_one_that_was_lost_for_another_reason_is_not_returned_to_early() -> None:
    for count, silent in ((2, {}), (1, {0})):
        retry = Retry(60.0, 0.0, count)
        retry.pause(LOST, 1.0, 0.5, silent)
        assert not retry.may_return({})
