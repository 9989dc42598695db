"""
Build what a release publishes, and check it: `make dist`.

``dist/`` gets a source distribution and a wheel of the package, of its client alone and of the contract of
brokers, an SBOM of the package's locked requirements and of Swagger UI, and their checksums.
The same commit gives the same bytes: the umask, the user, the clock and untracked files make no difference.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from swagger_ui import VERSION as SWAGGER_UI_VERSION

PROJECT = Path(__file__).resolve().parent.parent
DIST = PROJECT / "dist"

NAME = "sampleapp-http-gateway"
# In the names of files (PEP 625).
STEM = NAME.replace("-", "_")

# Built from a part of the sources.
PARTS = ("client", "testing")

# In the repository and not in the source distribution; src/twisted is a link there, and files here.
LEFT_OUT = {
    ".gitignore",
    "src/twisted",
    *(f"distributions/{part}/{link}" for part in PARTS for link in ("LICENSE", "src")),
}
# Written by setuptools.
GENERATED = re.compile(rf"PKG-INFO|setup\.cfg|src/{STEM}\w*\.egg-info/.*|src/twisted/plugins/.*\.py")


def main() -> None:
    """Build twice, compare, check, and write ``dist/``."""
    version = project_version()
    with tempfile.TemporaryDirectory(prefix="sampleapp-dist-") as name:
        directory = Path(name)
        epoch = commit_time_s()
        built = build_twice(directory / "package", ".", epoch)
        check_names(*built, STEM, version)
        check_contents(*built)
        for distribution in built:
            check_installation(distribution, directory / f"environment{distribution.suffix}", version)
        for part in PARTS:
            pair = build_twice(directory / part, f"distributions/{part}", epoch)
            check_names(*pair, f"{STEM}_{part}", version)
            check_part(*pair, part)
            for distribution in pair:
                environment = directory / f"{part}{distribution.suffix}"
                check_installation_of_part(distribution, built[1], environment, part)
            built += pair
        sbom = directory / f"{STEM}-{version}.cdx.json"
        write_sbom(sbom, version)
        publish([*built, sbom])


def project_version() -> str:
    """Return the version in setup.py, the only place where it is set."""
    return re.findall(r'(?m)^    version="(.+)",$', (PROJECT / "setup.py").read_text())[0]


def commit_time_s() -> int:
    """Return when the last commit was made, in seconds since the epoch. Warn of changes since."""
    if output("git", "status", "--porcelain", "--untracked-files=no"):
        say("NOT FOR A RELEASE: files have changed since the last commit.")
    return int(output("git", "log", "-1", "--format=%ct"))


def tracked_files() -> list[str]:
    """Return the paths of the files that git has, without those that were deleted since."""
    paths = output("git", "ls-files", "-z").split("\0")
    return sorted(path for path in paths if os.path.lexists(PROJECT / path) and path)


def build_twice(directory: Path, folder: str, epoch: int) -> tuple[Path, Path]:
    """Build in two directories, compare, and return the source distribution and the wheel."""
    built, again = (build(directory / side, folder, epoch) for side in ("one", "two"))
    for one, two in zip(built, again, strict=True):
        require(one.read_bytes() == two.read_bytes(), f"{one.name} is the same when built again")
    return built


def build(directory: Path, folder: str, epoch: int) -> tuple[Path, Path]:
    """
    Build the source distribution and the wheel from a copy of the tracked files, and return both.

    :param folder: in the repository; it has the distribution's ``pyproject.toml``.
    """
    sources, results = directory / "sources", directory / "results"
    for path in tracked_files():
        target = sources / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / path, target, follow_symlinks=False)
        if not target.is_symlink():
            target.chmod(0o755 if os.access(target, os.X_OK) else 0o644)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(results)]
    # The wheel is built from the unpacked source distribution, as an installer would.
    run([*command, "--sdist", str(sources / folder)], environment)
    (raw,) = results.iterdir()
    sdist = directory / raw.name
    normalize(raw, sdist, epoch)
    with tarfile.open(sdist) as archive:
        # Before Python 3.11.4 there are no filters, and no keyword for them.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory / "unpacked")  # noqa: S202 - of this build
    (unpacked,) = (directory / "unpacked").iterdir()
    run([*command, "--wheel", str(unpacked)], environment)
    (wheel,) = results.glob("*.whl")
    return sdist, wheel


def normalize(raw: Path, sdist: Path, epoch: int) -> None:
    """Copy a source distribution without the user, the times and the permissions that setuptools put in."""
    with (
        tarfile.open(raw) as source,
        sdist.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            entry = tarfile.TarInfo(member.name)
            entry.mtime = epoch
            entry.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            if member.isdir():
                entry.type = tarfile.DIRTYPE
                target.addfile(entry)
                continue
            # A hard link becomes a file.
            content = source.extractfile(member)
            assert content is not None, member.name
            data = content.read()
            entry.size = len(data)
            target.addfile(entry, io.BytesIO(data))


def check_names(sdist: Path, wheel: Path, stem: str, version: str) -> None:
    """Check names and metadata."""
    require(sdist.name == f"{stem}-{version}.tar.gz", f"{sdist.name} is named after the version")
    require(wheel.name == f"{stem}-{version}-py3-none-any.whl", f"{wheel.name} is named after the version")
    run([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    # W009: twistd's plugins are files of the package twisted.plugins.
    run(["check-wheel-contents", "--ignore", "W009", str(wheel)])


def files_of(sdist: Path, wheel: Path) -> tuple[set[str], set[str]]:
    """Return the paths of the files in a source distribution, and in a wheel without its metadata."""
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        return members, {name for name in archive.namelist() if ".dist-info/" not in name}


def check_contents(sdist: Path, wheel: Path) -> None:
    """Check that each file of the package is where it belongs and nothing else is there."""
    tracked = set(tracked_files()) - LEFT_OUT
    members, names = files_of(sdist, wheel)
    require(tracked <= members, "the source distribution has each file of the repository", tracked - members)
    others = {name for name in members - tracked if not GENERATED.fullmatch(name)}
    require(not others, "the source distribution has nothing else", others)
    packaged = {
        path.removeprefix("src/") for path in tracked if path.startswith(("src/sampleapp/", "twisted/"))
    }
    require(names == packaged, "the wheel has the package and its plugin", names ^ packaged)


def check_part(sdist: Path, wheel: Path, part: str) -> None:
    """Check that the distributions of a part have the whole of each folder that they have."""
    members, names = files_of(sdist, wheel)
    folders = {str(Path(name).parent) for name in names}
    sources = {path.removeprefix("src/") for path in tracked_files() if path.startswith("src/sampleapp")}
    wanted = {path for path in sources if str(Path(path).parent) in folders}
    require(names == wanted, f"the wheel of {part} has each file of its folders", names ^ wanted)
    expected = {"LICENSE", "README.md", "pyproject.toml", *(f"src/{name}" for name in names)}
    found = {name for name in members if not GENERATED.fullmatch(name)}
    require(found == expected, f"the source distribution of {part} has the same files", found ^ expected)


def install(environment: Path, *distributions: Path, locks: tuple[str, ...] = ("requirements.lock",)) -> None:
    """Install distributions as the Containerfile does."""
    python = environment / "bin" / "python"
    run([sys.executable, "-m", "venv", str(environment)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for lock in locks:
        run([*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", str(PROJECT / lock)])
    run([*pip, "--no-deps", "--no-build-isolation", *map(str, distributions)])
    run([str(python), "-m", "pip", "--disable-pip-version-check", "check"])


def check_installation_of_part(distribution: Path, package: Path, environment: Path, part: str) -> None:
    """Install a distribution of a part, the contract of brokers with the package, and import it."""
    if part == "testing":
        install(environment, package, distribution, locks=("requirements.lock", "release/requirements.lock"))
    else:
        install(environment, distribution)
    module = {"client": "sampleapp.client", "testing": "sampleapp_testing"}[part]
    run([str(environment / "bin" / "python"), "-c", f"import {module}"])
    say(f"checked: {distribution.name} can be installed, and {module} be imported")


def check_installation(distribution: Path, environment: Path, version: str) -> None:
    """Install the package, and look for the command and the plugin."""
    install(environment, distribution)
    plugins = output(str(environment / "bin" / "twistd"), "--help", cwd=environment)
    found = re.search(r"(?m)^ +sampleapp ", plugins) is not None
    require(found, f"twistd finds the plugin of {distribution.name}")
    printed = output(str(environment / "bin" / "sampleapp"), "--version", cwd=environment)
    require(version in printed.split(), f"sampleapp --version is that of {distribution.name}", printed)


def write_sbom(sbom: Path, version: str) -> None:
    """Write the SBOM: CycloneDX, with the package as the component that needs the others."""
    run(
        [
            *("cyclonedx-py", "requirements", "--output-reproducible", "--mc-type", "application"),
            *("--output-format", "JSON", "--output-file", str(sbom), str(PROJECT / "requirements.lock")),
        ]
    )
    document = json.loads(sbom.read_text(encoding="utf-8"))
    purl = f"pkg:pypi/{NAME}@{version}"
    document["metadata"]["component"] = {
        "bom-ref": purl,
        "type": "application",
        "name": NAME,
        "version": version,
        "purl": purl,
        "licenses": [{"license": {"id": "MIT"}}],
    }
    swagger_ui = f"pkg:npm/swagger-ui-dist@{SWAGGER_UI_VERSION}"
    document["components"].append(
        {
            "bom-ref": swagger_ui,
            "type": "library",
            "name": "swagger-ui-dist",
            "version": SWAGGER_UI_VERSION,
            "purl": swagger_ui,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        }
    )
    document["dependencies"].append({"ref": swagger_ui})
    needed = sorted(component["bom-ref"] for component in document["components"])
    document["dependencies"].append({"ref": purl, "dependsOn": needed})
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    fault = JsonStrictValidator(SchemaVersion.from_version(document["specVersion"])).validate_str(text)
    require(fault is None, f"{sbom.name} follows the schema of CycloneDX", fault)
    sbom.write_text(text, encoding="utf-8")


def publish(files: list[Path]) -> None:
    """Replace ``dist/`` by these files and their checksums."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    lines = []
    for file in files:
        shutil.copy(file, DIST)
        lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    say("", *(line.rstrip() for line in lines), "", f"See {DIST}")


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command of this environment, and show its output only if it fails."""
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Files that a build makes get their permissions from it.
        umask=0o022,
        env=with_tools(environment),
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{' '.join(command)} ended with {done.returncode}")


def output(*command: str, cwd: Path = PROJECT) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.PIPE, text=True).stdout


def with_tools(environment: dict[str, str] | None) -> dict[str, str]:
    """Return an environment whose PATH begins with the tools of this virtual environment."""
    environment = dict(os.environ) if environment is None else environment
    return {**environment, "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])}


def require(condition: bool, claim: str, found: object = "") -> None:  # noqa: FBT001 - as in an assertion
    """Report a passed check, or end the program."""
    if not condition:
        sys.exit(f"Not so: {claim} {found or ''}")
    say(f"checked: {claim}")


def say(*lines: str) -> None:
    """Print, at once."""
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
