"""Checks of the contract of stages and architectures, from any package, as functions for tests.

    from tamis.testing import check_architecture, check_stage

    def test_my_stage(index):
        found = [(index.bm25() % 20)(query) for query in ("who wrote killing the blues", "sieve")]
        check_stage(MyStage(weight=0.5), found)

    def test_my_architecture():
        check_architecture(MyArchitecture(), "folder/of/an/encoder")

Pass a stage that finds candidates only the queries, `Ranking(Query("q1", "sieve"))`. Pass any other stage
rankings as in a pipeline: for several queries, with several candidates each. Architectures are trained, which
needs torch.
"""

from __future__ import annotations

from tamis.testing.architectures import check_architecture
from tamis.testing.stages import check_stage

__all__ = ["check_architecture", "check_stage"]
