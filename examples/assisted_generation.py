"""The assisted generation of transformers, step by step, with Tandem's services: the drafter runs
the assistant model, and the verifier runs the target model.

`assisted_decoding` is the loop of transformers, with one call to the drafter and one to the
verifier per round. The loop is taken from a notebook that uses only transformers. The notebook's
code is in `tests/notebooks.py`. This program prints the same output as the notebook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import typer
from grpc import aio

from examples.candidate_generator import (
    CONFIDENCE_THRESHOLD,
    NUM_ASSISTANT_TOKENS,
    TandemCandidateGenerator,
)
from examples.talk import (
    DESCRIBE_SECONDS,
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
from tandem.protos.transport import rpc, status
from tandem.protos.types import MAX_LEVELS, DraftShape, Schedule
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc


@dataclass(frozen=True, slots=True)
class Round:
    """One round of assisted generation. The fields have the names that transformers uses.
    `num_assistant_tokens` is the length of the next draft.
    """

    candidate_input_ids: tuple[int, ...]  # shape of the tensor with this name
    candidate_logits: tuple[int, ...] | None  # shape of the tensor with this name, if it exists
    candidate_length: int
    n_matches: int
    num_assistant_tokens: int


async def assisted_decoding(
    talk: Talk, generator: TandemCandidateGenerator, max_length: int, end: tuple[int, ...]
) -> tuple[torch.Tensor, list[Round]]:
    """Generate until an end token, or until prompt and completion together have `max_length`
    tokens. Returns all tokens, [1, length], and the rounds. Raises a TandemError if a call to a
    service fails.
    """
    input_ids, rounds, done = torch.tensor([talk.tokens]), list[Round](), False
    while not done:
        # 1. Fetch candidate sequences
        candidate_input_ids, candidate_logits = await generator.propose(input_ids)
        candidate_length = candidate_input_ids.shape[1] - input_ids.shape[1]
        # 2. and 3. One call computes the model's logits on all candidates, and accepts some of them
        verdict = await talk.verify(generator.draft, generator.sampling)
        accepted = [generator.draft.tokens[node] for node in verdict.accepted]
        valid = [*accepted, verdict.next_token][: max_length - input_ids.shape[1]]
        stop = next((place for place, token in enumerate(valid) if token in end), None)
        valid = valid if stop is None else valid[: stop + 1]
        n_matches = len(valid) - 1
        # 4. and 5. Commit the accepted tokens, and adapt the length of the next draft
        input_ids = torch.cat([input_ids, torch.tensor([valid])], dim=1)
        generator.adapt(candidate_length, n_matches)
        rounds.append(
            Round(
                tuple(candidate_input_ids.shape),
                None if candidate_logits is None else tuple(candidate_logits.shape),
                candidate_length,
                n_matches,
                generator.num_assistant_tokens,
            )
        )
        done = stop is not None or input_ids.shape[1] >= max_length
    return input_ids, rounds


async def generate(address: str, request: api.GenerateRequest) -> api.GenerateResponse:
    """Send a request to the client API, which runs the whole generation in one call. Raises a
    TandemError if the call fails.
    """
    async with rpc.connect(address) as channel:
        try:
            return await orchestrator_pb2_grpc.OrchestratorServiceStub(channel).Generate(request)
        except aio.AioRpcError as failure:
            raise status.decode(failure) from None


def asking(
    ids: list[int], max_new_tokens: int, schedule: Schedule, num: int, confidence: float
) -> api.GenerateRequest:
    """Return the client API's request that does the same as transformers'
    `model.generate(**inputs, assistant_model=...)`.
    """
    return api.GenerateRequest(
        token_ids=api.TokenIds(ids=ids),
        sampling=api.Sampling(temperature=0),
        stopping=api.Stopping(max_new_tokens=max_new_tokens),
        speculation=api.Speculation(
            num_speculative_tokens=min(num, MAX_LEVELS),
            branches=1,
            schedule=api.DraftSchedule.ValueType(schedule.value),
            confidence_threshold=confidence,
        ),
    )


def show(rounds: list[Round]) -> None:
    """Print a line for every round."""
    for number, each in enumerate(rounds):
        print(
            f"round {number}: candidate_input_ids.shape: {list(each.candidate_input_ids)}",
            f"candidate_logits.shape: {each.candidate_logits and list(each.candidate_logits)}",
            f"candidate_length: {each.candidate_length}",
            f"n_matches: {each.n_matches}",
            f"next num_assistant_tokens: {each.num_assistant_tokens}",
        )


def main(
    prompt: Annotated[str, typer.Argument()] = "Alice and Bob",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 40,
    schedule: Annotated[
        Literal["constant", "heuristic"], typer.Option(help="how the draft length is adapted")
    ] = "constant",
    num_assistant_tokens: Annotated[int, typer.Option(min=1)] = NUM_ASSISTANT_TOKENS,
    assistant_confidence_threshold: Annotated[
        float, typer.Option(help="end a draft after a token less likely than this; 0: off", min=0)
    ] = CONFIDENCE_THRESHOLD,
    drafter: DrafterOption = "",
    verifier: VerifierOption = "",
    orchestrator: Annotated[
        str, typer.Option(help="address of a client API that generates the same text")
    ] = "",
    tokenizer: TokenizerOption = models.TARGET,
) -> None:
    """Generate a text with an assistant model, and print the candidates of every round."""
    tok, kind = load_tokenizer(tokenizer), Schedule[schedule.upper()]
    ids = tok.encode(prompt).ids
    amount = (num_assistant_tokens, assistant_confidence_threshold)

    async def script() -> None:
        async with (
            running(drafter, verifier, orchestrator) as addresses,
            connected(addresses) as clients,
            talking(*clients, ids) as talk,
        ):
            inputs = torch.tensor([ids])
            print("inputs:", inputs.tolist(), "shape:", list(inputs.shape))
            assistant = await talk.drafter.describe(DESCRIBE_SECONDS)
            print("assistant_model:", assistant)
            alone = await talk.propose(DraftShape.chain(5))
            print("assistant_model alone:", [tok.decode([*ids, *alone.tokens])])
            limit = len(ids) + max_new_tokens
            generator = TandemCandidateGenerator(talk, assistant, limit, kind, *amount)
            outputs, rounds = await assisted_decoding(
                talk, generator, limit, assistant.end_token_ids
            )
            show(rounds)
            print("outputs:", [tok.decode(row) for row in outputs.tolist()])
            if addresses.orchestrator:
                request = asking(ids, max_new_tokens, kind, *amount)
                answer = await generate(addresses.orchestrator, request)
                print("generate():", [tok.decode([*ids, *answer.token_ids])])

    run(script())


if __name__ == "__main__":
    typer.run(main)
