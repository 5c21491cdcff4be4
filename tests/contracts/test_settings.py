"""Settings: their sources, their precedence, and the message about an unknown name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.errors import Unusable
from tandem.protos.service import cores
from tandem.protos.service.config import configured

MODEL = f"--model={models.DRAFT}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tandem.yaml"
    path.write_text("verifier: {port: 7, threads: 3, dtype: float16}\ndrafter:\n")
    return path


def refusal(*arguments: str, role: str = "verifier") -> str:
    """Return the line that refuses a command line."""
    with pytest.raises(Unusable) as refused:
        configured(ModelServiceConfig, role, [MODEL, *arguments])
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_flags_win_over_the_environment_over_the_file_over_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM__VERIFIER__PORT", "8")
    monkeypatch.setenv("TANDEM__VERIFIER__THREADS", "4")
    arguments = [MODEL, f"--config={file}", "--port", "9"]
    config = configured(ModelServiceConfig, "verifier", arguments)
    said = (config.port, config.threads, config.dtype, config.weights)
    assert said == (9, 4, "float16", "full")


def test_the_environment_may_name_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG", str(file))
    assert configured(ModelServiceConfig, "verifier", [MODEL]).threads == 3
    assert configured(ModelServiceConfig, "drafter", [MODEL]).threads == cores.usable()


def test_values_are_read_as_their_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM__VERIFIER__KV_BYTES", "4GiB")
    monkeypatch.setenv("TANDEM__VERIFIER__DEVICE", "123")
    config = configured(ModelServiceConfig, "verifier", [MODEL, "--no-exact"])
    assert (config.kv_bytes, config.device, config.exact) == (4 << 30, "123", False)
    needed = ["--verifier=[::1]:7001", "--drafter=d:7002", f"--tokenizer={models.TARGET}"]
    front = configured(OrchestratorConfig, "orchestrator", [*needed, "--no-ray"])
    assert (front.verifier, front.ray, front.port) == ("[::1]:7001", False, 50051)


def test_settings_made_in_code_do_not_depend_on_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PORT", "80")
    monkeypatch.setenv("TANDEM__VERIFIER__PORT", "81")
    assert ModelServiceConfig(model=models.DRAFT).port == 0


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        (
            "TANDEM__VERIFIER__DTPYE",
            "TANDEM__VERIFIER__DTPYE: no such setting; did you mean TANDEM__VERIFIER__DTYPE?",
        ),
        (
            "TANDEM__VERIFIER__DRAFT__COST",
            "TANDEM__VERIFIER__DRAFT__COST: no such setting; did you mean"
            " TANDEM__VERIFIER__DRAFT_COST?",
        ),
        ("TANDEM__VERIFIER__CONFIG", "TANDEM__VERIFIER__CONFIG: no such setting"),
        ("TANDEM__QQQ", "TANDEM__QQQ: no such setting"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    variable: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert refusal().startswith(line)


def test_other_roles_names_are_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM__ORCHESTRATOR__MAX_RUNNING", "3")
    assert configured(ModelServiceConfig, "verifier", [MODEL]).port == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("verifier: {dtpye: a}", ": verifier.dtpye: no such setting; did you mean verifier.dtype?"),
        ("verfier: {dtype: a}", ": verfier: no such setting; did you mean verifier?"),
        ("verifier: [a]", ": verifier: Input should be a valid dictionary"),
        ("verifier: [", ": while parsing"),
        ("- verifier", ": "),
    ],
)
def test_an_unusable_file_is_refused_by_its_name(text: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert refusal(f"--config={file}").startswith(f"{file}{line}")
    assert "nowhere.yaml is not a file" in refusal("--config=nowhere.yaml")


def test_an_unknown_flag_is_refused_with_the_nearest_name() -> None:
    assert refusal("--dtpye=float32").endswith("--dtpye=float32; did you mean --dtype?")
    assert refusal("--port").endswith("expected one argument")


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--port=65536", "port: Input should be less than or equal to 65535, got '65536'"),
        ("--drain-seconds=soon", "unable to parse string as a number, got 'soon'"),
        ("--log-level=loud", "'info', 'warning' or 'error', got 'loud'"),
        ("--kv-bytes=much", "could not parse value and unit from byte string, got 'much'"),
        ("--register-name=a b", "got 'a b'"),
        ("--self-test=maybe", "self_test: Input should be 'refuse' or 'warn', got 'maybe'"),
    ],
)
def test_a_refusal_has_the_field_the_limit_and_the_value(flag: str, line: str) -> None:
    assert line in refusal(flag) and "; " not in refusal(flag), "no other field"


def test_a_refusal_has_no_token(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    # YAML reads the text as a number
    file.write_text(f"orchestrator: {{registration_token: {'4711' * 4}}}")
    with pytest.raises(Unusable, match="registration_token: Input should be") as refused:
        configured(OrchestratorConfig, "orchestrator", [f"--config={file}"])
    assert "4711" not in str(refused.value)


def test_a_node_is_asked_for_its_own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {None: 3, 0: 3, 1: 2}
    monkeypatch.setattr("tandem.protos.service.cores.usable", lambda numa=None: counts[numa])
    asked = [[], ["--numa=0"], ["--numa=1"], ["--numa=1", "--threads=9"]]
    found = [configured(ModelServiceConfig, "verifier", [MODEL, *words]) for words in asked]
    assert [(each.numa, each.threads) for each in found] == [(None, 3), (0, 3), (1, 2), (1, 9)]
    assert "numa: Input should be greater than or equal to 0, got '-1'" in refusal("--numa=-1")


def test_a_service_binds_itself_to_the_node_that_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound: list[int] = []
    monkeypatch.setattr("tandem.protos.service.cores.bind", bound.append)
    for words in ([], ["--numa=0"], ["--numa=1"]):
        configured(ModelServiceConfig, "verifier", [MODEL, *words]).prepare()
    assert bound == [0, 1]


TOKENIZER = f"--tokenizer={models.TARGET}"


@pytest.mark.parametrize(
    ("verifier", "problem"),
    [
        ("", "at least 1 character"),
        ("a:1,a:1", "empty or listed twice"),
        ("a:1,,b:1", "empty or listed twice"),
        ("host", "'host' is not HOST:PORT"),
        ("host:99999", "'host:99999' is not HOST:PORT"),
        ("dns:///name", "'name' is not HOST:PORT"),
        ("file://relative", "is not HOST:PORT"),
    ],
)
def test_an_address_that_is_none_is_refused(verifier: str, problem: str) -> None:
    with pytest.raises(Unusable) as refused:
        configured(OrchestratorConfig, "orchestrator", [f"--verifier={verifier}", TOKENIZER])
    assert problem in str(refused.value)


def test_replicas_have_addresses_or_sources_and_there_may_be_no_drafter() -> None:
    sources = ("[::1]:1", "dns:///verifiers:2", "file:///etc/verifiers")
    flags = [f"--verifier={','.join(sources)}", TOKENIZER]
    config = configured(OrchestratorConfig, "orchestrator", flags)
    assert (config.verifiers, config.drafters) == (sources, ())
