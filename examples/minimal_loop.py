"""A minimal speculative loop on Tandem: it drafts k tokens greedily and accepts them as long as
each is the target's top-1. At the first token that is not the target's top-1, the target samples a
token instead.

`speculative_generate_minimal` is the loop, with one call to the drafter and one to the verifier per
cycle. The loop is taken from a notebook that uses only transformers. The notebook's code is in
`tests/notebooks.py`. This program prints the same output as the notebook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from examples.talk import (
    GREEDY,
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
from tandem.protos.types import MAX_LEVELS, Draft, DraftShape, Rule, SamplingParams


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle: the k proposed tokens, how many of them were accepted, and all appended tokens."""

    proposed: list[int]
    accepted: int
    appended: list[int]


async def draft_propose_k(talk: Talk, k: int) -> Draft:
    """Return the draft model's k greedy tokens."""
    return await talk.propose(DraftShape.chain(k))


async def verify_one_cycle(talk: Talk, draft: Draft, sampling: SamplingParams) -> int:
    """Append the draft tokens that the target accepts. If the target rejects a draft token, append
    a token sampled from the target instead. Returns how many tokens were accepted.

    One call with the rule TOP1 verifies the whole draft. If the whole draft was accepted, the
    verdict's next token is a bonus token, which this loop ignores.
    """
    verdict = await talk.verify(draft, sampling)
    accepted = [draft.tokens[node] for node in verdict.accepted]
    talk.tokens += accepted
    if len(accepted) < len(draft):
        talk.tokens.append(verdict.next_token)
    return len(accepted)


async def speculative_generate_minimal(
    talk: Talk, max_new_tokens: int, k: int, target_temp: float, seed: int
) -> list[Cycle]:
    """Run cycles until there are at least `max_new_tokens` tokens after the prompt. All tokens of
    the last cycle are kept, even if there are then more than `max_new_tokens`. Raises a TandemError
    if a call to a service fails.
    """
    sampling = SamplingParams(temperature=target_temp, seed=seed, rule=Rule.TOP1)
    base_len, cycles = len(talk.tokens), list[Cycle]()
    while len(talk.tokens) - base_len < max_new_tokens:
        before = len(talk.tokens)
        draft = await draft_propose_k(talk, k)
        accepted = await verify_one_cycle(talk, draft, sampling)
        if accepted == 0 and len(talk.tokens) - base_len < max_new_tokens:
            top1 = await talk.verify(sampling=GREEDY)  # no draft: get only the next token
            talk.tokens.append(top1.next_token)
        cycles.append(Cycle(list(draft.tokens), accepted, talk.tokens[before:]))
    return cycles


def main(
    prompt: Annotated[str, typer.Argument()] = "In a quiet village by the sea,",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 60,
    k: Annotated[int, typer.Option(help="tokens proposed per cycle", min=1, max=MAX_LEVELS)] = 3,
    target_temp: Annotated[float, typer.Option(help="temperature of target samples", min=0)] = 0.7,
    seed: Annotated[int, typer.Option(help="seed of the samples", min=0)] = 42,
    drafter: DrafterOption = "",
    verifier: VerifierOption = "",
    tokenizer: TokenizerOption = models.TARGET,
) -> None:
    """Draft k tokens, verify them in order, and repeat until enough tokens are generated."""
    tok = load_tokenizer(tokenizer)

    async def script() -> None:
        async with (
            running(drafter, verifier) as addresses,
            connected(addresses) as clients,
            talking(*clients, tok.encode(prompt).ids) as talk,
        ):
            cycles = await speculative_generate_minimal(talk, max_new_tokens, k, target_temp, seed)
            print("📝 Prompt:", prompt)
            for cycle in cycles:
                pieces = [tok.decode([token]) for token in cycle.proposed]
                print("proposed:", pieces, "accepted:", cycle.accepted)
            print("✅ Accepted tokens (by target):", sum(cycle.accepted for cycle in cycles))
            print("\n=== Output ===\n", tok.decode(talk.tokens))

    run(script())


if __name__ == "__main__":
    typer.run(main)
