"""The verifier over real gRPC: streams whose texts continue by themselves to their ends."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from transformers import PreTrainedModel

from tandem.engine.call import Call
from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import hosting
from tandem.engine.schedule.job_stream import BACKLOG
from tandem.protos.streams import Commit, Proposal
from tandem.protos.transport.rpc import MAX_MESSAGE_BYTES
from tandem.protos.types import (
    MAX_LOGPROBS,
    MAX_NODES,
    DraftShape,
    SamplingParams,
    TokenLogprobs,
)
from tandem.v1.common_pb2 import Failure
from tandem.verifier_service import service as verifier_service
from tests import reference
from tests.served import Services
from tests.services.caller import BEGIN, LONG, PROMPT, UNTIL, calling, decoding, reported, straight

GREEDY = SamplingParams()
OPTIONS = (
    GREEDY,
    SamplingParams(0.8, seed=3),
    SamplingParams(0.8, seed=4, logprobs=3),
    SamplingParams(1.0, top_p=0.9, seed=3, repetition_penalty=1.2, prompt_length=BEGIN),
    SamplingParams(1.0, top_k=20, min_p=0.01, seed=9, frequency_penalty=0.2, prompt_length=BEGIN),
)
pytestmark = pytest.mark.usefixtures("nothing_left", "patient")


async def test_a_verifier_decodes_by_itself_to_the_end(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(decoding())
        commits = await stream.commits(UNTIL)
        assert reported(commits) == text[: UNTIL - BEGIN]
        assert [bool(commit.epoch) for commit in commits] == [True] + [False] * (len(commits) - 1)
        assert await stream.silent()


async def test_a_stop_token_ends_the_decoding(services: Services, text: tuple[int, ...]) -> None:
    stop = text[20]
    said = text[: text.index(stop) + 1]
    async with calling(services.verifier) as caller:
        opening = replace(decoding(LONG), stop_token_ids=frozenset({stop}))
        stream = await caller.open(opening)
        assert reported(await stream.commits(BEGIN + len(said))) == said
        assert await stream.silent()


async def test_true_proposals_are_accepted_and_no_proposal_changes_the_text(
    services: Services, text: tuple[int, ...]
) -> None:
    """The proposals contain the text itself in parts, mixed with nonsense and repeated."""
    rng, size = random.Random(3), 60
    proposals = []
    for start in range(0, len(text), size):
        part = text[start : start + size]
        true = straight(BEGIN, part, first=start + 1)
        stray = straight(rng.randrange(LONG), [rng.randrange(4096)] * 9, first=LONG + start)
        proposals += [stray, replace(true, parents=tuple(range(start, start + len(part))))]
    proposals += [straight(BEGIN, text[:9]), straight(BEGIN, [9, 9], source=8)]
    async with calling(services.verifier) as caller:
        stream = await caller.open(decoding(LONG), proposals=proposals)
        commits = await stream.commits(LONG)
    assert reported(commits) == text
    assert sum(commit.accepted for commit in commits) > 50


async def test_in_lockstep_a_step_waits_for_the_proposal_behind_its_length_and_takes_all_of_it(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(replace(decoding(), lockstep=True))
        await stream.say(straight(BEGIN + 3, text[3:6]))
        assert await stream.silent(), "that is for later"
        await stream.say(straight(BEGIN, (*text[:3], 9, 10)))
        (commit,) = await stream.commits(BEGIN + 4)
        assert (commit.tokens, commit.drafted, commit.accepted) == (text[:4], 5, 3)
        await stream.say(straight(BEGIN + 3, text[3:6]))
        assert await stream.silent(), "and that was for earlier"
        await stream.say(Proposal(BEGIN + 4))
        assert (await stream.take()).tokens == text[4:5]


async def test_a_verifier_that_looks_up_needs_no_proposals(
    services: Services, target: PreTrainedModel
) -> None:
    prompt = PROMPT * 6
    expected = reference.sample(target, list(prompt), 100, GREEDY, -1)
    async with calling(services.verifier) as caller:
        opening = decoding(len(prompt) + 100, GREEDY, prompt)
        stream = await caller.open(replace(opening, suffix_shape=DraftShape.chain(16)))
        commits = await stream.commits(opening.until)
    assert reported(commits, len(prompt)) == tuple(expected)
    assert sum(commit.accepted for commit in commits) > 0


async def test_an_answer_is_drafted_from_answers_of_its_scope_alone(
    services: Services, text: tuple[int, ...]
) -> None:
    """No token recurs in the answer itself; it is asked for first, again, and in another scope."""
    said = next(n for n in range(len(text)) if text[n] in (*PROMPT, *text[:n]))
    one, other, proposed = secrets.token_bytes(16), secrets.token_bytes(16), list[int]()
    async with calling(services.verifier) as caller:
        for scope in (one, one, other):
            opening = replace(decoding(BEGIN + said), suffix_shape=DraftShape.chain(16))
            context = replace(opening.context, client=scope)
            stream = await caller.open(replace(opening, context=context))
            commits = await stream.commits(BEGIN + said)
            assert reported(commits) == text[:said]
            assert all(commit.sent == commit.sent_accepted == 0 for commit in commits)
            proposed.append(sum(commit.drafted + commit.unused for commit in commits))
    first, again, apart = proposed
    assert first == apart == 0 < again and said > 2


async def test_a_paused_stream_in_lockstep_takes_no_step_although_it_has_a_proposal(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(replace(decoding(), lockstep=True), paused=True)
        await stream.say(Proposal(BEGIN))
        assert await stream.silent()
        await stream.pause(False)
        assert (await stream.take()).tokens == text[:1]


async def test_a_paused_stream_says_nothing_until_it_goes_on(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(decoding(LONG), paused=True)
        await caller.decode_another()
        # commits of the first steps
        commits = [await stream.take() for _ in range(stream.queue.qsize())]
        assert len(reported(commits)) < len(text), "the text is not at its end"
        assert await stream.silent()
        await stream.pause(False)
        assert reported(commits + await stream.commits(LONG)) == text


async def texts(verifier: str) -> list[tuple[Any, ...]]:
    """Return texts with all options at once, drafted by partly right and random proposals, and the
    log-probabilities reported.
    """
    async with calling(verifier) as caller:
        openings = [decoding(sampling=params) for params in OPTIONS]
        streams = await caller.open(*openings, proposals=[straight(BEGIN, (1, 2, 3))])
        found = [await stream.commits(UNTIL) for stream in streams]
        tops = [
            [[t for t, _ in one.top] for f in commits for one in f.logprobs] for commits in found
        ]
        return [(reported(commits), top) for commits, top in zip(found, tops, strict=True)]


async def test_drafts_that_are_judged_together_leave_every_text_as_it_is(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draft is the token that the walk draws there."""
    steps: list[int] = []  # how many drafts each step has judged
    together = await texts(services.verifier)
    assert len(together[2][1]) == UNTIL - BEGIN
    monkeypatch.setattr(verifier_service, "sample_step", lambda fed: steps.append(len(fed)))
    config = ModelServiceConfig(model=services.pair.target, threads=1)
    async with verifier_service.serving(config, CollectorRegistry()) as address:
        assert await texts(address) == together
    assert max(steps) > 1, "sessions shared a step"


async def test_no_message_is_above_the_limit_however_many_commits_wait(services: Services) -> None:
    large = 1 << 20  # a large token id
    top = tuple((large + place, -0.1) for place in range(MAX_LOGPROBS))
    size = MAX_NODES + 1
    commit = Commit(
        1, (large,) * size, MAX_NODES, MAX_NODES, logprobs=(TokenLogprobs(-0.1, top),) * size
    )
    config = ModelServiceConfig(model=services.pair.draft, threads=1)
    async with hosting(config, "verify", False, CollectorRegistry()) as host:
        service, caller = verifier_service.VerifierService(host), Call[Proposal, Commit]()
        caller.outgoing.extend((stream, commit) for stream in range(BACKLOG))
        caller.failures.append(Failure(stream=BACKLOG))
        sent = list[int]()
        while caller.outgoing:
            caller.changed.clear()
            response = service._respond(caller)
            assert response.ByteSize() < MAX_MESSAGE_BYTES
            assert caller.changed.is_set() == bool(caller.outgoing), "the rest follows at once"
            assert bool(response.failures) != bool(caller.outgoing), "what failed says it last"
            sent += [each.stream for each in response.commits]
    assert sent == list(range(BACKLOG))
