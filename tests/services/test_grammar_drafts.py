"""A drafter whose proposals keep to the grammar of its opening."""

from __future__ import annotations

import json
from dataclasses import replace

from tandem import models
from tandem.protos.grammar import Grammar, GrammarKind
from tandem.protos.tokenizer import tokenizer_of
from tandem.protos.types import DraftShape, SamplingParams
from tests.served import Services
from tests.services.caller import calling, drafting

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Lily", "Tom"]}, "pet": {"enum": ["a cat", "a dog"]}},
    "required": ["name", "pet"],
    "additionalProperties": False,
}
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


async def test_proposals_keep_to_the_grammar_once_it_is_compiled(services: Services) -> None:
    """The text comes token by token, so the drafter proposes anew after each token. At the latest
    after some of them the grammar is compiled, and the drafter proposes the whole rest as far as
    the grammar forces it.
    """
    tokenizer = tokenizer_of(models.TARGET)
    prompt = tuple(tokenizer.encode("Once upon a time").ids)
    text = tokenizer.encode('{"name": "Tom", "pet": "a', add_special_tokens=False).ids
    sampling = SamplingParams(prompt_length=len(prompt), grammar=GRAMMAR)
    opening = drafting(prompt, sampling=sampling, shape=DraftShape(8, 1, 8), lockstep=True)
    async with calling(services.drafter, drafter=True) as caller:
        stream = await caller.open(opening)
        proposal = await stream.take()
        while not (tokenizer.decode(proposal.tokens).startswith('{"name": "')):
            opening = replace(
                opening, context=replace(opening.context, turn=opening.context.turn + 1)
            )
            stream = await caller.open(opening)
            proposal = await stream.take()
        for place, token in enumerate(text):
            await stream.tell(len(prompt) + place, [token])
            proposal = await stream.take()
            rest = tokenizer.decode([*text[: place + 1], *proposal.tokens])
            assert '{"name": "' in rest or '{"name": "'.startswith(rest)
        assert rest.startswith('{"name": "Tom", "pet": "a ') and ("cat" in rest or "dog" in rest)
