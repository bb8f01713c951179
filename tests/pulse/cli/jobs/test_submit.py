"""What a submit refuses before any server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pulse.cli.jobs.submit import submit
from pulse.cli.server import ServerHandle


def test_many_jobs_have_ids_of_their_own() -> None:
    done = CliRunner().invoke(submit, ["resize", "-", "--id", "0190163d-8694-739b-aea5-966c26f8ad90"])
    assert done.exit_code == 2
    assert "--id names one job" in done.output
    done = CliRunner().invoke(submit, ["resize", "-", "--unique", "k"])
    assert (done.exit_code, "--unique is the key of one job" in done.output) == (2, True)


@pytest.mark.parametrize("words", [["--unique-until", "end"], ["--on-conflict", "skip"]], ids=str)
def test_options_of_a_key_need_one(words: list[str]) -> None:
    done = CliRunner().invoke(submit, ["resize", *words])
    assert (done.exit_code, "are allowed with --unique only" in done.output) == (2, True)


@pytest.mark.parametrize(("words", "said"), [
    (["--on-failure", "run"], "--on-failure is allowed with --after only"),
    (["--after", "x"], "Invalid value for '--after'"),
    (["--after", "0190163d-8694-739b-aea5-966c26f8ad90", "--on-failure", "skip"], "'skip' is not one of"),
])  # fmt: skip
def test_what_to_wait_for(words: list[str], said: str) -> None:
    done = CliRunner().invoke(submit, ["merge", *words])
    assert (done.exit_code, said in done.output) == (2, True), done.output


@pytest.mark.parametrize("words", [
    ["--delay", "1", "--at", "2030-01-01T00:00"], ["--expires-in", "1", "--expires-at", "2030-01-01T00:00"],
])  # fmt: skip
def test_a_time_is_given_once(words: list[str]) -> None:
    done = CliRunner().invoke(submit, ["resize", *words])
    assert done.exit_code == 2
    assert f"{words[0]} and {words[2]} cannot be given together" in done.output


def test_where_there_are_queues_a_topic_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, nothing says which queue gets the job."""
    for name in ("PULSE_RUNTIME_DIR", "PULSE_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pulse.toml").write_text("[queues.mail]\nserver = 'mail.sock'\n", "utf-8")
    monkeypatch.setenv("PULSE_CONFIG", str(tmp_path / "pulse.toml"))
    done = CliRunner().invoke(submit, ["resize"], obj=ServerHandle(None, 1.0))
    assert (done.exit_code, "a job goes to the queue of its topic: add --topic" in done.output) == (2, True)
