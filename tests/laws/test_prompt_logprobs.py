"""The log-probabilities of a prompt are the same however it is read, and each is reported once."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.sampling.likeliest import logprobs, logprobs_of_rows
from tandem.engine.schedule.batch import is_decoding, is_long
from tandem.protos.errors import Internal
from tandem.protos.streams import Commit, Decoding, PromptLogprobs
from tandem.protos.types import Context, SamplingParams, TokenLogprobs
from tandem.verifier_service.prompt_logprobs import CHUNK_ROWS, PromptReading
from tests.laws.replica import tiny_pool
from tests.laws.verifying import Mailbox, decoding

VOCABULARY = 50
TEXT = tuple(7 * place % VOCABULARY for place in range(90))
TABLE = torch.randn(len(TEXT), VOCABULARY, generator=torch.Generator().manual_seed(0))


def opened(
    wanted: PromptLogprobs, text: tuple[int, ...] = TEXT, most: int = 0, turn: int = 1
) -> Decoding:
    """Return an opening that wants the log-probabilities of its text, with the `most` likeliest
    tokens.
    """
    context = Context(b"s", turn, 0, text)
    return Decoding(context, SamplingParams(), len(text) + most, prompt_logprobs=wanted)


def sessions() -> Sessions:
    return Sessions(tiny_pool(12), 256, 2, count(1).__next__, 9.0, lambda: 0.0)


def read(opening: Decoding, pieces: int = CHUNK_ROWS, held: Sessions | None = None) -> list[Commit]:
    """Return what a job reports when its segments are cut into pieces."""
    stream = Mailbox()
    job = decoding(sessions() if held is None else held, opening, stream).run()
    with torch.inference_mode():
        try:
            step_input = next(job)
            while True:
                segment = step_input.ready()
                assert segment is not None
                if segment.divisible and len(segment.tokens) > pieces:
                    segment = segment.first(pieces)
                last = segment.context + len(segment.tokens)
                step_input = job.send(TABLE[last - segment.num_logits : last])
        except StopIteration:
            return stream.said


def told(commits: list[Commit]) -> dict[int, TokenLogprobs]:
    """Return the reports by position, after a check that none is repeated and that the tokens are
    those of the text.
    """
    found: dict[int, TokenLogprobs] = {}
    for commit in commits:
        if commit.start < len(TEXT):
            assert commit.tokens == TEXT[commit.start : commit.start + len(commit.tokens)]
            for place, each in enumerate(commit.logprobs, commit.start):
                assert place not in found
                found[place] = each
    return found


@pytest.mark.parametrize("pieces", [1, 7, 16, CHUNK_ROWS])
@pytest.mark.parametrize("top", [0, 3])
def test_every_token_but_the_first_is_told_once_however_the_prompt_is_cut(
    pieces: int, top: int
) -> None:
    found = told(read(opened(PromptLogprobs(1, len(TEXT), top)), pieces))
    assert list(found) == list(range(1, len(TEXT)))
    for place, each in found.items():
        row = TABLE[place - 1]
        alone = logprobs(row, TEXT[place], top)
        assert (each.logprob, each.top) == (alone.logprob, alone.top)
        assert each.rank == 1 + int((row > row[TEXT[place]]).sum())


def test_rows_together_tell_what_each_tells_alone() -> None:
    rows = torch.randn(33, 4096, generator=torch.Generator().manual_seed(1))
    tokens = list(range(33))
    together = logprobs_of_rows(rows, tokens, 5)
    for row, token, each in zip(rows, tokens, together, strict=True):
        assert logprobs_of_rows(row[None], [token], 5) == [each]


def test_the_text_goes_on_behind_the_prompt_with_the_logits_of_its_last_token() -> None:
    with_prompt = read(opened(PromptLogprobs(1, len(TEXT), 0), most=1))
    plain = read(Decoding(Context(b"s", 1, 0, TEXT), SamplingParams(), len(TEXT) + 1))
    assert with_prompt[-1] == plain[-1] and with_prompt[-1].start == len(TEXT)
    assert len(with_prompt) > 1


def test_a_cached_prompt_is_read_again_as_far_as_it_is_told() -> None:
    held = sessions()
    whole = told(read(opened(PromptLogprobs(1, len(TEXT), 2)), held=held))
    again = told(read(opened(PromptLogprobs(1, len(TEXT), 2), turn=2), held=held))
    assert again == whole
    rest = read(opened(PromptLogprobs(70, len(TEXT), 2), most=1, turn=3), held=held)
    assert told(rest) == {place: whole[place] for place in range(70, len(TEXT))}
    assert 0 < rest[-1].reused < 70


def test_what_is_received_behind_the_prompt_is_not_told() -> None:
    found = told(read(opened(PromptLogprobs(1, 40, 0), most=1)))
    assert list(found) == list(range(1, 40))


def test_nothing_is_fed_while_the_reader_is_behind_and_a_session_that_is_full_ends() -> None:
    held, stream = sessions(), Mailbox()
    reading = next(decoding(held, opened(PromptLogprobs(1, len(TEXT), 0)), stream).run())
    assert isinstance(reading, PromptReading)
    stream.paused = True
    assert reading.ready() is None
    stream.paused = False
    assert reading.ready() is not None and reading.wait_seconds(0.0, 1.0) == 0


def test_logits_that_are_no_numbers_end_the_reading() -> None:
    job = decoding(sessions(), opened(PromptLogprobs(1, len(TEXT), 0))).run()
    segment = next(job).ready()
    assert segment is not None
    with pytest.raises(Internal, match="overflowed"):
        job.send(torch.full((len(segment.tokens), VOCABULARY), torch.nan))


def test_a_piece_is_fed_as_prompts_are_and_never_delays_those_who_decode() -> None:
    job = decoding(sessions(), opened(PromptLogprobs(1, 9, 0)))
    segment = next(job.run()).ready()
    assert isinstance(segment, Segment) and segment.num_logits == 8
    assert is_long(segment) and not is_decoding(segment)
    assert segment.first(3).num_logits == 3 and is_long(segment.first(3))
