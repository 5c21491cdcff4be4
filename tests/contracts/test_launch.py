"""Children of `tandem up`, played by one-line programs: refused, restarted, given up."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tandem.orchestrator.cli import launch
from tandem.orchestrator.cli.launch import Service
from tandem.orchestrator.cli.plan import Plan
from tandem.protos.errors import Unusable

SERVES = 'print(\'{"event": "serving", "address": "here"}\', flush=True)'
REFUSES = 'print(\'{"event": "failed", "problem": "no room"}\'); raise SystemExit(1)'
WAITS = "import time; time.sleep(60)"


def child(program: str, role: str = "verifier") -> Service:
    return Service(role, [sys.executable, "-c", program])


def once(marker: Path, first: str, then: str) -> str:
    """A program that does one thing at its first start and another later."""
    return (
        f"import os\nif os.path.exists({str(marker)!r}):\n  {then}\n"
        f"else:\n  open({str(marker)!r}, 'w').close()\n  {first}\n"
    )


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PAUSE_SECONDS", 0.001)


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


async def test_a_child_that_cannot_start_any_more_is_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    program = once(tmp_path / "marker", SERVES, REFUSES)
    with pytest.raises(Unusable, match="the verifier did not start again, 6 times: no room"):
        await child(program).live(lambda event, fact: said.append(event))
    assert said == ["serving", *["restarting"] * launch.MOST_STARTS]


async def test_pauses_between_restarts_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(launch.asyncio, "sleep", sleep)
    with pytest.raises(Unusable):
        await child(once(tmp_path / "marker", SERVES, REFUSES)).live(lambda event, fact: None)
    assert pauses == [launch.PAUSE_SECONDS * 2**failed for failed in range(launch.MOST_STARTS)]


async def test_a_service_that_cannot_be_kept_alive_ends_up_and_no_child_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no task is lost: whatever ends one of them ends the whole, with its reason."""
    monkeypatch.setattr(launch, "Service", lambda role, command, more: services[role])
    services = {
        "verifier": child(once(tmp_path / "marker", SERVES, REFUSES)),
        "drafter": child(f"{SERVES}; {WAITS}", "drafter"),
        "orchestrator": child(f"{SERVES}; {WAITS}", "orchestrator"),
    }
    async with asyncio.timeout(30):
        with pytest.raises(Unusable, match="no room"):
            await launch.run(Plan(port=0), lambda event, fact: None, lambda address: None)
    for service in services.values():
        assert service.process is not None and service.process.returncode is not None


async def test_a_refused_start_does_not_wait_for_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "Service", lambda role, command, more: services[role])
    services = {
        "verifier": child(WAITS),
        "drafter": child(REFUSES),
        "orchestrator": child(WAITS),
    }
    async with asyncio.timeout(30):
        with pytest.raises(Unusable, match=r"^no room$"):
            async with launch.up(Plan(port=0)):
                raise AssertionError("it is up")
    assert capfd.readouterr() == ("", "")


async def test_what_does_not_serve_yet_is_reported_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "Service", lambda role, command, more: services[role])
    monkeypatch.setattr(launch, "REMIND_SECONDS", 0.5)
    loads = """print('{"event": "loading"}', flush=True)"""
    services = {
        "verifier": child(f"{loads}; {WAITS}"),
        "drafter": child(f"{SERVES}; {WAITS}", "drafter"),
        "orchestrator": child(WAITS, "orchestrator"),
    }
    reported: asyncio.Queue[tuple[str, dict[str, str]]] = asyncio.Queue()

    async def serve() -> None:
        async with launch.up(Plan(port=0), lambda *each: reported.put_nowait(each)):
            raise AssertionError("it is up")

    async with asyncio.timeout(60):
        serving, stages = asyncio.create_task(serve()), []
        while ("verifier", "loading") not in stages or len(stages) < 4:
            event, fact = await reported.get()
            stages += [(fact["role"], event)] if "seconds" in fact else []
        serving.cancel()
        await asyncio.wait((serving,))
    assert ("orchestrator", "starting") in stages
    assert stages[-1][0] != "drafter", "it serves"


async def test_children_know_the_settings_file_of_up(tmp_path: Path) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text("drafter: {prot: 3}\n")
    async with asyncio.timeout(60):
        with pytest.raises(Unusable, match=r"drafter\.prot: no such setting; did you mean"):
            async with launch.up(Plan(port=0, ray=False, config=file)):
                raise AssertionError("it is up")
    assert "TANDEM_CONFIG" not in os.environ
