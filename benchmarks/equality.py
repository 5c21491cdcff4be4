"""Check that the running system emits the same text as `generate()`, on many prompts.

`generate()` runs the target with the engine's layers and attention, but with a cache of its own and
one prompt at a time. The system and `generate()` round in the same way, so all tokens must be
equal. The benchmark also counts near-ties: tokens that a different rounding could change. With
`--chats`, the prompts are turns of conversations, and `generate()` runs only code of transformers.
The code of transformers rounds differently from the engine, but it may choose a different token
only at a near-tie.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from rich.table import Table
from transformers import AutoTokenizer
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers import reference, systems
from tandem.benchmarks.peers.prompts import story_count, tokenised
from tandem.benchmarks.peers.systems import ALWAYS, Prompt, Tandem, tandem_up
from tandem.engine.model.load import load
from tandem.protos.errors import TandemError

NEAR_TIE = 1e-3  # near-tie: the two largest logits differ by less than this


@dataclass(frozen=True, slots=True)
class Alone:
    """A completion by `generate()`, and the margin between the two largest logits of each token."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


def variations(prompts: Sequence[Prompt], count: int, vocabulary: int) -> list[Prompt]:
    """Make distinct prompts: beginnings of stories with random lengths, some of them followed by
    random tokens.
    """
    rng = random.Random(0)
    found: dict[Prompt, None] = {}
    while len(found) < count:
        prompt = rng.choice(prompts)[: rng.randint(1, 40)]
        noise = rng.choice([0, 0, 1, 3])
        found[(*prompt, *(rng.randrange(2, vocabulary) for _ in range(noise)))] = None
    return list(found)


def conversations(file: Path, target: Path, alone: Reference, tokens: int) -> list[Prompt]:
    """Read conversations from a JSON Lines file, and use the model's chat template to make a prompt
    of every turn. Each line has the user's messages in the field `turns`. The answers to earlier
    turns come from `generate()`.
    """
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts: list[Prompt] = []
    for line in track(file.read_text(encoding="utf-8").splitlines(), "conversations"):
        messages: list[dict[str, str]] = []
        for turn in json.loads(line)["turns"]:
            messages.append({"role": "user", "content": turn})
            ids: Any = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False
            )
            prompts.append(tuple(ids))
            answer = list(alone.complete(tuple(ids), tokens).tokens)
            text = str(tokenizer.decode(answer, skip_special_tokens=True))
            messages.append({"role": "assistant", "content": text})
    return prompts


class Reference:
    """Completes prompts with a model's `generate()`. If `alike` is true, `generate()` uses the
    engine's layers, so that it rounds in the same way as the engine.
    """

    def __init__(self, target: Path, alike: bool = True) -> None:
        self.network: Any = load(target).network if alike else systems.load(target)
        if alike:
            reference.adopt(self.network)
        self.complete = cache(self._complete)

    @torch.inference_mode()
    def _complete(self, prompt: Prompt, count: int) -> Alone:
        """Complete a prompt with at most `count` greedily chosen tokens."""
        ids = torch.tensor([prompt])
        output = self.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=self.network.config.pad_token_id or 0,
            do_sample=False,
            max_new_tokens=count,
            return_dict_in_generate=True,
            output_logits=True,
        )
        top = torch.cat(output.logits).float().topk(2).values
        tokens = tuple(output.sequences[0, len(prompt) :].tolist())
        return Alone(tokens, tuple((top[:, 0] - top[:, 1]).tolist()))


async def compare(
    target: Path, draft: Path, count: int, tokens: int, at_once: int, ray: bool, chats: Path | None
) -> list[tuple[Prompt, Alone, tuple[int, ...]]]:
    """Return each prompt with the completion by `generate()` and the tokens of the running system.
    Every prompt comes twice: first all prompts are decoded with drafts, and then all without
    drafts.
    """
    alone = Reference(target, alike=not chats)
    if chats:
        prompts = conversations(chats, target, alone, tokens)
    else:
        stories = tokenised(target, story_count())
        prompts = variations(stories, count, alone.network.config.vocab_size)
    right = asyncio.create_task(
        asyncio.to_thread(lambda: [alone.complete(p, tokens) for p in track(prompts, "generate()")])
    )
    async with tandem_up(target, draft, ray, *ALWAYS) as stub:
        places = asyncio.Semaphore(at_once)

        async def ask(system: Tandem, prompt: Prompt) -> tuple[int, ...]:
            async with places:
                return (await system.complete(prompt, tokens)).tokens

        answers = [
            await asyncio.gather(*(ask(system, prompt) for prompt in prompts))
            for system in (Tandem(stub), Tandem(stub, levels=0))
        ]
    expected = await right
    return [each for said in answers for each in zip(prompts, expected, said, strict=True)]


def difference(one: Alone, other: Sequence[int]) -> int:
    """Return the position of the first token that differs between two completions."""
    pairs = enumerate(zip(one.tokens, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), len(other))


def main(
    target: Annotated[Path, typer.Option(help="model directory")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory")] = models.DRAFT,
    sequences: Annotated[int, typer.Option(help="prompts", min=1)] = 200,
    tokens: Annotated[int, typer.Option(help="maximum new tokens per answer", min=1)] = 48,
    at_once: Annotated[int, typer.Option(help="requests in flight", min=1)] = 16,
    ray: bool = False,
    chats: Annotated[
        Path | None, typer.Option(help="JSON Lines file of conversations with `turns`")
    ] = None,
    figures: report.JsonFile = None,
) -> None:
    """Compare the texts of the running system with `generate()`, token by token."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    try:
        compared = asyncio.run(compare(target, draft, sequences, tokens, at_once, ray, chats))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    differing = [(p, one, other) for p, one, other in compared if one.tokens != other]
    margins = [margin for _, one, _ in compared for margin in one.margins]
    near = [
        {"sequence": number, "token": place, "margin": margin}
        for number, (_, one, _) in enumerate(compared)
        for place, margin in enumerate(one.margins)
        if margin < NEAR_TIE
    ]
    shown = Table(
        "sequences", "tokens", "sequences that differ", f"margins below {NEAR_TIE}", box=None
    )
    shown.add_row(str(len(compared)), str(len(margins)), str(len(differing)), str(len(near)))
    heading = report.title(target, draft, f"{at_once} requests at once against generate()")
    places = [difference(one, other) for _, one, other in differing]
    row = {"sequences": len(compared), "tokens": len(margins), "near": near, "differing": places}
    report.publish(heading, shown, [row], figures)
    for tie in near:
        print("near tie: sequence {sequence}, token {token}, margin {margin:.2g}".format(**tie))
    for place, (prompt, one, _) in zip(places, differing, strict=True):
        print(f"differs at token {place}, margin {one.margins[place]:.2g}: prompt {list(prompt)}")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    typer.run(main)
