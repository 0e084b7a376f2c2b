"""What every stage and every architecture does, of whoever's package it is, as functions for tests.

    from tamis.testing import check_architecture, check_stage

    def test_my_stage(index):
        found = [(index.bm25() % 20)(query) for query in ("who wrote killing the blues", "sieve")]
        check_stage(MyStage(weight=0.5), found)

    def test_my_architecture():
        check_architecture(MyArchitecture(), "folder/of/an/encoder")

Give a stage that finds candidates the bare queries, `Ranking(Query("q1", "sieve"))`, and any other one what
it might get in a pipeline: some rankings of different queries with several candidates each. Architectures are
trained, for which torch is needed.
"""

from __future__ import annotations

from tamis.testing.architectures import check_architecture
from tamis.testing.stages import check_stage

__all__ = ["check_architecture", "check_stage"]
