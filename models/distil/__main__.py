"""Make a draft model for a target.

    tandem distil --target MODEL --out FOLDER

The target answers prompts, and a small network learns the target's token probabilities. The network
is saved as a draft model for `tandem up --target MODEL --draft FOLDER`. Ctrl-C stops the command.
Run the same command again to continue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils import logging

from tandem.client import AsyncClient
from tandem.models.distil import prompts
from tandem.models.distil import student as students
from tandem.models.distil.answers import Answers, PackedAnswers
from tandem.models.distil.course import Course
from tandem.models.distil.prompts import Prompt
from tandem.models.distil.teacher import Question, Teacher
from tandem.models.distil.train import Look, Training
from tandem.orchestrator.cli import launch
from tandem.orchestrator.cli.plan import Plan
from tandem.protos import hub
from tandem.protos.errors import TandemError, Unusable
from tandem.protos.service import cores

MAX_CONCURRENCY = 32  # maximum number of questions that the target answers at once
HELD_OUT = 32  # answers to the first HELD_OUT prompts are used only for measurements
WORK = "training"  # subfolder of the draft model's folder for answers and training state


def read_prompts(file: Path) -> list[Prompt]:
    """Read the prompts of a file. Raises Unusable if the file has HELD_OUT prompts or fewer:
    answers to the first HELD_OUT prompts are only used for measurements, not for training.
    """
    found = prompts.read(file)
    if len(found) <= HELD_OUT:
        raise Unusable(f"{file} has {len(found)} prompts: more than {HELD_OUT} are required")
    return found


def questions(asked: Iterable[Prompt], known: Answers, tokens: int) -> Iterator[Question]:
    """Yield the prompts that have no answer yet, until all answers together have `tokens` tokens.
    The first HELD_OUT prompts are answered greedily, because acceptance is measured on greedy text.
    For all later prompts, greedy and sampled answers alternate.
    """
    for number, prompt in enumerate(asked):
        if number >= HELD_OUT and known.tokens >= tokens:
            return
        if number not in known.found:
            greedy = number < HELD_OUT or number % 2 == 0
            yield Question(number, prompt, 0.0 if greedy else 1.0)


async def collect(
    target: Path,
    asked: Iterable[Prompt],
    answers: Answers,
    tokens: int,
    max_new_tokens: int,
    threads: int,
) -> None:
    """Serve the target, and send it prompts until all answers together have `tokens` tokens. Raises
    TandemError.
    """
    columns = "{task.description}", "{task.completed:,.0f} of {task.total:,.0f} tokens"
    texts = [TextColumn(column) for column in columns]
    plan = Plan(target, port=0, ray=False, threads=threads)
    async with launch.up(plan) as tandem, AsyncClient(tandem.addresses["orchestrator"]) as client:
        teacher = Teacher(client, max_new_tokens, MAX_CONCURRENCY)
        with Progress(texts[0], BarColumn(), texts[1], TimeRemainingColumn()) as progress:
            bar = progress.add_task("answers", total=tokens, completed=answers.tokens)
            try:
                async for number, answer in teacher.answers(questions(asked, answers, tokens)):
                    answers.add(number, answer)
                    progress.update(bar, completed=answers.tokens)
            finally:
                answers.save()


def remember(file: Path, settings: dict[str, Any]) -> None:
    """Save the settings with which a draft model is trained. Raises Unusable if the file already
    contains different settings.
    """
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if before.get(name) != value:
            raise Unusable(
                f"{file.parent.parent} was begun with {name} {before.get(name)}, not {value}: use"
                " the same value, or choose another folder"
            )


def line_of(look: Look) -> str:
    """Format one evaluation of the training as a line of text."""
    course = look.course
    left = "about" if course.falls_from else "at most"
    return (
        f"{course.minutes:6.1f} min  {look.learned / 1e6:6.2f} M tokens  loss {look.loss:.3f} "
        f" {look.tokens_per_step:.2f} tokens per step, {left} {course.minutes_left:.0f} min left"
    )


def parameters_of(text: str) -> int:
    """Parse a number of parameters, such as 8M."""
    unit = {"K": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:].upper(), 1)
    try:
        return int(float(text.rstrip("kKmMbB")) * unit)
    except ValueError:
        raise typer.BadParameter(f"{text} is not a number of parameters, such as 8M") from None


app = typer.Typer(add_completion=False, rich_markup_mode=None)  # rich would truncate option names


def device_of(text: str) -> torch.device:
    """Return the device with this name. Without a name, return the GPU, or the CPU if there is no
    GPU.
    """
    name = text or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    # PyTorch without CUDA raises AssertionError
    except (RuntimeError, AssertionError) as error:
        problem = str(error).splitlines()[0]
        raise typer.BadParameter(f"{name} cannot be used: {problem}") from None


@app.command()
def main(
    target: Annotated[Path, typer.Option(help="directory, GGUF file or name on Hugging Face")],
    out: Annotated[Path, typer.Option(help="folder for the draft model", file_okay=False)],
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="file with one prompt per line, or JSON lines; by default general questions",
        ),
    ] = None,
    parameters: Annotated[
        int,
        typer.Option(help="size of the draft model", parser=parameters_of, metavar="NUMBER"),
    ] = "8M",  # type: ignore[assignment]
    tokens: Annotated[
        int, typer.Option(help="number of tokens of answers to learn from", min=1000)
    ] = 600_000,
    max_new_tokens: Annotated[int, typer.Option(help="maximum tokens per answer", min=8)] = 256,
    minutes: Annotated[float, typer.Option(help="maximum minutes of training", min=0.1)] = 90.0,
    threads: Annotated[int | None, typer.Option(help="CPU threads; by default all", min=1)] = None,
    device: Annotated[
        torch.device,
        typer.Option(help="device for training: cpu or cuda", parser=device_of, metavar="NAME"),
    ] = "",  # type: ignore[assignment]
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Collect a target's answers, train a draft model on them, and print its tokens per step."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    threads = threads or cores.usable()
    torch.set_num_threads(threads)
    console, work = Console(highlight=False, soft_wrap=True), out / WORK
    try:
        asked = read_prompts(prompt_file) if prompt_file else prompts.generated(seed)
        model = hub.served(target)
        shape = students.Shape.fitting(students.vocabulary_of(model), parameters)
        settings = {"target": str(target), "prompts": str(prompt_file), "seed": seed}
        remember(work / "settings.json", settings | {"parameters": shape.parameters})
        console.print(f"{shape.parameters:,} parameters: {shape.layers} layers of {shape.width}")
        answers = Answers.of(work / "answers")
        if answers.tokens < tokens:
            asyncio.run(collect(model, asked, answers, tokens, max_new_tokens, threads))
        course = learn(model, out, shape, answers, minutes, device, seed, console)
    except KeyboardInterrupt:
        console.print("stopped; run the same command again to continue")
        raise typer.Exit(130) from None
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    students.write_card(out, target, shape, answers.tokens, course)
    console.print(f"tandem up --target {target} --draft {out}")


def learn(
    target: Path,
    out: Path,
    shape: students.Shape,
    answers: Answers,
    minutes: float,
    device: torch.device,
    seed: int,
    console: Console,
) -> Course:
    """Train a student until its schedule ends, and return the schedule with the measured tokens per
    step. Raises Unusable if there are too few answers to learn from.
    """
    held = [each for number, each in answers.found.items() if number < HELD_OUT]
    rest = [each for number, each in sorted(answers.found.items()) if number >= HELD_OUT]
    if not rest or not held:
        raise Unusable(f"only {len(answers.found)} answers: more than {HELD_OUT} are required")
    torch.manual_seed(seed)
    student = students.build(shape, target)
    student.to(device)  # type: ignore[arg-type]  # its wrapper has no types
    packed = PackedAnswers.of(rest)
    course = Course(minutes, len(packed.tokens))
    training = Training(student, course, target, out, out / WORK / "state.pt")
    training.run(packed, held, seed, lambda look: console.print(line_of(look)))
    return training.course


if __name__ == "__main__":
    app()
