"""The engines of rerank_cpu.py, each used as its documentation says. What an engine needs is imported when it
is opened, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32  # sentence-transformers' default
Ranked = list[tuple[str, float]]  # ids and scores, best first


@dataclass(frozen=True)
class Setting:
    """What the engines share: the model's folder, a place for what they make of it, and the texts by id."""

    model: Path
    place: Path
    texts: dict[str, str]
    quantise: str

    @property
    def exported(self) -> Path:
        return self.place / "sentence-transformers-onnx"

    @property
    def small_graph(self) -> str:
        return f"onnx/model_qint8_{self.quantise}.onnx"


class Tamis:
    """The default: int8 by ONNX Runtime."""

    packages = ("tamis", "onnxruntime")
    precision = "int8"

    @staticmethod
    def build(setting: Setting) -> None:
        import tamis
        from tamis.infer.tokens import build_tokens
        from tamis.models.tokenizer import Tokenizer

        documents = (tamis.Document(identity, text) for identity, text in setting.texts.items())
        index = tamis.Index.build(documents, setting.place / "index")
        build_tokens(index, Tokenizer(setting.model))

    def __init__(self, setting: Setting) -> None:
        import tamis
        from tamis.rank.mono import Mono

        self.index = tamis.Index.open(setting.place / "index")
        self.mono = Mono(str(setting.model), precision=self.precision, device="cpu", workers=1)
        self.mono.prepare()

    def rank(self, query: str, ids: Sequence[str]) -> Ranked:
        from tamis.base.documents import Query
        from tamis.core.ranking import Ranking

        given = Ranking(Query("", query), tuple(ids), np.zeros(len(ids)), texts=self.index)
        (ranking,) = self.mono.apply([given])
        return list(zip(ranking.ids, ranking.scores.tolist(), strict=True))


class TamisFp32(Tamis):
    precision = "fp32"

    @staticmethod
    def build(setting: Setting) -> None:
        pass


class SentenceTransformers:
    """The default: torch in fp32."""

    packages: tuple[str, ...] = ("sentence-transformers", "torch", "transformers")

    @staticmethod
    def build(setting: Setting) -> None:
        pass

    def __init__(self, setting: Setting) -> None:
        self.texts = setting.texts
        self.model = self.open(setting)

    def open(self, setting: Setting) -> Any:
        from sentence_transformers import CrossEncoder

        return CrossEncoder(str(setting.model), device="cpu")

    def rank(self, query: str, ids: Sequence[str]) -> Ranked:
        found = self.model.rank(query, [self.texts[i] for i in ids], batch_size=BATCH)
        return [(ids[hit["corpus_id"]], float(hit["score"])) for hit in found]


class SentenceTransformersOnnx(SentenceTransformers):
    packages = ("optimum-onnx", "onnxruntime")

    @staticmethod
    def build(setting: Setting) -> None:
        from sentence_transformers import CrossEncoder, export_dynamic_quantized_onnx_model

        model = CrossEncoder(str(setting.model), backend="onnx", device="cpu", model_kwargs={"export": True})
        model.save_pretrained(str(setting.exported))
        export_dynamic_quantized_onnx_model(model, setting.quantise, str(setting.exported))

    @staticmethod
    def graph(setting: Setting) -> str:
        return "onnx/model.onnx"

    def open(self, setting: Setting) -> Any:
        from sentence_transformers import CrossEncoder

        options = {
            "file_name": self.graph(setting),
            "provider": "CPUExecutionProvider",
            "session_options": one_thread_session(),
        }
        return CrossEncoder(str(setting.exported), backend="onnx", device="cpu", model_kwargs=options)


class SentenceTransformersInt8(SentenceTransformersOnnx):
    packages = ()

    @staticmethod
    def build(setting: Setting) -> None:
        pass

    @staticmethod
    def graph(setting: Setting) -> str:
        return setting.small_graph


class Rerankers(SentenceTransformers):
    packages = ("rerankers",)

    def open(self, setting: Setting) -> Any:
        from rerankers import Reranker

        return Reranker(str(setting.model), model_type="cross-encoder", device="cpu", verbose=0)

    def rank(self, query: str, ids: Sequence[str]) -> Ranked:
        found = self.model.rank(query, [self.texts[i] for i in ids], doc_ids=list(ids))
        return [(hit.document.doc_id, hit.score) for hit in found.results]


class FlashRank(SentenceTransformers):
    packages = ("FlashRank",)
    name, file = "ms-marco-MiniLM-L-12-v2", "flashrank-MiniLM-L-12-v2_Q.onnx"

    def open(self, setting: Setting) -> Any:
        import onnxruntime

        folder = setting.place / "flashrank" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            (folder / name).write_bytes((setting.model / name).read_bytes())
        (folder / self.file).write_bytes((setting.exported / setting.small_graph).read_bytes())
        # it has no setting for threads, and the runtime's own choice leaves the core it is pinned to
        onnxruntime.InferenceSession = partial(
            onnxruntime.InferenceSession, sess_options=one_thread_session()
        )
        from flashrank import Ranker

        return Ranker(self.name, cache_dir=str(folder.parent), log_level="ERROR")

    def rank(self, query: str, ids: Sequence[str]) -> Ranked:
        from flashrank import RerankRequest

        passages = [{"id": i, "text": self.texts[i]} for i in ids]
        found = []
        for start in range(0, len(passages), BATCH):
            found += self.model.rerank(RerankRequest(query, passages[start : start + BATCH]))
        found.sort(key=lambda passage: -passage["score"])
        return [(passage["id"], float(passage["score"])) for passage in found]


ENGINES: dict[str, Any] = {
    "tamis": Tamis,
    "tamis fp32": TamisFp32,
    "st torch": SentenceTransformers,
    "st onnx": SentenceTransformersOnnx,
    "st onnx int8": SentenceTransformersInt8,
    "rerankers": Rerankers,
    "flashrank": FlashRank,
}


def one_thread_session() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
