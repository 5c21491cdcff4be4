"""A simulated drafter that keeps the session rule, at the other end of a relay."""

from __future__ import annotations

from tandem.protos.errors import InvalidRequest
from tandem.protos.streams import Commit, EncodedProposal, Proposal
from tests.laws.peers import VOCABULARY, Job, Service, follows
from tests.laws.wires import OnStream


class Drafter(Service):
    """A simulated drafter whose proposals are right, wrong or nonsense."""

    def begin(self, job: Job) -> None:
        if self.rng.random() < self.evil / 10:
            job.live = False
            self.fail(job.call, job.stream, InvalidRequest.of("shape", "is not for me"))
        else:
            self._proposal(job)

    def take(self, job: Job, item: Commit) -> None:
        held = self.held[job.opening.context.session_id]
        held.tokens[item.start :] = item.tokens
        self._proposal(job)

    def _proposal(self, job: Job) -> None:
        """Return a trunk with a sibling at every node, in one message or with its second half in
        another.
        """
        text, rng = self.held[job.opening.context.session_id].tokens, self.rng
        path, first, behind = list(text), job.drafted + 1, len(text)
        tokens: list[int] = []
        for _ in range(rng.randrange(1, 6)):
            path.append(follows(path) if rng.random() < 0.8 else rng.randrange(VOCABULARY))
            tokens += [path[-1], rng.randrange(VOCABULARY)]
        parents = [0, 0, *[2, 3] * (len(tokens) // 2 - 1)]
        job.drafted += len(tokens)
        whole = job.opening.lockstep
        if not whole and rng.random() < self.evil:
            behind = rng.randrange(behind + 9)  # sometimes false or nonsense
        cut = len(tokens) if whole else rng.randrange(1, len(tokens) + 1)
        for half in (slice(0, cut), slice(cut, None)):
            start = first + (half.start or 0)
            places = enumerate(parents[half], start)
            hung = tuple(number - back if back else 0 for number, back in places)
            turn = job.opening.context.turn
            proposal = Proposal(behind, tuple(tokens[half]), hung, first=start, source=turn)
            # the message may be lost or repeated
            for _ in range(1 if whole else rng.choice((0, 1, 1, 1, 2))):
                if proposal.tokens:
                    job.call.answer(OnStream(job.stream, EncodedProposal(behind, 99, proposal)))
