"""Simulate users who send one request after another to a verifier and a drafter that are a network
round trip apart.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from tandem.benchmarks.goodput.device import Device, Events
from tandem.benchmarks.goodput.jobs import draft_job, sample
from tandem.benchmarks.goodput.policy import Policy
from tandem.benchmarks.goodput.text import PERIOD, SimulatedText, text_of
from tandem.benchmarks.goodput.world import DRAFTS, TARGETS, World, at
from tandem.drafter_service.tree.session_text import CommitTokens
from tandem.drafter_service.tree.worth import Conditions, DrafterHistory, Worth
from tandem.engine.config import draft_cost
from tandem.engine.schedule.cost import AverageStepTimes, StepLoad
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Task
from tandem.engine.schedule.warm_up import NAME, ROWS, warm_up_job
from tandem.orchestrator.rounds.backoff import DraftBackoff
from tandem.protos.streams import Commit, Decoding, Drafting, Proposal
from tandem.protos.types import Context, SamplingParams
from tandem.verifier_service.decoding import DecodeJob
from tandem.verifier_service.sources import Sources

PROMPT = 48  # length of each prompt in tokens
ANSWER = (64, 256)  # minimum and maximum length of an answer in tokens
# spread of step times, share of slow steps, and the factor by which slow steps are slower
NOISE, HICCUPS, HICCUP = 0.05, 0.01, 3.0


class Way:
    """A one-way channel between the services that delivers messages in order."""

    def __init__(self, events: Events, seconds: Callable[[], float]) -> None:
        self._events = events
        self._seconds = seconds
        self._newest = 0.0

    def send(self, action: Callable[[], None]) -> None:
        """Send a message. When it arrives, `action` is called."""
        self._newest = max(self._newest, self._events.now + self._seconds())
        self._events.after(self._newest - self._events.now, action)


@dataclass(slots=True, eq=False)
class Request:
    """One request of a user: its streams at the verifier and the drafter, and its drafting job once
    that has begun.
    """

    name: bytes
    until: int
    tokens: tuple[int, ...]
    text: SimulatedText
    proposals: JobStream[Proposal, Commit]
    commits: JobStream[CommitTokens, Proposal]
    drafting: Task | None = None
    backoff: DraftBackoff = field(default_factory=DraftBackoff)


class Simulation:
    """The simulation of one drafting policy in one world."""

    def __init__(self, world: World, policy: Policy, seed: int) -> None:
        self._world = world
        self._policy = policy
        self._seed = seed
        self._events = Events()
        self._debt = 0.0
        self._drafted = 0.0  # total seconds of the steps of the drafter
        self._target_noise, self._draft_noise = (random.Random(f"{seed} {w}") for w in "vd")
        self._tokens = 0  # tokens emitted after the warm-up period
        self.accepted = Counter[int]()  # accepted draft tokens, by request number
        self._number = 0
        self._requests: dict[int, Request] = {}
        self._texts: dict[bytes, SimulatedText] = {}
        self._conditions = Conditions()
        self._history = DrafterHistory()
        self._sources = Sources.of_all()
        self._commits: deque[tuple[int, Commit]] = deque()
        self._proposals: deque[tuple[int, Proposal]] = deque()
        fixed = policy.shape.nodes if policy.fixed else None
        self._verifier = Device(self._events, self._verify_seconds, self._send_commits, fixed)
        self._drafter = Device(self._events, self._draft_seconds, self._send_proposals)
        self._verifier.before_jobs = partial(sample, self._texts)
        self._to_drafter = Way(self._events, lambda: self._delay / 2)
        self._to_verifier = Way(self._events, lambda: self._delay / 2)

    def run(self) -> float:
        """Run the simulation, and return the tokens per second after the warm-up period."""
        self._warm_up()
        for share, _ in self._world.sessions:
            self._events.after(share * self._world.seconds, self._ask)
        self._events.run(self._world.seconds)
        return self._tokens / (self._world.seconds - self._world.start)

    def _warm_up(self) -> None:
        """Warm up both devices, as services do before they serve requests."""
        for device in (self._verifier, self._drafter):
            device.start(NAME, warm_up_job(device.sessions, max(ROWS)))
        self._events.run(math.inf)
        self._events.now = 0.0
        for device in (self._verifier, self._drafter):
            device.costs.averages = AverageStepTimes()

    @property
    def _share(self) -> float:
        """The share of the simulated time that has passed."""
        return min(1.0, self._events.now / self._world.seconds)

    @property
    def _delay(self) -> float:
        return 1e-3 * at(self._world.delay, self._share)

    def _ask(self) -> None:
        """Start requests until every user has a running request."""
        while len(self._requests) < at(self._world.sessions, self._share):
            self._begin()

    def _begin(self) -> None:
        self._number = number = self._number + 1
        rng = random.Random(f"{self._seed} {number}")
        skills, name = self._world.skills, number.to_bytes(8, "big")
        text = replace(
            text_of(skills[number % len(skills)], self._seed), offset=rng.randrange(PERIOD)
        )
        self._texts[name] = text
        prompt, until = tuple(map(text.token, range(PROMPT))), PROMPT + rng.randint(*ANSWER)
        request = self._requests[number] = Request(
            name, until, prompt, text, JobStream(self._commits, number, 1),
            JobStream(self._proposals, number, 1),
        )  # fmt: skip
        lockstep = self._policy.lockstep
        opening = Decoding(Context(name, 1, 0, prompt), SamplingParams(), until, lockstep=lockstep)
        sessions, sources = self._verifier.sessions, self._sources.begun()
        job = DecodeJob(
            sessions, opening, request.proposals, sources, lambda: self._events.now,
            price=lambda: self._verifier.price,
        )  # fmt: skip
        if lockstep:
            self._to_drafter.send(partial(self._open, request, prompt))
        self._verifier.start(name, job.run())

    def _open(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Start a drafting job whose proposals continue `tokens`."""
        policy, drafter = self._policy, self._drafter
        opening = Drafting(Context(request.name, 1, 0, tokens), SamplingParams(), policy.shape)
        cost = 0.0 if policy.fixed else draft_cost(shared=self._world.contention > 0)
        worth = Worth(self._conditions, drafter.costs, self._history, cost)
        job = draft_job(
            drafter, opening, request.commits, None if policy.lockstep else worth, request.text,
            lambda: self._events.now,
        )  # fmt: skip
        request.drafting = drafter.start(request.name, job)

    def _send_commits(self) -> None:
        """Send the verifier's commits to the drafter. Each commit carries the price of a row in a
        verifier step and the verifier's seconds per token.
        """
        while self._commits:
            number, commit = self._commits.popleft()
            request = self._requests[number]
            request.tokens += commit.tokens
            self.accepted[number] += commit.accepted
            self._tokens += len(commit.tokens) * (self._events.now > self._world.start)
            ended = len(request.tokens) >= request.until
            sent: Commit | None = commit
            if not (ended or self._policy.fixed):
                sent = request.backoff.stepped(commit, self._events.now, self._delay)
            if sent and self._policy.shape.nodes:
                known = self._verifier.price, self._verifier.costs.averages.token
                self._to_drafter.send(partial(self._receive, request, sent, known))
            if ended:
                del self._requests[number], self._texts[request.name]
                self._events.after(0.0, self._ask)

    def _receive(self, request: Request, commit: Commit, known: tuple[float, float]) -> None:
        """Handle a commit that arrives at the drafter."""
        self._conditions.price, self._conditions.token_seconds = known
        self._conditions.delay = self._delay
        if request.drafting is None:
            self._open(request, request.tokens[: commit.start + len(commit.tokens)])
        else:
            request.commits.inbox.append((commit.start, commit.tokens))
        if commit.start + len(commit.tokens) >= request.until and request.drafting:
            self._drafter.end(request.drafting)
        self._drafter.wake()

    def _send_proposals(self) -> None:
        """Send the drafter's proposals to the verifier."""
        while self._proposals:
            number, proposal = self._proposals.popleft()
            if request := self._requests.get(number):
                self._to_verifier.send(partial(self._hear, request, proposal))

    def _hear(self, request: Request, proposal: Proposal) -> None:
        """Handle a proposal that arrives at the verifier."""
        request.proposals.inbox.append(replace(proposal, arrived=self._events.now))
        self._verifier.wake()
        request.backoff.arrived = True

    def _verify_seconds(self, load: StepLoad) -> float:
        """Return the duration of a verifier step in seconds, including the processor time that the
        drafter took from the verifier.
        """
        seconds = TARGETS[self._world.target].seconds(load) * noise(self._target_noise)
        debt, self._debt = self._debt, 0.0
        return seconds + debt

    def _draft_seconds(self, load: StepLoad) -> float:
        """Return the duration of a drafter step in seconds. While the drafter hangs, return the
        seconds until it recovers.
        """
        now, slower = self._share, at(self._world.slowness, self._share)
        if math.isinf(slower):
            ends = (share for share, _ in self._world.slowness if share > now)
            return (next(ends, math.inf) - now) * self._world.seconds
        curve = DRAFTS[self._world.draft or self._world.target]
        seconds = curve.seconds(load) * noise(self._draft_noise)
        self._debt += self._world.contention * seconds
        self._drafted += seconds
        # the drafter is assumed to wait for cores as long as the verifier does
        waited = self._world.contention * self._drafted
        self._drafter.costs.core_waits.observe(self._drafted, waited)
        return seconds + slower


def noise(rng: random.Random) -> float:
    """Return the random factor by which the duration of a step differs from its usual duration."""
    hiccup = HICCUP if rng.random() < HICCUPS else 1.0
    return hiccup * math.exp(rng.gauss(0.0, NOISE))
