"""
What the Containerfile says, done without a container engine.

The file system of this machine stands in for the base image, with the Python of these tests. Each stage is a
layer of its own on top of it (overlayfs). What runs has its own mounts, processes and network (``unshare``).
It takes Linux and root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.support.waiting import wait_until

__all__ = ["Container", "Image", "why_not"]

_TOOLS = ("chroot", "env", "ip", "mount", "nsenter", "unshare")
# Where packages come from is a setting of the machine.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SETTINGS = re.compile(r"PIP_\w+|\w+_PROXY|SSL_CERT_\w+|REQUESTS_CA_BUNDLE", re.IGNORECASE)


def why_not(directory: Path) -> str | None:
    """
    Say what keeps this machine from it.

    :param directory: an empty one, where the layers would be.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "they take Linux and root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"they take {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "bash", "-euc", _Stage(directory).prepare()],
        check=False,
        capture_output=True,
        text=True,
    )
    # A container may not, nor is there a layer on top of one that is a layer itself.
    return None if tried.returncode == 0 else tried.stderr.strip()


class Instruction(NamedTuple):
    """One instruction of a Containerfile."""

    name: str
    arguments: str


def instructions(text: str) -> list[Instruction]:
    """Read a Containerfile."""
    lines = re.sub(r"(?m)^\s*#.*\n", "", text).replace("\\\n", " ").splitlines()
    return [Instruction(*line.split(None, 1)) for line in lines if line.strip()]


@dataclass
class _Stage:
    layer: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    user: str = "0:0"
    directory: str = "/"
    volumes: list[str] = field(default_factory=list)
    entry_point: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)

    def prepare(self) -> str:
        """Return the commands that mount it."""
        layer = shlex.quote(str(self.layer))
        return f"""
            mkdir -p {layer}/upper {layer}/work {layer}/root
            mount -t overlay overlay -o lowerdir=/,upperdir={layer}/upper,workdir={layer}/work {layer}/root
            mount --bind {shlex.quote(sys.base_prefix)} {layer}/root/usr/local
            mount -o remount,bind,ro {layer}/root/usr/local
            mount -t proc proc {layer}/root/proc
            mount --rbind /dev {layer}/root/dev
        """

    def enter(self, command: list[str], *, environment: dict[str, str], user: str) -> str:
        """Return the command that runs another one in it."""
        # A Python that was built elsewhere looks there for its own library.
        environment = {"LD_LIBRARY_PATH": "/usr/local/lib", **environment}
        variables = [f"{name}={value}" for name, value in environment.items()]
        return shlex.join(
            [
                *("exec", "chroot", f"--userspec={user}", str(self.layer / "root")),
                *("env", "-i", f"--chdir={self.directory}", *variables, *command),
            ]
        )

    def run(self, command: list[str]) -> None:
        settings = {name: value for name, value in os.environ.items() if _SETTINGS.fullmatch(name)}
        environment = {**settings, "HOME": "/root", **self.environment}
        script = self.prepare() + self.enter(command, environment=environment, user=self.user)
        subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", script], check=True
        )


