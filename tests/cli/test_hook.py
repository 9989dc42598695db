"""``sampleapp hook``: what it prints, and what it does to the callers file and its secrets."""

from __future__ import annotations

import errno
import io
import re
import stat
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from sampleapp.access import load_callers, parse_callers
from sampleapp.access.hook_verification import load_hook_keys
from sampleapp.cli import main
from tests.support.callers import FULL
from tests.support.secrets import record_output, secret

GITHUB = ["github", "--scheme=github", "--topic=t"]
PUBLIC_KEY = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=\n"
SECRET = secret("the-secret-that-a-sender-shows", "the secret of a hook")


def run(*arguments):
    """Run the command in this process; returns the exit code, stdout and stderr."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
        main(["hook", *map(str, arguments)])
    record_output("output of commands", stderr.getvalue())
    return ended.value.code or 0, stdout.getvalue(), stderr.getvalue()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "callers.toml"


def test_without_a_file_it_prints_the_lines_and_what_to_enter():
    code, stdout, stderr = run(
        *GITHUB, "--url=https://hooks.example/", "--idempotency-header=X-GitHub-Delivery"
    )
    assert code == 0
    assert stdout == (
        "GitHub: Settings, Webhooks, Add webhook:\n"
        "  Payload URL: https://hooks.example/hooks/github\n"
        "  Content type: application/json\n"
        "  Secret: the content of github.secret\n"
    )
    (hook,) = parse_callers(stderr.encode(), name="stderr").hooks.values()
    assert (hook.name, hook.topic, hook.secret_files) == ("github", "t", ("github.secret",))
    assert hook.idempotency_header == "X-GitHub-Delivery"
    assert stderr.startswith("# With Kafka, start the service with --idempotent-topic t, since it does not ")


def test_the_address_comes_from_the_variable_of_every_command(monkeypatch):
    monkeypatch.setenv("SAMPLEAPP_URL", "https://gateway.example/")
    assert "URL: https://gateway.example/hooks/github\n" in run(*GITHUB)[1]


def test_a_secret_that_the_sender_makes_is_to_be_copied():
    _, stdout, _ = run("h", "--scheme=slack", "--topic=t")
    assert stdout == (
        "Slack: your app, Event Subscriptions, Enable Events:\n"
        "  Request URL: https://HOST/hooks/h\n"
        "  Signing Secret (Basic Information, App Credentials): copy it into h.secret\n"
    )


def test_a_new_secret_is_made_printed_and_used(file):
    code, stdout, stderr = run(*GITHUB, "--append", file)
    assert (code, stderr) == (0, f"Added to {file}: the hook github.\n")
    (made,) = re.findall("Secret: ([0-9a-f]{64})\n", stdout)
    secret(made, "the secret of a hook")
    hooks = load_callers(file).hooks
    assert load_hook_keys(hooks, directory=file.parent) == {"github": (made.encode(),)}
    assert stat.S_IMODE((file.parent / "github.secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("scheme", ["stripe", "slack", "standard"])
def test_the_secret_of_a_sender_comes_from_standard_input_and_is_not_printed(file, scheme, monkeypatch):
    file.write_text(FULL.rstrip("\n"))
    file.chmod(0o640)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"  {SECRET} \n"))
    code, stdout, _ = run("h", "--scheme", scheme, "--topic=t", "--append", file)
    assert code == 0
    assert "https://HOST/hooks/h\n" in stdout
    assert stdout.endswith(f": stored in {file.parent / 'h.secret'}\n")
    assert SECRET not in stdout
    callers = load_callers(file)
    assert list(callers.by_name) == ["full"]
    assert load_hook_keys(callers.hooks, directory=file.parent) == {"h": (SECRET.encode(),)}
    assert stat.S_IMODE((file.parent / "h.secret").stat().st_mode) == 0o640


def test_a_secret_that_is_there_stays(file):
    kept = file.parent / "mine"
    kept.write_text(SECRET)
    code, stdout, _ = run(*GITHUB, "--secret-file=mine", "--append", file)
    assert (code, kept.read_text()) == (0, SECRET)
    assert f"Secret: the content of {kept}\n" in stdout


def test_a_sender_that_signs_a_time_is_added(file):
    arguments = ["--header=X-Grafana-Alerting-Signature", "--signed={timestamp}:{body}"]
    hook = ["grafana", "--scheme=hmac", "--topic=t", *arguments]
    code, _, stderr = run(*hook, "--append", file)
    assert (code, file.exists()) == (2, False)
    assert "hooks.grafana.signed needs timestamp_header, too: the header with the time, such as" in stderr
    code, stdout, _ = run(*hook, "--timestamp-header=X-Grafana-Time", "--tolerance=60", "--append", file)
    assert code == 0
    secret(re.findall("Secret: ([0-9a-f]{64})\n", stdout)[0], "the secret of a hook")
    (made,) = load_callers(file).hooks.values()
    assert (made.scheme.signed, made.scheme.timestamp_field) == ("{timestamp}:{body}", "x-grafana-time")
    assert made.tolerance_s == 60


def test_a_device_is_added_with_all_members(file):
    arguments = ["--header=X-Sig", "--encoding=base64", "--prefix=v1=", "--key-header=X-Meter"]
    code, stdout, _ = run("meters.a", "--scheme=hmac", "--topic=t", *arguments, "--append", file)
    secret(re.findall("Secret: ([0-9a-f]{64})\n", stdout)[0], "the secret of a hook")
    (hook,) = load_callers(file).hooks.values()
    assert (code, hook.scheme.field, hook.scheme.encoding, hook.scheme.prefix, hook.key_header) == (
        *(0, "x-sig", "base64", b"v1="),
        "X-Meter",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a/b", "--scheme=github", "--topic=t"], 'hooks."a/b" is not a name for a hook'),
        (["..", "--scheme=github", "--topic=t"], 'hooks.".." is not a name for a hook'),
        (["a", "--scheme=gitub", "--topic=t"], "hooks.a.scheme is not known; did you mean github?"),
        (["a", "--scheme=github", "--topic=a b"], "hooks.a.topic must be the name of a topic"),
        (["a", "--scheme=hmac", "--topic=t"], "hooks.a has no header"),
        (["a", "--scheme=slack", "--topic=t", "--tolerance=nan"], "hooks.a.tolerance must be a number"),
    ],
)
def test_what_the_service_would_reject_is_rejected_and_nothing_written(file, arguments, said):
    for more in ([], ["--append", file]):
        code, stdout, stderr = run(*arguments, *more)
        assert (code, stdout) == (2, "")
        assert said in stderr
        assert list(file.parent.iterdir()) == []


def test_a_hook_that_is_there_a_file_with_mistakes_and_no_secret_change_nothing(file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n" + "whsec_!\n" + PUBLIC_KEY + "\udcff\n"))
    for text, arguments, said in [
        ('[hooks.github]\ntopic = "t"\n', GITHUB, "The hook github is already in"),
        ("[callers.x\n", GITHUB, "line 1: is not TOML"),
        ("[callers.x]\nraed = true\n", GITHUB, "the callers file would be invalid"),
        (FULL, ["h", "--scheme=stripe", "--topic=t"], "No secret was given"),
        (FULL, ["h", "--scheme=standard", "--topic=t"], 'begins with "whsec_", and is not base64'),
        (
            FULL,
            ["h", "--scheme=stripe", "--topic=t"],
            "hooks.h.secret_files[1] names a file that has a public key (whpk_), with which only the scheme ",
        ),
        (FULL, ["h", "--scheme=stripe", "--topic=t"], "The secret on standard input is not text in UTF-8."),
    ]:
        file.write_text(text)
        code, stdout, stderr = run(*arguments, "--append", file)
        assert (code, stdout) == (1, "")
        assert said in stderr
        assert [each.name for each in file.parent.iterdir()] == ["callers.toml"]
        assert file.read_text() == text


def test_a_callers_file_that_every_user_may_write_to_stays_as_it_is(file):
    file.write_text(FULL)
    file.chmod(0o602)
    code, stdout, stderr = run(*GITHUB, "--append", file)
    assert (code, stdout, file.read_text()) == (1, "", FULL)
    assert f"{file} cannot be used, since every user of this machine may write to it" in stderr
    assert [each.name for each in file.parent.iterdir()] == ["callers.toml"]


def test_a_directory_that_it_may_not_enter_is_named(file, monkeypatch):
    # root may enter any.
    def stat(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    secret_path = file.parent / "github.secret"
    monkeypatch.setattr(Path, "stat", stat)
    code, stdout, stderr = run(*GITHUB, "--append", file)
    assert (code, stdout, stderr) == (1, "", f"Error: {secret_path} cannot be written: Permission denied.\n")
