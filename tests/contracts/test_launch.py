"""One-line programs in place of the services of `tandem up`: some are refused, some restarted, some
given up.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tandem.orchestrator.cli import launch
from tandem.orchestrator.cli.launch import Service
from tandem.orchestrator.cli.plan import Plan
from tandem.protos.errors import Unusable

SERVES = 'print(\'{"event": "serving", "address": "here"}\', flush=True)'
REFUSES = 'print(\'{"event": "failed", "problem": "no room"}\'); raise SystemExit(1)'
WAITS = "import sys; sys.stdin.read()"  # `tandem up` keeps the standard input open


def child(program: str, role: str = "verifier") -> Service:
    return Service(role, [sys.executable, "-c", program])


def once(marker: Path, first: str, then: str) -> str:
    """Return a program that does one thing at its first start and another later."""
    return (
        f"import os\nif os.path.exists({str(marker)!r}):\n  {then}\n"
        f"else:\n  open({str(marker)!r}, 'w').close()\n  {first}\n"
    )


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(launch, "MAX_FAILED_STARTS", 3)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Service]]:
    """Have one-line programs take the place of the services of `tandem up`, by their roles."""

    def play(**programs: str) -> dict[str, Service]:
        services = {role: child(program, role) for role, program in programs.items()}
        monkeypatch.setattr(launch, "Service", lambda role, command, more: services[role])
        return services

    return play


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (REFUSES, "no room"),
        ("raise SystemExit(3)", "the verifier ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "the verifier ended by SIGKILL"),
    ],
)
async def test_a_child_that_never_serves_ends_all_with_its_own_reason(
    program: str, problem: str
) -> None:
    with pytest.raises(Unusable, match=problem):
        await child(program).live(lambda event, fact: None)


async def test_a_child_that_cannot_start_any_more_is_given_up_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    # replaces the sleep of this module alone: processes of other tests go on sleeping
    monkeypatch.setattr(launch, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    program = once(tmp_path / "marker", SERVES, REFUSES)
    with pytest.raises(Unusable, match="the verifier did not restart in 3 attempts: no room"):
        await child(program).live(lambda event, fact: events.append(event))
    assert events == ["serving", *["restarting"] * 3]
    assert pauses == [0.001, 0.002, 0.004]


async def test_a_service_that_cannot_be_kept_alive_ends_up_and_no_child_is_left(
    tmp_path: Path, played: Callable[..., dict[str, Service]]
) -> None:
    """In addition no task is lost: whatever ends one of them ends the whole, with its reason."""
    services = played(
        verifier=once(tmp_path / "marker", SERVES, REFUSES),
        drafter=f"{SERVES}; {WAITS}",
        orchestrator=f"{SERVES}; {WAITS}",
    )
    with pytest.raises(Unusable, match="no room"):
        await launch.run(Plan(port=0), lambda event, fact: None, lambda address: None)
    for service in services.values():
        assert service.process is not None and service.process.returncode is not None


async def test_a_refused_start_does_not_wait_for_the_others(
    played: Callable[..., dict[str, Service]], capfd: pytest.CaptureFixture[str]
) -> None:
    played(verifier=WAITS, drafter=REFUSES, orchestrator=WAITS)
    with pytest.raises(Unusable, match=r"^no room$"):
        async with launch.up(Plan(port=0)):
            raise AssertionError("it is up")
    assert capfd.readouterr() == ("", "")


async def test_what_does_not_serve_yet_is_reported_again_and_again(
    monkeypatch: pytest.MonkeyPatch, played: Callable[..., dict[str, Service]]
) -> None:
    monkeypatch.setattr(launch, "REMIND_SECONDS", 0.1)
    loads = """print('{"event": "loading"}', flush=True)"""
    played(verifier=f"{loads}; {WAITS}", drafter=f"{SERVES}; {WAITS}", orchestrator=WAITS)
    reported: asyncio.Queue[tuple[str, dict[str, str]]] = asyncio.Queue()

    async def serve() -> None:
        async with launch.up(Plan(port=0), lambda *each: reported.put_nowait(each)):
            raise AssertionError("it is up")

    serving, stages = asyncio.create_task(serve()), []
    while await reported.get() != ("serving", {"role": "drafter", "address": "here"}):
        pass
    while stages.count(("verifier", "loading")) < 2 or len(stages) < 4:
        event, fact = await reported.get()
        stages += [(fact["role"], event)] if "seconds" in fact else []
    serving.cancel()
    await asyncio.wait((serving,))
    assert set(stages) <= {
        ("verifier", "starting"),
        ("verifier", "loading"),
        ("orchestrator", "starting"),
    }
    assert ("orchestrator", "starting") in stages


async def test_children_know_the_settings_file_of_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text("drafter: {port: 3}\n")
    failure = '{"event": "failed", "problem": os.environ["TANDEM_CONFIG"]}'
    words = [sys.executable, "-c", f"import json, os; print(json.dumps({failure}))"]
    monkeypatch.setattr(launch, "Service", lambda role, command, more: Service(role, words, more))
    with pytest.raises(Unusable, match=re.escape(str(file))):
        async with launch.up(Plan(port=0, ray=False, config=file)):
            raise AssertionError("it is up")
    assert "TANDEM_CONFIG" not in os.environ