class Image:
    """What the Containerfile makes."""

    def __init__(self, *, project: Path, directory: Path) -> None:
        """
        Build it.

        :param project: where the Containerfile is.
        :param directory: an empty one, for the layers.
        """
        self._project = project
        self._directory = directory
        self._stages: dict[str, _Stage] = {}
        for instruction in instructions((project / "Containerfile").read_text()):
            getattr(self, f"_{instruction.name.lower()}")(instruction.arguments)

    @property
    def files(self) -> Path:
        """What the last stage has put on top of its base."""
        return self._stage.layer / "upper"

    def _from(self, arguments: str) -> None:
        _base, *name = arguments.split()
        self._stage = _Stage(self._directory / f"stage{len(self._stages)}")
        self._stages[name[-1] if name else ""] = self._stage
        (self._stage.layer / "upper").mkdir(parents=True)

    def _run(self, arguments: str) -> None:
        self._stage.run(["sh", "-ec", arguments])

    def _copy(self, arguments: str) -> None:
        *options, source, target = arguments.split()
        to = self.files / target.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        if options:
            from_stage = self._stages[options[0].removeprefix("--from=")]
            shutil.copytree(from_stage.layer / "upper" / source.lstrip("/"), to, symlinks=True)
        elif source == ".":
            self._copy_context(to)
        else:
            shutil.copy2(self._project / source, to)

    def _copy_context(self, to: Path) -> None:
        patterns = (self._project / ".containerignore").read_text().split("\n")
        left_out = [pattern.removeprefix("**/") for pattern in patterns if pattern.startswith("**/")]
        for name in (pattern[1:] for pattern in patterns if pattern.startswith("!")):
            path = self._project / name
            if path.is_dir():
                ignored = shutil.ignore_patterns(*left_out)
                shutil.copytree(path, to / name, symlinks=True, ignore=ignored, dirs_exist_ok=True)
            elif not any(fnmatch(name, pattern) for pattern in left_out):
                shutil.copy2(path, to / name)

    def _env(self, arguments: str) -> None:
        for assignment in shlex.split(arguments):
            name, value = assignment.split("=", 1)
            self._stage.environment[name] = value.replace("$PATH", self._stage.environment["PATH"])

    def _user(self, arguments: str) -> None:
        self._stage.user = arguments

    def _workdir(self, arguments: str) -> None:
        self._stage.directory = arguments

    def _volume(self, arguments: str) -> None:
        self._stage.volumes.append(arguments)

    def _entrypoint(self, arguments: str) -> None:
        self._stage.entry_point = json.loads(arguments)

    def _healthcheck(self, arguments: str) -> None:
        self._stage.health_check = json.loads(arguments.partition("CMD")[2])

    def _expose(self, arguments: str) -> None:
        """Nothing: what is listened on is open."""

    def _arg(self, arguments: str) -> None:
        """Nothing: this machine is the base."""

    def _label(self, arguments: str) -> None:
        """Nothing: the service does not see them."""

    def _stopsignal(self, arguments: str) -> None:
        assert arguments == "SIGTERM"

    def start(self, *, volume: Path, environment: dict[str, str]) -> Container:
        """
        Run it: with nothing writable but the volume, and as its own user.

        :param volume: what is at its only volume; it belongs to the user from then on.
        """
        stage = self._stage
        (mount_point,) = stage.volumes
        uid, gid = stage.user.split(":")
        os.chown(volume, int(uid), int(gid))
        root = shlex.quote(str(stage.layer / "root"))
        variables = {**stage.environment, **environment}
        script = (
            stage.prepare()
            + f"ip link set lo up; mount -o remount,ro {root};"
            + f"mount --bind {shlex.quote(str(volume))} {root}{mount_point};"
            + stage.enter(stage.entry_point, environment=variables, user=stage.user)
        )
        process = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-euc", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Container(process, stage)


class Container:
    """A container that runs."""

    def __init__(self, process: subprocess.Popen[str], stage: _Stage) -> None:
        self._process = process
        self._stage = stage

    def _pid(self) -> int | None:
        """Of its first process, as this machine counts."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        found = children.read_text().split() if self._process.poll() is None else []
        return int(found[0]) if found else None

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run one more command in it, as its user."""
        uid, gid = self._stage.user.split(":")
        variables = [
            f"{name}={value}"
            for name, value in {"LD_LIBRARY_PATH": "/usr/local/lib", **self._stage.environment}.items()
        ]
        return subprocess.run(
            [
                *("nsenter", f"--target={self._pid()}", "--mount", "--net", "--pid", "--root"),
                *(f"--setuid={uid}", f"--setgid={gid}", "env", "-i", *variables, *command),
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def is_healthy(self) -> bool:
        """Whether its health check says so."""
        return self._pid() is not None and self.run(self._stage.health_check).returncode == 0

    def wait_until_healthy(self) -> None:
        wait_until(lambda: self._process.poll() is not None or self.is_healthy(), "it is healthy")
        assert self._process.poll() is None, self.wait()

    def terminate(self) -> None:
        """Ask it to end, as an engine does."""
        os.kill(self._pid(), signal.SIGTERM)

    def wait(self) -> tuple[int, str]:
        """Return how it ended, and what it printed."""
        printed, _ = self._process.communicate(timeout=60)
        return self._process.returncode, printed

    def kill(self) -> None:
        """End it, however it is."""
        pid = self._pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self._process.wait(timeout=60)
        self._process.stdout.close()
