"""A loop with Medusa-lite drafts on Tandem: each step drafts K branches. A branch begins with a
sampled token and continues greedily. The verifier accepts a prefix of each branch, and the branch
with the highest score is kept.

`medusa_generate` is the loop, with one call to the drafter and one to the verifier per step. The
loop is taken from a notebook that uses only transformers. The notebook's code is in
`tests/notebooks.py`. This program prints the same output as the notebook.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from tokenizers import Tokenizer

from examples.talk import (
    DrafterOption,
    Talk,
    TokenizerOption,
    VerifierOption,
    connected,
    run,
    running,
    talking,
)
from tandem import models
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos import tree
from tandem.protos.errors import InvalidRequest
from tandem.protos.types import (
    MAX_LEVELS,
    MAX_NODES,
    Draft,
    DraftShape,
    Method,
    SamplingParams,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Branch:
    """A drafted branch, its accepted prefix and, if a token of it was rejected, the verifier's
    token at that position.
    """

    tokens: list[int]
    accepted: list[int]
    correction: int | None

    @property
    def mismatched(self) -> bool:
        """Whether the verifier rejected a token of the branch."""
        return self.correction is not None

    @property
    def score(self) -> int:
        """The number of accepted tokens, minus one if the verifier rejected a token."""
        return len(self.accepted) - (1 if self.mismatched else 0)

    @property
    def commits(self) -> list[int]:
        """The tokens that are appended to the sequence if this branch is kept."""
        return self.accepted + ([] if self.correction is None else [self.correction])


@dataclass(frozen=True, slots=True)
class Step:
    """All branches of one step, in the order in which they were drawn, and the index of the branch
    that is kept.
    """

    branches: list[Branch]
    best: int


def branches_of(draft: Draft) -> list[list[int]]:
    """Return the branches of a draft: for each leaf, the tokens from the root to this leaf."""
    children = tree.children(draft.parents)
    leaves = [node for node in range(len(draft)) if not children[node + 1]]
    return [[draft.tokens[n] for n in tree.path(draft.parents, leaf)] for leaf in leaves]


def evaluate_branch(branch: Sequence[int], predictions: Sequence[int]) -> Branch:
    """Compare a branch with the verifier's predictions, and return the branch with its accepted
    prefix.

    One verdict on the whole tree is enough to judge every branch, because the target is greedy and
    no two branches begin with the same token. The predictions are the tokens of the accepted path
    and the token after it. A branch is accepted up to its first token that differs from the
    prediction at the same position. A branch that is longer than the predictions cannot match
    them all, because the verifier would then have accepted more of it.
    """
    pairs = enumerate(zip(branch, predictions, strict=False))
    for place, (token, prediction) in pairs:
        if token != prediction:
            return Branch(list(branch), list(branch[:place]), prediction)
    return Branch(list(branch), list(branch), None)


def predictions_of(draft: Draft, verdict: Verdict) -> list[int]:
    """Return the target's greedy tokens in a verdict: the accepted path and the next token."""
    return [*(draft.tokens[node] for node in verdict.accepted), verdict.next_token]


async def medusa_step(talk: Talk, shape: DraftShape, sampling: SamplingParams) -> Step:
    """Draft branches, verify them, and append the tokens that the best branch commits. If several
    branches have the best score, the first of them is kept.

    The drafter is called with a temperature, because it samples the first token of each branch. The
    verifier is called without one, because the target is greedy. If a whole branch was accepted,
    the verdict also has a bonus token, which this loop ignores.
    """
    draft = await talk.propose(shape, sampling)
    if not draft.tokens:
        raise InvalidRequest.of("context.tokens", "leave the draft model no room for a branch")
    verdict = await talk.verify(draft)
    predictions = predictions_of(draft, verdict)
    branches = [evaluate_branch(branch, predictions) for branch in branches_of(draft)]
    best = max(range(len(branches)), key=lambda place: branches[place].score)
    talk.tokens += branches[best].commits
    return Step(branches, best)


async def medusa_generate(
    talk: Talk, max_new_tokens: int, k_branches: int, span: int, temperature: float, seed: int
) -> list[Step]:
    """Run steps until at least `max_new_tokens` tokens are generated. The number of steps is at
    most `max_new_tokens` divided by the branch length `span`, rounded up. Raises a TandemError if a
    call to a service fails, or if the context has no room for a branch.
    """
    nodes = k_branches * span
    shape = DraftShape(levels=span, branches=k_branches, nodes=nodes, method=Method.MEDUSA_LITE)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    start_len, steps = len(talk.tokens), list[Step]()
    for _ in range(math.ceil(max_new_tokens / span)):
        steps.append(await medusa_step(talk, shape, sampling))
        if len(talk.tokens) - start_len >= max_new_tokens:
            break
    return steps


def normalize_text(text: str) -> str:
    """Replace each run of white space, including non-breaking spaces, by one space, and remove
    white space at both ends.
    """
    return " ".join(text.replace("\u00a0", " ").split())


def show(step: Step, tok: Tokenizer) -> None:
    """Print the branches of one step, and mark the branch that is kept."""
    for place, branch in enumerate(step.branches):
        print(
            "*" if place == step.best else " ",
            f"branch {branch.tokens} {tok.decode(branch.tokens)!r}",
            f"accepted {branch.accepted} | mismatched? {branch.mismatched}",
            f"| score: {branch.score}",
        )


def main(
    prompt: Annotated[str, typer.Argument()] = "In a distant future, ",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 40,
    k_branches: Annotated[int, typer.Option(help="branches per step", min=1)] = 3,
    span: Annotated[int, typer.Option(help="tokens per branch", min=1, max=MAX_LEVELS)] = 3,
    temperature: Annotated[
        float, typer.Option(help="temperature of the first tokens", min=0.01)
    ] = 0.8,
    seed: Annotated[int, typer.Option(help="seed of the first tokens", min=0)] = 0,
    drafter: DrafterOption = "",
    verifier: VerifierOption = "",
    tokenizer: TokenizerOption = models.TARGET,
) -> None:
    """Draft K branches, keep the branch with the highest score, and repeat."""
    if k_branches * span > MAX_NODES:
        raise SystemExit(f"error: {k_branches} x {span} tokens: a draft has at most {MAX_NODES}")
    tok = load_tokenizer(tokenizer)

    async def script() -> None:
        async with (
            running(drafter, verifier) as addresses,
            connected(addresses) as clients,
            talking(*clients, tok.encode(prompt).ids) as talk,
        ):
            print("=== Medusa-lite ===")
            steps = await medusa_generate(talk, max_new_tokens, k_branches, span, temperature, seed)
            for number, step in enumerate(steps):
                print(f"step {number}, K={len(step.branches)} branches")
                show(step, tok)
            print(normalize_text(tok.decode(talk.tokens)))

    run(script())


if __name__ == "__main__":
    typer.run(main)
